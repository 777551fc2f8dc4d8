/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Services that share backends. Only its sender shows which service an answer is from, so a UDP socket uses a backend for one
 * service; and the kernel allows one connection from a source port to a backend. A second service gets another backend of
 * the tier in use; if there is none, the drawn one stands.
 */
#pragma once

#include "failures.h"

/* Port that the socket was bound to before this call; 0 for nearly all. */
static __always_inline __u32 fixed_port(struct bpf_sock_addr *ctx)
{
	const struct bpf_sock *sk = ctx->sk;

	return sk ? sk->src_port : 0;
}

static __always_inline void port_key_of(struct bpf_sock_addr *ctx, struct port_key *key, __u32 backend)
{
	key->caller = caller_of(ctx);
	key->backend = backend;
	key->port = fixed_port(ctx);
	key->protocol = ctx->protocol;
}

/* True if another socket of the port is connected to the backend. One that has no place is not known. */
static __always_inline bool is_port_used(struct bpf_sock_addr *ctx, __u32 backend)
{
	const struct tcp_call *call;
	struct port_key key = {};
	const __u64 *socket;

	port_key_of(ctx, &key, backend);
	socket = bpf_map_lookup_elem(&fixed_ports, &key);
	if (!socket || *socket == bpf_get_socket_cookie(ctx))
		return false;
	call = call_in_place(*socket);
	return call && READ_ONCE(call->dst.backend) == backend;
}

/*
 * True if the socket of a datagram sends to the backend for another address already, or a connect's source port is in use
 * towards it. For the address that is called the socket uses no backend yet: it would have kept that one.
 */
__walked_once int is_shared(struct bpf_sock_addr *ctx, __u32 backend, __u32 sends)
{
	const struct tcp_call *first;
	const struct orig_dsts *stored;

	if (!sends)
		return is_port_used(ctx, backend);
	first = call_in_place(bpf_get_socket_cookie(ctx));
	if (first && first->dst.backend_port && READ_ONCE(first->dst.backend) == backend && first->dst.generation)
		return 1;
	stored = bpf_sk_storage_get(&udp_sent, ctx->sk, 0, 0);
#pragma clang loop unroll(disable)
	for (__u32 i = 0; stored && i < MAX_ORIG_DST && i < stored->used; i++)
		if (READ_ONCE(stored->dst[i].backend) == backend && stored->dst[i].generation)
			return 1;
	return 0;
}

/* A backend of a group that is not shared, from a random one on; of a large group MAX_SCAN are looked at. */
__walked_once __u64 scan_unshared(struct bpf_sock_addr *ctx, __u32 plan_id, __u32 group, __u32 size, __u32 sends)
{
	__u32 n = scale(bpf_get_prandom_u32(), size);

#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < MAX_SCAN && i < size; i++) {
		__u64 found = use_slot(plan_id, group, (n + i) % size, 0, caller_of(ctx));

		if (found && !is_shared(ctx, found, sends))
			return found;
	}
	return 0;
}

/* A backend of the tier in use that is not shared: by a few draws, which follow the weights, then by looking. 0: none. */
__walked_once __u64 pick_unshared(struct bpf_sock_addr *ctx, __u32 plan_id, __u32 sends)
{
	const struct plan *plan = bpf_map_lookup_elem(&plans, &plan_id);
	bool begun = false;
	__u32 tier = 0;

	if (!plan)
		return 0;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < REDRAWS; i++) {
		__u64 found = draw_slot(plan_id, bpf_get_prandom_u32(), caller_of(ctx));

		if (found && !is_shared(ctx, found, sends))
			return found;
	}
#pragma clang loop unroll(disable)
	for (__u32 group = 0; group < MAX_GROUPS; group++) {
		__u32 size = plan->groups[group].weight ? READ_ONCE(plan->groups[group].count) : 0;
		__u64 found;

		if (!size)
			continue;
		if (begun && plan->groups[group].tier != tier)
			return 0;
		begun = true;
		tier = plan->groups[group].tier;
		found = scan_unshared(ctx, plan_id, group, size, sends);
		if (found)
			return found;
	}
	return 0;
}

/* The backend of a call: what was picked, or another one where that is shared. The port of a connect is remembered. */
__walked_once __u64 unshare(struct bpf_sock_addr *ctx, __u32 plan_id, __u64 picked, __u32 sends)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);
	struct port_key key = {};

	if (is_shared(ctx, picked, sends)) {
		__u64 other = pick_unshared(ctx, plan_id, sends);

		if (!other)
			return picked;
		picked = other;
	}
	if (!sends) {
		port_key_of(ctx, &key, picked);
		bpf_map_update_elem(&fixed_ports, &key, &cookie, BPF_ANY);
	}
	return picked;
}
