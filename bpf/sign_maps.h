/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The maps of signed SYNs, by the rules of maps.h. All are written by the agent, but for refusals. What `signing` does not
 * say is there is not looked up.
 */
#pragma once

#include "maps.h"

#define MAX_SOURCES 8192 /* pods of a node × their addresses, and an entry for each interface */
#define MAX_KEYS 65536 /* 62 epochs of MAX_CLUSTERS clusters, and those being exchanged */
#define EPOCH_NS (60ULL * 1000 * 1000 * 1000)
#define ANY_PORT 0 /* in guarded: some port of the interface is */

enum signing_flag {
	SIGNING_SIGNS = 1,  /* signed_to is not empty */
	SIGNING_GUARDS = 2, /* guarded is not empty */
	SIGNING_HOST = 4,   /* host_callers is not empty */
	SIGNING_DATAGRAMS = 8, /* guarded has ports of UDP */
};

/* What is looked up at all. */
struct signing {
	__u32 flags;
	__u32 identity_shift; /* bits of an identity below its cluster's id: 16, or 15 in clustersets of 511 */
	__u64 began;	      /* CLOCK_MONOTONIC, ns: when the epoch of key_number began; 0: no key is in use */
	__u32 key_number;     /* of an epoch, modulo 256; later ones follow by our clock, so that keys change without the agent */
	__u32 reserved;
};

/* An address of 0 stands for the interface: it has sources, so that any other address is spoofed. */
struct source_key {
	__u32 ifindex;
	__be32 address[4];
};

struct source {
	__u32 identity;
	__u32 ifindex;
};

struct host_caller {
	__u64 cgroup;
	__u32 identity;
	__u32 reserved;
};

struct signed_to_key {
	__be32 address[4];
};

struct signed_to {
	__be32 address[4];
	__u32 cluster;
};

struct caller_address_key {
	__be32 address[4];
};

struct caller_address {
	__be32 address[4];
	__u32 identity;
};

struct epoch_key_id {
	__u32 cluster;
	__u32 number;
};

struct epoch_key {
	__u64 key[2];
	__u32 cluster;
	__u32 number;
};

enum guard_flag {
	GUARD_AUDIT = 1,   /* count what would be refused, and refuse nothing */
	GUARD_ADDRESS = 2, /* judge what is not proven by the identity of its address, and refuse what has none */
};

struct guarded_key {
	__u32 ifindex;
	__be16 port; /* or ANY_PORT */
	__u8 protocol;
	__u8 reserved;
};

struct guarded {
	__u32 policy;
	__u32 flags; /* enum guard_flag; of ANY_PORT those under which most is refused */
	__u32 ifindex;
	__be16 port;
	__u8 protocol;
	__u8 reserved;
};

struct range_key {
	__u32 prefix; /* bits, of 128 */
	__be32 address[4];
};

struct allowed_key {
	__u32 policy;
	__u32 identity;
};

enum refusal_reason {
	REFUSAL_UNSIGNED = 1,
	REFUSAL_BAD_MAC = 2,
	REFUSAL_UNKNOWN_KEY = 3,
	REFUSAL_NOT_ALLOWED = 4,
	REFUSAL_SPOOFED = 5, /* by a pod of this node: identity is its own, and there is no policy */
	REFUSAL_UNREADABLE = 6,
	REFUSAL_NOT_ALLOWED_BY_ADDRESS = 7, /* identity is not proven, but that of the address */
	REFUSAL_UNKNOWN_ADDRESS = 8,	    /* of a datagram */
};

/* identity: 0 if it does not say who it is; of a MAC that is wrong or of an unknown key, the identity 0 of the cluster claimed. */
struct refusal_key {
	__u32 policy;
	__u32 identity;
	__u32 reason;
};

struct refusal {
	__u64 count;
	__u64 last; /* CLOCK_MONOTONIC, ns */
};

struct export_policy {
	char name[320]; /* zero-terminated: namespace/name */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct signing);
} signing SEC(".maps");

/* A pod's interface on the node, an address of the pod → its identity. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_SOURCES);
	__type(key, struct source_key);
	__type(value, struct source);
} sources SEC(".maps");

/* Cgroup of a pod in the network of its node → its identity. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_SOURCES);
	__type(key, __u64);
	__type(value, struct host_caller);
} host_callers SEC(".maps");

/* Socket of a pod in the network of its node → the pod's identity, from connect to the SYN. Written by the kernel. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u32);
} host_sockets SEC(".maps");

/* Address of a backend of a cluster that verifies → the cluster. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct signed_to_key);
	__type(value, struct signed_to);
} signed_to SEC(".maps");

/* Cluster, number of a key → the key by which SYNs to it are signed. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_KEYS);
	__type(key, struct epoch_key_id);
	__type(value, struct epoch_key);
} sign_keys SEC(".maps");

/* Cluster, number of a key → the key by which SYNs from it are verified. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_KEYS);
	__type(key, struct epoch_key_id);
	__type(value, struct epoch_key);
} verify_keys SEC(".maps");

/* A pod's interface on the node, a port → the policy that says who may call it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct guarded_key);
	__type(value, struct guarded);
} guarded SEC(".maps");

/* Address of another cluster's pod → its identity, by the cluster's records. Empty unless a guard judges by address. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct caller_address_key);
	__type(value, struct caller_address);
} caller_addresses SEC(".maps");

/* Ranges of the own cluster's pods and nodes: no guard looks at their SYNs. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct range_key);
	__type(value, __u32);
} own_ranges SEC(".maps");

/* Policy, identity → the identity: it may call. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct allowed_key);
	__type(value, __u32);
} allowed SEC(".maps");

/* Policy id → name. For people and for a restarted agent; the kernel does not read it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct export_policy);
} policies SEC(".maps");

/* SYNs that were refused, or would be without GUARD_AUDIT. Written by the kernel, the most recent ones. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct refusal_key);
	__type(value, struct refusal);
} refusals SEC(".maps");
