/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * "Destination unreachable" or "time exceeded" about a SYN: there is no route to the backend, as to a pod that has just
 * ended, or only its node's default route, by which the SYN goes to and fro until its hops are used up. The connection is
 * moved, and the error dropped, which would end the connect; the SYN goes again after its time-out.
 */
#pragma once

#include "rescue_tc.h"

#define ICMP_UNREACHABLE 3
#define ICMP_FRAGMENTATION_NEEDED 4
#define ICMP_TIME_EXCEEDED 11
#define ICMPV6_UNREACHABLE 1
#define ICMPV6_TIME_EXCEEDED 3
#define ICMP_HEADER 8
#define PORTS 4 /* bytes of both */
#define QUOTED_SEQUENCE 4 /* offset in the quoted TCP header */

static __always_inline int load_byte(struct __sk_buff *skb, __u32 at)
{
	__u8 byte = 0;

	return bpf_skb_load_bytes(skb, at, &byte, 1) ? -EINVAL : byte;
}

/* Whether an ICMP error ends a connect that it is about. */
static __always_inline bool ends_connect4(struct __sk_buff *skb, __u32 icmp)
{
	int type = load_byte(skb, icmp);

	return type == ICMP_TIME_EXCEEDED ||
	       (type == ICMP_UNREACHABLE && load_byte(skb, icmp + 1) != ICMP_FRAGMENTATION_NEEDED);
}

static __always_inline bool ends_connect6(struct __sk_buff *skb, __u32 icmp)
{
	int type = load_byte(skb, icmp);

	return type == ICMPV6_UNREACHABLE || type == ICMPV6_TIME_EXCEEDED;
}

/* The tuple of the segment that an ICMP error quotes, as the pod sent it: read into place, since stack is scarce. */
static __always_inline int parse_unreachable4(struct __sk_buff *skb, struct flow_key *key)
{
	const __u32 icmp = ETH_HEADER + IPV4_HEADER, quoted = icmp + ICMP_HEADER;

	if (load_byte(skb, ETH_HEADER) != 0x45 || load_byte(skb, ETH_HEADER + 9) != IPPROTO_ICMP || !ends_connect4(skb, icmp) ||
	    load_byte(skb, quoted) != 0x45 || load_byte(skb, quoted + 9) != IPPROTO_TCP)
		return -EINVAL;
	key->pod[2] = key->peer[2] = bpf_htonl(0xffff);
	if (bpf_skb_load_bytes(skb, quoted + 12, &key->pod[3], 4) || bpf_skb_load_bytes(skb, quoted + 16, &key->peer[3], 4))
		return -EINVAL;
	return bpf_skb_load_bytes(skb, quoted + IPV4_HEADER, &key->pod_port, PORTS) ? -EINVAL : 0;
}

static __always_inline int parse_unreachable6(struct __sk_buff *skb, struct flow_key *key)
{
	const __u32 icmp = ETH_HEADER + IPV6_HEADER, quoted = icmp + ICMP_HEADER;

	if (load_byte(skb, ETH_HEADER + 6) != IPPROTO_ICMPV6 || !ends_connect6(skb, icmp) ||
	    load_byte(skb, quoted + 6) != IPPROTO_TCP)
		return -EINVAL;
	if (bpf_skb_load_bytes(skb, quoted + 8, key->pod, sizeof(key->pod)) ||
	    bpf_skb_load_bytes(skb, quoted + 24, key->peer, sizeof(key->peer)))
		return -EINVAL;
	return bpf_skb_load_bytes(skb, quoted + IPV6_HEADER, &key->pod_port, PORTS) ? -EINVAL : 0;
}

/* The connection as the socket has it, of one that was moved to the peer that cannot be reached; unchanged for others. */
static __always_inline void forward_of(struct flow_key *key)
{
	const struct flow *back;

	key->reverse = 1;
	back = bpf_map_lookup_elem(&flows, key);
	key->reverse = 0;
	if (!back)
		return;
	copy_address(key->peer, back->peer);
	key->peer_port = back->peer_port;
	key->pod_port = back->pod_port;
}

static __always_inline __u32 quoted_tcp(bool ipv6)
{
	return ETH_HEADER + ICMP_HEADER + 2 * (ipv6 ? IPV6_HEADER : IPV4_HEADER);
}

/* Move a connect that cannot reach its backend. Where no other is left the application gets the error. */
__walked_once int rescue_unreachable(struct __sk_buff *skb)
{
	bool ipv6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	struct attempt *attempt = 0;
	struct flow_key key = {};
	struct bpf_sock *sk, *full;
	int verdict = TC_ACT_UNSPEC;
	__be32 sequence;

	if (skb->len > LONGEST_ANSWER || !rescue_is_on() ||
	    (ipv6 ? parse_unreachable6(skb, &key) : parse_unreachable4(skb, &key)))
		return TC_ACT_UNSPEC;
	if (bpf_skb_load_bytes(skb, quoted_tcp(ipv6) + QUOTED_SEQUENCE, &sequence, sizeof(sequence)))
		return TC_ACT_UNSPEC;
	if (anything_moved()) {
		if (bpf_map_lookup_elem(&flows, &key))
			return TC_ACT_SHOT; /* about the first choice, which the connection has left */
		forward_of(&key);
	}
	sk = lookup_socket(skb, &key, ipv6);
	if (!sk)
		return TC_ACT_UNSPEC;
	full = sk->state == SYN_SENT ? bpf_sk_fullsock(sk) : 0;
	if (full && is_about_syn(full, bpf_htonl(sequence)))
		attempt = attempt_of(full);
	if (attempt) {
		follow_plan(attempt);
		count_failure(attempt, FAILURE_UNREACHABLE);
		if (!move_on(attempt, &key))
			verdict = TC_ACT_SHOT;
	}
	bpf_sk_release(sk);
	return verdict;
}
