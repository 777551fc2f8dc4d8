/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What becomes of TCP connects that were sent to a backend: a sock_ops program of the pods' cgroup. */
#pragma once

#include "count.h"
#include "records.h"
#include "rescue.h"
#include "select.h"

#define AF_INET 2
#define FOLLOWED (BPF_SOCK_OPS_RTO_CB_FLAG | BPF_SOCK_OPS_STATE_CB_FLAG)

#define SOCK_DONE_BIT 2 /* 1 << SOCK_DONE of net/sock.h: the peer's FIN was received */

/* Attribute the outcome to the first choice, if no packet was sent to the backend that the connect was moved to. */
static __always_inline void settle(struct attempt *attempt, const struct flow_key *forward)
{
	if (is_unsent(attempt, forward))
		move_back(attempt, forward);
}

/* A socket that was reset: neither it nor its peer sends any more. */
static __always_inline bool was_reset(void *sk)
{
	const struct sock *tcp = bpf_skc_to_tcp_sock(sk);
	int err = tcp ? tcp->sk_err : 0;

	return err == ECONNRESET || err == EPIPE; /* EPIPE: after the peer's FIN */
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
		flow->socket_flags |= FLOW_CLOSED;
}

static __always_inline __u8 reason_of(int err)
{
	return err == ECONNREFUSED ? FAILURE_REFUSED : err == ETIMEDOUT ? FAILURE_SILENT : FAILURE_UNREACHABLE;
}

/*
 * The application gave up: its time-out may be shorter than the SYN's. What it waited for the backend's answer counts as
 * silence where it was long enough. Where it was not, nothing is known, and the trial of the backend that this may have been
 * ends by its own time-out: with the next caller's it would come to the same.
 */
static __always_inline void gave_up(struct attempt *attempt, const struct tcp_sock *tcp)
{
	if (tcp && (__s64)(bpf_ktime_get_ns() - tcp->tcp_clock_cache) >= (__s64)answer_time(attempt))
		count_failure(attempt, FAILURE_SILENT, true);
}

/*
 * Returns enum failure_reason; 0 for a connect that ended without an error: the application aborted it. An ICMP error that
 * no program on the caller's interface has seen may be a denial: ICMPv6 has an errno for that alone; IPv4 maps it to the
 * errno of a missing route, which counts for the caller only. A denial has no error here where it came while connect() held
 * the socket: an application that does not wait in connect() has read it by then.
 */
static __always_inline __u8 closed(struct attempt *attempt, void *sk)
{
	const struct sock *tcp = bpf_skc_to_tcp_sock(sk);
	int err = tcp ? tcp->sk_err : 0;

	if (err == EACCES && attempt->failed != DENIED) {
		note_denial(attempt);
		excuse(attempt, DENIED);
	}
	if (attempt->failed == DENIED) {
		count_denied(attempt);
		return FAILURE_DENIED;
	}
	if (!err) {
		gave_up(attempt, bpf_skc_to_tcp_sock(sk));
		return 0;
	}
	count_failure(attempt, reason_of(err), reason_of(err) != FAILURE_UNREACHABLE);
	count_outcome(attempt, VERDICT_FAILED);
	return reason_of(err);
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

#define READ_CTX64(ctx, field)                                                                 \
	({                                                                                     \
		__u64 value_;                                                                  \
		asm volatile("%0 = *(u64 *)(%1 + %2)"                                          \
			     : "=r"(value_)                                                    \
			     : "r"(ctx), "i"(__builtin_offsetof(struct bpf_sock_ops, field))); \
		value_;                                                                        \
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

static __always_inline __u8 verdict_of(const struct attempt *attempt, __u32 state)
{
	if ((state & 0xff) == STATE_FAILED)
		return state >> 8 == FAILURE_DENIED ? VERDICT_DENIED : VERDICT_FAILED;
	if (attempt->backend != attempt->tried[0])
		return VERDICT_RESCUED;
	return attempt->passed_over ? VERDICT_EJECTED : VERDICT_CALLED;
}

/*
 * What has come of a sampled connect. Where the backend's entry has gone, the peer that the socket has stands for it: the
 * first choice, wherever its packets go.
 */
static __attribute__((noinline)) void record_state(struct bpf_sock_ops *ctx, const struct attempt *attempt,
						   const struct tcp_call *call, __u32 state, const struct traffic *bytes)
{
	__u32 passed_over = attempt->passed_over & ~FOR_CALLER, answered = attempt->backend;
	__u32 asked = passed_over ? passed_over : attempt->tried[0];
	struct flow_record *record;
	struct flow_key key = {};
	const struct backend *backend;

	flow_of(ctx, &key);
	record = reserve_record();
	if (!record)
		return;
	record->time = attempt->started;
	record->took = bpf_ktime_get_ns() - attempt->started;
	record->socket = bpf_get_socket_cookie(ctx);
	record->protocol = IPPROTO_TCP;
	record->service = attempt->service;
	record->verdict = verdict_of(attempt, state);
	record->state = state;
	record->reason = state >> 8;
	copy_address(record->pod, key.pod);
	record->pod_port = key.pod_port;
	if (call) {
		copy_address(record->called, call->dst.address);
		record->called_port = call->dst.port;
	}
	record->for_caller = attempt->passed_over & FOR_CALLER ? 1 : 0;
	write_asked(record, asked);
	if (!record->asked_port && !attempt->passed_over) {
		copy_address(record->asked, key.peer);
		record->asked_port = key.peer_port;
		record->asked_cluster = asked == answered ? attempt->cluster : 0;
	}
	record->answered_backend = answered;
	record->answered_cluster = attempt->cluster;
	copy_address(record->answered, key.peer);
	record->answered_port = key.peer_port;
	backend = answered == attempt->tried[0] ? 0 : get_backend(answered);
	if (backend) {
		copy_address(record->answered, backend->address);
		record->answered_port = backend->port;
	}
	if (bytes) {
		record->sent = bytes->sent;
		record->received = bytes->received;
	}
	submit_record(record);
}

static __always_inline void record(struct bpf_sock_ops *ctx, const struct tcp_call *call, __u32 state,
				   const struct traffic *bytes)
{
	if (call->attempt.recorded)
		record_state(ctx, &call->attempt, call, state, bytes);
}

/* Payload that was acknowledged and received: what the kernel counts, without SYN and FINs. */
static __always_inline void read_traffic(struct bpf_sock_ops *ctx, void *sk, __u32 from, struct traffic *to)
{
	const struct sock *tcp = bpf_skc_to_tcp_sock(sk);
	__u64 acknowledged = READ_CTX64(ctx, bytes_acked), received = READ_CTX64(ctx, bytes_received), control = 1;

	if (!tcp)
		return;
	if (from == BPF_TCP_FIN_WAIT2 || ((from == BPF_TCP_LAST_ACK || from == BPF_TCP_CLOSING) && !tcp->sk_err))
		control = 2;
	to->sent = acknowledged > control ? acknowledged - control : 0;
	to->received = received - (received && tcp->__sk_common.skc_flags & SOCK_DONE_BIT ? 1 : 0);
}

/*
 * Most of what comes is none of these: it is left before anything else of it is read. The kernel asks for the time-out after
 * it has chosen addresses and ports, and before the first SYN.
 */
static __always_inline bool is_followed(__u32 op, __u32 from, __u32 to)
{
	if (op == BPF_SOCK_OPS_STATE_CB)
		return to == BPF_TCP_CLOSE || from == BPF_TCP_SYN_SENT;
	return op == BPF_SOCK_OPS_TIMEOUT_INIT || op == BPF_SOCK_OPS_RTO_CB;
}

static __always_inline void observe(struct bpf_sock_ops *ctx)
{
	__u32 op = READ_CTX(ctx, op), from = READ_CTX(ctx, args[0]), to = READ_CTX(ctx, args[1]);
	struct flow_key key = {};
	struct traffic bytes = {};
	struct tcp_call *call;
	struct attempt *attempt;
	struct bpf_sock *sk;
	__u64 cookie;

	if (!is_followed(op, from, to))
		return;
	sk = ctx->sk;
	if (!sk)
		return;
	cookie = bpf_get_socket_cookie(ctx);
	call = call_of(sk, cookie);
	attempt = any_attempt_of(call);
	if (!attempt)
		return;
	if (!is_of_these_maps(attempt)) {
		if (op == BPF_SOCK_OPS_STATE_CB && to == BPF_TCP_CLOSE && attempt->moved) {
			flow_of(ctx, &key); /* flows is carried over */
			close_flow(&key, from == BPF_TCP_SYN_SENT || was_reset(sk));
		}
		if (op == BPF_SOCK_OPS_STATE_CB && to == BPF_TCP_CLOSE)
			free_place(cookie);
		return;
	}
	if (op == BPF_SOCK_OPS_TIMEOUT_INIT) {
		__u32 timeout, zero = 0;
		const struct config *cfg = bpf_map_lookup_elem(&config, &zero);

		flow_of(ctx, &key);
		if (!is_backend(&call->dst, key.peer, key.peer_port)) {
			attempt->backend = 0; /* of a connect before that made no SYN; this one is to no service */
			free_place(cookie);
			return;
		}
		timeout = cfg ? syn_timeout(attempt, cfg) : 0;
		if (timeout)
			ctx->reply = timeout;
		if (!attempt->unsent)
			return; /* it is asked for again */
		attempt->unsent = 0;
		if (cfg && cfg->flags & CONFIG_MEASURED)
			count_connect(cfg);
		bpf_sock_ops_cb_flags_set(ctx, READ_CTX(ctx, bpf_sock_ops_cb_flags) | FOLLOWED);
		if (anything_moved())
			forget_flow(&key); /* a reused port: forget its last connection */
	} else if (op == BPF_SOCK_OPS_RTO_CB) {
		if (READ_CTX(ctx, state) == BPF_TCP_SYN_SENT) {
			flow_of(ctx, &key);
			rescue_silent(attempt, &key, sk, from, to); /* args: icsk_retransmits, icsk_rto */
		}
	} else if (from == BPF_TCP_SYN_SENT && to == BPF_TCP_ESTABLISHED) {
		if (attempt->moved) {
			flow_of(ctx, &key);
			settle(attempt, &key);
		}
		learn_round_trip(attempt->cluster, READ_CTX(ctx, srtt_us) >> 3);
		learn_handshake(attempt->backend, attempt->generation, (READ_CTX(ctx, srtt_us) >> 3) * 1000ULL);
		count_success(attempt);
		if (attempt->backend != attempt->tried[0]) {
			count_outcome(attempt, VERDICT_RESCUED);
			move_affinity(attempt);
			record_failure(attempt);
		}
		record(ctx, call, STATE_CONNECTED, 0);
	} else if (to == BPF_TCP_CLOSE) {
		if (attempt->moved) {
			flow_of(ctx, &key);
			if (from == BPF_TCP_SYN_SENT)
				settle(attempt, &key);
			close_flow(&key, from == BPF_TCP_SYN_SENT || was_reset(sk));
		}
		if (from == BPF_TCP_SYN_SENT) {
			__u32 reason = closed(attempt, sk);

			record_failure(attempt);
			record(ctx, call, reason ? STATE_FAILED | reason << 8 : STATE_GIVEN_UP, 0);
		} else {
			read_traffic(ctx, sk, from, &bytes);
			count_traffic(attempt->cluster, bytes.sent, bytes.received);
			record(ctx, call, STATE_ENDED, &bytes);
		}
		free_place(cookie);
	}
}

/*
 * A socket is closed whose connect sent no SYN: the caller had no route to the backend, or no address or port towards it, and
 * no other hook has seen that. The call failed, and nothing is known of the backend. A socket in SYN_SENT would have sent its
 * SYN with the first data (TCP_FASTOPEN_CONNECT): that is no failure.
 */
static __always_inline void released(struct bpf_sock *sk)
{
	__u64 cookie = bpf_get_socket_cookie(sk);
	struct attempt *attempt = any_attempt_of(call_of(sk, cookie));

	if (!attempt || (sk->state != BPF_TCP_CLOSE && !attempt->unsent))
		return;
	if (attempt->unsent && is_of_these_maps(attempt)) {
		if (sk->state != BPF_TCP_LISTEN) /* a listener connected long ago: the trial may be another's */
			end_trial(attempt);
		if (sk->state != BPF_TCP_SYN_SENT)
			count_outcome(attempt, VERDICT_FAILED);
	}
	free_place(cookie);
}
