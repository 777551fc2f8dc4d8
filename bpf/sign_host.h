/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * SYNs of pods in the network of their node, which have no interface of their own where sign.h could sign them.
 *
 * The connect hook knows the caller by its cgroup and leaves the identity in the socket. The sock_ops program reserves room
 * for the option and writes it into each SYN, over the tuple as the socket has it: without a program on the way nothing moves
 * such a connect, and a NAT on the node breaks the MAC. Nothing after the SYN has the option.
 */
#pragma once

#include "sign.h"
#include "sockops.h"

#define TO_SIGN BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG

static __always_inline bool signs_for_host(void)
{
	const struct signing *gate = get_signing();
	const __u32 both = SIGNING_SIGNS | SIGNING_HOST;

	return gate && (READ_ONCE(gate->flags) & both) == both;
}

/* The identity of the calling pod, if that is in the network of its node; else 0. */
static __always_inline __u32 host_caller(void)
{
#pragma clang loop unroll(disable)
	for (int level = 1; level <= POD_LEVELS; level++) {
		__u64 id = bpf_get_current_ancestor_cgroup_id(level);
		const struct host_caller *found;
		__u32 identity;

		if (!id)
			break;
		found = bpf_map_lookup_elem(&host_callers, &id);
		if (!found)
			continue;
		identity = READ_ONCE(found->identity);
		barrier();
		return READ_ONCE(found->cgroup) == id ? identity : 0;
	}
	return 0;
}

/* Store the identity of the caller in the socket. upper, lower: halves of the address that it connects to. */
__walked_once int keep_host_caller(struct bpf_sock_addr *ctx, __u64 upper, __u64 lower)
{
	const __be32 address[4] = { upper, upper >> 32, lower, lower >> 32 };
	__u32 identity, *kept;

	if (ctx->protocol != IPPROTO_TCP || !ctx->sk || !verifying_cluster(address))
		return 0;
	identity = host_caller();
	kept = bpf_sk_storage_get(&host_sockets, ctx->sk, 0, identity ? BPF_SK_STORAGE_GET_F_CREATE : 0);
	if (kept)
		*kept = identity;
	return 0;
}

/* The identity that was kept in a socket; 0 if another program's flag caused this callback, or the connect is not ours. */
static __always_inline __u32 kept_identity(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	const __u32 *kept = sk ? bpf_sk_storage_get(&host_sockets, sk, 0, 0) : 0;

	return kept ? *kept : 0;
}

static __always_inline bool writes_syn(struct bpf_sock_ops *ctx)
{
	return (READ_CTX(ctx, skb_tcp_flags) & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

static __always_inline void write_host_option(struct bpf_sock_ops *ctx, __u32 identity)
{
	struct identity_option option = { .kind = OPTION_KIND, .length = sizeof(option) };
	const void *end = (void *)READ_CTX64(ctx, skb_data_end), *header = (void *)READ_CTX64(ctx, skb_data);
	const struct signing *gate = get_signing();
	struct epoch_key_id id = {};
	struct flow_key flow = {};
	__u64 key[2];

	if (!gate || header + TCP_HEADER > end)
		return;
	flow_of(ctx, &flow);
	id.cluster = verifying_cluster(flow.peer);
	id.number = current_key(gate);
	if (!id.cluster || read_key(&sign_keys, &id, key))
		return;
	option.experiment = bpf_htons(OPTION_EXPERIMENT);
	option.number_identity = bpf_htonl(id.number << 24 | (identity & 0xffffff));
	option.mac = mac_of(key, flow.pod, flow.peer, flow.pod_port, flow.peer_port,
			    bpf_htonl(*(const __be32 *)(header + 4)), option.number_identity);
	bpf_store_hdr_opt(ctx, &option, sizeof(option), 0);
}

/* A SYN without room for the option, beside a TFO cookie, MD5 or MP_JOIN, is sent unsigned. */
__walked_once int sign_for_host(struct bpf_sock_ops *ctx)
{
	__u32 op = READ_CTX(ctx, op), flags = READ_CTX(ctx, bpf_sock_ops_cb_flags), identity = kept_identity(ctx);
	struct flow_key flow = {};

	if (!identity)
		return 0;
	if (op == BPF_SOCK_OPS_TCP_CONNECT_CB) {
		flow_of(ctx, &flow);
		bpf_sock_ops_cb_flags_set(ctx, verifying_cluster(flow.peer) ? flags | TO_SIGN : flags & ~TO_SIGN);
	} else if (op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB) {
		bpf_sock_ops_cb_flags_set(ctx, flags & ~TO_SIGN);
	} else if (writes_syn(ctx) && op == BPF_SOCK_OPS_HDR_OPT_LEN_CB) {
		bpf_reserve_hdr_opt(ctx, sizeof(struct identity_option), 0);
	} else if (writes_syn(ctx)) {
		write_host_option(ctx, identity);
	}
	return 0;
}

/* Sign the SYN of a pod. The first callback sets the flag without which a socket gets no further callbacks. */
static __always_inline void sign_by_socket(struct bpf_sock_ops *ctx)
{
	__u32 op = READ_CTX(ctx, op);

	if (op == BPF_SOCK_OPS_TCP_CONNECT_CB ? signs_for_host() :
	    op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB ? READ_CTX(ctx, bpf_sock_ops_cb_flags) & TO_SIGN :
	    op == BPF_SOCK_OPS_HDR_OPT_LEN_CB || op == BPF_SOCK_OPS_WRITE_HDR_OPT_CB)
		sign_for_host(ctx);
}
