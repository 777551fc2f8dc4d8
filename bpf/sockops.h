/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What becomes of TCP connects that were sent to a backend: a sock_ops program of the pods' cgroup. */
#pragma once

#include "count.h"
#include "rescue.h"

#define MIN_SYN_TIMEOUT_MS 20
#define AF_INET 2
#define FOLLOWED (BPF_SOCK_OPS_RTO_CB_FLAG | BPF_SOCK_OPS_STATE_CB_FLAG)

/* Only the field we read; libbpf finds its offset in the running kernel. */
struct sock {
	int sk_err;
} __attribute__((preserve_access_index));

static __always_inline void learn_round_trip(__u32 cluster, __u32 measured)
{
	__u32 *known;

	if (!measured)
		return;
	known = bpf_map_lookup_elem(&round_trips, &cluster);
	if (!known)
		bpf_map_update_elem(&round_trips, &cluster, &measured, BPF_NOEXIST);
	else if (measured > *known)
		*known = measured;
	else
		*known -= (*known - measured) / 8;
}

/* Jiffies before the first SYN is sent again: as configured, but 20 ms and three round trips to the cluster at least. */
static __always_inline __u32 syn_timeout(const struct attempt *attempt)
{
	__u32 zero = 0, cluster = attempt->cluster;
	const struct config *cfg = bpf_map_lookup_elem(&config, &zero);
	const __u32 *round_trip;
	__u64 least;

	if (!cfg || !cfg->syn_timeout)
		return 0;
	least = MIN_SYN_TIMEOUT_MS * (__u64)cfg->hz / 1000;
	round_trip = bpf_map_lookup_elem(&round_trips, &cluster);
	if (round_trip && 3ULL * *round_trip * cfg->hz / 1000000 > least)
		least = 3ULL * *round_trip * cfg->hz / 1000000;
	return least > cfg->syn_timeout ? least : cfg->syn_timeout;
}

/* What came of the connect came of the first choice: no packet has gone to the backend that it was moved to. */
static __always_inline void settle(struct attempt *attempt, const struct flow_key *forward)
{
	if (is_unsent(attempt, forward))
		move_back(attempt, forward);
}

/* The socket is gone. What it sent last may be under way: the agent deletes what no last segment does. */
static __always_inline void close_flow(const struct flow_key *forward, bool at_once)
{
	struct flow *flow;

	if (at_once) {
		forget_flow(forward);
		return;
	}
	flow = bpf_map_lookup_elem(&flows, forward);
	if (flow)
		flow->flags |= FLOW_CLOSED;
}

static __always_inline __u8 reason_of(int err)
{
	return err == ECONNREFUSED ? FAILURE_REFUSED : err == ETIMEDOUT ? FAILURE_SILENT : FAILURE_UNREACHABLE;
}

/* A connect that ended without an error was given up by the application: that says nothing about the backend. */
static __always_inline void closed(struct attempt *attempt, void *sk)
{
	const struct sock *tcp = bpf_skc_to_tcp_sock(sk);
	int err = tcp ? tcp->sk_err : 0;

	if (err) {
		count_failure(attempt, reason_of(err));
		count_outcome(attempt, VERDICT_FAILED);
	} else if (anything_fails())
		bpf_map_delete_elem(&trials, &attempt->backend);
}

/* One load at a fixed offset, which clang cannot merge with another: the verifier refuses a moved pointer to ctx. */
#define READ_CTX(ctx, field)                                                                   \
	({                                                                                     \
		__u64 value_;                                                                  \
		asm volatile("%0 = *(u32 *)(%1 + %2)"                                          \
			     : "=r"(value_)                                                    \
			     : "r"(ctx), "i"(__builtin_offsetof(struct bpf_sock_ops, field))); \
		(__u32)value_;                                                                 \
	})

/* The tuple as the socket has it. */
static __always_inline void flow_of(struct bpf_sock_ops *ctx, struct flow_key *key)
{
	if (READ_CTX(ctx, family) == AF_INET) {
		key->pod[2] = key->peer[2] = bpf_htonl(0xffff);
		key->pod[3] = READ_CTX(ctx, local_ip4);
		key->peer[3] = READ_CTX(ctx, remote_ip4);
	} else {
		key->pod[0] = READ_CTX(ctx, local_ip6[0]);
		key->pod[1] = READ_CTX(ctx, local_ip6[1]);
		key->pod[2] = READ_CTX(ctx, local_ip6[2]);
		key->pod[3] = READ_CTX(ctx, local_ip6[3]);
		key->peer[0] = READ_CTX(ctx, remote_ip6[0]);
		key->peer[1] = READ_CTX(ctx, remote_ip6[1]);
		key->peer[2] = READ_CTX(ctx, remote_ip6[2]);
		key->peer[3] = READ_CTX(ctx, remote_ip6[3]);
	}
	key->pod_port = bpf_htons((__u16)READ_CTX(ctx, local_port));
	key->peer_port = bpf_htons((__u16)bpf_htonl(READ_CTX(ctx, remote_port)));
}

/* ctx is read here, once: clang would merge later reads into ones that the verifier refuses. */
static __always_inline void observe(struct bpf_sock_ops *ctx)
{
	__u32 op = ctx->op, from = ctx->args[0], to = ctx->args[1], state = ctx->state, round_trip = ctx->srtt_us >> 3;
	__u32 flags = ctx->bpf_sock_ops_cb_flags;
	struct bpf_sock *sk = ctx->sk;
	struct flow_key key = {};
	struct attempt *attempt;

	if (!sk)
		return;
	if (op != BPF_SOCK_OPS_TIMEOUT_INIT && op != BPF_SOCK_OPS_TCP_CONNECT_CB && op != BPF_SOCK_OPS_RTO_CB &&
	    op != BPF_SOCK_OPS_STATE_CB)
		return;
	attempt = bpf_sk_storage_get(&attempts, sk, 0, 0);
	if (!attempt)
		return;
	if (op == BPF_SOCK_OPS_TIMEOUT_INIT) {
		__u32 timeout = syn_timeout(attempt);

		if (timeout)
			ctx->reply = timeout;
	} else if (op == BPF_SOCK_OPS_TCP_CONNECT_CB) {
		bpf_sock_ops_cb_flags_set(ctx, flags | FOLLOWED);
		if (anything_moved()) {
			flow_of(ctx, &key); /* a port that is used again: what was left of its last connection goes */
			forget_flow(&key);
		}
	} else if (op == BPF_SOCK_OPS_RTO_CB) {
		if (state == BPF_TCP_SYN_SENT) {
			flow_of(ctx, &key);
			rescue_silent(attempt, &key);
		}
	} else if (from == BPF_TCP_SYN_SENT && to == BPF_TCP_ESTABLISHED) {
		if (attempt->moved) {
			flow_of(ctx, &key);
			settle(attempt, &key);
		}
		learn_round_trip(attempt->cluster, round_trip);
		count_success(attempt);
		if (attempt->backend != attempt->tried[0])
			count_outcome(attempt, VERDICT_RESCUED);
	} else if (to == BPF_TCP_CLOSE) {
		if (attempt->moved) {
			flow_of(ctx, &key);
			if (from == BPF_TCP_SYN_SENT)
				settle(attempt, &key);
			close_flow(&key, from == BPF_TCP_SYN_SENT);
		}
		if (from == BPF_TCP_SYN_SENT)
			closed(attempt, sk);
	}
}
