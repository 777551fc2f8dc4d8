// SPDX-License-Identifier: Apache-2.0
// Requests and answers of bench_proxy.py, in C so that the interpreter is not what is measured. HTTP/1.1, no body to ask.
//
//   http_load serve ADDRESS PORT TEXT         answers every request with TEXT, on kept connections
//   http_load call KIND ADDRESS PORT          for each line "N" on stdin: N requests, then their times in ns as u32s, and
//                                             the processor time of this process in ns as a u64
//
// KIND existing: one connection that is kept. new: a connection for each. many: MANY kept connections, each with one
// request under way. All on the last processor, so that no call waits for another one to wake up.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MANY 16
#define MOST_CALLS (1 << 20)

static const char request[] = "GET / HTTP/1.1\r\nHost: echo\r\n\r\n";

static uint64_t now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

static void fail(const char *what)
{
	fprintf(stderr, "http_load: %s: %s\n", what, strerror(errno));
	exit(1);
}

static struct sockaddr_in address(const char *host, const char *port)
{
	struct sockaddr_in found = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };

	if (inet_pton(AF_INET, host, &found.sin_addr) != 1)
		fail(host);
	return found;
}

static void watch(int poll, int sock)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = sock };

	if (epoll_ctl(poll, EPOLL_CTL_ADD, sock, &event))
		fail("epoll_ctl");
}

// A request is one segment here: none is longer than what callers and proxies send.
static void serve(const char *host, const char *port, const char *text)
{
	struct sockaddr_in at = address(host, port);
	int listener = socket(AF_INET, SOCK_STREAM, 0), poll = epoll_create1(0), one = 1, size;
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
			} else if (recv(sock, data, sizeof(data), 0) <= 0 ||
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

int main(int count, char **arguments)
{
	static uint32_t times[MOST_CALLS];
	char line[32];
	cpu_set_t last;

	CPU_ZERO(&last);
	CPU_SET(sysconf(_SC_NPROCESSORS_ONLN) - 1, &last);
	sched_setaffinity(0, sizeof(last), &last);
	if (count == 5 && !strcmp(arguments[1], "serve"))
		serve(arguments[2], arguments[3], arguments[4]);
	if (count != 5 || strcmp(arguments[1], "call"))
		return 2;
	struct sockaddr_in at = address(arguments[3], arguments[4]);

	while (fgets(line, sizeof(line), stdin)) {
		int calls = atoi(line);
		uint64_t spent = now(CLOCK_PROCESS_CPUTIME_ID);

		if (calls < 1 || calls > MOST_CALLS)
			return 2;
		if (!strcmp(arguments[2], "many"))
			many(&at, times, calls);
		else
			one_by_one(&at, !strcmp(arguments[2], "existing"), times, calls);
		spent = now(CLOCK_PROCESS_CPUTIME_ID) - spent;
		fwrite(times, sizeof(times[0]), calls, stdout);
		fwrite(&spent, sizeof(spent), 1, stdout);
		fflush(stdout);
	}
	return 0;
}
