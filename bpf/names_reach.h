/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Whose questions pass our program at TC. A pod can ask before the agent has attached to its interface, or while there is
 * no agent; another server would deny our names then. So socket hooks steer the questions of a network namespace to the
 * node's server until one of them was seen at TC. What crosses another namespace on its way has lost its socket there and
 * is never recognised: such callers stay steered.
 */
#pragma once

#include "names_common.h"

/* A question to the node's server at TC: its network namespace is one that is read. */
static __always_inline void note_namespace(struct __sk_buff *skb)
{
	__u64 socket = bpf_get_socket_cookie(skb), namespace;
	const __u64 *found = bpf_map_lookup_elem(&tc_probes, &socket);
	__u32 seen = 1;

	if (!found)
		return;
	namespace = *found;
	bpf_map_update_elem(&tc_namespaces, &namespace, &seen, BPF_ANY);
	bpf_map_delete_elem(&tc_probes, &socket);
}

/* Whether the caller's questions were seen at TC. A question of one that was not is a probe, when it is steered. */
static __always_inline bool is_read_at_tc(struct bpf_sock_addr *ctx)
{
	__u64 namespace = bpf_get_netns_cookie(ctx), socket;
	__u32 zero = 0;
	const struct names_config *cfg = bpf_map_lookup_elem(&names_config, &zero);

	if (!cfg || !(cfg->flags & NAMES_AT_TC) || namespace == cfg->host)
		return false;
	if (bpf_map_lookup_elem(&tc_namespaces, &namespace))
		return true;
	socket = bpf_get_socket_cookie(ctx);
	bpf_map_update_elem(&tc_probes, &socket, &namespace, BPF_ANY);
	return false;
}
