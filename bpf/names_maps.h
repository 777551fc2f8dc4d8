/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The maps of DNS names. The rules of maps.h hold here too. */
#pragma once

#include <linux/udp.h>
#include <stdbool.h>

#include "helpers.h"

#define MAX_NAME 256 /* bytes of a DNS name, and one: a power of two, so that the verifier sees the bound */
#define MAX_KEY 128  /* bytes of a name in names; the server answers longer ones */
#define MAX_LABELS 64 /* of a name; a power of two */
#define MAX_SUFFIX 64 /* bytes of the zone's name */
#define MAX_RECORDS 448 /* bytes of a name's records: 28 of A, 16 of AAAA */
#define MAX_A (MAX_RECORDS / 16)
#define MAX_AAAA (MAX_RECORDS / 28)
#define MAX_AUTHORITY 256
#define QUESTIONS_AT_ONCE 256 /* of one pod to the node's server: a fifth of what its socket's buffer holds */

enum name_flag {
	NAME_BIG_A = 1, /* the server has its addresses: they did not fit */
	NAME_BIG_AAAA = 2,
	NAME_OTHERS = 4,    /* the server has records of other types, or may have */
	NAME_PTR_ALONE = 8, /* the reverse of an address: all but its PTR is another's */
	NAME_NATIVE = 16,   /* of the cluster's domain: a negative answer shows no authority of ours */
};

enum names_flag {
	NAMES_ON = 1,
	NAMES_COMPLETE = 2, /* a name of the zone that is not in names does not exist */
	NAMES_AT_TC = 4,    /* pods' questions are read at TC: the socket hooks steer those of host alone */
};

enum name_kind {
	KIND_OTHER = 0,
	KIND_A = 1,
	KIND_AAAA = 2,
	KIND_SRV = 3,
	NAME_KINDS = 4,
};

enum name_result {
	NAME_PASSED = 0, /* not ours */
	NAME_ANSWERED = 1,
	NAME_NODATA = 2,
	NAME_NXDOMAIN = 3,
	NAME_EXPANDED = 4, /* NXDOMAIN to a name of ours with a search domain behind it */
	NAME_STEERED = 5,
	NAME_DROPPED = 6, /* ours and for the server, which is away; or it changed while it was read */
	NAME_LIMITED = 7, /* for the server, by a pod that asks it more than it may */
	NAME_RESULTS = 8,
};

enum dns_server_role {
	DNS_SERVER_ASKED = 1, /* pods have it as nameserver */
	DNS_SERVER_OWN = 2,   /* the node's own server */
};

struct dns_server_key {
	__be32 address[4];
	__be16 port;
	__u16 reserved;
};

/*
 * Records of a DNS name: the kernel answers its addresses, and NODATA for other types unless a flag marks
 * them as the server's. Records are in wire format, their owner a pointer to the question (c0 0c).
 */
struct name {
	__u64 hash; /* of the key, FNV-1a over the name without padding */
	__u8 flags; /* enum name_flag */
	__u8 a;	    /* how many records of A; then, how many of AAAA: */
	__u8 aaaa;
	__u8 reserved[5];
	__u8 records[MAX_RECORDS];
};

struct names_config {
	__u64 deadline; /* CLOCK_MONOTONIC, ns: later than this, every question goes where it was going */
	__u64 host;	/* cookie of the node's own network namespace; 0: not known */
	__u32 flags;	/* enum names_flag */
	__u16 authority_size;
	__u8 zone_labels;
	__u8 zone_size;
	__u8 cluster_labels; /* 0: names with a search domain behind them are not looked for */
	__u8 cluster_size;
	__u8 expanded_size;
	__u8 reserved;
	__u32 interval; /* ns: a pod may ask the node's server one question in this time, on average; 0: any number */
	__u8 zone[MAX_SUFFIX];	   /* lower case, wire format, with the root */
	__u8 cluster[MAX_SUFFIX];  /* the cluster's own domain, likewise */
	__u8 expanded[MAX_SUFFIX]; /* svc and the zone, without the root */
	__u8 authority[MAX_AUTHORITY]; /* the SOA record of a negative answer */
};

struct dns_header {
	__be16 id;
	__be16 flags;
	__be16 questions;
	__be16 answers;
	__be16 authorities;
	__be16 extra;
};

/* A question where it stands in its packet. */
struct question {
	__u32 ip;	 /* offset of the IP header */
	__u32 udp;	 /* of the UDP header */
	__u32 size;	 /* of the DNS message */
	__u32 name_size; /* wire format, root included */
	__u32 labels;	 /* root not included */
	__u32 room;	 /* the largest message that the client takes */
	__u64 hash;	 /* of the name, FNV-1a */
	__u64 pseudo;	 /* sum of the pseudo header, but for the length */
	__u16 type;
	__u16 flags;
	bool is_ipv6;
	bool partial;	 /* its checksum is still to be made by a device */
	bool has_opt;
	bool ordinary;	 /* class, type and OPT are what the kernel can answer */
	__u8 opt_flags;	 /* the upper half: DO */
	struct dns_header header;
};

/* What is to be sent: a code, and records out of scratch, in two parts. */
struct reply {
	__u32 rcode;
	__u32 count;
	__u32 first; /* offset of the first part */
	__u32 first_size;
	__u32 second;
	__u32 second_size;
	bool not_ours; /* a negative answer in another zone: no authority */
};

/* What a question is taken apart in; one for each CPU. */
struct name_scratch {
	__u8 packet[2048]; /* the message */
	__u8 name[MAX_NAME];
	__u32 labels; /* seen so far */
	__u32 left;   /* bytes of the label that are still to come */
	__u8 starts[MAX_LABELS]; /* offsets of the name's labels */
	__u8 records[1024];	 /* a copy of the name's, with room for what the verifier thinks possible */
	struct question asked;
	struct udphdr udp; /* the question's; then the reply's */
	struct dns_server_key to; /* the resolver that was asked */
	struct reply reply;
};

/* What we answer for: DNS names in lower case and wire format, zero-padded. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 131072);
	__uint(key_size, MAX_KEY);
	__type(value, struct name);
} names SEC(".maps");

/* The one entry that describes our zone, and the deadline of its answers. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct names_config);
} names_config SEC(".maps");

/* Name servers whose questions are looked at, and what each is (enum dns_server_role). */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, struct dns_server_key);
	__type(value, __u32);
} dns_servers SEC(".maps");

/* The server that a pod's socket asked, for questions that went to the node's server instead. Written by the kernel. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct dns_server_key);
	__type(value, struct dns_server_key);
} steered SEC(".maps");

/* Interface of a pod on the node → when (ns) its questions to the node's server will have been paid for. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, __u64);
} pod_allowances SEC(".maps");

/* Cookies of network namespaces whose questions were seen at TC: socket hooks leave their next ones alone. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, __u32);
} tc_namespaces SEC(".maps");

/* Cookie of a socket whose question socket hooks steered, for nothing was seen of its network namespace → that one's. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, __u64);
} tc_probes SEC(".maps");

/* Questions of pods by kind and result: kind * NAME_RESULTS + result. Written by the kernel. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, NAME_KINDS * NAME_RESULTS);
	__type(key, __u32);
	__type(value, __u64);
} name_counters SEC(".maps");

/* Room to take a question apart. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct name_scratch);
} name_scratch SEC(".maps");
