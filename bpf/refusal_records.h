/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Flow records of SYNs and datagrams that a policy refuses at the pod, or would without audit: all of them, within a share of each pod.
 */
#pragma once

#include "records.h"
#include "sign.h"

/* ns for each record of one pod: 20 a second, so that its callers write no more, and fill no other pod's share. */
#define REFUSAL_INTERVAL 50000000

/* packet: as from parse(), seen from the pod; unknown fields are 0. */
static __attribute__((noinline)) void record_refusal(const struct segment *packet, const struct guarded *guard, __u32 identity,
						     __u32 reason)
{
	__u32 zero = 0;
	const struct config *cfg = bpf_map_lookup_elem(&config, &zero);
	struct flow_record *record;

	if (!cfg || !cfg->flows || is_over_share(guard->ifindex, REFUSAL_INTERVAL))
		return;
	record = reserve_record();
	if (!record)
		return;
	record->time = bpf_ktime_get_ns();
	record->socket = record->time; /* there is no socket here; records need only differ */
	copy_address(record->pod, packet->key.peer);
	record->pod_port = packet->key.peer_port;
	copy_address(record->called, packet->key.pod);
	record->called_port = packet->key.pod_port;
	record->service = guard->policy;
	record->for_caller = identity;
	record->protocol = guard->protocol;
	record->verdict = VERDICT_DENIED;
	record->state = guard->flags & GUARD_AUDIT ? STATE_AUDITED : STATE_REFUSED;
	record->reason = reason;
	submit_record(record);
}
