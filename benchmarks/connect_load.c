// SPDX-License-Identifier: Apache-2.0
// Calls and answers of bench_connect.py, in C so that the interpreter is not what is measured.
//
//   connect_load serve ADDRESS PORT…          a byte for each TCP connection, an echo for each datagram
//   connect_load call KIND ADDRESS PORT       calls of a kind, as load.h has it
//
// KIND connect: socket, connect, close. byte: the same with one byte from the backend before close. udp: socket, connect,
// a datagram there and back, close.
#include "load.h"

#include <poll.h>

#define MOST 32

static int listening(int kind, const struct sockaddr_in *at)
{
	int sock = socket(AF_INET, kind, 0), one = 1;

	setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(sock, (const struct sockaddr *)at, sizeof(*at)) || (kind == SOCK_STREAM && listen(sock, 4096)))
		fail("bind");
	return sock;
}

static void answer(int sock, int kind)
{
	struct sockaddr_in from;
	socklen_t size = sizeof(from);
	char data[16];

	if (kind == SOCK_STREAM) {
		int call = accept(sock, 0, 0);

		if (call < 0)
			return;
		send(call, "!", 1, MSG_NOSIGNAL);
		close(call);
	} else if (recvfrom(sock, data, sizeof(data), 0, (struct sockaddr *)&from, &size) > 0) {
		sendto(sock, data, 1, 0, (struct sockaddr *)&from, size);
	}
}

static void serve(int count, char **arguments)
{
	struct pollfd found[MOST];
	int n = 0;

	for (int i = 0; i + 1 < count && n + 1 < MOST; i += 2) {
		struct sockaddr_in at = address(arguments[i], arguments[i + 1]);

		found[n++] = (struct pollfd){ listening(SOCK_STREAM, &at), POLLIN, 0 };
		found[n++] = (struct pollfd){ listening(SOCK_DGRAM, &at), POLLIN, 0 };
	}
	puts("ready");
	fflush(stdout);
	for (;;) {
		poll(found, n, -1);
		for (int i = 0; i < n; i++)
			if (found[i].revents)
				answer(found[i].fd, i % 2 ? SOCK_DGRAM : SOCK_STREAM);
	}
}

static void call(int kind, int wants_byte, const struct sockaddr_in *at)
{
	int sock = socket(AF_INET, kind, 0);
	struct timeval patience = { 5, 0 };
	char byte = '?';

	setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	if (connect(sock, (const struct sockaddr *)at, sizeof(*at)))
		fail("connect");
	if (kind == SOCK_DGRAM && send(sock, &byte, 1, 0) != 1)
		fail("send");
	if (wants_byte && recv(sock, &byte, 1, 0) != 1)
		fail("no answer");
	close(sock);
}

static void calls(const char *kind, const struct sockaddr_in *at, uint32_t *times, int count)
{
	int type = strcmp(kind, "udp") ? SOCK_STREAM : SOCK_DGRAM, wants_byte = strcmp(kind, "connect");

	for (int i = 0; i < count; i++) {
		uint64_t began = now(CLOCK_MONOTONIC);

		call(type, wants_byte, at);
		times[i] = now(CLOCK_MONOTONIC) - began;
	}
}

int main(int count, char **arguments)
{
	to_last_processor();
	if (count > 2 && !strcmp(arguments[1], "serve"))
		serve(count - 2, arguments + 2);
	if (count != 5 || strcmp(arguments[1], "call"))
		return 2;
	struct sockaddr_in at = address(arguments[3], arguments[4]);

	return answer_lines(calls, arguments[2], &at);
}
