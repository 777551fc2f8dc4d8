/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Making the question the reply, in its packet. */
#pragma once

#include "names_common.h"

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
	__u32 at = asked->udp + sizeof(*udp), padded;
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
		padded = (size + 3) & ~3;
		bound_here(padded); /* else no comparison of done with a number is left */
		/* the helper takes 512 bytes at most */
#pragma clang loop unroll(disable)
		for (__u32 done = 0; done < DNS_MOST && done < padded; done += 256) {
			__u64 part = padded - done;

			bound_here(part);
			if (part > 256)
				part = 256;
			sum = bpf_csum_diff(0, 0, (const __be32 *)(scratch->packet + done), part, sum);
		}
		udp->check = ~fold(sum);
		if (!udp->check)
			udp->check = 0xffff;
	}
	return bpf_skb_store_bytes(skb, asked->udp, udp, sizeof(*udp), 0) ? -EAGAIN : 0;
}

/* Verifiers before 6.8 learn nothing from "not 0", so that a size is at least 1 is what one more than a bounded word is. */
static __always_inline int store(struct __sk_buff *skb, __u32 *at, const void *bytes, __u32 size, __u32 most)
{
	__u64 last = (__u64)size - 1;

	if (!size)
		return 0;
	bound_here(last);
	if (last >= most)
		return -EAGAIN;
	if (bpf_skb_store_bytes(skb, *at, bytes, last + 1, 0))
		return -EAGAIN;
	*at += size;
	return 0;
}

/* Make the question the reply, in its packet. */
static __always_inline int write_message(struct __sk_buff *skb, struct name_scratch *scratch,
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

/* The reply of scratch to the question of scratch. -EREMOTE: it does not fit, nothing is written. */
__walked_once int write_reply(struct __sk_buff *skb)
{
	struct name_scratch *scratch = name_scratch_of(skb);
	__u32 zero = 0;
	const struct names_config *cfg = bpf_map_lookup_elem(&names_config, &zero);
	struct question asked;
	struct udphdr udp;
	struct reply reply;

	if (!cfg || !scratch)
		return -EAGAIN;
	asked = scratch->asked; /* copies: what is checked here is what is used */
	udp = scratch->udp;
	reply = scratch->reply;
	return write_message(skb, scratch, cfg, &asked, &udp, &reply);
}
