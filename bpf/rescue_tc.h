/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Packets of moved connections, on the node's end of a pod's link: towards the new backend, and back as from the old. */
#pragma once

#include "peek.h"
#include "rescue.h"

#define FRAGMENT 0x3fff /* more fragments, or an offset */
#define TCP_FIN 1
#define TCP_SYN 2
#define TCP_ACK 16
#define LONGEST_ANSWER (ETH_HEADER + 1280) /* of an ICMP error: 576 bytes in IPv4 (RFC 1812), 1,280 in IPv6 (RFC 4443) */
#define NOT_TCP (-2)		 /* no verdict of the kernel's: it may be an ICMP error */
#define SYN_SENT 2
#define BPF_F_PSEUDO_HDR_ 0x10
#define LONGEST_SYN 1460 /* bytes of data in it (TCP Fast Open) */
#define URGENT_POINTER 18
#define OWN_RESET 0x1577 /* any mark; this is the identifier of our TCP option */

/* What we read of a TCP segment in IPv4 without options or IPv6 without extension headers. */
struct segment {
	struct flow_key key; /* forward, or reverse for one to the pod: its peer is who it is from or to */
	__u32 l4;	     /* offset of the TCP header */
	__u32 sequence;
	__u32 acknowledged;
	__u32 length; /* of the payload */
	__u32 initial; /* set by answers_syn: the sequence number of the pod's SYN */
	__u8 flags;
	__u8 ipv6;
};

struct tcp_start {
	__be16 source;
	__be16 dest;
	__be32 sequence;
	__be32 acknowledged;
	__u8 offset;
	__u8 flags;
};

/* The length of what is after the IP header, or a negative errno: of another protocol, a fragment, or with options. */
static __always_inline int parse_addresses(struct __sk_buff *skb, struct segment *to, bool from_pod, __u8 protocol)
{
	__u32 proto = bpf_htons(skb->protocol);
	__be32 source[4] = { 0, 0, bpf_htonl(0xffff), 0 }, dest[4] = { 0, 0, bpf_htonl(0xffff), 0 };
	__u32 length;

	if (proto == ETH_P_IP) {
		__u8 ip[IPV4_HEADER];

		if (bpf_skb_load_bytes(skb, ETH_HEADER, ip, sizeof(ip)))
			return -EINVAL;
		if (ip[0] != 0x45 || ip[9] != protocol || (((__u32)ip[6] << 8 | ip[7]) & FRAGMENT))
			return -EINVAL;
		__builtin_memcpy(&source[3], ip + 12, 4);
		__builtin_memcpy(&dest[3], ip + 16, 4);
		to->l4 = ETH_HEADER + IPV4_HEADER;
		length = ((__u32)ip[2] << 8 | ip[3]) - IPV4_HEADER;
	} else if (proto == ETH_P_IPV6) {
		__u8 ip[IPV6_HEADER];

		if (bpf_skb_load_bytes(skb, ETH_HEADER, ip, sizeof(ip)))
			return -EINVAL;
		if (ip[6] != protocol)
			return -EINVAL;
		__builtin_memcpy(source, ip + 8, 16);
		__builtin_memcpy(dest, ip + 24, 16);
		to->l4 = ETH_HEADER + IPV6_HEADER;
		length = (__u32)ip[4] << 8 | ip[5];
		to->ipv6 = 1;
	} else {
		return -EINVAL;
	}
	copy_address(to->key.pod, from_pod ? source : dest);
	copy_address(to->key.peer, from_pod ? dest : source);
	return length;
}

static __always_inline int parse(struct __sk_buff *skb, struct segment *to, bool from_pod)
{
	struct tcp_start tcp;
	int length = parse_addresses(skb, to, from_pod, IPPROTO_TCP);

	if (length < 0 || bpf_skb_load_bytes(skb, to->l4, &tcp, sizeof(tcp)))
		return -EINVAL;
	to->key.pod_port = from_pod ? tcp.source : tcp.dest;
	to->key.peer_port = from_pod ? tcp.dest : tcp.source;
	to->key.reverse = 0;
	to->sequence = bpf_htonl(tcp.sequence);
	to->acknowledged = bpf_htonl(tcp.acknowledged);
	to->length = length - (tcp.offset >> 4) * 4;
	to->flags = tcp.flags;
	return 0;
}

static __always_inline void rewrite_port(struct __sk_buff *skb, const struct segment *segment, __u32 at, __be16 old,
					 __be16 new, __u32 checksum, __u64 flags)
{
	if (old == new)
		return;
	bpf_l4_csum_replace(skb, checksum, old, new, flags | sizeof(new));
	bpf_skb_store_bytes(skb, segment->l4 + at, &new, sizeof(new), 0);
}

/*
 * Replace the peer's address and port, the destination of what a pod sends and the source of what it gets; its own port. flags:
 * of UDP, whose checksum of 0 is none and stays.
 */
static __always_inline void rewrite_l4(struct __sk_buff *skb, const struct segment *segment, const __be32 *peer,
				       __be16 peer_port, __be16 pod_port, bool from_pod, __u32 checksum, __u64 flags)
{
	__be32 old4 = segment->key.peer[3], new4 = peer[3];

	if (segment->ipv6) {
		__be32 new[4], old[4];
		__s64 difference;

		copy_address(new, peer);
		copy_address(old, segment->key.peer);
		difference = bpf_csum_diff(old, sizeof(old), new, sizeof(new), 0);
		bpf_l4_csum_replace(skb, checksum, 0, difference, flags | BPF_F_PSEUDO_HDR_);
		bpf_skb_store_bytes(skb, ETH_HEADER + (from_pod ? 24 : 8), new, sizeof(new), 0);
	} else {
		bpf_l4_csum_replace(skb, checksum, old4, new4, flags | BPF_F_PSEUDO_HDR_ | sizeof(new4));
		bpf_l3_csum_replace(skb, ETH_HEADER + 10, old4, new4, sizeof(new4));
		bpf_skb_store_bytes(skb, ETH_HEADER + (from_pod ? 16 : 12), &new4, sizeof(new4), 0);
	}
	rewrite_port(skb, segment, from_pod ? 2 : 0, segment->key.peer_port, peer_port, checksum, flags);
	rewrite_port(skb, segment, from_pod ? 0 : 2, segment->key.pod_port, pod_port, checksum, flags);
}

static __always_inline void rewrite(struct __sk_buff *skb, const struct segment *segment, const __be32 *peer,
				    __be16 peer_port, __be16 pod_port, bool from_pod)
{
	rewrite_l4(skb, segment, peer, peer_port, pod_port, from_pod, segment->l4 + 16, 0);
}

/*
 * True if a RST of the peer is the last segment of a connection whose socket has gone. It is the socket that decides about
 * one before, and its end takes the entries away (close_flow): a RST with any other sequence number than the next ends
 * nothing (RFC 5961 3.2), and data that the pod has not acknowledged yet may be before it.
 */
static __always_inline bool ends_closed(const struct flow *flow, const struct segment *segment)
{
	return READ_ONCE(flow->socket_flags) & FLOW_CLOSED && segment->sequence == READ_ONCE(flow->acknowledged);
}

/*
 * Follow the end of a connection: true when this segment is its last. Entries must not go before: a FIN that is not
 * answered leaves the backend in LAST_ACK, where it would reject a later connection of that port.
 */
static __always_inline bool is_last(struct flow *flow, const struct segment *segment, bool from_pod)
{
	__u8 *own = from_pod ? &flow->pod_flags : &flow->peer_flags;
	const __u8 *other = from_pod ? &flow->peer_flags : &flow->pod_flags;

	if (!(READ_ONCE(flow->peer_flags) & FLOW_ANSWERED))
		return false; /* it is of an earlier connection of the tuple */
	if (segment->flags & TCP_RST)
		return from_pod || ends_closed(flow, segment);
	if (segment->flags & TCP_FIN) {
		flow->fin_end[from_pod ? 0 : 1] = segment->sequence + segment->length + 1;
		*own |= FLOW_FIN;
	}
	if (READ_ONCE(*other) & FLOW_FIN && segment->flags & TCP_ACK &&
	    (__s32)(segment->acknowledged - flow->fin_end[from_pod ? 1 : 0]) >= 0)
		*own |= FLOW_OTHER_DONE;
	return READ_ONCE(*other) & *own & FLOW_OTHER_DONE;
}

/* The pod's socket of a connection, as its network namespace knows it; to be released. */
static __always_inline struct bpf_sock *lookup_socket(struct __sk_buff *skb, const struct flow_key *forward, bool ipv6)
{
	__u32 link = skb->ifindex;
	const __u32 *netns = bpf_map_lookup_elem(&pod_links, &link);
	struct bpf_sock_tuple tuple = {};

	if (!netns)
		return 0;
	if (!ipv6) {
		tuple.ipv4.saddr = forward->peer[3];
		tuple.ipv4.daddr = forward->pod[3];
		tuple.ipv4.sport = forward->peer_port;
		tuple.ipv4.dport = forward->pod_port;
		return bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), *netns, 0);
	}
	copy_address(tuple.ipv6.saddr, forward->peer);
	copy_address(tuple.ipv6.daddr, forward->pod);
	tuple.ipv6.sport = forward->peer_port;
	tuple.ipv6.dport = forward->pod_port;
	return bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), *netns, 0);
}

/* True if an ICMP error is about this socket's SYN: a sender that cannot see its sequence number can neither move nor blame. */
static __always_inline bool is_about_syn(struct bpf_sock *full, __u32 sequence)
{
	const struct bpf_tcp_sock *tcp = bpf_tcp_sock(full);

	return tcp && tcp->snd_una == sequence;
}

/*
 * True if a segment answers this socket's SYN, or some of the data in it: SND.UNA < SEG.ACK <= SND.NXT (RFC 9293 3.10.7.3).
 * Linux raises snd_nxt after it has sent the SYN, which an answer within the machine may be ahead of; write_seq before.
 */
static __always_inline bool answers_syn(struct bpf_sock *full, struct segment *segment)
{
	const struct tcp_sock *tcp = bpf_skc_to_tcp_sock(full);

	if (!tcp)
		return false;
	segment->initial = tcp->snd_una;
	return (__s32)(segment->acknowledged - segment->initial) > 0 &&
	       (__s32)(tcp->write_seq - segment->acknowledged) >= 0;
}

enum answer {
	ANSWER_PASSED, /* not about a connect of ours that is under way */
	ANSWER_MOVED,  /* RST: the connection was moved to another backend */
};

/* Judge the RST of a pending connect's present backend. */
static __always_inline int refused(struct __sk_buff *skb, const struct flow_key *forward, struct segment *segment)
{
	struct bpf_sock *sk = lookup_socket(skb, forward, segment->ipv6), *full;
	struct attempt *attempt = 0;
	int answer = ANSWER_PASSED;

	if (!sk)
		return ANSWER_PASSED;
	full = sk->state == SYN_SENT ? bpf_sk_fullsock(sk) : 0;
	if (full && answers_syn(full, segment))
		attempt = attempt_of(full);
	if (attempt) {
		follow_plan(attempt);
		count_failure(attempt, FAILURE_REFUSED, true);
		if (can_be_moved(full) && !move_on(attempt, forward))
			answer = ANSWER_MOVED;
		else
			move_back(attempt, forward);
	}
	bpf_sk_release(sk);
	return answer;
}

/* Acknowledge nothing of the SYN, nor of data in it, which SYN-SENT ignores, and lets the SYN be sent again soon. */
static __always_inline void spoil(struct __sk_buff *skb, const struct segment *segment)
{
	__be32 old = bpf_htonl(segment->acknowledged), new = bpf_htonl(segment->initial);

	bpf_l4_csum_replace(skb, segment->l4 + 16, old, new, sizeof(new));
	bpf_skb_store_bytes(skb, segment->l4 + 8, &new, sizeof(new), 0);
}

/* A live connection of the pod has the tuple that a moved one would get. TIME_WAIT is none. */
static __always_inline bool is_taken(struct __sk_buff *skb, const struct segment *segment, const struct flow *flow)
{
	struct flow_key direct = {};
	struct bpf_sock *sk;
	bool taken;

	reverse_of(&direct, &segment->key, flow);
	sk = lookup_socket(skb, &direct, segment->ipv6);
	if (!sk)
		return false;
	taken = sk->state != BPF_TCP_TIME_WAIT && sk->state != BPF_TCP_LISTEN;
	bpf_sk_release(sk);
	return taken;
}

/* Undo a move before its first packet: the SYN goes to the first choice again, and its answer moves it on. */
static __always_inline void stay_with_first_choice(struct __sk_buff *skb, const struct segment *segment)
{
	struct bpf_sock *sk = lookup_socket(skb, &segment->key, segment->ipv6), *full;
	struct attempt *attempt = 0;

	if (!sk)
		return;
	full = sk->state == SYN_SENT ? bpf_sk_fullsock(sk) : 0;
	if (full)
		attempt = attempt_of(full);
	if (attempt)
		move_back(attempt, &segment->key);
	bpf_sk_release(sk);
}

/* A connect from a port that a moved connection has towards this very backend: it gets a spare one. */
static __always_inline struct flow *give_port(struct __sk_buff *skb, const struct segment *segment)
{
	struct flow there = { .peer_port = segment->key.peer_port, .used = bpf_ktime_get_ns() };
	struct flow_key reverse = segment->key;
	struct attempt *attempt = 0;
	struct bpf_sock *sk, *full;

	reverse.reverse = 1;
	if (!bpf_map_lookup_elem(&flows, &reverse))
		return 0;
	sk = lookup_socket(skb, &segment->key, segment->ipv6);
	if (!sk)
		return 0;
	full = sk->state == SYN_SENT ? bpf_sk_fullsock(sk) : 0;
	if (full)
		attempt = attempt_of(full);
	if (attempt) {
		there.backend = attempt->backend;
		attempt->moved = 1; /* so that the entries go with the socket */
	}
	bpf_sk_release(sk);
	copy_address(there.peer, segment->key.peer);
	if (!there.backend || put_flow(&segment->key, &there, false))
		return 0;
	return bpf_map_lookup_elem(&flows, &segment->key);
}

/* The entry that a SYN is rewritten by; the tuple it then has is in use nowhere. */
static __always_inline struct flow *flow_of_syn(struct __sk_buff *skb, const struct segment *segment, struct flow *flow)
{
	struct flow there;

	if (!flow)
		return give_port(skb, segment);
	if (!is_taken(skb, segment, flow))
		return flow;
	there = *flow;
	if (!put_flow(&segment->key, &there, false) && !is_taken(skb, segment, &there))
		return bpf_map_lookup_elem(&flows, &segment->key);
	stay_with_first_choice(skb, segment);
	return 0;
}

/* Write the urgent pointer of a RST, 0 until then or from then on. */
static __always_inline void mark_reset(struct __sk_buff *skb, const struct segment *segment, __be16 from, __be16 to)
{
	bpf_l4_csum_replace(skb, segment->l4 + 16, from, to, sizeof(to));
	bpf_skb_store_bytes(skb, segment->l4 + URGENT_POINTER, &to, sizeof(to), 0);
}

/* True for the RST of answer_with_reset, which goes to the backend that it is addressed to. */
static __always_inline bool is_own_reset(struct __sk_buff *skb, const struct segment *segment)
{
	__be16 mark;

	if (segment->flags != TCP_RST || bpf_skb_load_bytes(skb, segment->l4 + URGENT_POINTER, &mark, sizeof(mark)) ||
	    mark != bpf_htons(OWN_RESET))
		return false;
	mark_reset(skb, segment, mark, 0);
	return true;
}

__walked_once int rescue_from_pod(struct __sk_buff *skb)
{
	struct segment segment = {};
	struct flow *flow;
	bool last;

	if (!anything_moved() || parse(skb, &segment, true) || is_own_reset(skb, &segment))
		return TC_ACT_UNSPEC;
	flow = bpf_map_lookup_elem(&flows, &segment.key);
	if (segment.flags & TCP_SYN)
		flow = flow_of_syn(skb, &segment, flow);
	if (!flow)
		return TC_ACT_UNSPEC;
	if (segment.flags & TCP_SYN)
		flow->pod_flags |= flow->pod_flags & FLOW_SENT ? FLOW_SENT_AGAIN : FLOW_SENT;
	else
		flow->used = bpf_ktime_get_ns();
	if (segment.flags & TCP_ACK)
		flow->acknowledged = segment.acknowledged;
	last = is_last(flow, &segment, true);
	rewrite(skb, &segment, flow->peer, flow->peer_port, flow->pod_port, true);
	if (last)
		forget_flow(&segment.key);
	return TC_ACT_UNSPEC;
}

/*
 * True if the pod's socket takes a SYN-ACK of the peer that it knows. A connect under way: it has no other answer yet, so that
 * the first choice wins. One that was not moved, or not any more: its peer repeats the answer.
 */
static __always_inline bool takes_answer(struct __sk_buff *skb, struct segment *segment, bool moved)
{
	bool taken;

	struct bpf_sock *sk = lookup_socket(skb, &segment->key, segment->ipv6), *full;
	struct attempt *attempt = 0;

	if (!sk)
		return false;
	full = sk->state == SYN_SENT ? bpf_sk_fullsock(sk) : 0;
	if (full && answers_syn(full, segment))
		attempt = attempt_of(full);
	if (attempt) {
		move_back(attempt, &segment->key);
		attempt->failed = UNCOUNTED;
	}
	taken = attempt || (!moved && sk->state != BPF_TCP_TIME_WAIT && sk->state != BPF_TCP_LISTEN);
	bpf_sk_release(sk);
	return taken;
}

/*
 * Make of a SYN-ACK the RST that answers it (RFC 9293 3.10.7.1), and send it as the pod. Swapped addresses and ports
 * leave the checksum as it is. Options become padding: a time stamp of the peer's own would be taken for an
 * old segment's (RFC 7323). from_pod knows the RST by its urgent pointer, which means nothing without URG.
 */
static __attribute__((noinline)) int answer_with_reset(struct __sk_buff *skb, const struct segment *segment)
{
	const __be32 padding = bpf_htonl(0x01010101);
	__be32 none = 0, old = bpf_htonl(segment->sequence), sequence = bpf_htonl(segment->acknowledged), option;
	__u32 sum = segment->l4 + 16, addresses = segment->ipv6 ? ETH_HEADER + 8 : ETH_HEADER + 12;
	__be32 source[4] = {}, dest[4] = {};
	__u8 macs[12], swapped[12];
	__be16 ports[2], word, urgent, to;

	if (bpf_skb_load_bytes(skb, 0, macs, sizeof(macs)) || bpf_skb_load_bytes(skb, segment->l4, ports, sizeof(ports)) ||
	    bpf_skb_load_bytes(skb, segment->l4 + 12, &word, sizeof(word)) ||
	    bpf_skb_load_bytes(skb, segment->l4 + URGENT_POINTER, &urgent, sizeof(urgent)))
		return TC_ACT_SHOT;
	for (__u32 at = 20; at < 60 && at < (bpf_htons(word) >> 12) * 4; at += sizeof(option)) {
		if (bpf_skb_load_bytes(skb, segment->l4 + at, &option, sizeof(option)))
			return TC_ACT_SHOT;
		bpf_l4_csum_replace(skb, sum, option, padding, sizeof(padding));
		bpf_skb_store_bytes(skb, segment->l4 + at, &padding, sizeof(padding), 0);
	}
	__builtin_memcpy(swapped, macs + 6, 6);
	__builtin_memcpy(swapped + 6, macs, 6);
	bpf_skb_store_bytes(skb, 0, swapped, sizeof(swapped), 0);
	if (segment->ipv6) {
		copy_address(source, segment->key.pod);
		copy_address(dest, segment->key.peer);
		bpf_skb_store_bytes(skb, addresses, source, 16, 0);
		bpf_skb_store_bytes(skb, addresses + 16, dest, 16, 0);
	} else {
		bpf_skb_store_bytes(skb, addresses, &segment->key.pod[3], 4, 0);
		bpf_skb_store_bytes(skb, addresses + 4, &segment->key.peer[3], 4, 0);
	}
	to = ports[0];
	ports[0] = ports[1];
	ports[1] = to;
	bpf_skb_store_bytes(skb, segment->l4, ports, sizeof(ports), 0);
	bpf_l4_csum_replace(skb, sum, old, none, sizeof(old)); /* the other number changes its place alone, which leaves the sum */
	bpf_skb_store_bytes(skb, segment->l4 + 4, &sequence, sizeof(sequence), 0);
	bpf_skb_store_bytes(skb, segment->l4 + 8, &none, sizeof(none), 0);
	to = (word & bpf_htons(0xf000)) | bpf_htons(TCP_RST);
	bpf_l4_csum_replace(skb, sum, word, to, sizeof(to));
	bpf_skb_store_bytes(skb, segment->l4 + 12, &to, sizeof(to), 0);
	mark_reset(skb, segment, urgent, bpf_htons(OWN_RESET));
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/* True for the answer to a SYN that a connect has left behind, also a repeated one. It counts once, as its backend's success. */
static __always_inline bool is_late(struct segment *segment)
{
	struct unanswered *found = bpf_map_lookup_elem(&unanswered, &segment->key);
	struct unanswered syn;
	__u64 took;

	if (!found)
		return false;
	syn = *found;
	if (segment->acknowledged - syn.sequence - 1 > LONGEST_SYN)
		return false;
	if (syn.answered)
		return true;
	found->answered = 1;
	took = bpf_ktime_get_ns() - syn.sent;
	learn_round_trip(syn.cluster, took / 1000);
	learn_handshake(syn.backend, syn.generation, took);
	count_late_success(&syn);
	return true;
}

/*
 * A SYN-ACK while connections are moved, of another backend than the one that a connection was moved to. Of the first choice,
 * in time, it takes the connection back. Else the backend is reset, which would keep a half-open connection for as long as
 * nothing answers it.
 */
__walked_once int accepted_to_pod(struct __sk_buff *skb)
{
	struct segment segment = {};
	const struct flow *moved;
	bool late;

	if (parse(skb, &segment, false) || (segment.flags & (TCP_SYN | TCP_ACK | TCP_RST)) != (TCP_SYN | TCP_ACK))
		return TC_ACT_UNSPEC;
	segment.key.reverse = 1;
	moved = bpf_map_lookup_elem(&flows, &segment.key);
	segment.key.reverse = 0;
	if (moved)
		return TC_ACT_UNSPEC;
	late = is_late(&segment);
	moved = bpf_map_lookup_elem(&flows, &segment.key);
	if (!moved && !late)
		return TC_ACT_UNSPEC;
	if (!(moved && READ_ONCE(moved->peer_flags) & FLOW_ANSWERED) && takes_answer(skb, &segment, moved)) {
		bpf_map_delete_elem(&unanswered, &segment.key);
		return TC_ACT_UNSPEC;
	}
	return late ? answer_with_reset(skb, &segment) : TC_ACT_SHOT;
}

/* From a backend that a connection was moved to. */
static __always_inline int from_new_peer(struct __sk_buff *skb, struct segment *segment, const struct flow *back)
{
	struct flow_key forward = {};
	struct flow *flow;
	bool last;

	copy_address(forward.pod, segment->key.pod);
	forward.pod_port = back->pod_port;
	copy_address(forward.peer, back->peer);
	forward.peer_port = back->peer_port;
	flow = bpf_map_lookup_elem(&flows, &forward);
	if (!flow || !(READ_ONCE(flow->pod_flags) & FLOW_SENT))
		return TC_ACT_UNSPEC; /* the tuple is still that of another connection, for which the SYN will make way */
	if (!(flow->peer_flags & FLOW_ANSWERED)) {
		if (segment->flags & TCP_RST) {
			if (refused(skb, &forward, segment) == ANSWER_MOVED)
				spoil(skb, segment);
			rewrite(skb, segment, forward.peer, forward.peer_port, forward.pod_port, false);
			return TC_ACT_UNSPEC;
		}
		flow->peer_flags |= segment->flags & TCP_SYN ? FLOW_ANSWERED : FLOW_STALE;
	}
	flow->used = bpf_ktime_get_ns();
	last = is_last(flow, segment, false);
	rewrite(skb, segment, forward.peer, forward.peer_port, forward.pod_port, false);
	if (last)
		forget_flow(&forward);
	return TC_ACT_UNSPEC;
}

/* While nothing is moved, only short packets are looked at: what starts a rescue is one. */
__walked_once int rescue_to_pod(struct __sk_buff *skb)
{
	struct segment segment = {};
	const struct flow *found;
	bool moved = anything_moved();

	if (!moved && skb->len > LONGEST_ANSWER)
		return TC_ACT_UNSPEC;
	if (parse(skb, &segment, false))
		return NOT_TCP;
	if (moved) {
		segment.key.reverse = 1;
		found = bpf_map_lookup_elem(&flows, &segment.key);
		segment.key.reverse = 0;
		if (found)
			return from_new_peer(skb, &segment, found);
		found = bpf_map_lookup_elem(&flows, &segment.key);
		if (found)
			return TC_ACT_SHOT; /* of the first choice: accepted_to_pod has passed an answer that wins */
	}
	if (segment.flags & TCP_RST && rescue_is_on() && refused(skb, &segment.key, &segment) == ANSWER_MOVED)
		spoil(skb, &segment);
	return TC_ACT_UNSPEC;
}
