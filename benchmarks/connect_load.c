// SPDX-License-Identifier: Apache-2.0
// Calls and answers of bench_connect.py, in C so that the interpreter is not what is measured.
//
//   connect_load serve ADDRESS PORT…          a byte for each TCP connection, an echo for each datagram
//   connect_load call KIND ADDRESS PORT       for each line "N" on stdin: N calls, then their times in ns as u32s, and
//                                             the processor time of this process in ns as a u64
//
// KIND connect: socket, connect, close. byte: the same with one byte from the backend before close. udp: socket, connect,
// a datagram there and back, close. All on the last processor, so that no call waits for another one to wake up.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MOST 32

static uint64_t now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

static void fail(const char *what)
{
	fprintf(stderr, "connect_load: %s: %s\n", what, strerror(errno));
	exit(1);
}

static struct sockaddr_in address(const char *host, const char *port)
{
	struct sockaddr_in found = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };

	if (inet_pton(AF_INET, host, &found.sin_addr) != 1)
		fail(host);
	return found;
}

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

int main(int count, char **arguments)
{
	static uint32_t times[1 << 20];
	char line[32];
	cpu_set_t last;

	CPU_ZERO(&last);
	CPU_SET(sysconf(_SC_NPROCESSORS_ONLN) - 1, &last);
	sched_setaffinity(0, sizeof(last), &last);
	if (count > 2 && !strcmp(arguments[1], "serve"))
		serve(count - 2, arguments + 2);
	if (count != 5 || strcmp(arguments[1], "call"))
		return 2;
	int kind = strcmp(arguments[2], "udp") ? SOCK_STREAM : SOCK_DGRAM;
	int wants_byte = strcmp(arguments[2], "connect");
	struct sockaddr_in at = address(arguments[3], arguments[4]);

	while (fgets(line, sizeof(line), stdin)) {
		int calls = atoi(line);
		uint64_t spent = now(CLOCK_PROCESS_CPUTIME_ID);

		for (int i = 0; i < calls; i++) {
			uint64_t began = now(CLOCK_MONOTONIC);

			call(kind, wants_byte, &at);
			times[i] = now(CLOCK_MONOTONIC) - began;
		}
		spent = now(CLOCK_PROCESS_CPUTIME_ID) - spent;
		fwrite(times, sizeof(times[0]), calls, stdout);
		fwrite(&spent, sizeof(spent), 1, stdout);
		fflush(stdout);
	}
	return 0;
}
