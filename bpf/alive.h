/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Whether a server of the node can be sent to: its deadline, and where the kernel can tell, its socket. */
#pragma once

#include <stdbool.h>

#include "maps.h"

static __always_inline bool has_socket(__u32 server)
{
	void *sk = bpf_map_lookup_elem(&sockets, &server);

	if (!sk)
		return false;
	bpf_sk_release(sk);
	return true;
}

static __always_inline bool is_alive(__u32 server)
{
	const struct alive *found = bpf_map_lookup_elem(&alive, &server);

	if (!found || bpf_ktime_get_ns() >= READ_ONCE(found->deadline))
		return false;
	return !found->tied || has_socket(server);
}

/* Whether it wants questions over TCP as well. */
static __always_inline bool takes_tcp(__u32 server)
{
	const struct alive *found = bpf_map_lookup_elem(&alive, &server);

	return found && found->flags & ALIVE_TCP;
}
