/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A connected UDP socket whose service has lost its backend is moved to another one by the agent. The programs on the
 * node's end of the pod's link give its datagrams the address of the new backend, and answers that of the old one, which
 * stays the socket's peer. While the service has no backend, datagrams are dropped.
 */
#pragma once

#include "rescue_icmp.h"

#define UDP_CHECKSUM 6
#define ZERO_IS_NONE 0x20 /* BPF_F_MARK_MANGLED_0 */

static __always_inline bool any_datagram_moved(void)
{
	__u32 zero = 0;
	const __u32 *gate = bpf_map_lookup_elem(&udp_gate, &zero);

	return gate && READ_ONCE(*gate);
}

static __always_inline int parse_datagram(struct __sk_buff *skb, struct segment *to, bool from_pod)
{
	__be16 ports[2];

	if (parse_addresses(skb, to, from_pod, IPPROTO_UDP) < 0 || bpf_skb_load_bytes(skb, to->l4, ports, sizeof(ports)))
		return -EINVAL;
	to->key.pod_port = ports[from_pod ? 0 : 1];
	to->key.peer_port = ports[from_pod ? 1 : 0];
	return 0;
}

/* True while the socket that was moved is connected by the same call: its tuple may be another socket's by now. */
static __always_inline bool is_moved(const struct udp_flow *flow, const __be32 *peer, __be16 peer_port)
{
	__u64 socket = flow->socket;
	const struct tcp_call *call = call_in_place(socket);
	const struct orig_dst *dst = call ? &call->dst : bpf_map_lookup_elem(&udp_connects, &socket);

	return dst && dst->service == flow->service && is_backend(dst, peer, peer_port);
}

static __always_inline void rewrite_datagram(struct __sk_buff *skb, const struct segment *datagram,
					     const struct udp_flow *flow, bool from_pod)
{
	__be32 peer[4];

	copy_address(peer, flow->peer);
	rewrite_l4(skb, datagram, peer, flow->peer_port, flow->pod_port, from_pod, datagram->l4 + UDP_CHECKSUM, ZERO_IS_NONE);
}

__walked_once int datagram_from_pod(struct __sk_buff *skb)
{
	struct segment datagram = {};
	const struct udp_flow *flow;

	if (!any_datagram_moved() || parse_datagram(skb, &datagram, true))
		return TC_ACT_UNSPEC;
	flow = bpf_map_lookup_elem(&udp_flows, &datagram.key);
	if (!flow || !is_moved(flow, datagram.key.peer, datagram.key.peer_port))
		return TC_ACT_UNSPEC;
	if (!flow->peer_port)
		return TC_ACT_SHOT;
	rewrite_datagram(skb, &datagram, flow, true);
	return TC_ACT_UNSPEC;
}

__walked_once int datagram_to_pod(struct __sk_buff *skb)
{
	struct segment datagram = {};
	const struct udp_flow *flow;

	if (!any_datagram_moved() || parse_datagram(skb, &datagram, false))
		return TC_ACT_UNSPEC;
	datagram.key.reverse = 1;
	flow = bpf_map_lookup_elem(&udp_flows, &datagram.key);
	if (flow && is_moved(flow, flow->peer, flow->peer_port))
		rewrite_datagram(skb, &datagram, flow, false);
	return TC_ACT_UNSPEC;
}

/* An ICMP error about a datagram that was moved is about the socket's own peer, for the pod's kernel. */
__walked_once int datagram_error_to_pod(struct __sk_buff *skb)
{
	bool ipv6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	struct flow_key sent = {}, forward;
	const struct udp_flow *flow;
	int error;

	if (!any_datagram_moved() || skb->len > LONGEST_ANSWER)
		return TC_ACT_UNSPEC;
	error = ipv6 ? parse_error6(skb, &sent, IPPROTO_UDP) : parse_error4(skb, &sent, IPPROTO_UDP);
	if (error == NO_ERROR)
		return TC_ACT_UNSPEC;
	forward = sent;
	forward.reverse = 1;
	flow = bpf_map_lookup_elem(&udp_flows, &forward);
	if (!flow || !is_moved(flow, flow->peer, flow->peer_port))
		return TC_ACT_UNSPEC;
	copy_address(forward.peer, flow->peer);
	forward.peer_port = flow->peer_port;
	forward.pod_port = flow->pod_port;
	restore_quoted(skb, ipv6, &sent, &forward);
	return TC_ACT_UNSPEC;
}
