/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The few kernel helpers we call, by their number in enum bpf_func_id of linux/bpf.h, and how maps are declared. */
#pragma once

#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
#undef __always_inline /* some linux/stddef.h has a weaker one */
#define __always_inline inline __attribute__((always_inline))

/* A map is a struct of pointers whose types describe the map to libbpf through BTF. */
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name

/*
 * A global function, which the verifier walks once and not on each way to its callers. Before 5.12 its arguments are
 * the context and scalars, nothing else.
 */
#define __walked_once __attribute__((noinline))

/* Add without reading the sum: that needs no atomic instruction that came after 5.10. */
#define add_relaxed(to, what) ((void)__atomic_fetch_add(to, what, __ATOMIC_RELAXED))

#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile typeof(x) *)&(x) = (value))
#define barrier() asm volatile("" ::: "memory")
#define BPF_FIELD_EXISTS 2 /* enum bpf_core_relo_kind: of __builtin_preserve_field_info */
/* The compiler knows nothing of x from here on, so that the comparison that follows is of this very register. */
#define bound_here(x) asm volatile("" : "+r"(x))

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define bpf_htons(x) __builtin_bswap16(x)
#define bpf_htonl(x) __builtin_bswap32(x)
#else
#define bpf_htons(x) (x)
#define bpf_htonl(x) (x)
#endif

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value,
					 __u64 flags) = (void *)BPF_FUNC_map_update_elem;
static long (*const bpf_map_delete_elem)(void *map, const void *key) = (void *)BPF_FUNC_map_delete_elem;
static __u64 (*const bpf_ktime_get_ns)(void) = (void *)BPF_FUNC_ktime_get_ns;
static __u64 (*const bpf_jiffies64)(void) = (void *)BPF_FUNC_jiffies64;
static __u32 (*const bpf_get_prandom_u32)(void) = (void *)BPF_FUNC_get_prandom_u32;
static __u64 (*const bpf_get_socket_cookie)(void *ctx) = (void *)BPF_FUNC_get_socket_cookie;
static __u64 (*const bpf_get_netns_cookie)(void *ctx) = (void *)BPF_FUNC_get_netns_cookie;
static __u64 (*const bpf_get_current_ancestor_cgroup_id)(int level) =
	(void *)BPF_FUNC_get_current_ancestor_cgroup_id;
static void *(*const bpf_sk_storage_get)(void *map, void *sk, void *value, __u64 flags) =
	(void *)BPF_FUNC_sk_storage_get;
static long (*const bpf_sk_release)(void *sk) = (void *)BPF_FUNC_sk_release;
static int (*const bpf_set_retval)(int retval) = (void *)BPF_FUNC_set_retval;
static long (*const bpf_ringbuf_output)(void *ring, void *data, __u64 size, __u64 flags) = (void *)BPF_FUNC_ringbuf_output;
static void *(*const bpf_ringbuf_reserve)(void *ring, __u64 size, __u64 flags) = (void *)BPF_FUNC_ringbuf_reserve;
static __u64 (*const bpf_ringbuf_query)(void *ringbuf, __u64 flags) = (void *)BPF_FUNC_ringbuf_query;
static void (*const bpf_ringbuf_submit)(void *data, __u64 flags) = (void *)BPF_FUNC_ringbuf_submit;
static long (*const bpf_sock_ops_cb_flags_set)(struct bpf_sock_ops *ctx,
					       int flags) = (void *)BPF_FUNC_sock_ops_cb_flags_set;
static long (*const bpf_reserve_hdr_opt)(struct bpf_sock_ops *ctx, __u32 length,
					 __u64 flags) = (void *)BPF_FUNC_reserve_hdr_opt;
static long (*const bpf_store_hdr_opt)(struct bpf_sock_ops *ctx, const void *from, __u32 length,
				       __u64 flags) = (void *)BPF_FUNC_store_hdr_opt;
static long (*const bpf_skb_load_bytes)(const void *skb, __u32 offset, void *to,
					__u32 length) = (void *)BPF_FUNC_skb_load_bytes;
static long (*const bpf_skb_store_bytes)(struct __sk_buff *skb, __u32 offset, const void *from, __u32 length,
					 __u64 flags) = (void *)BPF_FUNC_skb_store_bytes;
static long (*const bpf_skb_change_tail)(struct __sk_buff *skb, __u32 length,
					 __u64 flags) = (void *)BPF_FUNC_skb_change_tail;
static long (*const bpf_skb_adjust_room)(struct __sk_buff *skb, __s32 length, __u32 mode,
					 __u64 flags) = (void *)BPF_FUNC_skb_adjust_room;
static long (*const bpf_redirect)(__u32 ifindex, __u64 flags) = (void *)BPF_FUNC_redirect;
static long (*const bpf_l3_csum_replace)(struct __sk_buff *skb, __u32 offset, __u64 from, __u64 to,
					 __u64 size) = (void *)BPF_FUNC_l3_csum_replace;
static long (*const bpf_l4_csum_replace)(struct __sk_buff *skb, __u32 offset, __u64 from, __u64 to,
					 __u64 flags) = (void *)BPF_FUNC_l4_csum_replace;
static __s64 (*const bpf_csum_diff)(const __be32 *from, __u32 from_size, const __be32 *to, __u32 to_size,
				    __u32 seed) = (void *)BPF_FUNC_csum_diff;
static struct bpf_sock *(*const bpf_sk_fullsock)(struct bpf_sock *sk) = (void *)BPF_FUNC_sk_fullsock;
static struct bpf_tcp_sock *(*const bpf_tcp_sock)(struct bpf_sock *sk) = (void *)BPF_FUNC_tcp_sock;
static struct bpf_sock *(*const bpf_skc_lookup_tcp)(void *ctx, struct bpf_sock_tuple *tuple, __u32 size, __u64 netns,
						    __u64 flags) = (void *)BPF_FUNC_skc_lookup_tcp;
static void *(*const bpf_skc_to_tcp_sock)(void *sk) = (void *)BPF_FUNC_skc_to_tcp_sock;
static void *(*const bpf_skc_to_mptcp_sock)(void *sk) = (void *)BPF_FUNC_skc_to_mptcp_sock;
