/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Flow records: what a sampled call asked for, who answered, and what came of it. Which calls are sampled is decided
 * where they are made; of the others nothing here runs but a test of one word.
 */
#pragma once

#include "count.h"
#include "draw.h"
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

	if (!last)
		return;
	last->socket = bpf_get_socket_cookie(ctx);
	last->backend = backend;
}

/* 0: none. A program may be preempted by one that overwrites the entry: then the call counts as any other. */
static __always_inline __u32 take_passed_over(struct bpf_sock_addr *ctx)
{
	__u32 zero = 0;
	struct passed_over *last = bpf_map_lookup_elem(&passed_over, &zero);

	if (!last || last->socket != bpf_get_socket_cookie(ctx))
		return 0;
	last->socket = 0;
	return last->backend;
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

/* The call is one of so many: written at once where it ends here, else by the outcome of its connect. */
static __always_inline void sample(struct bpf_sock_addr *ctx, const struct frontend_key *key, const struct orig_dst *dst,
				   const struct choice *choice, struct attempt *attempt, __u32 one_of)
{
	if (choice->verdict == VERDICT_STEERED || !is_sampled(one_of))
		return;
	if (attempt) {
		attempt->recorded = 1;
		attempt->started = bpf_ktime_get_ns();
	} else {
		record_call(ctx, key, dst, choice);
	}
}
