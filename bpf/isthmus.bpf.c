// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Programs of the socket hooks of the pods' cgroup: a call to a service is rewritten to a backend where it is made.
 * Programs of the pods' interfaces: DNS queries for names of ours are answered where they enter the node.
 * Functions return 0 or a negative errno; -ENOENT: not ours. The entry points turn that into the hook's return value.
 */
#include <linux/errno.h>
#include <linux/in.h>
#include <stdbool.h>

#include "maps.h"

#include "select.h"
#include "alive.h"
#include "names.h"
#include "peek.h"
#include "sockets.h"
#include "datagrams.h"
#include "verify.h"
#include "sockops.h"
#include "sign_host.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Whether this is the cluster DNS, or another server that pods have as nameserver. */
static __always_inline bool is_resolver(const struct frontend_key *key, const struct resolver *cluster_dns)
{
	struct dns_server_key server = { .port = key->port };
	const __u32 *role;

	if (!key->port || key->port != cluster_dns->dns_port)
		return false;
	if (same_address(key->address, cluster_dns->dns))
		return true;
	copy_address(server.address, key->address);
	role = bpf_map_lookup_elem(&dns_servers, &server);
	return role && *role == DNS_SERVER_ASKED;
}

/*
 * True of a socket by which the node's server asks the cluster DNS. Its pod is below the hooked cgroup, too: steered, its
 * question would come back to it, for ever.
 */
static __always_inline bool is_of_server(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;

	return sk && sk->priority == OWN_QUESTION;
}

/* A query to a resolver of pods is sent to the node's server while that is alive. */
static __always_inline int steer(struct bpf_sock_addr *ctx, const struct frontend_key *key, const struct config *cfg,
				 struct orig_dst *dst)
{
	const struct resolver *resolver = &cfg->resolvers[is_mapped(key->address) ? FAMILY_IPV4 : FAMILY_IPV6];

	if (!is_resolver(key, resolver) || is_of_server(ctx) || !dns_is_alive() || exemption(cfg->flags) == EXEMPT)
		return -ENOENT;
	if (key->protocol == IPPROTO_TCP ? !dns_takes_tcp() : is_read_at_tc(ctx))
		return -ENOENT;
	copy_address(dst->backend_address, resolver->server);
	dst->backend_port = resolver->server_port;
	return 0;
}

static __always_inline int route(struct bpf_sock_addr *ctx, const struct frontend_key *key, bool sends,
				 struct orig_dst *dst)
{
	struct choice choice = {};
	struct attempt *attempt = 0;
	struct tcp_call *call = 0;
	__u32 zero = 0;
	struct config *cfg = bpf_map_lookup_elem(&config, &zero);
	bool followed;
	int err;

	if (!cfg)
		return -ENOENT;
	err = steer(ctx, key, cfg, dst);
	if (!err) {
		choice.verdict = VERDICT_STEERED;
	} else {
		err = choose(ctx, key, cfg, sends, dst, &choice);
		if (err == -ENOENT)
			return err;
	}
	followed = choice.plan && cfg->flags & CONFIG_OBSERVE;
	if (!err)
		err = store_orig_dst(ctx, key, dst, followed, sends, &call);
	if (err == -EEXIST)
		return 0; /* one more datagram to the same backend: counted already */
	if (err == -ENOMEM)
		choice.verdict = VERDICT_LOST;
	if (call && followed)
		attempt = begin_attempt(call, dst, &choice, cfg->epoch, caller_of(ctx));
	count(&choice);
	if (choice.passed_over)
		count_passed_over(&choice);
	if (cfg->flows)
		sample(ctx, key, dst, &choice, attempt, cfg->flows);
	return err;
}

/* 0 with dst filled in: the destination is to be rewritten. */
static __always_inline int translate(struct bpf_sock_addr *ctx, struct frontend_key *key, bool sends,
				     struct orig_dst *dst)
{
	key->port = ctx->user_port;
	key->protocol = ctx->protocol;
	if (key->protocol != IPPROTO_TCP && key->protocol != IPPROTO_UDP)
		return -ENOENT;
	return route(ctx, key, sends && key->protocol == IPPROTO_UDP, dst);
}

static __always_inline int translate4(struct bpf_sock_addr *ctx, bool sends)
{
	struct frontend_key key = { .address = { 0, 0, bpf_htonl(0xffff), ctx->user_ip4 } };
	struct orig_dst dst = {};
	int err = translate(ctx, &key, sends, &dst);

	if (err)
		return err;
	ctx->user_ip4 = dst.backend_address[3];
	ctx->user_port = dst.backend_port;
	return 0;
}

/* IPv6 sockets call IPv4 addresses too, as ::ffff:a.b.c.d, which is how our keys have them. */
static __always_inline int translate6(struct bpf_sock_addr *ctx, bool sends)
{
	struct frontend_key key = {};
	struct orig_dst dst = {};
	int err;

	read_address6(key.address, ctx);
	err = translate(ctx, &key, sends, &dst);
	if (err)
		return err;
	write_address6(ctx, dst.backend_address);
	ctx->user_port = dst.backend_port;
	return 0;
}

/* Replace the backend's address by the service's: the peer of a socket, the sender of a datagram. */
static __always_inline void show_service4(struct bpf_sock_addr *ctx)
{
	const __be32 backend[4] = { 0, 0, bpf_htonl(0xffff), ctx->user_ip4 };
	const struct orig_dst *dst = find_by_backend(ctx, backend, ctx->user_port);

	if (!dst)
		return;
	ctx->user_ip4 = dst->address[3];
	ctx->user_port = dst->port;
}

static __always_inline void show_service6(struct bpf_sock_addr *ctx)
{
	const struct orig_dst *dst;
	__be32 backend[4];

	read_address6(backend, ctx);
	dst = find_by_backend(ctx, backend, ctx->user_port);
	if (!dst)
		return;
	write_address6(ctx, dst->address);
	ctx->user_port = dst->port;
}

/* 1: the call goes on, rewritten or as it was; 0: it ends here with err, before 5.18 with EPERM. */
static __always_inline int verdict(int err)
{
	if (!err || err == -ENOENT)
		return 1;
	if (constants.has_set_retval)
		bpf_set_retval(err);
	return 0;
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	int err = translate4(ctx, false);

	if (signs_for_host()) {
		const __be32 called[4] = { 0, 0, bpf_htonl(0xffff), ctx->user_ip4 };

		keep_host_caller(ctx, half_of(called), half_of(called + 2));
	}
	return verdict(err);
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	int err = translate6(ctx, false);

	if (signs_for_host()) {
		__be32 called[4];

		read_address6(called, ctx);
		keep_host_caller(ctx, half_of(called), half_of(called + 2));
	}
	return verdict(err);
}

SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *ctx)
{
	return verdict(translate4(ctx, true));
}

SEC("cgroup/sendmsg6")
int sendmsg6(struct bpf_sock_addr *ctx)
{
	return verdict(translate6(ctx, true));
}

SEC("cgroup/recvmsg4")
int recvmsg4(struct bpf_sock_addr *ctx)
{
	show_service4(ctx);
	return 1;
}

SEC("cgroup/recvmsg6")
int recvmsg6(struct bpf_sock_addr *ctx)
{
	show_service6(ctx);
	return 1;
}

SEC("cgroup/getpeername4")
int getpeername4(struct bpf_sock_addr *ctx)
{
	show_service4(ctx);
	return 1;
}

SEC("sockops")
int connects(struct bpf_sock_ops *ctx)
{
	sign_by_socket(ctx);
	observe(ctx);
	return 1;
}

/* A TCP socket whose connect made no SYN can listen since. */
static __always_inline bool may_be_unsent(__u32 state)
{
	return state == BPF_TCP_CLOSE || state == BPF_TCP_SYN_SENT || state == BPF_TCP_LISTEN;
}

SEC("cgroup/sock_release")
int sock_release(struct bpf_sock *sk)
{
	if (sk->protocol == IPPROTO_UDP)
		forget_udp(bpf_get_socket_cookie(sk));
	else if (sk->protocol == IPPROTO_TCP && may_be_unsent(sk->state))
		released(sk);
	return 1;
}

SEC("cgroup/getpeername6")
int getpeername6(struct bpf_sock_addr *ctx)
{
	show_service6(ctx);
	return 1;
}

/* A TCP segment, or what can be one: rescue may rewrite it, and what it has become is signed. */
static __always_inline int tcp_from_pod(struct __sk_buff *skb, bool may_be_syn)
{
	int verdict = anything_moved() ? rescue_from_pod(skb) : TC_ACT_UNSPEC;

	return verdict == TC_ACT_UNSPEC && may_be_syn && signs() ? sign_from_pod(skb) : verdict;
}

/* TCP is rescue's and questions are names'; what peek does not read is looked at by both. */
SEC("tc")
int from_pod(struct __sk_buff *skb)
{
	struct peeked packet = peek(skb);
	int verdict;

	if (packet.protocol == IPPROTO_TCP)
		return tcp_from_pod(skb, packet.tcp_flags & TCP_SYN);
	if (packet.protocol == IPPROTO_UDP && packet.udp_dest != DNS_PORT)
		return any_datagram_moved() ? datagram_from_pod(skb) : TC_ACT_UNSPEC;
	verdict = names_from_pod(skb);
	if (verdict != TC_ACT_UNSPEC)
		return verdict;
	verdict = datagram_from_pod(skb);
	return packet.protocol == IPPROTO_UDP || verdict != TC_ACT_UNSPEC ? verdict : tcp_from_pod(skb, true);
}

/* Of TCP, only SYNs and their answers are looked at there, and what peek cannot read: it may be one. */
static __always_inline bool may_open(const struct peeked *packet)
{
	return packet->protocol == IPPROTO_TCP ? packet->tcp_flags & TCP_SYN : packet->protocol != IPPROTO_UDP;
}

/* While nothing is moved, RST and ICMP errors alone start a rescue. */
SEC("tc")
int to_pod(struct __sk_buff *skb)
{
	struct peeked packet = peek(skb);
	int verdict;

	if (may_open(&packet) && guards()) {
		verdict = verify_to_pod(skb);
		if (verdict != TC_ACT_UNSPEC)
			return verdict;
	}
	if (packet.protocol != IPPROTO_TCP && guards_datagrams()) {
		verdict = verify_datagram(skb);
		if (verdict != TC_ACT_UNSPEC)
			return verdict;
	}
	if (packet.protocol == IPPROTO_TCP && !(packet.tcp_flags & TCP_RST) && !anything_moved())
		return TC_ACT_UNSPEC;
	if (may_open(&packet) && anything_moved()) {
		verdict = accepted_to_pod(skb);
		if (verdict != TC_ACT_UNSPEC)
			return verdict;
	}
	verdict = packet.protocol == IPPROTO_UDP ? datagram_to_pod(skb) : rescue_to_pod(skb);
	if (verdict == NOT_TCP)
		verdict = icmp_to_pod(skb);
	if (!packet.protocol && verdict == TC_ACT_UNSPEC) {
		datagram_to_pod(skb);
		datagram_error_to_pod(skb);
	}
	return verdict == TC_ACT_UNSPEC ? names_to_pod(skb) : verdict;
}
