/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Calls counted by service, cluster and verdict: always, since it costs a look-up and an addition. */
#pragma once

#include "maps.h"

struct choice {
	__u32 plan;
	__u32 service;
	__u32 passed_over; /* an ejected backend, in whose place another is called */
	__u16 cluster;
	__u8 verdict;
};

/* The value to add to; NULL: the key was new and has the first value now, or the map is full. */
static __always_inline void *find_or_insert(void *map, const void *key, const void *first)
{
	void *found = bpf_map_lookup_elem(map, key);

	if (found || !bpf_map_update_elem(map, key, first, BPF_NOEXIST))
		return found;
	return bpf_map_lookup_elem(map, key); /* another CPU was first */
}

static __always_inline void count_in(void *map, const struct choice *choice)
{
	struct counter_key key = {
		.service = choice->service,
		.cluster = choice->cluster,
		.verdict = choice->verdict,
	};
	struct counter first = { .calls = 1 };
	struct counter *found = find_or_insert(map, &key, &first);

	if (found)
		add_relaxed(&found->calls, 1);
}

static __always_inline void count(const struct choice *choice)
{
	count_in(&counters, choice);
}

static __always_inline void count_passed_over(const struct choice *of)
{
	struct choice choice = { .service = of->service, .cluster = of->cluster, .verdict = VERDICT_EJECTED };

	count(&choice);
}

/* Unexpected outcome of a TCP connect that was sent to a backend. */
static __always_inline void count_outcome(const struct attempt *attempt, __u8 verdict)
{
	struct choice choice = { .service = attempt->service, .cluster = attempt->cluster, .verdict = verdict };

	count(&choice);
}

/* Connect that a policy on the way denied. */
static __always_inline void count_denied(const struct attempt *attempt)
{
	struct choice choice = { .service = attempt->service, .cluster = attempt->cluster, .verdict = VERDICT_DENIED };

	count_in(&denied, &choice);
}

/* What a connection carried, when it ends. */
static __always_inline void count_traffic(__u32 cluster, __u64 sent, __u64 received)
{
	struct traffic *found = bpf_map_lookup_elem(&traffic, &cluster);

	if (!found)
		return;
	add_relaxed(&found->sent, sent);
	add_relaxed(&found->received, received);
}
