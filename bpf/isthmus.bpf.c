// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * The decision where the call is made: programs of a pod cgroup's socket hooks. Functions give 0 or a negative errno;
 * -ENOENT is "not ours". Only the entry points turn that into what the hook wants to hear.
 */
#include <linux/errno.h>
#include <linux/in.h>
#include <stdbool.h>

#include "maps.h"

#include "select.h"
#include "sockets.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

const volatile __u32 has_set_retval = 1; /* 5.18; without it a refused call sees EPERM */

static __always_inline bool has_socket(__u32 server)
{
	void *sk = bpf_map_lookup_elem(&sockets, &server);

	if (!sk)
		return false;
	bpf_sk_release(sk);
	return true;
}

static __always_inline bool is_alive(__u32 server)
{
	const struct alive *found = bpf_map_lookup_elem(&alive, &server);

	if (!found || bpf_ktime_get_ns() >= READ_ONCE(found->deadline))
		return false;
	return !found->tied || has_socket(server);
}

/* A question to the cluster DNS goes to the node's server while that says it is alive. */
static __always_inline int steer(const struct frontend_key *key, const struct config *cfg, struct call *call)
{
	const struct resolver *resolver = &cfg->resolvers[is_mapped(key->address) ? FAMILY_IPV4 : FAMILY_IPV6];

	if (key->protocol != IPPROTO_UDP || !key->port || key->port != resolver->dns_port)
		return -ENOENT;
	if (!same_address(key->address, resolver->dns) || !is_alive(ALIVE_DNS) || is_exempt(cfg))
		return -ENOENT;
	copy_address(call->chosen, resolver->server);
	call->chosen_port = resolver->server_port;
	return 0;
}

/* Where a call goes: 0 with call filled in, -ENOENT for one that is not ours. */
static __always_inline int route(struct bpf_sock_addr *ctx, const struct frontend_key *key, struct call *call)
{
	struct choice choice = {};
	__u32 zero = 0;
	struct config *cfg = bpf_map_lookup_elem(&config, &zero);
	int err;

	if (!cfg)
		return -ENOENT;
	err = steer(key, cfg, call);
	if (!err) {
		choice.verdict = VERDICT_STEERED;
	} else {
		err = choose(ctx, key, cfg, call, &choice);
		if (err == -ENOENT)
			return err;
	}
	if (!err)
		err = remember(ctx, key, call);
	if (err == -EEXIST)
		return 0; /* a further datagram of the same call */
	if (err == -ENOMEM)
		choice.verdict = VERDICT_LOST;
	count(&choice);
	return err;
}

static __always_inline int call(struct bpf_sock_addr *ctx, struct frontend_key *key, struct call *call)
{
	key->port = ctx->user_port;
	key->protocol = ctx->protocol;
	if (key->protocol != IPPROTO_TCP && key->protocol != IPPROTO_UDP)
		return -ENOENT;
	return route(ctx, key, call);
}

static __always_inline int call4(struct bpf_sock_addr *ctx)
{
	struct frontend_key key = { .address = { 0, 0, bpf_htonl(0xffff), ctx->user_ip4 } };
	struct call made = {};
	int err = call(ctx, &key, &made);

	if (err)
		return err;
	ctx->user_ip4 = made.chosen[3];
	ctx->user_port = made.chosen_port;
	return 0;
}

/* Sockets of IPv6 call IPv4 addresses too, as ::ffff:a.b.c.d: that is how our keys have them. */
static __always_inline int call6(struct bpf_sock_addr *ctx)
{
	struct frontend_key key = {};
	struct call made = {};
	int err;

	read_address6(key.address, ctx);
	err = call(ctx, &key, &made);
	if (err)
		return err;
	write_address6(ctx, made.chosen);
	ctx->user_port = made.chosen_port;
	return 0;
}

static __always_inline void answered4(struct bpf_sock_addr *ctx)
{
	const __be32 from[4] = { 0, 0, bpf_htonl(0xffff), ctx->user_ip4 };
	const struct call *call = recall(ctx, from, ctx->user_port);

	if (!call)
		return;
	ctx->user_ip4 = call->called[3];
	ctx->user_port = call->called_port;
}

static __always_inline void answered6(struct bpf_sock_addr *ctx)
{
	const struct call *call;
	__be32 from[4];

	read_address6(from, ctx);
	call = recall(ctx, from, ctx->user_port);
	if (!call)
		return;
	write_address6(ctx, call->called);
	ctx->user_port = call->called_port;
}

/* 1: the call goes on, rewritten or as it was; 0: it ends here with err. */
static __always_inline int verdict(int err)
{
	if (!err || err == -ENOENT)
		return 1;
	if (has_set_retval)
		bpf_set_retval(err);
	return 0;
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	return verdict(call4(ctx));
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	return verdict(call6(ctx));
}

SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *ctx)
{
	return verdict(call4(ctx));
}

SEC("cgroup/sendmsg6")
int sendmsg6(struct bpf_sock_addr *ctx)
{
	return verdict(call6(ctx));
}

SEC("cgroup/recvmsg4")
int recvmsg4(struct bpf_sock_addr *ctx)
{
	answered4(ctx);
	return 1;
}

SEC("cgroup/recvmsg6")
int recvmsg6(struct bpf_sock_addr *ctx)
{
	answered6(ctx);
	return 1;
}

SEC("cgroup/getpeername4")
int getpeername4(struct bpf_sock_addr *ctx)
{
	answered4(ctx);
	return 1;
}

SEC("cgroup/getpeername6")
int getpeername6(struct bpf_sock_addr *ctx)
{
	answered6(ctx);
	return 1;
}
