/* SPDX-License-Identifier: Apache-2.0 */
/* What connect_load.c and http_load.c share: clocks, errors, addresses, and the loop that callers.py speaks with. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_CALLS (1 << 20)

static inline uint64_t now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

static inline void fail(const char *what)
{
	fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(errno));
	exit(1);
}

static inline struct sockaddr_in address(const char *host, const char *port)
{
	struct sockaddr_in found = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };

	if (inet_pton(AF_INET, host, &found.sin_addr) != 1)
		fail(host);
	return found;
}

/* All run on the last processor, so that no call waits for another one to wake up. */
static inline void to_last_processor(void)
{
	cpu_set_t last;

	CPU_ZERO(&last);
	CPU_SET(sysconf(_SC_NPROCESSORS_ONLN) - 1, &last);
	sched_setaffinity(0, sizeof(last), &last);
}

/*
 * For each line "N" on stdin N calls of a kind, then their times in ns as u32s, and the processor time of this process in
 * ns as a u64.
 */
static inline int answer_lines(void (*calls)(const char *kind, const struct sockaddr_in *at, uint32_t *times, int count),
			       const char *kind, const struct sockaddr_in *at)
{
	static uint32_t times[MAX_CALLS];
	char line[32];

	while (fgets(line, sizeof(line), stdin)) {
		int count = atoi(line);
		uint64_t spent = now(CLOCK_PROCESS_CPUTIME_ID);

		if (count < 1 || count > MAX_CALLS)
			return 2;
		calls(kind, at, times, count);
		spent = now(CLOCK_PROCESS_CPUTIME_ID) - spent;
		fwrite(times, sizeof(times[0]), count, stdout);
		fwrite(&spent, sizeof(spent), 1, stdout);
		fflush(stdout);
	}
	return 0;
}
