/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* SipHash-2-4 (Aumasson and Bernstein, 2012) of a message of whole 64-bit words. */
#pragma once

#include "helpers.h"

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define little_endian64(x) (x)
#else
#define little_endian64(x) __builtin_bswap64(x)
#endif

#define ROTATE_LEFT(x, bits) ((x) << (bits) | (x) >> (64 - (bits)))

struct siphash {
	__u64 v0, v1, v2, v3;
};

static __always_inline void sip_round(struct siphash *s)
{
	s->v0 += s->v1;
	s->v2 += s->v3;
	s->v1 = ROTATE_LEFT(s->v1, 13) ^ s->v0;
	s->v3 = ROTATE_LEFT(s->v3, 16) ^ s->v2;
	s->v0 = ROTATE_LEFT(s->v0, 32);
	s->v2 += s->v1;
	s->v0 += s->v3;
	s->v1 = ROTATE_LEFT(s->v1, 17) ^ s->v2;
	s->v3 = ROTATE_LEFT(s->v3, 21) ^ s->v0;
	s->v2 = ROTATE_LEFT(s->v2, 32);
}

static __always_inline void sip_absorb(struct siphash *s, __u64 word)
{
	s->v3 ^= word;
	sip_round(s);
	sip_round(s);
	s->v0 ^= word;
}

/* The hash of a number of words, known to the compiler, as memory has them; in host order, to be stored as little-endian. */
static __always_inline __u64 siphash(const __u64 key[2], const __u64 *words, __u32 count)
{
	__u64 k0 = little_endian64(key[0]), k1 = little_endian64(key[1]);
	struct siphash s = {
		.v0 = k0 ^ 0x736f6d6570736575ULL,
		.v1 = k1 ^ 0x646f72616e646f6dULL,
		.v2 = k0 ^ 0x6c7967656e657261ULL,
		.v3 = k1 ^ 0x7465646279746573ULL,
	};

#pragma clang loop unroll(full)
	for (__u32 i = 0; i < count; i++)
		sip_absorb(&s, little_endian64(words[i]));
	sip_absorb(&s, (__u64)(count * 8) << 56);
	s.v2 ^= 0xff;
	sip_round(&s);
	sip_round(&s);
	sip_round(&s);
	sip_round(&s);
	return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}
