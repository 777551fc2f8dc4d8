/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What a question's answer is: records of its name, none, no such name; or that another answers it. */
#pragma once

#include "names_common.h"

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
		break;
	case DNS_AAAA:
		if (flags & NAME_BIG_AAAA)
			return -EREMOTE;
		rotate(reply, a * A_SIZE, aaaa, AAAA_SIZE);
		break;
	case DNS_SRV:
	case DNS_TXT:
	case DNS_PTR:
	case DNS_SOA:
	case DNS_NS:
		if (flags & NAME_OTHERS)
			return -EREMOTE;
		break;
	default: /* the zone has no records of such types */
		break;
	}
	reply->not_ours = flags & NAME_NATIVE && !reply->count;
	return 0;
}

/* The reply into scratch. -ENOENT: not ours. -EREMOTE: ours, and for the server. */
__walked_once int decide(struct __sk_buff *skb)
{
	struct name_scratch *scratch = name_scratch_of(skb);
	__u32 zero = 0;
	const struct names_config *cfg = bpf_map_lookup_elem(&names_config, &zero);
	const struct question *asked;
	const struct name *found = 0;
	struct reply *reply;

	if (!cfg || !scratch)
		return -ENOENT;
	asked = &scratch->asked;
	reply = &scratch->reply;
	__builtin_memset(reply, 0, sizeof(*reply));
	if (asked->name_size <= MAX_KEY)
		found = bpf_map_lookup_elem(&names, scratch->name);
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
