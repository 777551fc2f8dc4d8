/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Liveness of the node's name servers: a deadline for each process and, on kernels that support it, its socket. */
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

/* Either process is enough: they share their addresses, so the kernel gives the packets to the one that is left. */
static __always_inline bool dns_is_alive(void)
{
	return is_alive(ALIVE_DNS) || is_alive(ALIVE_DNS_SECOND);
}

static __always_inline bool takes_tcp(__u32 server)
{
	const struct alive *found = bpf_map_lookup_elem(&alive, &server);

	return found && found->flags & ALIVE_TCP && is_alive(server);
}

/* Whether questions over TCP are wanted as well. */
static __always_inline bool dns_takes_tcp(void)
{
	return takes_tcp(ALIVE_DNS) || takes_tcp(ALIVE_DNS_SECOND);
}
