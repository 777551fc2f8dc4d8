/* SPDX-License-Identifier: Apache-2.0 */
/* resolve NAME: the addresses getaddrinfo of this C library gives, one a line. Built with glibc and with musl. */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>

int main(int argc, char **argv)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *found;
	char text[64];
	int err = argc < 2 ? EAI_NONAME : getaddrinfo(argv[1], 0, &hints, &found);

	if (err) {
		fprintf(stderr, "%s\n", gai_strerror(err));
		return 1;
	}
	for (; found; found = found->ai_next)
		if (!getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof(text), 0, 0, NI_NUMERICHOST))
			puts(text);
	return 0;
}
