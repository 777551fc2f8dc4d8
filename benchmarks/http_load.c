// SPDX-License-Identifier: Apache-2.0
// Requests and answers of bench_proxy.py, in C so that the interpreter is not what is measured. HTTP/1.1, no body to ask.
//
//   http_load serve ADDRESS PORT TEXT         answers every request with TEXT, on kept connections
//   http_load call KIND ADDRESS PORT          requests of a kind, as load.h has it
//
// KIND existing: one connection that is kept. new: a connection for each. many: MANY kept connections, each with one
// request under way. bulk: an answer of BULK bytes, on one connection that is kept.
#include "load.h"

#include <netinet/tcp.h>
#include <sys/epoll.h>

#define MANY 16
#define BULK (64 << 20)

static const char request[] = "GET / HTTP/1.1\r\nHost: echo\r\n\r\n";
static const char request_bulk[] = "GET /bulk HTTP/1.1\r\nHost: echo\r\n\r\n";
static char zeros[1 << 18];

static void watch(int poll, int sock)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = sock };

	if (epoll_ctl(poll, EPOLL_CTL_ADD, sock, &event))
		fail("epoll_ctl");
}

static int answer_bulk(int sock)
{
	int size = snprintf(zeros, sizeof(zeros), "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", BULK), sent, left = BULK;

	if (send(sock, zeros, size, MSG_NOSIGNAL | MSG_MORE) != size)
		return -1;
	for (; left > 0; left -= sent) {
		sent = send(sock, zeros, left < (int)sizeof(zeros) ? left : (int)sizeof(zeros), MSG_NOSIGNAL);
		if (sent <= 0)
			return -1;
	}
	return 0;
}

// A request is one segment here: none is longer than what callers and proxies send.
static void serve(const char *host, const char *port, const char *text)
{
	struct sockaddr_in at = address(host, port);
	int listener = socket(AF_INET, SOCK_STREAM, 0), poll = epoll_create1(0), one = 1, size, got;
	struct epoll_event events[64];
	char answer[512], data[4096];

	size = snprintf(answer, sizeof(answer), "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n%s", strlen(text), text);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(listener, (const struct sockaddr *)&at, sizeof(at)) || listen(listener, 4096))
		fail("bind");
	watch(poll, listener);
	puts("ready");
	fflush(stdout);
	for (;;) {
		int count = epoll_wait(poll, events, 64, -1);

		for (int i = 0; i < count; i++) {
			int sock = events[i].data.fd;

			if (sock == listener) {
				int made = accept(listener, 0, 0);

				setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
				if (made >= 0)
					watch(poll, made);
			} else if ((got = recv(sock, data, sizeof(data), 0)) <= 0) {
				close(sock);
			} else if (got > 9 && !memcmp(data, request_bulk, 9) ? answer_bulk(sock) :
				   send(sock, answer, size, MSG_NOSIGNAL) != size) {
				close(sock);
			}
		}
	}
}

static int opened(const struct sockaddr_in *at)
{
	int sock = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	struct timeval patience = { 5, 0 };

	setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (connect(sock, (const struct sockaddr *)at, sizeof(*at)))
		fail("connect");
	return sock;
}

static void ask(int sock)
{
	if (send(sock, request, sizeof(request) - 1, MSG_NOSIGNAL) != sizeof(request) - 1)
		fail("send");
}

static void take(int sock)
{
	char data[4096];

	if (recv(sock, data, sizeof(data), 0) < 12 || memcmp(data, "HTTP/1.1 200", 12))
		fail("no answer with 200");
}

static void one_by_one(const struct sockaddr_in *at, int keep, uint32_t *times, int calls)
{
	int sock = keep ? opened(at) : -1;

	for (int i = 0; i < calls; i++) {
		uint64_t began = now(CLOCK_MONOTONIC);

		if (!keep)
			sock = opened(at);
		ask(sock);
		take(sock);
		if (!keep)
			close(sock);
		times[i] = now(CLOCK_MONOTONIC) - began;
	}
	if (keep)
		close(sock);
}

static void bulk(const struct sockaddr_in *at, uint32_t *times, int calls)
{
	static char data[1 << 18];
	int sock = opened(at);

	for (int i = 0; i < calls; i++) {
		uint64_t began = now(CLOCK_MONOTONIC);
		ssize_t left = BULK, got;
		char *body;

		if (send(sock, request_bulk, sizeof(request_bulk) - 1, MSG_NOSIGNAL) < 0)
			fail("send");
		got = recv(sock, data, sizeof(data) - 1, 0);
		data[got > 0 ? got : 0] = 0;
		body = strstr(data, "\r\n\r\n");
		if (!body)
			fail("no head in the first segment");
		for (left -= data + got - (body + 4); left > 0; left -= got) {
			got = recv(sock, data, sizeof(data), 0);
			if (got <= 0)
				fail("the answer is short");
		}
		times[i] = now(CLOCK_MONOTONIC) - began;
	}
	close(sock);
}

static void many(const struct sockaddr_in *at, uint32_t *times, int calls)
{
	int poll = epoll_create1(0), sent = 0, done = 0, socks[MANY];
	struct epoll_event events[MANY];
	uint64_t began[1024] = {};

	for (int i = 0; i < MANY && sent < calls; i++, sent++) {
		socks[i] = opened(at);
		watch(poll, socks[i]);
		began[socks[i]] = now(CLOCK_MONOTONIC);
		ask(socks[i]);
	}
	while (done < calls) {
		int count = epoll_wait(poll, events, MANY, 5000);

		if (count <= 0)
			fail("no answer");
		for (int i = 0; i < count; i++) {
			int sock = events[i].data.fd;

			take(sock);
			times[done++] = now(CLOCK_MONOTONIC) - began[sock];
			if (sent++ < calls) {
				began[sock] = now(CLOCK_MONOTONIC);
				ask(sock);
			}
		}
	}
	for (int i = 0; i < MANY && i < calls; i++)
		close(socks[i]);
	close(poll);
}

static void calls(const char *kind, const struct sockaddr_in *at, uint32_t *times, int count)
{
	if (!strcmp(kind, "many"))
		many(at, times, count);
	else if (!strcmp(kind, "bulk"))
		bulk(at, times, count);
	else
		one_by_one(at, !strcmp(kind, "existing"), times, count);
}

int main(int count, char **arguments)
{
	to_last_processor();
	if (count == 5 && !strcmp(arguments[1], "serve"))
		serve(arguments[2], arguments[3], arguments[4]);
	if (count != 5 || strcmp(arguments[1], "call"))
		return 2;
	struct sockaddr_in at = address(arguments[3], arguments[4]);

	return answer_lines(calls, arguments[2], &at);
}
