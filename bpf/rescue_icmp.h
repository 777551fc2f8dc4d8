/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * "Destination unreachable" or "time exceeded" about a SYN: there is no route to the backend, as to a pod that has just
 * ended, or only its node's default route, by which the SYN goes to and fro until its hops are used up. The connection is
 * moved, and the error dropped, which would end the connect; the SYN goes again after its time-out.
 *
 * Two of these say nothing of the backend. "Administratively prohibited": the caller is forbidden to call it, and its connect
 * ends as without us. "Time exceeded" of this very node: so does any SYN that a pod sends with one hop; the connect is moved.
 */
#pragma once

#include "rescue_tc.h"

#define ICMP_UNREACHABLE 3
#define ICMP_PARAMETER_PROBLEM 12
#define ICMP_FRAGMENTATION_NEEDED 4
#define ICMP_TIME_EXCEEDED 11
#define ICMPV6_UNREACHABLE 1
#define ICMPV6_TOO_BIG 2
#define ICMPV6_PARAMETER_PROBLEM 4
#define ICMPV6_TIME_EXCEEDED 3
#define ICMP_NET_PROHIBITED 9
#define ICMP_HOST_PROHIBITED 10
#define ICMP_COMMUNICATION_PROHIBITED 13
#define ICMPV6_PROHIBITED 1
#define ICMPV6_POLICY_FAILED 5
#define ICMPV6_REJECT_ROUTE 6
#define ICMP_HEADER 8
#define PORTS 4 /* bytes of both */
#define QUOTED_SEQUENCE 4 /* offset in the quoted TCP header */

static __always_inline int load_byte(struct __sk_buff *skb, __u32 at)
{
	__u8 byte = 0;

	return bpf_skb_load_bytes(skb, at, &byte, 1) ? -EINVAL : byte;
}

enum icmp_error {
	NO_ERROR,	 /* about no TCP segment, or of no effect on its sender's kernel: a redirect is about a route */
	ENDS_NO_CONNECT, /* as a packet that is too big */
	UNREACHABLE,
	HOPS_USED_UP,
	PROHIBITED,
};

static __always_inline int error_of4(struct __sk_buff *skb, __u32 icmp)
{
	int type = load_byte(skb, icmp), code = load_byte(skb, icmp + 1);

	if (type == ICMP_TIME_EXCEEDED)
		return HOPS_USED_UP;
	if (type == ICMP_PARAMETER_PROBLEM || (type == ICMP_UNREACHABLE && code == ICMP_FRAGMENTATION_NEEDED))
		return ENDS_NO_CONNECT;
	if (type != ICMP_UNREACHABLE)
		return NO_ERROR;
	return code == ICMP_NET_PROHIBITED || code == ICMP_HOST_PROHIBITED || code == ICMP_COMMUNICATION_PROHIBITED ?
		       PROHIBITED :
		       UNREACHABLE;
}

static __always_inline int error_of6(struct __sk_buff *skb, __u32 icmp)
{
	int type = load_byte(skb, icmp), code = load_byte(skb, icmp + 1);

	if (type == ICMPV6_TIME_EXCEEDED)
		return HOPS_USED_UP;
	if (type == ICMPV6_TOO_BIG || type == ICMPV6_PARAMETER_PROBLEM)
		return ENDS_NO_CONNECT;
	if (type != ICMPV6_UNREACHABLE)
		return NO_ERROR;
	return code == ICMPV6_PROHIBITED || code == ICMPV6_POLICY_FAILED || code == ICMPV6_REJECT_ROUTE ? PROHIBITED :
													   UNREACHABLE;
}

/*
 * enum icmp_error, and the tuple of the segment that it quotes, as the pod sent it: read into place, since stack is scarce.
 */
static __always_inline int parse_error4(struct __sk_buff *skb, struct flow_key *key, __u8 protocol)
{
	const __u32 icmp = ETH_HEADER + IPV4_HEADER, quoted = icmp + ICMP_HEADER;

	if (load_byte(skb, ETH_HEADER) != 0x45 || load_byte(skb, ETH_HEADER + 9) != IPPROTO_ICMP ||
	    load_byte(skb, quoted) != 0x45 || load_byte(skb, quoted + 9) != protocol)
		return NO_ERROR;
	key->pod[2] = key->peer[2] = bpf_htonl(0xffff);
	if (bpf_skb_load_bytes(skb, quoted + 12, &key->pod[3], 4) ||
	    bpf_skb_load_bytes(skb, quoted + 16, &key->peer[3], 4) ||
	    bpf_skb_load_bytes(skb, quoted + IPV4_HEADER, &key->pod_port, PORTS))
		return NO_ERROR;
	return error_of4(skb, icmp);
}

static __always_inline int parse_error6(struct __sk_buff *skb, struct flow_key *key, __u8 protocol)
{
	const __u32 icmp = ETH_HEADER + IPV6_HEADER, quoted = icmp + ICMP_HEADER;

	if (load_byte(skb, ETH_HEADER + 6) != IPPROTO_ICMPV6 || load_byte(skb, quoted + 6) != protocol)
		return NO_ERROR;
	if (bpf_skb_load_bytes(skb, quoted + 8, key->pod, sizeof(key->pod)) ||
	    bpf_skb_load_bytes(skb, quoted + 24, key->peer, sizeof(key->peer)) ||
	    bpf_skb_load_bytes(skb, quoted + IPV6_HEADER, &key->pod_port, PORTS))
		return NO_ERROR;
	return error_of6(skb, icmp);
}

/* The connection as the socket has it, of one that was moved to this peer; false, and unchanged, for others. */
static __always_inline bool forward_of(struct flow_key *key)
{
	const struct flow *back;

	key->reverse = 1;
	back = bpf_map_lookup_elem(&flows, key);
	key->reverse = 0;
	if (!back)
		return false;
	copy_address(key->peer, back->peer);
	key->peer_port = back->peer_port;
	key->pod_port = back->pod_port;
	return true;
}

static __always_inline __u32 quoted_tcp(bool ipv6)
{
	return ETH_HEADER + ICMP_HEADER + 2 * (ipv6 ? IPV6_HEADER : IPV4_HEADER);
}

/* A packet of this node's own: what it passes on has come in by some interface. */
static __always_inline bool is_of_this_node(const struct __sk_buff *skb)
{
	return !skb->ingress_ifindex;
}

#define ENDS_CONNECT (-3) /* no verdict of the kernel's: every backend's answer would be this one */

/*
 * What an ICMP error makes of the connect that it is about: TC_ACT_SHOT where it was moved. Where it is not, or no other
 * backend is left, the application gets the error. A denial of the backend that a connect was moved to is one that the pod
 * cannot be given: the next backend is tried, as after silence.
 */
static __always_inline int on_error(struct __sk_buff *skb, struct bpf_sock *full, struct attempt *attempt,
				    const struct flow_key *key, int error)
{
	if (error == PROHIBITED) {
		if (attempt->failed != DENIED)
			note_denial(attempt); /* once: the SYN may go again, where the error came too early for the socket */
		excuse(attempt, attempt->backend == attempt->tried[0] ? DENIED : COUNTED);
		return TC_ACT_UNSPEC;
	}
	if (error == HOPS_USED_UP && is_of_this_node(skb))
		excuse(attempt, COUNTED);
	follow_plan(attempt);
	count_failure(attempt, FAILURE_UNREACHABLE, true);
	if (can_be_moved(full) && !move_on(attempt, key))
		return TC_ACT_SHOT;
	return error == HOPS_USED_UP && is_of_this_node(skb) ? ENDS_CONNECT : TC_ACT_UNSPEC;
}

__walked_once int rescue_unreachable(struct __sk_buff *skb)
{
	bool ipv6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	struct attempt *attempt = 0;
	struct flow_key key = {};
	struct bpf_sock *sk, *full;
	int error, verdict = TC_ACT_UNSPEC;
	__be32 sequence;

	if (skb->len > LONGEST_ANSWER)
		return TC_ACT_UNSPEC;
	error = ipv6 ? parse_error6(skb, &key, IPPROTO_TCP) : parse_error4(skb, &key, IPPROTO_TCP);
	if (error == NO_ERROR || error == ENDS_NO_CONNECT)
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
	if (attempt)
		verdict = on_error(skb, full, attempt, &key, error);
	bpf_sk_release(sk);
	return verdict;
}

/* Replace bytes that are in the ICMP checksum, and where the error quotes a header with a sum of its own, in that alone. */
static __always_inline void replace_quoted(struct __sk_buff *skb, __u32 at, __u32 checksum, const void *new, __u32 size)
{
	__be32 old[4] = {}, to[4] = {};

	if (bpf_skb_load_bytes(skb, at, old, size))
		return;
	__builtin_memcpy(to, new, size);
	bpf_l4_csum_replace(skb, checksum, 0, bpf_csum_diff(old, sizeof(old), to, sizeof(to), 0), 0);
	bpf_skb_store_bytes(skb, at, new, size, 0);
}

/* The address of who has sent an error, where that is the peer that a connection was moved to. */
static __always_inline void rewrite_sender(struct __sk_buff *skb, bool ipv6, const __be32 *peer, const __be32 *shown)
{
	const __u32 checksum6 = ETH_HEADER + IPV6_HEADER + 2;
	__be32 from[4] = { 0, 0, bpf_htonl(0xffff), 0 };
	__s64 difference;

	if (ipv6) {
		if (bpf_skb_load_bytes(skb, ETH_HEADER + 8, from, 16) || !same_address(from, peer))
			return;
		difference = bpf_csum_diff(from, 16, (__be32 *)shown, 16, 0);
		bpf_l4_csum_replace(skb, checksum6, 0, difference, BPF_F_PSEUDO_HDR_);
		bpf_skb_store_bytes(skb, ETH_HEADER + 8, shown, 16, 0);
	} else {
		if (bpf_skb_load_bytes(skb, ETH_HEADER + 12, &from[3], 4) || !same_address(from, peer))
			return;
		bpf_l3_csum_replace(skb, ETH_HEADER + 10, from[3], shown[3], 4);
		bpf_skb_store_bytes(skb, ETH_HEADER + 12, &shown[3], 4, 0);
	}
}

/* Replace the tuple that an ICMP error is about, as it was sent, by that of the pod's socket: sender and quoted headers. */
static __always_inline void restore_quoted(struct __sk_buff *skb, bool ipv6, const struct flow_key *sent,
					   const struct flow_key *forward)
{
	const __u32 ip = ipv6 ? IPV6_HEADER : IPV4_HEADER, icmp = ETH_HEADER + ip, quoted = icmp + ICMP_HEADER;

	rewrite_sender(skb, ipv6, sent->peer, forward->peer);
	if (ipv6) {
		replace_quoted(skb, quoted + 24, icmp + 2, forward->peer, 16);
	} else { /* the sum of the quoted header makes up for the address: that of the whole does not change */
		bpf_l3_csum_replace(skb, quoted + 10, sent->peer[3], forward->peer[3], 4);
		bpf_skb_store_bytes(skb, quoted + 16, &forward->peer[3], 4, 0);
	}
	replace_quoted(skb, quoted + ip, icmp + 2, &forward->pod_port, PORTS);
}

/*
 * An ICMP error about a segment that was rewritten quotes it as it was sent, of which the pod's kernel knows nothing: it
 * gets the tuple of its socket back, so that path MTU discovery works (the kernel compares the sequence number). The sum of
 * the quoted TCP header is left as it was: seldom is it there, and never looked at. While a connect is under way, errors
 * that would end it stay as they are, unless always: the next backend is tried.
 */
__walked_once int rewrite_error(struct __sk_buff *skb, __u32 always)
{
	bool ipv6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	struct flow_key key = {}, forward;
	const struct flow *flow;
	int error;

	error = ipv6 ? parse_error6(skb, &key, IPPROTO_TCP) : parse_error4(skb, &key, IPPROTO_TCP);
	if (error == NO_ERROR)
		return TC_ACT_UNSPEC;
	forward = key;
	if (!forward_of(&forward))
		return TC_ACT_UNSPEC;
	flow = bpf_map_lookup_elem(&flows, &forward);
	if (!flow)
		return TC_ACT_UNSPEC;
	if (!always && error != ENDS_NO_CONNECT && !(READ_ONCE(flow->peer_flags) & FLOW_ANSWERED))
		return TC_ACT_UNSPEC;
	restore_quoted(skb, ipv6, &key, &forward);
	return TC_ACT_UNSPEC;
}

static __always_inline int icmp_to_pod(struct __sk_buff *skb)
{
	int verdict = rescue_unreachable(skb);

	if (verdict == TC_ACT_SHOT || !anything_moved())
		return verdict == TC_ACT_SHOT ? TC_ACT_SHOT : TC_ACT_UNSPEC;
	return rewrite_error(skb, verdict == ENDS_CONNECT);
}
