/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the steps of answering a question share. Each step is walked once by the verifier and leaves its result in scratch. */
#pragma once

#include <linux/errno.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
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

struct dns_opt {
	__u8 owner;
	__be16 type;
	__be16 size;
	__u8 extended;
	__u8 version;
	__be16 flags;
	__be16 length;
} __attribute__((packed));

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

/* Each CPU has one, and no program that uses it is interrupted by another that does. */
static __always_inline struct name_scratch *name_scratch_of(struct __sk_buff *skb)
{
	__u32 zero = 0;

	asm volatile("" : : "r"(skb)); /* else the compiler passes nothing for an argument that is not used */
	return bpf_map_lookup_elem(&name_scratch, &zero);
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
