/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Reading a question: headers, checksum, name, what follows the name. */
#pragma once

#include "names_common.h"
#include "names_limit.h"
#include "names_reach.h"

static __always_inline __u16 read16(const struct name_scratch *scratch, __u32 at)
{
	return scratch->packet[at & (DNS_QUESTION - 1)] << 8 | scratch->packet[(at + 1) & (DNS_QUESTION - 1)];
}

/* What follows the name: type, class, perhaps OPT and nothing else. As isthmus.zone.codec.parse has it. */
static __always_inline void read_rest(const struct name_scratch *scratch, struct question *asked)
{
	__u32 at = DNS_HEADER + asked->name_size;

	asked->type = read16(scratch, at);
	asked->ordinary = at + 4 <= asked->size && read16(scratch, at + 2) == DNS_IN && asked->type < DNS_ORDINARY;
	at += 4;
	asked->room = DNS_PLAIN;
	asked->has_opt = asked->header.extra != 0;
	if (!asked->has_opt) {
		if (at != asked->size)
			asked->ordinary = false;
		return;
	}
	asked->opt_flags = read16(scratch, at + 7) >> 8 & 0x80;
	asked->room = read16(scratch, at + 3);
	if (asked->room < DNS_PLAIN)
		asked->room = DNS_PLAIN;
	if (asked->room > DNS_MOST)
		asked->room = DNS_MOST;
	if (at + DNS_OPT > asked->size || scratch->packet[at & (DNS_QUESTION - 1)] || read16(scratch, at + 1) != 41 ||
	    scratch->packet[(at + 6) & (DNS_QUESTION - 1)] || at + DNS_OPT + read16(scratch, at + 9) != asked->size)
		asked->ordinary = false;
}

/*
 * Read the name: lower case into scratch, zero-padded to MAX_KEY, with the offsets of its labels. A byte of a length
 * is below 64 and so no letter. -EINVAL: compressed, cut off, or of more labels or bytes than we look at.
 *
 * What a step depends on is kept in scratch and not on the stack: the verifier knows nothing of it there, so all ways
 * to reach a byte are one state to it, and not one for each number of labels before.
 */
__walked_once int read_name(struct __sk_buff *skb)
{
	__u64 hash = 0xcbf29ce484222325ULL;
	struct name_scratch *scratch = name_scratch_of(skb);
	__u32 size;

	if (!scratch)
		return -EINVAL;
	size = scratch->asked.size;
	scratch->labels = 0;
	scratch->left = 0;
	__builtin_memset(scratch->name, 0, MAX_KEY);
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < MAX_NAME - 1; i++) {
		__u8 byte = scratch->packet[DNS_HEADER + i];
		__u32 labels;

		if (DNS_HEADER + i >= size)
			return -EINVAL;
		if (byte >= 'A' && byte <= 'Z')
			byte += 'a' - 'A';
		scratch->name[i] = byte;
		hash = (hash ^ byte) * 0x100000001b3ULL;
		if (READ_ONCE(scratch->left)) {
			WRITE_ONCE(scratch->left, READ_ONCE(scratch->left) - 1);
			continue;
		}
		labels = READ_ONCE(scratch->labels);
		if (!byte) {
			scratch->asked.labels = labels;
			scratch->asked.name_size = i + 1;
			scratch->asked.hash = hash;
			read_rest(scratch, &scratch->asked);
			return 0;
		}
		if (byte > 63 || labels >= MAX_LABELS)
			return -EINVAL;
		scratch->starts[labels & (MAX_LABELS - 1)] = i;
		WRITE_ONCE(scratch->labels, labels + 1);
		WRITE_ONCE(scratch->left, byte);
	}
	return -EINVAL;
}

/*
 * A checksum of UDP is right, absent (IPv4), or still to be made by a device: then it is the pseudo header's sum alone.
 * The message is in scratch, zero-padded to a multiple of four.
 */
static __always_inline bool has_checksum(const struct name_scratch *scratch, const struct udphdr *udp,
					 struct question *asked)
{
	__u32 padded = (asked->size + 3) & ~3;
	__u16 pseudo = fold(asked->pseudo + udp->len);
	__s64 sum;

	asked->partial = udp->check == pseudo;
	if (asked->partial)
		return true;
	if (!udp->check)
		return !asked->is_ipv6;
	if (padded > DNS_QUESTION)
		return false;
	sum = bpf_csum_diff(0, 0, (const __be32 *)udp, sizeof(*udp), pseudo);
	sum = bpf_csum_diff(0, 0, (const __be32 *)scratch->packet, padded, sum);
	return fold(sum) == 0xffff;
}

/* Addresses, ports, and that this is a whole datagram to a resolver. -ENOENT for everything else. */
static __always_inline int read_headers(struct __sk_buff *skb, struct question *asked, struct udphdr *udp,
					struct dns_server_key *to)
{
	__u32 udp_len;

	__builtin_memset(to, 0, sizeof(*to));
	asked->ip = ETH_HLEN;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, asked->ip, &ip, sizeof(ip)))
			return -ENOENT;
		if (ip.version != 4 || ip.ihl != 5 || ip.protocol != IPPROTO_UDP || ip.frag_off & bpf_htons(0x3fff))
			return -ENOENT;
		if (fold(bpf_csum_diff(0, 0, (const __be32 *)&ip, sizeof(ip), 0)) != 0xffff)
			return -ENOENT;
		asked->is_ipv6 = false;
		asked->udp = asked->ip + sizeof(ip);
		udp_len = bpf_htons(ip.tot_len) - sizeof(ip);
		to->address[2] = bpf_htonl(0xffff);
		to->address[3] = ip.daddr;
		asked->pseudo = (__u64)ip.saddr + ip.daddr;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, asked->ip, &ip, sizeof(ip)))
			return -ENOENT;
		if (ip.version != 6 || ip.nexthdr != IPPROTO_UDP)
			return -ENOENT;
		asked->is_ipv6 = true;
		asked->udp = asked->ip + sizeof(ip);
		udp_len = bpf_htons(ip.payload_len);
		__builtin_memcpy(to->address, &ip.daddr, sizeof(to->address));
		asked->pseudo = bpf_csum_diff(0, 0, (const __be32 *)&ip.saddr, 32, 0);
	} else {
		return -ENOENT;
	}
	if (bpf_skb_load_bytes(skb, asked->udp, udp, sizeof(*udp)))
		return -ENOENT;
	if (udp->dest != DNS_PORT)
		return -ENOENT;
	to->port = udp->dest;
	asked->pseudo += bpf_htons(IPPROTO_UDP);
	asked->size = udp_len - sizeof(*udp);
	return 0;
}

/* Whether the lengths agree, and a question of the usual size fits. */
static __always_inline bool has_room(const struct __sk_buff *skb, const struct question *asked,
				     const struct udphdr *udp)
{
	__u32 udp_len = bpf_htons(udp->len);

	if (udp_len < sizeof(*udp) + DNS_HEADER + 5 || udp_len > sizeof(*udp) + DNS_QUESTION)
		return false;
	return udp_len - sizeof(*udp) == asked->size && skb->len >= asked->udp + udp_len;
}

/*
 * One question to a resolver, into scratch: -ENOENT for what is not. Its name is still to be read. -EBUSY: the node's
 * server was asked too much, whatever the packet holds.
 */
__walked_once int read_question(struct __sk_buff *skb)
{
	struct name_scratch *scratch = name_scratch_of(skb);
	struct question read = {}, *asked = &read;
	struct dns_server_key to;
	const __u32 *role;
	struct udphdr udp;
	__u32 size, zero = 0;

	if (!scratch || skb->gso_segs > 1 || read_headers(skb, asked, &udp, &to))
		return -ENOENT;
	role = bpf_map_lookup_elem(&dns_servers, &to);
	if (!role)
		return -ENOENT;
	if (*role == DNS_SERVER_OWN) {
		const struct names_config *cfg = bpf_map_lookup_elem(&names_config, &zero);

		note_namespace(skb);
		if (cfg && is_too_many(skb, cfg))
			return -EBUSY;
	}
	if (!has_room(skb, asked, &udp))
		return -ENOENT;
	size = asked->size;
	if (size < DNS_HEADER + 5 || size > DNS_QUESTION)
		return -ENOENT;
	__builtin_memset(scratch->packet + ((size - 1) & (DNS_QUESTION - 1)), 0, 4);
	if (bpf_skb_load_bytes(skb, asked->udp + sizeof(udp), scratch->packet, size))
		return -ENOENT;
	if (!has_checksum(scratch, &udp, asked))
		return -ENOENT;
	__builtin_memcpy(&asked->header, scratch->packet, DNS_HEADER);
	asked->flags = bpf_htons(asked->header.flags);
	if (asked->flags & (DNS_QR | DNS_OPCODE | DNS_TC) || asked->header.questions != bpf_htons(1))
		return -ENOENT;
	if (asked->header.answers || asked->header.authorities || asked->header.extra & ~bpf_htons(1))
		return -ENOENT;
	scratch->asked = read;
	scratch->udp = udp;
	scratch->to = to;
	return 0;
}
