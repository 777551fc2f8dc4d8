/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * How much a pod may ask the node's server: its socket's buffer is one for all pods, and a pod that fills it would have
 * the questions of others dropped. What the kernel answers and what is not ours costs others nothing, and is not counted.
 */
#pragma once

#include "names_common.h"

/* True if a question exceeds the rate. Each takes an interval of time; a pod may be some intervals ahead of the clock. */
static __always_inline bool is_too_many(struct __sk_buff *skb, const struct names_config *cfg)
{
	__u32 pod = skb->ifindex;
	__u64 now = bpf_ktime_get_ns(), paid = now;
	__u64 *found = bpf_map_lookup_elem(&pod_allowances, &pod);

	if (!cfg->interval)
		return false;
	if (!found) {
		paid += cfg->interval;
		bpf_map_update_elem(&pod_allowances, &pod, &paid, BPF_ANY);
		return false;
	}
	if (READ_ONCE(*found) > now)
		paid = READ_ONCE(*found);
	if (paid - now >= (__u64)cfg->interval * QUESTIONS_AT_ONCE)
		return true;
	WRITE_ONCE(*found, paid + cfg->interval); /* accepts a race: two CPUs count as one */
	return false;
}
