/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Questions of ours that only the node's server answers: to it and back. */
#pragma once

#include "alive.h"
#include "names_common.h"
#include "names_limit.h"

/* Exchange one address and port of a packet, with the checksums over them. family's addresses under our keys. */
static __always_inline int rewrite_server(struct __sk_buff *skb, bool is_ipv6, bool source, const __be32 *from,
				   const __be32 *to, __be16 from_port, __be16 to_port)
{
	__u32 udp = ETH_HLEN + (is_ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	__u32 check = udp + offsetof(struct udphdr, check);
	__u32 port = udp + (source ? offsetof(struct udphdr, source) : offsetof(struct udphdr, dest));
	__u64 flags = BPF_F_MARK_MANGLED_0;
	__u32 address;
	__s64 diff;

	if (is_ipv6) {
		address = ETH_HLEN + (source ? offsetof(struct ipv6hdr, saddr) : offsetof(struct ipv6hdr, daddr));
		diff = bpf_csum_diff((__be32 *)from, 16, (__be32 *)to, 16, 0);
		if (bpf_l4_csum_replace(skb, check, 0, diff, flags | BPF_F_PSEUDO_HDR) ||
		    bpf_skb_store_bytes(skb, address, to, 16, 0))
			return -EAGAIN;
	} else {
		address = ETH_HLEN + (source ? offsetof(struct iphdr, saddr) : offsetof(struct iphdr, daddr));
		if (bpf_l4_csum_replace(skb, check, from[3], to[3], flags | BPF_F_PSEUDO_HDR | 4) ||
		    bpf_l3_csum_replace(skb, ETH_HLEN + offsetof(struct iphdr, check), from[3], to[3], 4) ||
		    bpf_skb_store_bytes(skb, address, &to[3], 4, 0))
			return -EAGAIN;
	}
	if (from_port == to_port)
		return 0;
	if (bpf_l4_csum_replace(skb, check, from_port, to_port, flags | 2) ||
	    bpf_skb_store_bytes(skb, port, &to_port, sizeof(to_port), 0))
		return -EAGAIN;
	return 0;
}

static __always_inline void read_client(struct __sk_buff *skb, bool is_ipv6, bool source, struct dns_server_key *key)
{
	if (is_ipv6) {
		bpf_skb_load_bytes(skb,
				   ETH_HLEN + (source ? offsetof(struct ipv6hdr, saddr) : offsetof(struct ipv6hdr, daddr)),
				   key->address, 16);
		return;
	}
	key->address[2] = bpf_htonl(0xffff);
	bpf_skb_load_bytes(skb, ETH_HLEN + (source ? offsetof(struct iphdr, saddr) : offsetof(struct iphdr, daddr)),
			   &key->address[3], 4);
}

static __always_inline const struct resolver *resolver_of(const struct config *cfg, bool is_ipv6)
{
	__u32 family = is_ipv6;

	asm volatile("%0 &= 1" : "+r"(family)); /* the compiler knows it, the verifier does not */
	return &cfg->resolvers[family];
}

/*
 * A question of ours that the node's server has to answer goes there; its reply shows the address that was asked. While
 * there is no server it is dropped: clients accept another server's NXDOMAIN, and send a lost packet again.
 */
__walked_once int steer_packet(struct __sk_buff *skb)
{
	struct name_scratch *scratch = name_scratch_of(skb);
	struct dns_server_key client = {};
	const struct dns_server_key *to;
	const struct resolver *resolver;
	const struct question *asked;
	__u32 zero = 0;
	const struct config *cfg = bpf_map_lookup_elem(&config, &zero);
	const struct names_config *names = bpf_map_lookup_elem(&names_config, &zero);

	if (!cfg || !names || !scratch)
		return TC_ACT_UNSPEC;
	asked = &scratch->asked;
	to = &scratch->to;
	client.port = scratch->udp.source;
	resolver = resolver_of(cfg, asked->is_ipv6);
	if (to->port == resolver->server_port && same_address(to->address, resolver->server))
		return TC_ACT_UNSPEC; /* it goes there already */
	if (!resolver->server_port || !dns_is_alive()) {
		count_name(asked->type, NAME_DROPPED);
		return TC_ACT_SHOT;
	}
	if (is_too_many(skb, names)) {
		count_name(asked->type, NAME_LIMITED);
		return TC_ACT_SHOT;
	}
	read_client(skb, asked->is_ipv6, true, &client);
	if (bpf_map_update_elem(&steered, &client, to, BPF_ANY) ||
	    rewrite_server(skb, asked->is_ipv6, false, to->address, resolver->server, to->port, resolver->server_port))
		return TC_ACT_SHOT;
	count_name(asked->type, NAME_STEERED);
	return TC_ACT_UNSPEC;
}

/* A packet to a pod: replies of the node's server to steered questions show the address that was asked. */
static __always_inline int names_to_pod(struct __sk_buff *skb)
{
	struct dns_server_key from = {}, client = {};
	const struct dns_server_key *asked;
	const struct resolver *resolver;
	bool is_ipv6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	struct udphdr udp;
	__u32 zero = 0;
	const struct config *cfg;
	__u8 protocol, version;

	if (!is_ipv6 && skb->protocol != bpf_htons(ETH_P_IP))
		return TC_ACT_UNSPEC;
	if (bpf_skb_load_bytes(skb, ETH_HLEN, &version, 1) || (!is_ipv6 && version != 0x45))
		return TC_ACT_UNSPEC;
	if (bpf_skb_load_bytes(skb, ETH_HLEN + (is_ipv6 ? offsetof(struct ipv6hdr, nexthdr) :
								offsetof(struct iphdr, protocol)),
			       &protocol, 1) ||
	    protocol != IPPROTO_UDP)
		return TC_ACT_UNSPEC;
	cfg = bpf_map_lookup_elem(&config, &zero);
	if (!cfg)
		return TC_ACT_UNSPEC;
	resolver = resolver_of(cfg, is_ipv6);
	if (bpf_skb_load_bytes(skb, ETH_HLEN + (is_ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)), &udp,
			       sizeof(udp)) ||
	    udp.source != resolver->server_port || !udp.source)
		return TC_ACT_UNSPEC;
	read_client(skb, is_ipv6, true, &from);
	if (!same_address(from.address, resolver->server))
		return TC_ACT_UNSPEC;
	client.port = udp.dest;
	read_client(skb, is_ipv6, false, &client);
	asked = bpf_map_lookup_elem(&steered, &client);
	if (asked && rewrite_server(skb, is_ipv6, true, from.address, asked->address, udp.source, asked->port))
		return TC_ACT_SHOT;
	return TC_ACT_UNSPEC;
}
