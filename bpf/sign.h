/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A SYN of a pod towards a cluster that verifies gets an option with the pod's identity and a MAC.
 *
 * Ours is the last 16 bytes of the TCP header, or there is none: a walk over the options is more than the verifier of 6.1
 * takes. It is written where the packet leaves the pod's interface, after rescue has moved it, since the MAC covers the
 * tuple as it leaves the node. Where it does not fit, or the program cannot read, the SYN goes as it is and is refused
 * where signatures are required.
 */
#pragma once

#include "rescue_tc.h"
#include "sign_maps.h"
#include "siphash.h"

#define OPTION_KIND 253 /* RFC 3692-style experiment, with an identifier (RFC 6994) */
#define OPTION_EXPERIMENT 0x1577
#define TCP_HEADER 20
#define TCP_LONGEST 60
#define TCP_CHECKSUM 16
#define TCP_CONTROL 0x3f /* without the bits of ECN, which a SYN may have */

/* The option, which ends the header. */
struct identity_option {
	__u8 kind;
	__u8 length;
	__be16 experiment;
	__be32 number_identity; /* 8 bits of the key's number, 24 of the identity */
	__u64 mac;		/* little-endian, as SipHash writes it */
};

/* What the MAC covers: the SYN as it leaves the node. IPv4 addresses under ::ffff:. */
struct signed_words {
	__be32 source[4];
	__be32 dest[4];
	__be16 source_port;
	__be16 dest_port;
	__be32 sequence;
	__be32 number_identity;
	__u32 reserved;
};

#define SIGNED_WORDS (sizeof(struct signed_words) / 8)

static __always_inline const struct signing *get_signing(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&signing, &zero);
}

static __always_inline bool signs(void)
{
	const struct signing *gate = get_signing();

	return gate && READ_ONCE(gate->flags) & SIGNING_SIGNS;
}

/* Number of the key of the epoch that it is now by the agent's clock, which ours carries on. */
static __always_inline __u32 current_key(const struct signing *gate)
{
	__u64 began = READ_ONCE(gate->began), now = bpf_ktime_get_ns();

	return (READ_ONCE(gate->key_number) + (now > began ? (__u32)((now - began) / EPOCH_NS) : 0)) & 0xff;
}

/* 0 with the key of a cluster and number from one of the maps of keys. */
static __always_inline int read_key(void *keys, const struct epoch_key_id *id, __u64 key[2])
{
	const struct epoch_key *found = bpf_map_lookup_elem(keys, id);

	if (!found)
		return -ENOENT;
	key[0] = READ_ONCE(found->key[0]);
	key[1] = READ_ONCE(found->key[1]);
	barrier();
	return READ_ONCE(found->cluster) == id->cluster && READ_ONCE(found->number) == id->number ? 0 : -ENOENT;
}

/* The MAC of a segment from its first pair of address and port to the second, as option.mac has it. */
static __always_inline __u64 mac_of(const __u64 key[2], const __be32 *source, const __be32 *dest, __be16 source_port,
				    __be16 dest_port, __u32 sequence, __be32 number_identity)
{
	union {
		struct signed_words fields;
		__u64 words[SIGNED_WORDS];
	} covered = {};

	copy_address(covered.fields.source, source);
	copy_address(covered.fields.dest, dest);
	covered.fields.source_port = source_port;
	covered.fields.dest_port = dest_port;
	covered.fields.sequence = bpf_htonl(sequence);
	covered.fields.number_identity = number_identity;
	return little_endian64(siphash(key, covered.words, SIGNED_WORDS));
}

static __always_inline bool is_identity_option(const struct identity_option *option)
{
	return option->kind == OPTION_KIND && option->length == sizeof(*option) &&
	       option->experiment == bpf_htons(OPTION_EXPERIMENT);
}

static __always_inline void count_refusal(__u32 policy, __u32 identity, __u32 reason)
{
	struct refusal_key key = { .policy = policy, .identity = identity, .reason = reason };
	struct refusal first = { .count = 1, .last = bpf_ktime_get_ns() };
	struct refusal *found = find_or_insert(&refusals, &key, &first);

	if (!found)
		return;
	add_relaxed(&found->count, 1);
	WRITE_ONCE(found->last, first.last);
}

/* The identity of who sends from an interface; 0 if it is not known. -EPERM: its address is not one of the interface's. */
static __always_inline int identity_of(__u32 ifindex, const __be32 *address, __u32 *identity)
{
	struct source_key key = { .ifindex = ifindex };
	const struct source *found;

	copy_address(key.address, address);
	found = bpf_map_lookup_elem(&sources, &key);
	if (found && READ_ONCE(found->ifindex) == ifindex) {
		*identity = READ_ONCE(found->identity);
		return 0;
	}
	__builtin_memset(key.address, 0, sizeof(key.address));
	found = bpf_map_lookup_elem(&sources, &key);
	if (!found || READ_ONCE(found->ifindex) != ifindex)
		return 0;
	count_refusal(0, READ_ONCE(found->identity), REFUSAL_SPOOFED);
	return -EPERM;
}

/* The cluster that an address is of, if that verifies; else 0. */
static __always_inline __u32 verifying_cluster(const __be32 *address)
{
	struct signed_to_key key = {};
	const struct signed_to *found;
	__u32 cluster;

	copy_address(key.address, address);
	found = bpf_map_lookup_elem(&signed_to, &key);
	if (!found)
		return 0;
	cluster = READ_ONCE(found->cluster);
	barrier();
	return same_address(found->address, address) ? cluster : 0;
}

static __always_inline void write_option(struct __sk_buff *skb, const struct segment *segment, __u32 at,
					 const struct identity_option *old, const struct identity_option *option)
{
	__s64 difference = bpf_csum_diff((const __be32 *)old, sizeof(*old), (const __be32 *)option, sizeof(*option), 0);

	bpf_l4_csum_replace(skb, segment->l4 + TCP_CHECKSUM, 0, difference, 0);
	bpf_skb_store_bytes(skb, at, option, sizeof(*option), 0);
}

/* Bytes of a TCP header; 0: it cannot be read. */
static __always_inline __u32 header_of(struct __sk_buff *skb, __u32 l4)
{
	__u8 offset = 0;

	return bpf_skb_load_bytes(skb, l4 + 12, &offset, sizeof(offset)) ? 0 : (offset >> 4) * 4;
}

/* Make room for the option, all zeros, at the end of the segment: lengths and checksums are those of the longer one. */
static __always_inline int append_room(struct __sk_buff *skb, const struct segment *segment, __u32 header)
{
	const __u32 more = sizeof(struct identity_option), checksum = segment->l4 + TCP_CHECKSUM;
	__be16 old_length = bpf_htons(header), new_length = bpf_htons(header + more), old_word, new_word;

	if (bpf_skb_load_bytes(skb, segment->l4 + 12, &old_word, sizeof(old_word)) ||
	    bpf_skb_change_tail(skb, skb->len + more, 0))
		return -EINVAL;
	new_word = bpf_htons((bpf_htons(old_word) & 0x0fff) | (header + more) / 4 << 12);
	bpf_l4_csum_replace(skb, checksum, old_word, new_word, sizeof(new_word));
	bpf_skb_store_bytes(skb, segment->l4 + 12, &new_word, sizeof(new_word), 0);
	bpf_l4_csum_replace(skb, checksum, old_length, new_length, BPF_F_PSEUDO_HDR_ | sizeof(new_length));
	if (segment->ipv6) {
		bpf_skb_store_bytes(skb, ETH_HEADER + 4, &new_length, sizeof(new_length), 0);
		return 0;
	}
	old_length = bpf_htons(IPV4_HEADER + header);
	new_length = bpf_htons(IPV4_HEADER + header + more);
	bpf_l3_csum_replace(skb, ETH_HEADER + 10, old_length, new_length, sizeof(new_length));
	bpf_skb_store_bytes(skb, ETH_HEADER + 2, &new_length, sizeof(new_length), 0);
	return 0;
}

/* TC_ACT_SHOT: the SYN has an address that its pod has not. */
__walked_once int sign_from_pod(struct __sk_buff *skb)
{
	struct identity_option option = { .kind = OPTION_KIND, .length = sizeof(option) }, old = {};
	struct segment segment = {};
	const struct signing *gate = get_signing();
	struct epoch_key_id id = {};
	__u32 identity = 0, header, at;
	__u64 key[2];

	if (parse(skb, &segment, true) || (segment.flags & TCP_CONTROL) != TCP_SYN)
		return TC_ACT_UNSPEC;
	id.cluster = verifying_cluster(segment.key.peer);
	if (!id.cluster || !gate)
		return TC_ACT_UNSPEC;
	if (identity_of(skb->ifindex, segment.key.pod, &identity))
		return TC_ACT_SHOT;
	header = skb->len - segment.l4;
	if (!identity || segment.length || header != header_of(skb, segment.l4)) /* data, or padding of a raw socket */
		return TC_ACT_UNSPEC;
	id.number = current_key(gate);
	if (read_key(&sign_keys, &id, key))
		return TC_ACT_UNSPEC;
	option.number_identity = bpf_htonl(id.number << 24 | (identity & 0xffffff));
	option.experiment = bpf_htons(OPTION_EXPERIMENT);
	option.mac = mac_of(key, segment.key.pod, segment.key.peer, segment.key.pod_port, segment.key.peer_port,
			    segment.sequence, option.number_identity);
	at = skb->len - sizeof(old);
	if (header >= TCP_HEADER + sizeof(old) && bpf_skb_load_bytes(skb, at, &old, sizeof(old)))
		return TC_ACT_UNSPEC;
	if (!is_identity_option(&old)) {
		__builtin_memset(&old, 0, sizeof(old));
		if (header + sizeof(old) > TCP_LONGEST || append_room(skb, &segment, header))
			return TC_ACT_UNSPEC;
		at += sizeof(old);
	}
	write_option(skb, &segment, at, &old, &option);
	return TC_ACT_UNSPEC;
}
