/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resolve NAME [timed]: the addresses getaddrinfo of this C library gives, one a line, and at last the milliseconds that
 * the call took. Built with glibc and with musl.
 */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>

static double milliseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

int main(int argc, char **argv)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *found;
	double began = milliseconds(), took;
	char text[64];
	int err = argc < 2 ? EAI_NONAME : getaddrinfo(argv[1], 0, &hints, &found);

	took = milliseconds() - began;
	if (err) {
		fprintf(stderr, "%s\n", gai_strerror(err));
		return 1;
	}
	for (; found; found = found->ai_next)
		if (!getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof(text), 0, 0, NI_NUMERICHOST))
			puts(text);
	if (argc > 2)
		printf("%.3f\n", took);
	return 0;
}
