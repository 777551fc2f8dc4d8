/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Rewritten destinations of a socket, in its own storage: freed with it, and no id has to be kept for them. */
#pragma once

#include <linux/errno.h>
#include <linux/in.h>
#include <stdbool.h>

#include "maps.h"

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

const volatile struct constants constants = { .has_set_retval = 1, .has_mptcp = 1 };

static __always_inline bool same_address(const __be32 *a, const __be32 *b)
{
	return a[3] == b[3] && a[2] == b[2] && a[1] == b[1] && a[0] == b[0];
}

static __always_inline bool is_mapped(const __be32 *address) /* IPv4, as our keys have it */
{
	return address[2] == bpf_htonl(0xffff) && !address[1] && !address[0];
}

static __always_inline void copy_address(__be32 *to, const __be32 *from)
{
	to[0] = from[0];
	to[1] = from[1];
	to[2] = from[2];
	to[3] = from[3];
}

/*
 * A call that is not ours changes nothing, so an entry can be of an earlier call of the socket. It is wrong only for a
 * socket that called a service in vain and then calls that very backend by its own address: it sees the service's.
 */
static __always_inline bool is_backend(const struct orig_dst *dst, const __be32 *address, __be16 port)
{
	return dst->backend_port == port && same_address(dst->backend_address, address);
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

/* The attempt of a TCP socket, whatever maps its numbers are of; none where it called no service. */
static __always_inline struct attempt *any_attempt_of(void *sk)
{
	struct tcp_call *call = bpf_sk_storage_get(&tcp_calls, sk, 0, 0);

	return call && call->attempt.backend ? &call->attempt : 0;
}

static __always_inline bool is_of_these_maps(const struct attempt *attempt)
{
	__u32 zero = 0;
	const struct config *cfg = bpf_map_lookup_elem(&config, &zero);

	return cfg && attempt->epoch == cfg->epoch;
}

static __always_inline struct attempt *attempt_of(void *sk)
{
	struct attempt *attempt = any_attempt_of(sk);

	return attempt && is_of_these_maps(attempt) ? attempt : 0;
}

/*
 * With Multipath TCP the connect hook runs for a subflow, but getpeername for the socket that the application has: the
 * entry goes there too.
 */
static __always_inline int store_tcp(struct bpf_sock_addr *ctx, const struct orig_dst *dst)
{
	struct tcp_call *stored = bpf_sk_storage_get(&tcp_calls, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	void *owner;

	if (!stored)
		return -ENOMEM;
	stored->dst = *dst;
	stored->attempt.backend = 0;
	if (!constants.has_mptcp)
		return 0;
	owner = bpf_skc_to_mptcp_sock(ctx->sk);
	if (!owner)
		return 0;
	stored = bpf_sk_storage_get(&tcp_calls, owner, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (stored)
		stored->dst = *dst;
	return 0;
}

/* -EEXIST: it is stored already. The oldest of MAX_ORIG_DST is overwritten; its replies then show the backend. */
static __always_inline int store_udp(struct bpf_sock_addr *ctx, const struct orig_dst *dst)
{
	struct orig_dsts *stored = bpf_sk_storage_get(&udp_calls, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	__u32 place;

	if (!stored)
		return -ENOMEM;
	place = stored->next;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < MAX_ORIG_DST; i++) {
		struct orig_dst *known = &stored->dst[i];

		if (!is_backend(known, dst->backend_address, dst->backend_port))
			continue;
		if (known->port == dst->port && same_address(known->address, dst->address))
			return -EEXIST;
		place = i; /* another service with the same backend: its replies show the one called last */
	}
	if (place >= MAX_ORIG_DST)
		place = 0;
	stored->dst[place] = *dst;
	if (place == stored->next)
		stored->next = place + 1 < MAX_ORIG_DST ? place + 1 : 0;
	return 0;
}

static __always_inline int store_orig_dst(struct bpf_sock_addr *ctx, const struct frontend_key *key,
					  struct orig_dst *dst)
{
	copy_address(dst->address, key->address);
	dst->port = key->port;
	return key->protocol == IPPROTO_TCP ? store_tcp(ctx, dst) : store_udp(ctx, dst);
}

/* The entry of this socket whose backend has this address and port, or nothing. */
static __always_inline const struct orig_dst *find_by_backend(struct bpf_sock_addr *ctx, const __be32 *address,
							      __be16 port)
{
	const struct orig_dsts *stored;

	if (ctx->protocol == IPPROTO_TCP || ctx->protocol == IPPROTO_MPTCP) {
		const struct tcp_call *only = bpf_sk_storage_get(&tcp_calls, ctx->sk, 0, 0);

		return only && is_backend(&only->dst, address, port) ? &only->dst : 0;
	}
	stored = bpf_sk_storage_get(&udp_calls, ctx->sk, 0, 0);
	if (!stored)
		return 0;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < MAX_ORIG_DST; i++)
		if (is_backend(&stored->dst[i], address, port))
			return &stored->dst[i];
	return 0;
}
