/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A SYN from another cluster to a guarded port of a pod is let through if its option proves an identity that may call.
 *
 * What cannot be read is no way around: IPv4 with options, fragments and IPv6 extension headers are refused where a port is
 * guarded. Of fragments the first is enough, without which none is put together; it has the ports. Segments without SYN
 * open no connection and are not looked at.
 *
 * Where the guard says so, who proves nothing is judged by the identity of the source address, and so is each datagram to a
 * guarded port of UDP, which has no room for proof. That is as good as the checks of addresses on all of the callers' nodes.
 *
 * A refusal is answered by ICMP "administratively prohibited" in the pod's name, which ends the caller's connect, and which
 * rescue_icmp.h excuses: it is no failure of the backend.
 */
#pragma once

#include "names_common.h"
#include "refusal_records.h"
#include "sign.h"

/* Not among the kernel's verdicts. */
#define NOT_READ (-3)
#define REFUSED (-4)
#define REFUSED_PROVEN (-5)
#define MOST_EXTENSIONS 6 /* headers of IPv6 before TCP; of more it is not known whether it is TCP */
#define NEXT_HOP_BY_HOP 0
#define NEXT_ROUTING 43
#define NEXT_FRAGMENT 44
#define NEXT_AUTHENTICATION 51
#define NEXT_DESTINATION 60
#define NEXT_MOBILITY 135

enum found {
	FOUND_OTHER,   /* another protocol, or a fragment without ports */
	FOUND_FIRST,   /* the first bytes of the protocol's header are at l4 */
	FOUND_UNKNOWN, /* it may be the protocol */
};

static __always_inline bool guards(void)
{
	const struct signing *gate = get_signing();

	return gate && READ_ONCE(gate->flags) & SIGNING_GUARDS;
}

static __always_inline bool guards_datagrams(void)
{
	const struct signing *gate = get_signing();

	return gate && READ_ONCE(gate->flags) & SIGNING_DATAGRAMS;
}

/* Skip one extension header; FOUND_UNKNOWN: the next is to be looked at. */
static __always_inline int skip_extension(struct __sk_buff *skb, __u8 protocol, __u8 *next, __u32 *at)
{
	__u8 header[4];

	if (*next == protocol)
		return FOUND_FIRST;
	if (*next != NEXT_HOP_BY_HOP && *next != NEXT_ROUTING && *next != NEXT_FRAGMENT && *next != NEXT_AUTHENTICATION &&
	    *next != NEXT_DESTINATION && *next != NEXT_MOBILITY)
		return FOUND_OTHER;
	if (bpf_skb_load_bytes(skb, *at, header, sizeof(header)))
		return FOUND_UNKNOWN; /* and so will be the next ones */
	if (*next == NEXT_FRAGMENT && (((__u32)header[2] << 8 | header[3]) & 0xfff8))
		return FOUND_OTHER; /* not the first */
	*at += *next == NEXT_FRAGMENT	    ? 8 :
	       *next == NEXT_AUTHENTICATION ? ((__u32)header[1] + 2) * 4 :
					      ((__u32)header[1] + 1) * 8;
	*next = header[0];
	return FOUND_UNKNOWN;
}

static __always_inline int find6(struct __sk_buff *skb, __u8 protocol, __u32 *l4)
{
	__u8 next;

	*l4 = ETH_HEADER + IPV6_HEADER;
	if (bpf_skb_load_bytes(skb, ETH_HEADER + 6, &next, sizeof(next)))
		return FOUND_UNKNOWN;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i <= MOST_EXTENSIONS; i++) {
		int found = skip_extension(skb, protocol, &next, l4);

		if (found != FOUND_UNKNOWN)
			return found;
	}
	return FOUND_UNKNOWN;
}

static __always_inline int find4(struct __sk_buff *skb, __u8 protocol, __u32 *l4)
{
	__u8 ip[IPV4_HEADER];

	if (bpf_skb_load_bytes(skb, ETH_HEADER, ip, sizeof(ip)))
		return FOUND_UNKNOWN;
	*l4 = ETH_HEADER + (ip[0] & 0xf) * 4;
	if (ip[9] != protocol || ((__u32)ip[6] << 8 | ip[7]) & 0x1fff)
		return FOUND_OTHER; /* or a fragment that is not the first */
	return FOUND_FIRST;
}

/* The guard of a port of an interface. ANY_PORT: of any. */
static __always_inline bool find_guard(__u32 ifindex, __u8 protocol, __be16 port, struct guarded *guard)
{
	struct guarded_key key = { .ifindex = ifindex, .port = port, .protocol = protocol };
	const struct guarded *found = bpf_map_lookup_elem(&guarded, &key);

	if (!found)
		return false;
	*guard = *found;
	barrier();
	return READ_ONCE(found->ifindex) == ifindex && READ_ONCE(found->port) == port;
}

static __always_inline bool is_own(const __be32 *source)
{
	struct range_key key = { .prefix = 128 };

	copy_address(key.address, source);
	return bpf_map_lookup_elem(&own_ranges, &key);
}

/* The source of a packet that parse cannot read. */
static __always_inline int read_source(struct __sk_buff *skb, __be32 *source)
{
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return bpf_skb_load_bytes(skb, ETH_HEADER + 8, source, 16);
	source[2] = bpf_htonl(0xffff);
	return bpf_skb_load_bytes(skb, ETH_HEADER + 12, &source[3], 4);
}

/* 0 if a SYN proves an identity that the policy allows, else enum refusal_reason. */
static __always_inline int judge(struct __sk_buff *skb, const struct segment *syn, __u32 policy, __u32 *identity)
{
	__u32 header = header_of(skb, syn->l4), shift, claimed, ahead;
	const struct signing *gate = get_signing();
	struct identity_option option = {};
	struct epoch_key_id id = {};
	struct allowed_key allows = { .policy = policy };
	__u64 key[2];

	if (!gate || (syn->flags & TCP_CONTROL) != TCP_SYN || syn->length || header < TCP_HEADER + sizeof(option) ||
	    bpf_skb_load_bytes(skb, syn->l4 + header - sizeof(option), &option, sizeof(option)) ||
	    !is_identity_option(&option))
		return REFUSAL_UNSIGNED;
	claimed = bpf_htonl(option.number_identity);
	shift = READ_ONCE(gate->identity_shift) & 31;
	id.number = claimed >> 24;
	claimed &= 0xffffff;
	id.cluster = claimed >> shift;
	*identity = id.cluster << shift;
	ahead = (id.number - current_key(gate) + 1) & 0xff; /* 1: of this epoch */
	if (ahead > 2 || read_key(&verify_keys, &id, key))
		return REFUSAL_UNKNOWN_KEY;
	if (mac_of(key, syn->key.peer, syn->key.pod, syn->key.peer_port, syn->key.pod_port, syn->sequence,
		   option.number_identity) != option.mac)
		return REFUSAL_BAD_MAC;
	*identity = allows.identity = claimed;
	return bpf_map_lookup_elem(&allowed, &allows) ? 0 : REFUSAL_NOT_ALLOWED;
}

static __always_inline __u32 identity_of_address(const __be32 *address)
{
	struct caller_address_key key = {};
	const struct caller_address *found;
	__u32 identity;

	copy_address(key.address, address);
	found = bpf_map_lookup_elem(&caller_addresses, &key);
	if (!found)
		return 0;
	identity = READ_ONCE(found->identity);
	barrier();
	return same_address(found->address, address) ? identity : 0;
}

/* 0 if the identity of an address is allowed, else enum refusal_reason: reason if the address has no identity. */
static __always_inline int judge_address(const __be32 *address, __u32 policy, int reason, __u32 *identity)
{
	struct allowed_key allows = { .policy = policy };

	allows.identity = identity_of_address(address);
	if (!allows.identity)
		return reason;
	*identity = allows.identity;
	return bpf_map_lookup_elem(&allowed, &allows) ? 0 : REFUSAL_NOT_ALLOWED_BY_ADDRESS;
}

/* False under GUARD_AUDIT, which only counts and records the packet. */
static __always_inline bool refuses(const struct segment *packet, const struct guarded *guard, __u32 identity, int reason)
{
	count_refusal(guard->policy, identity, reason);
	record_refusal(packet, guard, identity, reason);
	return !(guard->flags & GUARD_AUDIT);
}

/* The error before the packet that it is about. */
struct refusal4 {
	struct iphdr ip;
	__u8 type;
	__u8 code;
	__u16 check;
	__be32 unused;
};

struct refusal6 {
	struct ipv6hdr ip;
	__u8 type;
	__u8 code;
	__u16 check;
	__be32 unused;
};

/*
 * Checksums of an error that quotes the whole of a segment. Its own sum can be left to an interface (CHECKSUM_PARTIAL), which
 * writes into what is quoted, after us: but what a segment with its sum comes to is known, the negative of its pseudo-header.
 * So a header of IPv4 comes to zero.
 */
static __always_inline int refuse4(struct __sk_buff *skb, __u16 quoted, bool proven)
{
	struct refusal4 error = { .code = proven ? ICMP_COMMUNICATION_PROHIBITED : ICMP_HOST_PROHIBITED };
	__be32 pseudo[3];

	if (bpf_skb_load_bytes(skb, ETH_HEADER + 12, &pseudo, 8))
		return -EINVAL;
	error.type = ICMP_UNREACHABLE;
	error.ip.version = 4;
	error.ip.ihl = IPV4_HEADER / 4;
	error.ip.ttl = 64;
	error.ip.protocol = IPPROTO_ICMP;
	error.ip.saddr = pseudo[1];
	error.ip.daddr = pseudo[0];
	error.ip.tot_len = bpf_htons(quoted + sizeof(error));
	error.ip.check = ~fold(bpf_csum_diff(0, 0, (__be32 *)&error.ip, sizeof(error.ip), 0));
	pseudo[2] = bpf_htonl(IPPROTO_TCP << 16 | (quoted - IPV4_HEADER));
	error.check = ~fold((__u16)~fold(bpf_csum_diff(0, 0, pseudo, sizeof(pseudo), 0)) +
			    bpf_htons(ICMP_UNREACHABLE << 8 | error.code));
	return bpf_skb_adjust_room(skb, sizeof(error), BPF_ADJ_ROOM_MAC, 0) ||
	       bpf_skb_store_bytes(skb, ETH_HEADER, &error, sizeof(error), 0);
}

/* The addresses are in the quoted header and both pseudo-headers, so that one is left of the sum, and of lengths the 48 bytes. */
static __always_inline int refuse6(struct __sk_buff *skb, __u16 quoted, bool proven)
{
	struct refusal6 error = { .code = proven ? ICMPV6_PROHIBITED : ICMPV6_POLICY_FAILED };
	struct ipv6hdr ip;

	if (bpf_skb_load_bytes(skb, ETH_HEADER, &ip, sizeof(ip)))
		return -EINVAL;
	error.type = ICMPV6_UNREACHABLE;
	error.ip.version = 6;
	error.ip.hop_limit = 64;
	error.ip.nexthdr = IPPROTO_ICMPV6;
	error.ip.payload_len = bpf_htons(quoted + ICMP_HEADER);
	error.ip.saddr = ip.daddr;
	error.ip.daddr = ip.saddr;
	error.check = ~fold(bpf_csum_diff(0, 0, (__be32 *)&ip, sizeof(ip), 0) +
			    bpf_htons(ICMPV6_UNREACHABLE << 8 | error.code) +
			    bpf_htons(IPPROTO_ICMPV6 - IPPROTO_TCP + IPV6_HEADER + ICMP_HEADER));
	return bpf_skb_adjust_room(skb, sizeof(error), BPF_ADJ_ROOM_MAC, 0) ||
	       bpf_skb_store_bytes(skb, ETH_HEADER, &error, sizeof(error), 0);
}

/*
 * Make of a SYN the error about it, as if the pod had sent it; one that does not fit an error is dropped. Its code says whether
 * the identity was proven: the agents of callers find out by it, and by the quoted SYN, where proofs are lost on the way.
 */
__walked_once int answer_refusal(struct __sk_buff *skb, bool proven)
{
	bool ipv6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	__u8 link[2 * ETH_ALEN], back[2 * ETH_ALEN];
	__u16 quoted = skb->len - ETH_HEADER;

	if (skb->len + sizeof(struct refusal6) > LONGEST_ANSWER || bpf_skb_load_bytes(skb, 0, link, sizeof(link)))
		return TC_ACT_SHOT;
	if (ipv6 ? refuse6(skb, quoted, proven) : refuse4(skb, quoted, proven))
		return TC_ACT_SHOT;
	__builtin_memcpy(back, link + ETH_ALEN, ETH_ALEN);
	__builtin_memcpy(back + ETH_ALEN, link, ETH_ALEN);
	if (bpf_skb_store_bytes(skb, 0, back, sizeof(back), 0))
		return TC_ACT_SHOT;
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/* A datagram, or a TCP packet of a form that is not read further. */
static __always_inline int verify_by_address(struct __sk_buff *skb, __u8 protocol)
{
	bool ipv6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	struct guarded guard = {};
	struct segment from = {};
	__be16 port = ANY_PORT;
	__u32 l4 = 0, identity = 0;
	int found, reason = protocol == IPPROTO_TCP ? REFUSAL_UNREADABLE : REFUSAL_UNKNOWN_ADDRESS;

	if (!ipv6 && skb->protocol != bpf_htons(ETH_P_IP))
		return TC_ACT_UNSPEC;
	found = ipv6 ? find6(skb, protocol, &l4) : find4(skb, protocol, &l4);
	if (found == FOUND_OTHER)
		return TC_ACT_UNSPEC;
	if (found == FOUND_FIRST && bpf_skb_load_bytes(skb, l4 + 2, &port, sizeof(port)))
		port = ANY_PORT;
	if (!find_guard(skb->ifindex, protocol, port, &guard))
		return TC_ACT_UNSPEC;
	if (read_source(skb, from.key.peer) || is_own(from.key.peer))
		return TC_ACT_UNSPEC;
	if (guard.flags & GUARD_ADDRESS)
		reason = judge_address(from.key.peer, guard.policy, reason, &identity);
	from.key.pod_port = port;
	return reason && refuses(&from, &guard, identity, reason) ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

/* A datagram to a guarded port. A refused one gets no answer, which would go to the owner of a forged address. */
__walked_once int verify_datagram(struct __sk_buff *skb)
{
	struct guarded guard = {};

	return find_guard(skb->ifindex, IPPROTO_UDP, ANY_PORT, &guard) ? verify_by_address(skb, IPPROTO_UDP) : TC_ACT_UNSPEC;
}

__walked_once int verify_unreadable(struct __sk_buff *skb)
{
	return verify_by_address(skb, IPPROTO_TCP);
}

__walked_once int verify_syn(struct __sk_buff *skb)
{
	struct segment syn = {};
	struct guarded guard = {};
	__u32 identity = 0;
	int reason;

	if (!find_guard(skb->ifindex, IPPROTO_TCP, ANY_PORT, &guard))
		return TC_ACT_UNSPEC;
	if (parse(skb, &syn, false))
		return NOT_READ;
	if ((syn.flags & (TCP_SYN | TCP_ACK | TCP_RST)) != TCP_SYN)
		return TC_ACT_UNSPEC;
	if (!find_guard(skb->ifindex, IPPROTO_TCP, syn.key.pod_port, &guard) || is_own(syn.key.peer))
		return TC_ACT_UNSPEC;
	reason = judge(skb, &syn, guard.policy, &identity);
	if (reason && reason != REFUSAL_NOT_ALLOWED && guard.flags & GUARD_ADDRESS)
		reason = judge_address(syn.key.peer, guard.policy, reason, &identity);
	if (!reason)
		return TC_ACT_UNSPEC;
	if (!refuses(&syn, &guard, identity, reason))
		return TC_ACT_UNSPEC;
	return reason == REFUSAL_NOT_ALLOWED ? REFUSED_PROVEN : REFUSED;
}

/* Called one after the other, not nested: their stacks and that of a record would exceed the limit together. */
static __always_inline int verify_to_pod(struct __sk_buff *skb)
{
	int verdict = verify_syn(skb);

	if (verdict == NOT_READ)
		return verify_unreadable(skb);
	if (verdict == REFUSED || verdict == REFUSED_PROVEN)
		return answer_refusal(skb, verdict == REFUSED_PROVEN);
	return verdict;
}
