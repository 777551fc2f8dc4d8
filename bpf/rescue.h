/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A connect that gets no answer, or RST, is moved to another backend while the application waits in connect().
 *
 * Silent: the RTO callback comes before the SYN is sent again. It writes where the connection is moved to; the program on
 * the node's end of the pod's link rewrites the packets. Refused: RST is passed on with an acknowledgement of nothing that
 * was sent. RFC 9293 has SYN-SENT ignore it then, and Linux sends the SYN again after a few ms. Whoever answers first is the
 * peer for good. The socket keeps the address of the first choice; the entries live until both sides have closed.
 */
#pragma once

#include "failures.h"
#include "handshakes.h"

#define SPARE_PORTS 61000 /* the first above Linux's default range of local ports */
#define PORT_TRIES 4
#define ANSWER_UNDER_WAY (5 * NSEC_PER_SEC) /* a machine may stand still for seconds */
#define TC_ACT_UNSPEC (-1) /* go on with the next program */
#define TC_ACT_SHOT 2

static __always_inline bool anything_moved(void)
{
	const struct gate *gate = get_gate(&gates), *looked = get_gate(&settled);

	return gate && looked && READ_ONCE(gate->moved) != READ_ONCE(looked->moved);
}

static __always_inline bool rescue_is_on(void)
{
	__u32 zero = 0;
	const struct config *cfg = bpf_map_lookup_elem(&config, &zero);

	return cfg && cfg->flags & CONFIG_RESCUE;
}

/* A socket's connect can be moved if its packets can be rewritten; else an answer passes, as without us. */
static __always_inline bool can_be_moved(void *sk)
{
	return rescue_is_on() && !sends_options(sk);
}

static __always_inline void reverse_of(struct flow_key *key, const struct flow_key *forward, const struct flow *flow)
{
	copy_address(key->pod, forward->pod);
	key->pod_port = flow->pod_port;
	copy_address(key->peer, flow->peer);
	key->peer_port = flow->peer_port;
	key->reverse = 1;
}

/* Both entries of a connection; nothing where there are none. */
static __always_inline void forget_flow(const struct flow_key *forward)
{
	const struct flow *flow = bpf_map_lookup_elem(&flows, forward);
	struct flow_key reverse = {};

	if (!flow)
		return;
	reverse_of(&reverse, forward, flow);
	bpf_map_delete_elem(&flows, &reverse);
	bpf_map_delete_elem(&flows, forward);
}

/*
 * Remember the SYN to a backend that the connect leaves, under the tuple that the backend knows. waited: jiffies since it was
 * sent, if that is the first choice.
 */
static __attribute__((noinline)) void note_unanswered(const struct attempt *attempt, const struct flow_key *forward, void *sk,
						      __u64 waited)
{
	const struct flow *flow = attempt->moved ? bpf_map_lookup_elem(&flows, forward) : 0;
	const struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);
	__u32 zero = 0;
	const struct config *cfg = bpf_map_lookup_elem(&config, &zero);
	struct flow_key key = *forward;
	struct unanswered syn = {};

	if (!tcp || !cfg || !cfg->hz)
		return;
	if (flow)
		reverse_of(&key, forward, flow);
	key.reverse = 0;
	syn.sent = flow ? flow->used : bpf_ktime_get_ns() - waited * NSEC_PER_SEC / cfg->hz;
	syn.sequence = tcp->snd_una;
	syn.backend = attempt->backend;
	syn.generation = attempt->generation;
	syn.service = attempt->service;
	syn.caller = attempt->caller;
	syn.cluster = attempt->cluster;
	bpf_map_update_elem(&unanswered, &key, &syn, BPF_ANY);
}

#define SCAN(plan, group, size, any) ((__u64)(plan) << 32 | (__u64)(any) << 31 | (__u64)(group) << 24 | ((size) & 0xffffff))

/* A backend of a group that is none of six, two in a word. draw: the caller and a random number. */
__walked_once __u64 scan_untried(__u64 scan, __u64 draw, __u64 a, __u64 b, __u64 c)
{
	__u32 size = scan & 0xffffff, n = scale(mix((__u32)draw), size), caller = draw >> 32;

#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < MAX_SCAN && i < size; i++) {
		__u64 found;
		__u32 id;

		bound_here(scan); /* each is taken apart anew: all parts at once would take more stack than there is */
		bound_here(a);
		bound_here(b);
		bound_here(c);
		found = use_slot(scan >> 32, scan >> 24 & 0x7f, (n + i) % size, scan >> 31 & 1, caller);
		id = found;
		if (id && id != (__u32)a && id != a >> 32 && id != (__u32)b && id != b >> 32 && id != (__u32)c &&
		    id != c >> 32)
			return found;
	}
	return 0;
}

/* A backend of the plan that is none of six: of the lowest tier that has one, ejected ones only when all others failed. */
__walked_once __u64 pick_untried(__u32 plan_id, __u64 draw, __u64 a, __u64 b, __u64 c)
{
	const struct plan *plan = bpf_map_lookup_elem(&plans, &plan_id);

	if (!plan)
		return 0;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < 2 * MAX_GROUPS; i++) {
		__u32 group = i % MAX_GROUPS, size = 0;
		__u64 found = 0;

		if (plan->groups[group].weight)
			size = READ_ONCE(plan->groups[group].count);
		if (size)
			found = scan_untried(SCAN(plan_id, group, size, i / MAX_GROUPS), draw, a, b, c);
		if (found)
			return found;
	}
	return 0;
}

/*
 * The plan that calls of the service follow now, in the place of the one that it had when this connect began: a change of
 * weights is a new plan. Of the address that was called, the one of this service; where it has none any more, the old one
 * stands while it is there.
 */
static __attribute__((noinline)) int follow_plan(struct attempt *attempt)
{
	const struct tcp_call *call = (void *)attempt - __builtin_offsetof(struct tcp_call, attempt);
	struct frontend_key key = { .port = call->dst.port, .protocol = IPPROTO_TCP };

	copy_address(key.address, call->dst.address);
#pragma clang loop unroll(disable)
	for (__u32 scope = 0; scope < 4; scope++) {
		const struct frontend *found;
		const struct plan *plan;
		__u32 id;

		key.scope = scope;
		found = bpf_map_lookup_elem(&frontends, &key);
		if (!found)
			continue;
		id = READ_ONCE(found->plan);
		plan = bpf_map_lookup_elem(&plans, &id);
		if (plan && READ_ONCE(plan->id) == id && READ_ONCE(plan->service) == attempt->service) {
			attempt->plan = id;
			return 0;
		}
	}
	return -ENOENT;
}

static __always_inline __u64 pick_next(const struct attempt *attempt)
{
	const __u32 *t = attempt->tried;

	__u64 draw = (__u64)attempt->caller << 32 | bpf_get_prandom_u32();

	return pick_untried(attempt->plan, draw, (__u64)t[0] << 32 | t[1], (__u64)t[2] << 32 | t[3],
			    (__u64)t[4] << 32 | t[5]);
}

/*
 * Both entries of a connection. Where the pod's port is in use towards this peer, by another moved connection or because
 * the caller found a socket (own_port is false), it gets a spare one. -EEXIST: so are all that were tried; -E2BIG,
 * -ENOMEM: no room, and so no rescue for this call. Not inlined: the way to the other backend has little stack to spare.
 */
static __attribute__((noinline)) int put_flow(const struct flow_key *forward, struct flow *there, bool own_port)
{
	struct flow back = { .pod_port = forward->pod_port, .backend = there->backend, .used = there->used };
	struct flow_key reverse = {};
	struct gate *gate = get_gate(&gates);
	int err = -EEXIST;

	if (!gate)
		return -ENOENT;
	copy_address(back.peer, forward->peer);
	back.peer_port = forward->peer_port;
#pragma clang loop unroll(disable)
	for (int i = 0; i < PORT_TRIES && err == -EEXIST; i++) {
		there->pod_port = forward->pod_port;
		if (i || !own_port)
			there->pod_port = bpf_htons((__u16)(SPARE_PORTS + scale(bpf_get_prandom_u32(), 65536 - SPARE_PORTS)));
		reverse_of(&reverse, forward, there);
		err = bpf_map_update_elem(&flows, &reverse, &back, BPF_NOEXIST);
	}
	if (err)
		return err;
	forget_flow(forward);
	err = bpf_map_update_elem(&flows, forward, there, BPF_ANY);
	if (err) {
		bpf_map_delete_elem(&flows, &reverse);
		return err;
	}
	add_relaxed(&gate->moved, 1);
	return 0;
}

/* Send what follows of a connection to another backend. */
static __always_inline int move_flow(struct attempt *attempt, const struct flow_key *forward, __u64 picked)
{
	__u32 id = picked, generation = picked >> 32;
	const struct backend *backend = get_backend(id);
	struct flow there = { .backend = id, .used = bpf_ktime_get_ns() };
	__u32 cluster;
	int err;

	if (!backend)
		return -EAGAIN;
	copy_address(there.peer, backend->address);
	there.peer_port = backend->port;
	cluster = backend->cluster;
	barrier();
	if (READ_ONCE(backend->generation) != generation)
		return -EAGAIN;
	err = put_flow(forward, &there, true);
	if (err)
		return err;
	attempt->backend = id;
	attempt->generation = generation;
	attempt->cluster = cluster;
	attempt->failed = UNCOUNTED;
	attempt->moved = 1;
	return 0;
}

static __always_inline void note_tried(struct attempt *attempt, __u32 backend)
{
	__u32 n = attempt->tries;

	if (n < MAX_TRIED) {
		attempt->tried[n] = backend;
		attempt->tries = n + 1;
	}
}

/* Back to the first choice: nothing is rewritten any more. */
static __always_inline void move_back(struct attempt *attempt, const struct flow_key *forward)
{
	const struct backend *first;

	forget_flow(forward);
	attempt->backend = attempt->tried[0];
	attempt->failed = COUNTED; /* when the connection left it */
	first = get_backend(attempt->backend);
	if (first) {
		attempt->generation = first->generation;
		attempt->cluster = first->cluster;
	}
}

static __always_inline void start_over(struct attempt *attempt, const struct flow_key *forward)
{
	move_back(attempt, forward);
	attempt->tries = 1;
	for (int i = 1; i < MAX_TRIED; i++)
		attempt->tried[i] = 0;
	bpf_map_delete_elem(&unanswered, forward); /* an answer could be to either of two SYNs */
}

/* 0: the connection is moved. An entry may have changed while it was read: then the next backend is taken. */
static __always_inline int move_on(struct attempt *attempt, const struct flow_key *forward)
{
	int err = -ENOENT;

#pragma clang loop unroll(disable)
	for (int i = 0; i < 2; i++) {
		__u64 picked = attempt->tries < MAX_TRIED ? pick_next(attempt) : 0;

		if (!picked)
			return -ENOENT;
		note_tried(attempt, picked);
		err = move_flow(attempt, forward, picked);
		if (!err)
			return 0;
	}
	return err;
}

/*
 * The connection was moved, and no SYN has gone to the new backend; or one has met an earlier connection of that tuple
 * there, which the pod's RST has ended since: only the next SYN is about this one.
 */
static __always_inline bool is_unsent(const struct attempt *attempt, const struct flow_key *forward)
{
	const struct flow *flow = attempt->moved ? bpf_map_lookup_elem(&flows, forward) : 0;
	__u8 peer = flow ? READ_ONCE(flow->peer_flags) : FLOW_ANSWERED;

	if (peer & FLOW_ANSWERED) /* a SYN of this connection got there, whatever else came from there before */
		return false;
	return !(READ_ONCE(flow->pod_flags) & (peer & FLOW_STALE ? FLOW_SENT_AGAIN : FLOW_SENT));
}

/*
 * The backend that the connection was moved to has answered, and the socket has not seen that yet. To leave it now would
 * send the pod's acknowledgement elsewhere. An answer that is older was lost.
 */
static __always_inline bool is_being_answered(const struct attempt *attempt, const struct flow_key *forward)
{
	const struct flow *flow = attempt->moved ? bpf_map_lookup_elem(&flows, forward) : 0;

	return flow && READ_ONCE(flow->peer_flags) & FLOW_ANSWERED &&
	       (__s64)(bpf_ktime_get_ns() - READ_ONCE(flow->used)) < ANSWER_UNDER_WAY;
}

/* Jiffies that the connect has waited for its backend. For the first choice at most twice that, where the kernel doubles it. */
static __always_inline __u64 waited(const struct attempt *attempt, const struct flow_key *forward, const struct config *cfg,
				    __u32 repeats, __u32 rto)
{
	const struct flow *flow = attempt->moved ? bpf_map_lookup_elem(&flows, forward) : 0;

	if (!flow)
		return (__u64)rto * (repeats + 1);
	return (bpf_ktime_get_ns() - READ_ONCE(flow->used)) * cfg->hz / NSEC_PER_SEC + 1; /* one: timers count ticks */
}

/* True if the backend's own time is over; the configured one if too many connects were moved before that. */
static __always_inline bool is_overdue(const struct attempt *attempt, const struct flow_key *forward, __u32 repeats, __u32 rto)
{
	__u32 zero = 0;
	const struct config *cfg = bpf_map_lookup_elem(&config, &zero);
	__u64 jiffies;

	if (!cfg || !(cfg->flags & CONFIG_MEASURED))
		return true;
	jiffies = waited(attempt, forward, cfg, repeats, rto);
	if (jiffies < syn_timeout(attempt, cfg))
		return false;
	return jiffies >= cfg->syn_timeout || may_move_early(cfg);
}

/*
 * Before the SYN is sent again. A backend that none was sent to yet is not to blame, and gets this one: RST moved the
 * connection there, or the last SYN did not leave the pod. Without our program on the pod's interface it stays like that,
 * and every SYN goes to the first choice. repeats: of the SYN until now; rto: jiffies since the last.
 */
static __always_inline void rescue_silent(struct attempt *attempt, const struct flow_key *forward, void *sk, __u32 repeats,
					  __u32 rto)
{
	if (attempt->failed == DENIED || is_unsent(attempt, forward) || is_being_answered(attempt, forward))
		return;
	if (!is_overdue(attempt, forward, repeats, rto))
		return;
	follow_plan(attempt);
	count_failure(attempt, FAILURE_SILENT, true);
	note_unanswered(attempt, forward, sk, (__u64)rto * (repeats + 1));
	if (can_be_moved(sk) && move_on(attempt, forward))
		start_over(attempt, forward);
}
