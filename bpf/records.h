/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Flow records: what a call asked for, who answered, and what came of it. Which calls are sampled is decided where they
 * are made; of the others those are recorded that fail or are rescued.
 */
#pragma once

#include "count.h"
#include "draw.h"
#include "failures.h"
#include "maps.h"
#include "sockets.h"

static __always_inline void count_lost(void)
{
	__u32 zero = 0;
	__u64 *lost = bpf_map_lookup_elem(&lost_records, &zero);

	if (lost)
		add_relaxed(lost, 1);
}

/* Zeroed, to be submitted; nothing, which is counted, where the agent does not read as fast as is written. */
static __always_inline struct flow_record *reserve_record(void)
{
	struct flow_record *record = bpf_ringbuf_reserve(&flow_records, sizeof(*record), 0);

	if (!record) {
		count_lost();
		return 0;
	}
	__builtin_memset(record, 0, sizeof(*record));
	return record;
}

/* Not inlined, so that BTF has the struct, which isthmus.datapath checks its codec against. */
static __attribute__((noinline)) void submit_record(struct flow_record *record)
{
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
}

/* The call at hand passes over an ejected backend; route() asks for it below in the same run of the program. */
static __always_inline void note_passed_over(struct bpf_sock_addr *ctx, __u32 backend)
{
	__u32 zero = 0;
	struct passed_over *last = bpf_map_lookup_elem(&passed_over, &zero);

	if (!last || last->socket == bpf_get_socket_cookie(ctx))
		return; /* the first: that of affinity comes before one that was drawn */
	last->socket = bpf_get_socket_cookie(ctx);
	last->backend = backend;
}

/*
 * 0: none, or the one that is called after all. A program may be preempted by one that overwrites the entry: then the call
 * counts as any other.
 */
static __always_inline __u32 take_passed_over(struct bpf_sock_addr *ctx, __u32 called)
{
	__u32 zero = 0;
	struct passed_over *last = bpf_map_lookup_elem(&passed_over, &zero);

	if (!last || last->socket != bpf_get_socket_cookie(ctx))
		return 0;
	last->socket = 0;
	return (last->backend & ~FOR_CALLER) == called ? 0 : last->backend;
}

/* ns for each call of one caller, whose share is an allowance that it may use up at once. */
#define CALL_INTERVAL 2000000	  /* sampled calls, while the agent is behind: 500 a second */
#define FAILURE_INTERVAL 20000000 /* failures that were not sampled: 50 a second, so that a loop costs the agent little */
#define CALLS_AT_ONCE 100

/*
 * Report whether a caller has used up its share, and charge it for one call. A call that finds no room in it is counted
 * as lost.
 */
static __attribute__((noinline)) bool is_over_share(__u32 netns, __u32 interval)
{
	__u64 key = (__u64)interval << 32 | netns, now = bpf_ktime_get_ns(), paid = now;
	__u64 *found = bpf_map_lookup_elem(&flow_allowances, &key);

	if (!found) {
		paid += interval;
		bpf_map_update_elem(&flow_allowances, &key, &paid, BPF_ANY);
		return false;
	}
	if (READ_ONCE(*found) > now)
		paid = READ_ONCE(*found);
	if (paid - now >= (__u64)interval * CALLS_AT_ONCE) {
		count_lost();
		return true;
	}
	WRITE_ONCE(*found, paid + interval); /* accepts a race: two CPUs count as one */
	return false;
}

/*
 * True while half of the ring is unread: then shares count for sampled calls, too, so that no caller fills the other half
 * alone.
 */
static __always_inline bool is_agent_behind(void)
{
	return bpf_ringbuf_query(&flow_records, BPF_RB_AVAIL_DATA) >= FLOW_RECORDS_SIZE / 2;
}

static __always_inline bool is_sampled(__u32 one_of)
{
	return one_of == 1 || !scale(bpf_get_prandom_u32(), one_of);
}

static __always_inline void write_asked(struct flow_record *record, __u32 id)
{
	const struct backend *backend = get_backend(id);

	record->asked_backend = id;
	if (!backend)
		return;
	copy_address(record->asked, backend->address);
	record->asked_port = backend->port;
	record->asked_cluster = backend->cluster;
}

/* A call that no more will be known of: a datagram, or one that was refused here. */
static __attribute__((noinline)) void record_call(struct bpf_sock_addr *ctx, const struct frontend_key *key,
						  const struct orig_dst *dst, const struct choice *choice)
{
	struct flow_record *record = reserve_record();

	if (!record)
		return;
	record->time = bpf_ktime_get_ns();
	record->socket = bpf_get_socket_cookie(ctx);
	record->caller = bpf_get_netns_cookie(ctx);
	copy_address(record->called, key->address);
	record->called_port = key->port;
	record->protocol = key->protocol;
	record->service = choice->service;
	record->verdict = choice->verdict;
	if (choice->verdict == VERDICT_CALLED) {
		record->state = STATE_SENT;
		write_asked(record, dst->backend);
		record->answered_backend = dst->backend;
		copy_address(record->answered, dst->backend_address);
		record->answered_port = dst->backend_port;
		record->answered_cluster = choice->cluster;
	} else {
		record->state = STATE_FAILED;
	}
	submit_record(record);
}

/* Record a call that ends here, if it fails or is one of so many; of a connect, mark whether its outcome is recorded. */
static __always_inline void sample(struct bpf_sock_addr *ctx, const struct frontend_key *key, const struct orig_dst *dst,
				   const struct choice *choice, struct attempt *attempt, __u32 one_of)
{
	if (choice->verdict == VERDICT_STEERED)
		return;
	if (attempt && !attempt->started)
		attempt->started = bpf_ktime_get_ns(); /* it may fail */
	if (is_sampled(one_of)) {
		if (is_agent_behind() && is_over_share(caller_of(ctx), CALL_INTERVAL))
			return;
	} else if (choice->verdict == VERDICT_CALLED || is_over_share(caller_of(ctx), FAILURE_INTERVAL)) {
		return;
	}
	if (attempt)
		attempt->recorded = 1;
	else
		record_call(ctx, key, dst, choice);
}

/* Record the outcome of a connect that fails or is rescued, although it was not sampled. */
static __attribute__((noinline)) void record_failure(struct attempt *attempt)
{
	__u32 zero = 0;
	const struct config *cfg = bpf_map_lookup_elem(&config, &zero);

	if (cfg && cfg->flows && !attempt->recorded && !is_over_share(attempt->caller, FAILURE_INTERVAL))
		attempt->recorded = 1;
}
