/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Questions of DNS that a pod sends, read where they enter the node. Ours are answered in place from names; what only
 * the node's server can answer goes to it; everything else passes as it came.
 *
 * Functions give 0 or a negative errno: -ENOENT is "not ours", -EREMOTE "for the node's server", -EAGAIN "an element
 * changed while it was read".
 */
#pragma once

#include <linux/pkt_cls.h>

#include "names_decide.h"
#include "names_read.h"
#include "names_steer.h"
#include "names_write.h"

static __always_inline __u32 result_of(const struct reply *reply)
{
	if (reply->rcode == DNS_NXDOMAIN)
		return reply->not_ours ? NAME_EXPANDED : NAME_NXDOMAIN;
	return reply->count ? NAME_ANSWERED : NAME_NODATA;
}

/* A packet from a pod: what becomes of it. */
static __always_inline int names_from_pod(struct __sk_buff *skb)
{
	__u32 zero = 0;
	const struct names_config *cfg = bpf_map_lookup_elem(&names_config, &zero);
	struct name_scratch *scratch = name_scratch_of(skb);
	int err;

	if (!cfg || !scratch || !(cfg->flags & NAMES_ON) || bpf_ktime_get_ns() >= READ_ONCE(cfg->deadline))
		return TC_ACT_UNSPEC;
	err = read_question(skb);
	if (err == -EBUSY) {
		count_name(0, NAME_LIMITED);
		return TC_ACT_SHOT;
	}
	if (err || read_name(skb))
		return TC_ACT_UNSPEC;
	err = decide(skb);
	if (!err)
		err = write_reply(skb);
	switch (err) {
	case 0:
		count_name(scratch->asked.type, result_of(&scratch->reply));
		return bpf_redirect(skb->ifindex, 0);
	case -EREMOTE:
		return steer_packet(skb);
	case -ENOENT:
		count_name(scratch->asked.type, NAME_PASSED);
		return TC_ACT_UNSPEC;
	default: /* half written: the client asks again */
		count_name(scratch->asked.type, NAME_DROPPED);
		return TC_ACT_SHOT;
	}
}
