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

static __always_inline const struct backend *get_backend(__u32 id)
{
	const struct backend *found = bpf_map_lookup_elem(&backends, &id);

	return found && READ_ONCE(found->generation) ? found : 0;
}

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

static __always_inline struct call_place *place_of(__u64 cookie)
{
	__u32 place = cookie & (CALL_PLACES - 1);

	return bpf_map_lookup_elem(&call_places, &place);
}

static __always_inline struct tcp_call *call_in_place(__u64 cookie)
{
	struct call_place *place = place_of(cookie);

	return place && READ_ONCE(place->socket) == cookie ? &place->call : 0;
}

/* What a TCP socket called, by the socket and its cookie; nothing where it called no service. */
static __always_inline struct tcp_call *call_of(void *sk, __u64 cookie)
{
	struct tcp_call *call = call_in_place(cookie);

	return call ? call : bpf_sk_storage_get(&tcp_calls, sk, 0, 0);
}

/*
 * The socket's place, if that is free or its own already. Who finds its cookie alone among the claims is the owner, and the
 * others take theirs away again: that needs no atomic instruction whose result is read, which 5.10 lacks. Of two that try at
 * once neither may find itself alone; they keep their calls in their storage.
 */
static __always_inline struct tcp_call *take_place(__u64 cookie)
{
	struct call_place *place = place_of(cookie);
	__u64 owner;

	if (!place)
		return 0;
	owner = READ_ONCE(place->socket);
	if (owner)
		return owner == cookie ? &place->call : 0;
	add_relaxed(&place->claims, cookie);
	if (READ_ONCE(place->claims) != cookie) {
		add_relaxed(&place->claims, -cookie);
		return 0;
	}
	place->call.dst.backend_port = 0; /* nothing is called yet */
	WRITE_ONCE(place->socket, cookie);
	return &place->call;
}

/*
 * The socket has ended. Accepts a race: the program of a packet that has found the call just before may write to it when it
 * is another's, which has to have this place too, and to connect in that moment.
 */
static __always_inline void free_place(__u64 cookie)
{
	struct call_place *place = place_of(cookie);

	if (!place || READ_ONCE(place->socket) != cookie)
		return;
	WRITE_ONCE(place->socket, 0);
	add_relaxed(&place->claims, -cookie);
}

/* The attempt of a call, whatever maps its numbers are of; none where no service was called. */
static __always_inline struct attempt *any_attempt_of(struct tcp_call *call)
{
	return call && call->attempt.backend ? &call->attempt : 0;
}

static __always_inline bool is_of_these_maps(const struct attempt *attempt)
{
	__u32 zero = 0;
	const struct config *cfg = bpf_map_lookup_elem(&config, &zero);

	return cfg && attempt->epoch == cfg->epoch;
}

/* Only the fields we read; libbpf finds their offsets in the running kernel. */
struct sock_common {
	unsigned long skc_flags;
	struct {
		__s64 counter;
	} skc_cookie;
} __attribute__((preserve_access_index));

struct sock {
	struct sock_common __sk_common;
	int sk_err;
} __attribute__((preserve_access_index));

struct ipv6_pinfo {
	void *opt;
} __attribute__((preserve_access_index));

struct inet_sock {
	struct ipv6_pinfo *pinet6;
	void *inet_opt;
} __attribute__((preserve_access_index));

struct inet_connection_sock {
	struct inet_sock icsk_inet;
} __attribute__((preserve_access_index));

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 snd_una;
	__u32 write_seq;
	__u64 tcp_clock_cache; /* CLOCK_MONOTONIC, ns: of a socket in SYN_SENT, when it sent its last SYN */
	_Bool is_mptcp;
} __attribute__((preserve_access_index));

/* True for a socket whose packets have options (IPv4) or extension headers (IPv6) of its own, which no program rewrites. */
static __always_inline bool sends_options(void *sk)
{
	const struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);
	const struct ipv6_pinfo *ipv6;

	if (!tcp)
		return false;
	if (tcp->inet_conn.icsk_inet.inet_opt)
		return true;
	if (!__builtin_preserve_field_info(tcp->inet_conn.icsk_inet.pinet6, BPF_FIELD_EXISTS))
		return false; /* a kernel without IPv6 */
	ipv6 = tcp->inet_conn.icsk_inet.pinet6;
	return ipv6 && ipv6->opt;
}

/* True for a subflow of Multipath TCP, for which no helper exists before 5.19. Kernels without MPTCP lack the field. */
static __always_inline bool is_subflow(void *sk)
{
	const struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);

	return tcp && __builtin_preserve_field_info(tcp->is_mptcp, BPF_FIELD_EXISTS) && tcp->is_mptcp;
}

/* Of a socket that was looked up. One without a cookie never was in a hook of ours; a free place has that number. */
static __always_inline struct attempt *attempt_of(void *sk)
{
	const struct sock *tcp = bpf_skc_to_tcp_sock(sk);
	__u64 cookie = tcp ? tcp->__sk_common.skc_cookie.counter : 0;
	struct attempt *attempt = cookie ? any_attempt_of(call_of(sk, cookie)) : 0;

	return attempt && is_of_these_maps(attempt) ? attempt : 0;
}

/*
 * With Multipath TCP the connect hook runs for a subflow, but getpeername for the socket that the application has: the
 * entry goes there too, since 5.19. A subflow is the kernel's own socket, whose release no hook sees, so it takes no place:
 * no hook would free it if no SYN is sent.
 */
static __always_inline struct tcp_call *store_tcp(struct bpf_sock_addr *ctx, const struct orig_dst *dst, bool followed)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);
	void *owner = constants.has_mptcp ? bpf_skc_to_mptcp_sock(ctx->sk) : 0;
	bool subflow = constants.has_mptcp ? owner != 0 : is_subflow(ctx->sk);
	struct tcp_call *stored = 0, *also;

	if (followed && !subflow)
		stored = take_place(cookie);
	else
		free_place(cookie); /* of a connect before that was not sent */
	if (!stored)
		stored = bpf_sk_storage_get(&tcp_calls, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!stored)
		return 0;
	stored->dst = *dst;
	stored->attempt.backend = 0;
	if (!owner)
		return stored;
	also = bpf_sk_storage_get(&tcp_calls, owner, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (also)
		also->dst = *dst;
	return stored;
}

static __always_inline bool is_call(const struct orig_dst *kept, const struct orig_dst *dst)
{
	return is_backend(kept, dst->backend_address, dst->backend_port) && kept->port == dst->port &&
	       same_address(kept->address, dst->address) && kept->backend == dst->backend &&
	       kept->generation == dst->generation;
}

#define ANSWERS (1 << 16)

/* Half of an address as a scalar: a global function takes no pointer to the stack. */
static __always_inline __u64 half_of(const __be32 *half)
{
	return (__u64)half[1] << 32 | half[0];
}

/* The node's name server: the peer of a question that was steered, which has no backend. */
static __always_inline int read_server(const __be32 *called, __be32 *address, __be16 *port)
{
	__u32 zero = 0;
	const struct config *cfg = bpf_map_lookup_elem(&config, &zero);
	const struct resolver *resolver;

	if (!cfg)
		return -ENOENT;
	resolver = &cfg->resolvers[is_mapped(called) ? FAMILY_IPV4 : FAMILY_IPV6];
	copy_address(address, resolver->server);
	*port = resolver->server_port;
	return 0;
}

/*
 * Index for a call in the socket's storage. Once all MAX_ORIG_DST are used, the oldest gives way; its replies show the backend.
 * -EEXIST: it is stored already. flags: the called port, and ANSWERS if replies of the backend show this call from now on.
 */
__walked_once int place_in_socket(struct bpf_sock_addr *ctx, __u32 backend, __u64 upper, __u64 lower, __u32 flags)
{
	const __be32 address[4] = { upper, upper >> 32, lower, lower >> 32 };
	struct orig_dsts *stored = bpf_sk_storage_get(&udp_sent, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	const struct backend *to = bpf_map_lookup_elem(&backends, &backend);
	__u8 answers = flags & ANSWERS ? 1 : 0;
	__be32 peer[4];
	__be16 port;
	__u32 place;

	if (!stored || !to)
		return -ENOMEM;
	copy_address(peer, to->address);
	port = to->port;
	if (!backend && read_server(address, peer, &port))
		return -ENOMEM;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; answers && i < MAX_ORIG_DST && i < stored->used; i++)
		if (is_backend(&stored->dst[i], peer, port))
			stored->answers[i] = 0;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < MAX_ORIG_DST && i < stored->used; i++) {
		const struct orig_dst *call = &stored->dst[i];

		if (call->backend != backend || call->generation != to->generation || call->port != (__be16)flags ||
		    !same_address(call->address, address))
			continue;
		stored->answers[i] = answers;
		return -EEXIST;
	}
	place = stored->next;
	if (place >= MAX_ORIG_DST)
		place = 0;
	stored->answers[place] = answers;
	stored->next = place + 1 < MAX_ORIG_DST ? place + 1 : 0;
	if (stored->used < MAX_ORIG_DST)
		stored->used++;
	return place;
}

/* -EEXIST: it is stored already. answers: and replies of its backend show this service. */
static __always_inline int store_in_socket(struct bpf_sock_addr *ctx, const struct orig_dst *dst, bool answers)
{
	int place = place_in_socket(ctx, dst->backend, half_of(dst->address), half_of(dst->address + 2),
				    dst->port | (answers ? ANSWERS : 0));
	struct orig_dsts *stored;
	__u64 index = place;

	if (place < 0)
		return place;
	stored = bpf_sk_storage_get(&udp_sent, ctx->sk, 0, 0);
	bound_here(index); /* else Linux 5.10 does not see that the index is the number that is compared */
	if (!stored || index >= MAX_ORIG_DST)
		return -ENOMEM;
	stored->dst[index] = *dst;
	return 0;
}

/*
 * -EEXIST: it is stored already. The first service that a socket sends to is in its place, the others in its storage; of those
 * that share the backend of the place, the one called last is there.
 */
static __always_inline int store_sent(struct bpf_sock_addr *ctx, const struct orig_dst *dst)
{
	struct tcp_call *first = take_place(bpf_get_socket_cookie(ctx));

	if (!first || (first->dst.backend_port && !is_backend(&first->dst, dst->backend_address, dst->backend_port)))
		return store_in_socket(ctx, dst, true);
	if (is_call(&first->dst, dst))
		return -EEXIST;
	if (first->dst.backend_port && READ_ONCE(first->dst.generation))
		store_in_socket(ctx, &first->dst, false);
	first->dst = *dst;
	return 0;
}

/* One pod may have filled udp_connects, so the agent cannot take a socket without an entry for one that called no service. */
static __always_inline void note_unknown(void)
{
	__u32 zero = 0;
	__u32 *unknown = bpf_map_lookup_elem(&udp_unknown, &zero);

	if (unknown)
		WRITE_ONCE(*unknown, 1);
}

/*
 * The service that a socket is connected to is kept where the agent can read it: in the socket's place, else in udp_connects.
 * What it has sent to before moves to its storage; no answer to that arrives while it is connected.
 */
static __always_inline int store_connected(struct bpf_sock_addr *ctx, const struct orig_dst *dst)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);
	struct tcp_call *first = take_place(cookie);

	if (!first) {
		if (bpf_map_update_elem(&udp_connects, &cookie, dst, BPF_ANY))
			note_unknown();
		return store_in_socket(ctx, dst, true);
	}
	if (is_call(&first->dst, dst))
		return -EEXIST;
	if (first->dst.backend_port && !is_backend(&first->dst, dst->backend_address, dst->backend_port))
		store_in_socket(ctx, &first->dst, true);
	first->dst = *dst;
	return 0;
}

/* A UDP socket was closed. It has a place and an entry if a place became free between two connects. */
static __always_inline void forget_udp(__u64 cookie)
{
	free_place(cookie);
	bpf_map_delete_elem(&udp_connects, &cookie);
}

/* call: of TCP, where it is kept. followed: until the socket ends, and so its place is freed. sends: without a connect. */
static __always_inline int store_orig_dst(struct bpf_sock_addr *ctx, const struct frontend_key *key, struct orig_dst *dst,
					  bool followed, bool sends, struct tcp_call **call)
{
	copy_address(dst->address, key->address);
	dst->port = key->port;
	if (key->protocol != IPPROTO_TCP)
		return sends ? store_sent(ctx, dst) : store_connected(ctx, dst);
	*call = store_tcp(ctx, dst, followed);
	return *call ? 0 : -ENOMEM;
}

/* The entry of this socket whose backend has this address and port, or nothing. */
static __always_inline const struct orig_dst *find_by_backend(struct bpf_sock_addr *ctx, const __be32 *address,
							      __be16 port)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);
	const struct tcp_call *first;
	const struct orig_dsts *stored;

	if (ctx->protocol == IPPROTO_TCP || ctx->protocol == IPPROTO_MPTCP) {
		const struct tcp_call *only = call_of(ctx->sk, cookie);

		return only && is_backend(&only->dst, address, port) ? &only->dst : 0;
	}
	first = call_in_place(cookie);
	if (first && is_backend(&first->dst, address, port))
		return &first->dst;
	stored = bpf_sk_storage_get(&udp_sent, ctx->sk, 0, 0);
	if (!stored)
		return 0;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < MAX_ORIG_DST && i < stored->used; i++)
		if (stored->answers[i] && is_backend(&stored->dst[i], address, port))
			return &stored->dst[i];
	return 0;
}
