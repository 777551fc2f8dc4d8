/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Every map: the contract between the kernel's side and isthmus.datapath, which checks its codecs against the BTF of
 * these structs. Fixed widths, no implicit padding, IPv4 under ::ffff: in one 16-byte key space, ports and addresses
 * in network order, the rest in host order. Id 0 is nobody's.
 *
 * A hash map's element can be recycled for another key while we read it. So a value says what it is for (its tail of
 * the key, its id, or a generation that no other value ever had); a reader copies, then checks, and restarts.
 *
 * Who writes: the agent everything, but affinity and counters (the kernel), and alive and sockets (the node's DNS server).
 * Order: services, clusters, backends, slots, members, skips, rings, plans, frontends; away in reverse, after a grace
 * period.
 * Not here yet, and no change of what is: ejected, names, events.
 */
#pragma once

#include "helpers.h"

#define ISTHMUS_LAYOUT 2 /* a change of any struct below is a new layout, which starts beside the old */
#define MAX_GROUPS 32
#define RING_CELLS 16381 /* a prime, as maglev wants it */
#define RING_CHUNK 1024 /* a power of two, so that the verifier sees the bound */
#define MAX_CALLS 8 /* destinations a UDP socket can talk to at a time and still see replies under their own names */

enum plan_flag {
	PLAN_AFFINITY = 1,
	PLAN_CONSISTENT = 2, /* its ring says which backend a caller has */
	PLAN_SKIP = 4,	     /* some pods' calls are not meant: skips says whose */
};

/* Of a frontend. Bits, so that an address has both views of an original as it has both views of what replaces it. */
enum scope {
	SCOPE_INTERNAL = 1, /* calls from inside, where they have a plan of their own */
	SCOPE_ORIGINAL = 2, /* calls that a redirect does not mean */
};

enum config_flag {
	CONFIG_EXEMPT = 1, /* there are cgroups in exempt */
};

enum family {
	FAMILY_IPV4 = 0,
	FAMILY_IPV6 = 1,
	FAMILIES = 2,
};

enum verdict {
	VERDICT_CALLED = 0,  /* sent to a backend */
	VERDICT_REFUSED = 1, /* the plan has no backend */
	VERDICT_LOST = 2,    /* what a frontend refers to was missing, three times; or no memory for the socket's storage */
	VERDICT_STEERED = 3, /* a question of DNS, sent to the node's server */
};

enum alive_server {
	ALIVE_DNS = 0,
	ALIVE_SERVERS = 1,
};

struct frontend_key {
	__be32 address[4];
	__be16 port;
	__u8 protocol; /* IPPROTO_ */
	__u8 scope;    /* bits of enum scope */
};

struct frontend {
	__be32 tail; /* of the key, this and the next three: */
	__be16 port;
	__u8 protocol;
	__u8 scope;
	__u32 plan;
};

struct group {
	__u32 until;  /* of 2^31: a die below it, and not below the one before, is this group's. 0: not now */
	__u32 weight; /* share within the tier; 0: never. With tier, what until was made of */
	__u32 count;  /* slots 0 to count - 1 exist */
	__u32 tier;   /* groups are sorted by it; the lowest with a backend is used */
};

struct plan {
	__u32 generation;
	__u32 id;
	__u32 service; /* stays when a large change takes a new plan */
	__u32 flags;
	__u32 affinity_timeout; /* seconds */
	__u32 panic_threshold;
	__u32 size; /* groups in use */
	struct group groups[MAX_GROUPS];
};

struct slot_key {
	__u32 plan;
	__u32 group;
	__u32 n;
};

struct slot {
	__u32 plan;
	__u32 backend;
	__u32 generation; /* the backend's */
};

struct backend {
	__u32 generation;
	__be32 address[4];
	__be16 port;
	__u8 protocol;
	__u8 flags; /* 1: a proxy of this node */
	__u16 cluster;
	__u16 reserved;
};

struct member_key {
	__u32 plan;
	__u32 backend;
};

struct member {
	__u32 generation; /* the backend's */
};

struct skip_key {
	__be32 address[4]; /* the caller's pod */
	__u32 plan;
};

struct ring_key {
	__u32 plan;
	__u32 chunk; /* cell / RING_CHUNK */
};

struct ring {
	__u32 plan;
	__u32 backends[RING_CHUNK]; /* by cell % RING_CHUNK; their generation is in members */
};

struct caller {
	__be32 address[4];
};

struct affinity_key {
	__u64 client; /* cookie of the caller's network namespace */
	__u32 service;
	__u32 reserved;
};

struct affinity {
	__u64 used; /* CLOCK_MONOTONIC, ns */
	__u32 backend;
	__u32 generation;
};

struct service {
	char name[160]; /* zero-terminated, so that ids can be restored and shown */
};

struct cluster {
	char name[32]; /* zero-padded */
};

struct resolver {
	__be32 dns[4];	  /* the cluster DNS, as pods know it */
	__be32 server[4]; /* the node's own server: questions to dns go there while it is alive */
	__be16 dns_port;  /* 0: none of this family */
	__be16 server_port;
};

struct config {
	__u32 layout;
	__u32 flags;
	struct resolver resolvers[FAMILIES];
};

struct alive {
	__u64 deadline; /* CLOCK_MONOTONIC, ns: later than this, nobody is sent there */
	__u32 tied;	/* 1: nor when its socket is not in sockets */
	__u32 reserved;
};

struct counter_key {
	__u32 service; /* 0: DNS, or lost before the service was known */
	__u16 cluster; /* of the backend; 0: none */
	__u8 verdict;
	__u8 reserved;
};

struct counter {
	__u64 calls;
};

struct call {
	__be32 called[4];
	__be32 chosen[4];
	__be16 called_port;
	__be16 chosen_port;
	__u32 service;
	__u32 backend;
	__u32 generation;
};

struct calls {
	__u32 next;
	__u32 reserved;
	struct call call[MAX_CALLS];
};

/* What is called: an address and port that is ours to answer, and the plan that says how. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct frontend_key);
	__type(value, struct frontend);
} frontends SEC(".maps");

/* What a frontend's calls are spread over: tiers of weighted groups. By plan id. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct plan);
} plans SEC(".maps");

/* The n-th backend of a plan's group. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct slot_key);
	__type(value, struct slot);
} slots SEC(".maps");

/* Where calls go. By backend id; written once, shared by all plans that have it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct backend);
} backends SEC(".maps");

/* Which backends a plan with affinity or a ring has: a client stays only with one of these. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct member_key);
	__type(value, struct member);
} members SEC(".maps");

/* The pods whose own calls a redirect does not mean: they go by the original's plan, or where they were going. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct skip_key);
	__type(value, __u32);
} skips SEC(".maps");

/* The rings of plans with consistent hashing, in chunks: a cell's backend, the same on every node. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct ring_key);
	__type(value, struct ring);
} rings SEC(".maps");

/* The pods' addresses, by the cookie of their network namespace; for plans that tell callers apart. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct caller);
} callers SEC(".maps");

/* Which backend a client last called, for services with affinity. Written by the kernel. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct affinity_key);
	__type(value, struct affinity);
} affinity SEC(".maps");

/* What ids of services stand for. Read by people and by a restarted agent, not by the kernel. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct service);
} services SEC(".maps");

/* What ids of clusters stand for. Read by people and by a restarted agent, not by the kernel. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct cluster);
} clusters SEC(".maps");

/* Cgroups, and all below them, whose calls are never touched. By cgroup id. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, __u32);
} exempt SEC(".maps");

/* The one entry that says where DNS goes and what else is in use. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct config);
} config SEC(".maps");

/* Until when the node's servers say they are alive. By enum alive_server. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ALIVE_SERVERS);
	__type(key, __u32);
	__type(value, struct alive);
} alive SEC(".maps");

/* The sockets of those servers: the kernel takes one out when its last owner is gone, however it died. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, ALIVE_SERVERS);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* How many calls of a service went to a cluster, and how they ended. Written by the kernel. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct counter_key);
	__type(value, struct counter);
} counters SEC(".maps");

/* What a TCP socket called and what was chosen for it; goes with the socket. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct call);
} tcp_calls SEC(".maps");

/* The last few a UDP socket called, a ring; goes with the socket. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct calls);
} udp_calls SEC(".maps");
