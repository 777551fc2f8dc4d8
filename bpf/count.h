/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Calls counted by service, cluster and verdict: always, since it costs a look-up and an addition. */
#pragma once

#include "maps.h"

struct choice {
	__u32 plan;
	__u32 service;
	__u16 cluster;
	__u8 verdict;
};

static __always_inline void count(const struct choice *choice)
{
	struct counter_key key = {
		.service = choice->service,
		.cluster = choice->cluster,
		.verdict = choice->verdict,
	};
	struct counter first = { .calls = 1 };
	struct counter *found = bpf_map_lookup_elem(&counters, &key);

	if (!found && bpf_map_update_elem(&counters, &key, &first, BPF_NOEXIST))
		found = bpf_map_lookup_elem(&counters, &key); /* another CPU was first */
	else if (!found)
		return;
	if (found)
		add_relaxed(&found->calls, 1);
}

/* What came of a TCP connect that was sent to a backend, where that is not what is to be expected. */
static __always_inline void count_outcome(const struct attempt *attempt, __u8 verdict)
{
	struct choice choice = { .service = attempt->service, .cluster = attempt->cluster, .verdict = verdict };

	count(&choice);
}
