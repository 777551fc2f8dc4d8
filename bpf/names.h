/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Questions of DNS that a pod sends, read where they enter the node. Ours are answered in place from names; what only
 * the node's server can answer goes to it; everything else passes as it came.
 *
 * Functions give 0 or a negative errno: -ENOENT is "not ours", -EREMOTE "for the node's server", -EAGAIN "an element
 * changed while it was read".
 */
#pragma once

#include <linux/errno.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <stddef.h>

#include "maps.h"
#include "names_maps.h"

#define DNS_PORT bpf_htons(53)
#define DNS_HEADER 12
#define DNS_OPT 11
#define DNS_PLAIN 512 /* the most that a client without EDNS takes */
#define DNS_MOST 1232 /* the most we send over UDP: no link fragments it */
#define DNS_QUESTION 512 /* longer packets are not ordinary questions */

#define DNS_QR 0x8000
#define DNS_OPCODE 0x7800
#define DNS_AA 0x0400
#define DNS_TC 0x0200
#define DNS_RD 0x0100
#define DNS_RA 0x0080
#define DNS_CD 0x0010
#define DNS_NOERROR 0
#define DNS_NXDOMAIN 3

#define DNS_A 1
#define DNS_NS 2
#define DNS_SOA 6
#define DNS_PTR 12
#define DNS_TXT 16
#define DNS_AAAA 28
#define DNS_SRV 33
#define DNS_ORDINARY 128 /* types from here on ask about names, not for records of them (RFC 6895, 3.1) */
#define DNS_IN 1

#define A_SIZE 16
#define AAAA_SIZE 28

struct dns_header {
	__be16 id;
	__be16 flags;
	__be16 questions;
	__be16 answers;
	__be16 authorities;
	__be16 extra;
};

struct dns_opt {
	__u8 owner;
	__be16 type;
	__be16 size;
	__u8 extended;
	__u8 version;
	__be16 flags;
	__be16 length;
} __attribute__((packed));

/* A question where it stands in its packet. */
struct question {
	__u32 ip;	 /* offset of the IP header */
	__u32 udp;	 /* of the UDP header */
	__u32 size;	 /* of the DNS message */
	__u32 name_size; /* wire format, root included */
	__u32 labels;	 /* root not included */
	__u32 room;	 /* the largest message that the client takes */
	__u64 hash;	 /* of the name, FNV-1a */
	__u64 pseudo;	 /* sum of the pseudo header, but for the length */
	__u16 type;
	__u16 flags;
	bool is_ipv6;
	bool partial;	 /* its checksum is still to be made by a device */
	bool has_opt;
	bool ordinary;	 /* class, type and OPT are what the kernel can answer */
	__u8 opt_flags;	 /* the upper half: DO */
	struct dns_header header;
};

static long (*const bpf_skb_change_tail)(void *skb, __u32 len, __u64 flags) = (void *)BPF_FUNC_skb_change_tail;
static long (*const bpf_redirect)(__u32 ifindex, __u64 flags) = (void *)BPF_FUNC_redirect;

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

static __always_inline void count_name(__u16 type, __u32 result)
{
	__u32 kind = type == DNS_A ? KIND_A : type == DNS_AAAA ? KIND_AAAA : type == DNS_SRV ? KIND_SRV : KIND_OTHER;
	__u32 at = kind * NAME_RESULTS + result;
	__u64 *found = bpf_map_lookup_elem(&name_counters, &at);

	if (found)
		*found += 1;
}

/* Whether len bytes at an offset of the name are those. */
static __always_inline bool has_at(const struct name_scratch *scratch, __u32 at, const __u8 *those, __u32 len)
{
	if (len > MAX_SUFFIX)
		return false;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < MAX_SUFFIX; i++) {
		if (i >= len)
			break;
		if (scratch->name[(at + i) & (MAX_NAME - 1)] != those[i])
			return false;
	}
	return true;
}

/* Where the label stands that is the n-th from the end, 1 being the last; the caller knows that there is one. */
static __always_inline __u32 label_from_end(const struct name_scratch *scratch, const struct question *asked, __u32 n)
{
	return scratch->starts[(asked->labels - n) & (MAX_LABELS - 1)];
}

/*
 * Read the name: lower case into scratch, zero-padded to MAX_KEY, with the offsets of its labels. A byte of a length
 * is below 64 and so no letter. -EINVAL: compressed, cut off, or of more labels or bytes than we look at.
 *
 * What a step depends on is kept in scratch and not on the stack: the verifier knows nothing of it there, so all ways
 * to reach a byte are one state to it, and not one for each number of labels before.
 */
static __always_inline int read_name(struct name_scratch *scratch, struct question *asked)
{
	__u64 hash = 0xcbf29ce484222325ULL;

	scratch->labels = 0;
	scratch->left = 0;
	__builtin_memset(scratch->name, 0, MAX_KEY);
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < MAX_NAME - 1; i++) {
		__u8 byte = scratch->packet[DNS_HEADER + i];
		__u32 labels;

		if (DNS_HEADER + i >= asked->size)
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
			asked->labels = labels;
			asked->name_size = i + 1;
			asked->hash = hash;
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
	if (udp->dest != DNS_PORT || bpf_htons(udp->len) != udp_len || skb->len < asked->udp + udp_len)
		return -ENOENT;
	if (udp_len < sizeof(*udp) + DNS_HEADER + 5 || udp_len > sizeof(*udp) + DNS_QUESTION)
		return -ENOENT;
	asked->pseudo += bpf_htons(IPPROTO_UDP);
	to->port = udp->dest;
	asked->size = udp_len - sizeof(*udp);
	return 0;
}

/* One question to a resolver: -ENOENT for what is not, or is not well-formed enough to have a name. */
static __always_inline int read_question(struct __sk_buff *skb, struct name_scratch *scratch, struct question *asked,
					 struct udphdr *udp, struct dns_server_key *to)
{
	__u32 size;

	if (skb->gso_segs > 1 || read_headers(skb, asked, udp, to))
		return -ENOENT;
	if (!bpf_map_lookup_elem(&dns_servers, to))
		return -ENOENT;
	size = asked->size;
	if (size < DNS_HEADER + 5 || size > DNS_QUESTION)
		return -ENOENT;
	__builtin_memset(scratch->packet + ((size - 1) & (DNS_QUESTION - 1)), 0, 4);
	if (bpf_skb_load_bytes(skb, asked->udp + sizeof(*udp), scratch->packet, size))
		return -ENOENT;
	if (!has_checksum(scratch, udp, asked))
		return -ENOENT;
	__builtin_memcpy(&asked->header, scratch->packet, DNS_HEADER);
	asked->flags = bpf_htons(asked->header.flags);
	if (asked->flags & (DNS_QR | DNS_OPCODE | DNS_TC) || asked->header.questions != bpf_htons(1))
		return -ENOENT;
	if (asked->header.answers || asked->header.authorities || asked->header.extra & ~bpf_htons(1))
		return -ENOENT;
	if (read_name(scratch, asked))
		return -ENOENT;
	read_rest(scratch, asked);
	return 0;
}

static __always_inline bool is_in_zone(const struct name_scratch *scratch, const struct question *asked,
				       const struct names_config *cfg)
{
	__u32 labels = cfg->zone_labels, at;

	if (asked->labels < labels)
		return false;
	at = label_from_end(scratch, asked, labels);
	return asked->name_size == at + cfg->zone_size && has_at(scratch, at, cfg->zone, cfg->zone_size);
}

static __always_inline bool is_svc(const struct name_scratch *scratch, __u32 at)
{
	const __u8 *label = &scratch->name[at & (MAX_NAME - 1)];

	return label[0] == 3 && label[1] == 's' && label[2] == 'v' && label[3] == 'c';
}

/*
 * A name of ours with a search domain of a pod behind it: x.svc.ZONE, then NS.svc.CLUSTER, svc.CLUSTER or CLUSTER. No
 * Kubernetes Service can have it: that would be a service of a protocol "svc" without an underscore.
 */
static __always_inline bool is_expansion(const struct name_scratch *scratch, const struct question *asked,
					 const struct names_config *cfg)
{
	__u32 cluster = cfg->cluster_labels, ours = cfg->zone_labels + 1, at;

	if (!cluster || asked->labels < cluster + ours + 1)
		return false;
	at = label_from_end(scratch, asked, cluster);
	if (asked->name_size != at + cfg->cluster_size || !has_at(scratch, at, cfg->cluster, cfg->cluster_size))
		return false;
#pragma clang loop unroll(disable)
	for (__u32 more = 0; more < 3; more++) {
		if (asked->labels < cluster + ours + more + 1)
			return false;
		at = label_from_end(scratch, asked, cluster + ours + more);
		if (has_at(scratch, at, cfg->expanded, cfg->expanded_size))
			return true;
		if (!more) { /* further candidates have svc before the cluster's domain */
			at = label_from_end(scratch, asked, cluster + 1);
			if (!is_svc(scratch, at))
				return false;
		}
	}
	return false;
}

/* What is to be sent: a code, and records out of scratch, in two parts. */
struct reply {
	__u32 rcode;
	__u32 count;
	__u32 first; /* offset of the first part */
	__u32 first_size;
	__u32 second;
	__u32 second_size;
	bool not_ours; /* denied for another zone: no authority */
};

/* Records of one type, any of them first. */
static __always_inline void rotate(struct reply *reply, __u32 records, __u32 count, __u32 size)
{
	__u32 at = count > 1 ? bpf_get_prandom_u32() % count * size : 0;

	reply->count = count;
	reply->first = records + at;
	reply->first_size = count * size - at;
	reply->second = records;
	reply->second_size = at;
}

/* What a name of the map has of a type: records, nothing, or -EREMOTE: the server knows. */
static __always_inline int from_name(struct name_scratch *scratch, const struct name *found,
				     const struct question *asked, struct reply *reply)
{
	__u32 a = found->a, aaaa = found->aaaa, flags = found->flags;

	__builtin_memcpy(scratch->records, found->records, MAX_RECORDS);
	barrier();
	if (READ_ONCE(found->hash) != asked->hash)
		return -EAGAIN;
	switch (asked->type) {
	case DNS_A:
		if (flags & NAME_BIG_A)
			return -EREMOTE;
		rotate(reply, 0, a, A_SIZE);
		return 0;
	case DNS_AAAA:
		if (flags & NAME_BIG_AAAA)
			return -EREMOTE;
		rotate(reply, a * A_SIZE, aaaa, AAAA_SIZE);
		return 0;
	case DNS_SRV:
	case DNS_TXT:
	case DNS_PTR:
	case DNS_SOA:
	case DNS_NS:
		return flags & NAME_OTHERS ? -EREMOTE : 0;
	default:
		return 0; /* the zone has no records of such types */
	}
}

/* -ENOENT: not ours. -EREMOTE: ours, and for the server. */
static __always_inline int decide(struct name_scratch *scratch, const struct question *asked,
				  const struct names_config *cfg, const struct name *found, struct reply *reply)
{
	if (found && READ_ONCE(found->flags) & NAME_PTR_ALONE)
		return asked->type == DNS_PTR ? -EREMOTE : -ENOENT;
	if (found)
		return asked->ordinary ? from_name(scratch, found, asked, reply) : -EREMOTE;
	if (is_in_zone(scratch, asked, cfg)) {
		if (!asked->ordinary || !(cfg->flags & NAMES_COMPLETE) || asked->name_size > MAX_KEY)
			return -EREMOTE;
		reply->rcode = DNS_NXDOMAIN;
		return 0;
	}
	if (!asked->ordinary || !is_expansion(scratch, asked, cfg))
		return -ENOENT;
	reply->rcode = DNS_NXDOMAIN;
	reply->not_ours = true;
	return 0;
}

static __always_inline int write_headers(struct __sk_buff *skb, const struct question *asked, struct udphdr *udp,
					 __u32 size)
{
	struct ethhdr eth;
	__u8 mac[ETH_ALEN];
	__be16 port = udp->source;

	if (bpf_skb_load_bytes(skb, 0, &eth, sizeof(eth)))
		return -EAGAIN;
	__builtin_memcpy(mac, eth.h_dest, ETH_ALEN);
	__builtin_memcpy(eth.h_dest, eth.h_source, ETH_ALEN);
	__builtin_memcpy(eth.h_source, mac, ETH_ALEN);
	if (bpf_skb_store_bytes(skb, 0, &eth, sizeof(eth), 0))
		return -EAGAIN;
	if (asked->is_ipv6) {
		struct ipv6hdr ip;
		struct in6_addr from;

		if (bpf_skb_load_bytes(skb, asked->ip, &ip, sizeof(ip)))
			return -EAGAIN;
		from = ip.saddr;
		ip.saddr = ip.daddr;
		ip.daddr = from;
		ip.hop_limit = 64;
		ip.payload_len = bpf_htons(sizeof(*udp) + size);
		if (bpf_skb_store_bytes(skb, asked->ip, &ip, sizeof(ip), 0))
			return -EAGAIN;
	} else {
		struct iphdr ip;
		__be32 from;

		if (bpf_skb_load_bytes(skb, asked->ip, &ip, sizeof(ip)))
			return -EAGAIN;
		from = ip.saddr;
		ip.saddr = ip.daddr;
		ip.daddr = from;
		ip.ttl = 64;
		ip.tot_len = bpf_htons(sizeof(ip) + sizeof(*udp) + size);
		ip.check = 0;
		ip.check = ~fold(bpf_csum_diff(0, 0, (const __be32 *)&ip, sizeof(ip), 0));
		if (bpf_skb_store_bytes(skb, asked->ip, &ip, sizeof(ip), 0))
			return -EAGAIN;
	}
	udp->source = udp->dest;
	udp->dest = port;
	udp->len = bpf_htons(sizeof(*udp) + size);
	return 0;
}

/*
 * The checksum of the reply. Where a device was still to make the question's, it is still to make the reply's: from the
 * pseudo header's sum. Else it is left out (IPv4), or made here (IPv6, where it must be there).
 */
static __always_inline int write_checksum(struct __sk_buff *skb, struct name_scratch *scratch,
					  const struct question *asked, struct udphdr *udp, __u32 size)
{
	__u32 at = asked->udp + sizeof(*udp), rest;
	__s64 sum;

	udp->check = 0;
	if (asked->partial) {
		udp->check = fold(asked->pseudo + udp->len);
	} else if (asked->is_ipv6) {
		if (size < DNS_HEADER || size > DNS_MOST)
			return -EAGAIN;
		__builtin_memset(scratch->packet + size, 0, 4);
		if (bpf_skb_load_bytes(skb, at, scratch->packet, size))
			return -EAGAIN;
		sum = fold(asked->pseudo + udp->len);
		sum = bpf_csum_diff(0, 0, (const __be32 *)udp, sizeof(*udp), sum);
		/* the helper takes 512 bytes at most */
		rest = (size + 3) & ~3;
#pragma clang loop unroll(disable)
		for (__u32 done = 0; done < 1536 && rest; done += 256) {
			__u32 part = rest > 256 ? 256 : rest;

			sum = bpf_csum_diff(0, 0, (const __be32 *)(scratch->packet + done), part, sum);
			rest -= part;
		}
		udp->check = ~fold(sum);
		if (!udp->check)
			udp->check = 0xffff;
	}
	return bpf_skb_store_bytes(skb, asked->udp, udp, sizeof(*udp), 0) ? -EAGAIN : 0;
}

static __always_inline int store(struct __sk_buff *skb, __u32 *at, const void *bytes, __u32 size, __u32 most)
{
	if (!size)
		return 0;
	if (size > most)
		return -EAGAIN;
	if (bpf_skb_store_bytes(skb, *at, bytes, size, 0))
		return -EAGAIN;
	*at += size;
	return 0;
}

/* Make the question the reply, in its packet. */
static __always_inline int write_reply(struct __sk_buff *skb, struct name_scratch *scratch,
				       const struct names_config *cfg, struct question *asked, struct udphdr *udp,
				       const struct reply *reply)
{
	__u32 at = asked->udp + sizeof(*udp), end = at + DNS_HEADER + asked->name_size + 4;
	bool negative = !reply->count && !reply->not_ours;
	__u32 authority = negative ? cfg->authority_size : 0;
	__u32 size = DNS_HEADER + asked->name_size + 4 + reply->first_size + reply->second_size + authority +
		     (asked->has_opt ? DNS_OPT : 0);
	__u16 flags = DNS_QR | DNS_RA | (asked->flags & (DNS_OPCODE | DNS_RD | DNS_CD)) | reply->rcode;

	if (size > asked->room)
		return -EREMOTE;
	if (bpf_skb_change_tail(skb, at + size, 0))
		return -EREMOTE;
	if (!reply->not_ours)
		flags |= DNS_AA;
	asked->header.flags = bpf_htons(flags);
	asked->header.answers = bpf_htons(reply->count);
	asked->header.authorities = bpf_htons(negative);
	if (bpf_skb_store_bytes(skb, at, &asked->header, DNS_HEADER, 0))
		return -EAGAIN;
	if (store(skb, &end, scratch->records + (reply->first & 511), reply->first_size, 511) ||
	    store(skb, &end, scratch->records + (reply->second & 511), reply->second_size, 511) ||
	    store(skb, &end, cfg->authority, authority, sizeof(cfg->authority)))
		return -EAGAIN;
	if (asked->has_opt) {
		struct dns_opt opt; /* an initializer would become data of .rodata, where constants alone are */

		__builtin_memset(&opt, 0, sizeof(opt));
		barrier();
		opt.type = bpf_htons(41);
		opt.size = bpf_htons(DNS_MOST);
		opt.flags = bpf_htons(asked->opt_flags << 8);
		if (store(skb, &end, &opt, sizeof(opt), sizeof(opt)))
			return -EAGAIN;
	}
	if (write_headers(skb, asked, udp, size))
		return -EAGAIN;
	return write_checksum(skb, scratch, asked, udp, size);
}

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
static __always_inline int steer_packet(struct __sk_buff *skb, const struct question *asked, const struct udphdr *udp,
					const struct dns_server_key *to)
{
	struct dns_server_key client = { .port = udp->source };
	const struct resolver *resolver;
	__u32 zero = 0;
	const struct config *cfg = bpf_map_lookup_elem(&config, &zero);

	if (!cfg)
		return TC_ACT_UNSPEC;
	resolver = resolver_of(cfg, asked->is_ipv6);
	if (to->port == resolver->server_port && same_address(to->address, resolver->server))
		return TC_ACT_UNSPEC; /* it goes there already */
	if (!resolver->server_port || !is_alive(ALIVE_DNS)) {
		count_name(asked->type, NAME_DROPPED);
		return TC_ACT_SHOT;
	}
	read_client(skb, asked->is_ipv6, true, &client);
	if (bpf_map_update_elem(&steered, &client, to, BPF_ANY) ||
	    rewrite_server(skb, asked->is_ipv6, false, to->address, resolver->server, to->port, resolver->server_port))
		return TC_ACT_SHOT;
	count_name(asked->type, NAME_STEERED);
	return TC_ACT_UNSPEC;
}

static __always_inline __u32 result_of(const struct reply *reply)
{
	if (reply->rcode == DNS_NXDOMAIN)
		return reply->not_ours ? NAME_EXPANDED : NAME_NXDOMAIN;
	return reply->count ? NAME_ANSWERED : NAME_NODATA;
}

/* A packet from a pod: what becomes of it. */
static __always_inline int names_from_pod(struct __sk_buff *skb)
{
	struct dns_server_key to;
	struct question asked = {};
	struct udphdr udp = {};
	struct reply reply = {};
	struct name *found = 0;
	__u32 zero = 0;
	const struct names_config *cfg = bpf_map_lookup_elem(&names_config, &zero);
	struct name_scratch *scratch = bpf_map_lookup_elem(&name_scratch, &zero);
	int err;

	if (!cfg || !scratch || !(cfg->flags & NAMES_ON) || bpf_ktime_get_ns() >= READ_ONCE(cfg->deadline))
		return TC_ACT_UNSPEC;
	if (read_question(skb, scratch, &asked, &udp, &to))
		return TC_ACT_UNSPEC;
	if (asked.name_size <= MAX_KEY)
		found = bpf_map_lookup_elem(&names, scratch->name);
	err = decide(scratch, &asked, cfg, found, &reply);
	if (!err)
		err = write_reply(skb, scratch, cfg, &asked, &udp, &reply);
	switch (err) {
	case 0:
		count_name(asked.type, result_of(&reply));
		return bpf_redirect(skb->ifindex, 0);
	case -EREMOTE:
		return steer_packet(skb, &asked, &udp, &to);
	case -ENOENT:
		count_name(asked.type, NAME_PASSED);
		return TC_ACT_UNSPEC;
	default: /* half written: the client asks again */
		count_name(asked.type, NAME_DROPPED);
		return TC_ACT_SHOT;
	}
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
