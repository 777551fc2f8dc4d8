/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Random numbers, and the group of a plan that a number selects. */
#pragma once

#include <linux/errno.h>

#include "maps.h"

/* Uniform in 0 to bound - 1, to within 2^-32: the high half of a product needs no division. */
static __always_inline __u32 scale(__u32 random, __u64 bound)
{
	return (random * bound) >> 32;
}

static __always_inline __u64 mix(__u64 x) /* as splitmix64 does */
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
	return x ^ (x >> 31);
}

/* The group of a random number, and how many backends it has. -ECONNREFUSED: no group has a backend. */
static __always_inline int pick_group(const struct plan *plan, __u32 random, __u32 *size)
{
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < MAX_GROUPS; i++) {
		if (random >> 1 < plan->groups[i].cumulative_weight) {
			*size = plan->groups[i].count;
			return i;
		}
	}
	return -ECONNREFUSED;
}
