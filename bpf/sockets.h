/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What a socket called and what was chosen, in the socket's own storage: nothing to clean up, no id to keep alive. */
#pragma once

#include "maps.h"

/*
 * A miss changes nothing, so what is kept can be of an earlier call of the socket. It matters only to one that first
 * calls a service, fails, and then calls the very backend by its own address: it is shown the service's.
 */
static __always_inline bool is_chosen(const struct call *call, const __be32 *address, __be16 port)
{
	return call->chosen_port == port && same_address(call->chosen, address);
}

static __always_inline void read_address6(__be32 *to, const struct bpf_sock_addr *ctx)
{
	to[0] = ctx->user_ip6[0];
	to[1] = ctx->user_ip6[1];
	to[2] = ctx->user_ip6[2];
	to[3] = ctx->user_ip6[3];
}

static __always_inline void write_address6(struct bpf_sock_addr *ctx, const __be32 *from)
{
	ctx->user_ip6[0] = from[0];
	ctx->user_ip6[1] = from[1];
	ctx->user_ip6[2] = from[2];
	ctx->user_ip6[3] = from[3];
}

static __always_inline int remember_tcp(struct bpf_sock_addr *ctx, const struct call *call)
{
	struct call *kept = bpf_sk_storage_get(&tcp_calls, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

	if (!kept)
		return -ENOMEM;
	*kept = *call;
	return 0;
}

/* -EEXIST: the socket knows this call already. The oldest of MAX_CALLS gives way; its replies then show the backend. */
static __always_inline int remember_udp(struct bpf_sock_addr *ctx, const struct call *call)
{
	struct calls *kept = bpf_sk_storage_get(&udp_calls, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	__u32 place;

	if (!kept)
		return -ENOMEM;
	place = kept->next;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < MAX_CALLS; i++) {
		struct call *known = &kept->call[i];

		if (!is_chosen(known, call->chosen, call->chosen_port))
			continue;
		if (known->called_port == call->called_port && same_address(known->called, call->called))
			return -EEXIST;
		place = i; /* another name for the same backend: the last one called is the one a reply shows */
	}
	if (place >= MAX_CALLS)
		place = 0;
	kept->call[place] = *call;
	if (place == kept->next)
		kept->next = place + 1 < MAX_CALLS ? place + 1 : 0;
	return 0;
}

static __always_inline int remember(struct bpf_sock_addr *ctx, const struct frontend_key *key, struct call *call)
{
	copy_address(call->called, key->address);
	call->called_port = key->port;
	return key->protocol == IPPROTO_TCP ? remember_tcp(ctx, call) : remember_udp(ctx, call);
}

/* The call of this socket that went to address and port, or nothing. */
static __always_inline const struct call *recall(struct bpf_sock_addr *ctx, const __be32 *address, __be16 port)
{
	const struct calls *kept;

	if (ctx->protocol == IPPROTO_TCP) {
		const struct call *only = bpf_sk_storage_get(&tcp_calls, ctx->sk, 0, 0);

		return only && is_chosen(only, address, port) ? only : 0;
	}
	kept = bpf_sk_storage_get(&udp_calls, ctx->sk, 0, 0);
	if (!kept)
		return 0;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < MAX_CALLS; i++)
		if (is_chosen(&kept->call[i], address, port))
			return &kept->call[i];
	return 0;
}
