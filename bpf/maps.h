/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Every map: the contract between the kernel's side and isthmus.datapath, which checks its codecs against the BTF of
 * these structs. Fixed widths, no implicit padding, IPv4 under ::ffff: in one 16-byte key space, ports and addresses
 * in network order, the rest in host order. No id is 0.
 *
 * An element of a hash map can be reused for another key while a program reads it. So a value repeats part of its key,
 * or its id, or has a generation that no other value ever had; a reader copies, then compares, and starts over. So it does
 * with an element of an array, which is written in place.
 *
 * Who writes and prunes each map, its size and the order of writing are in the manifests of isthmus.datapath.
 */
#pragma once

#include "helpers.h"

#define ISTHMUS_LAYOUT 10 /* a change of any struct below is a new layout, which starts beside the old */
#define MAX_GROUPS 32
#define RING_CELLS 16381 /* a prime, as maglev wants it */
#define RING_CHUNK 1024 /* a power of two, so that the verifier sees the bound */
#define CALL_PLACES 16384 /* a power of two */
#define CALLER_CELLS 128 /* a power of two; there is room for 256 callers that have an entry in each */
#define MAX_CLUSTERS 1024 /* ids below it; Cluster Mesh has 511 clusters at most */
#define MAX_TRIED 6 /* backends one connect is sent to before it starts over */
#define POD_CGROUPS 3
#define MAX_ORIG_DST 64 /* backends a UDP socket can talk to at a time, besides the first, and see replies under the right address */

enum plan_flag {
	PLAN_AFFINITY = 1,
	PLAN_CONSISTENT = 2, /* the backend of a caller is in rings, by a hash of its address */
	PLAN_SKIP = 4,	     /* calls of the pods in skips do not follow this plan */
	PLAN_CONSUMERS = 8,  /* calls of pods of the namespaces in consumers go to the backends there */
	PLAN_OTHERS = 16,    /* with PLAN_CONSUMERS: calls of all other callers are not ours */
	PLAN_DATAGRAMS = 32, /* of UDP: its backends are in members, since sockets keep theirs while it is there */
};

/* Which calls of an address a frontend is for; bits, since the two are independent. */
enum scope {
	SCOPE_INTERNAL = 1, /* of pods, where internalTrafficPolicy gives them a plan of their own */
	SCOPE_ORIGINAL = 2, /* of pods that a local redirect leaves out (skips) */
};

enum config_flag {
	CONFIG_EXEMPT = 1,  /* exempt is not empty */
	CONFIG_OBSERVE = 2, /* outcomes of TCP connects are followed: ejection, SYN time-out, rescue */
	CONFIG_RESCUE = 4,  /* connects that get no answer or RST are moved to another backend */
	CONFIG_MEASURED = 8, /* SYNs are sent again as handshakes were measured; after syn_timeout where nothing is known */
};

/* Why a connect failed. */
enum failure_reason {
	FAILURE_REFUSED = 1,	 /* RST */
	FAILURE_SILENT = 2,	 /* no answer to the first SYN in time */
	FAILURE_UNREACHABLE = 3, /* ICMP */
	FAILURE_DENIED = 4,	 /* ICMP: administratively prohibited. Of flow records alone: it is no failure of a backend */
};

enum event_kind {
	EVENT_EJECTED = 1,
	EVENT_RESTORED = 2,	   /* it answered again */
	EVENT_CALLER_EJECTED = 3, /* for one caller alone */
};

/* What becomes of a failure of the backend that a connect is at, in attempt.failed. */
enum failure_count {
	UNCOUNTED = 0,
	COUNTED = 1, /* it was counted, or is not to be */
	DENIED = 2,  /* a policy denies this caller the backend: the connect ends as without us */
};

/* What the agent's own connects to a backend came to. */
enum probe_verdict {
	PROBE_ANSWERS = 1,
	PROBE_DEAD = 2,
};

#define FOR_CALLER (1U << 31) /* in passed_over: the backend is ejected for this caller alone */

enum flow_flag {
	FLOW_SENT = 1,	      /* pod: a SYN has gone to the new backend */
	FLOW_ANSWERED = 2,    /* peer: the new backend accepted: it is this one for good */
	FLOW_FIN = 4,	      /* pod or peer: it has sent its FIN */
	FLOW_OTHER_DONE = 8,  /* pod or peer: it has acknowledged the other's FIN */
	FLOW_CLOSED = 16,     /* socket: it is gone; packets may still be under way */
	FLOW_SENT_AGAIN = 32, /* pod: so has a second SYN */
	FLOW_STALE = 64,      /* peer: it has answered for an earlier connection of the tuple; the pod's RST ends that */
};

enum family {
	FAMILY_IPV4 = 0,
	FAMILY_IPV6 = 1,
	FAMILIES = 2,
};

enum verdict {
	VERDICT_CALLED = 0,  /* sent to a backend */
	VERDICT_REFUSED = 1, /* the plan has no backend */
	VERDICT_LOST = 2,    /* an entry that a frontend refers to was missing in three reads; or no memory for storage */
	VERDICT_STEERED = 3, /* a DNS query, sent to the node's server */
	VERDICT_RESCUED = 4, /* a connect that was called, too: another backend answered than the first choice */
	VERDICT_FAILED = 5,  /* a connect that was called, too: the application got an error, RST or a time-out */
	VERDICT_EJECTED = 6, /* a connect that was called, too: in the place of an ejected backend that it was to have */
	VERDICT_DENIED = 7,  /* a connect that was called, too: a policy denied it by ICMP. In the map denied, not in counters */
};

/* What a flow record is about. */
enum flow_state {
	STATE_SENT = 1,	     /* a datagram, or a connected UDP socket: no more is known of it */
	STATE_CONNECTED = 2, /* the TCP connection is established */
	STATE_FAILED = 3,    /* the application got an error; verdict and reason say which */
	STATE_GIVEN_UP = 4,  /* the application closed the socket before there was an answer */
	STATE_ENDED = 5,     /* a connection that was established is closed */
	STATE_REFUSED = 6,   /* a SYN or a datagram to a pod of this node was refused by a policy */
	STATE_AUDITED = 7,   /* a policy with audit would have refused it; it passed */
};

/* A TCP connect that was sent to a backend, until its outcome is known. */
struct attempt {
	__u64 started; /* CLOCK_MONOTONIC, ns; 0: before anything failed, where no records are written */
	__u32 plan;
	__u32 service;
	__u32 backend;
	__u32 generation;
	__u16 cluster;
	__u8 failed; /* enum failure_count */
	__u8 moved;  /* there were entries in flows */
	__u32 tries;
	__u32 tried[MAX_TRIED]; /* backends, the first choice first */
	__u32 passed_over;	/* the ejected backend that the call would have had, or FOR_CALLER; 0: none */
	__u32 recorded;		/* what comes of it is written to flow_records */
	__u32 epoch;		/* config.epoch when it began: of another, the numbers here mean nothing */
	__u32 unsent;		/* no SYN was made yet: where the socket ends so, there was no route to the backend */
	__u32 caller;		/* of the caller's network namespace, caller_of() */
	__u32 pod;		/* of the cgroup of its pod, pod_of(); 0: nothing failed when it began */
};

/* The ejected backend that the last call on this processor passed over, and the socket that called. */
struct passed_over {
	__u64 socket;
	__u32 backend; /* and FOR_CALLER */
	__u32 reserved;
};

/*
 * One state of a sampled call. Addresses stand beside the numbers, since the entries these stand for may go before the
 * record is read. asked: the backend that the plan gave first; answered: the one it was sent to in the end.
 *
 * Of STATE_REFUSED and STATE_AUDITED, which the node of the backend writes: pod is the caller, of another cluster, called the
 * pod, service the number of the policy, reason an enum refusal_reason, and for_caller the caller's identity.
 */
struct flow_record {
	__u64 time;   /* CLOCK_MONOTONIC, ns: when the call was made */
	__u64 took;   /* ns from then to this state */
	__u64 socket; /* cookie: the same in all records of a connection */
	__u64 caller; /* cookie of the network namespace, where the pod's address is not known yet; else 0 */
	__u64 sent;   /* bytes of the payload; STATE_ENDED alone */
	__u64 received;
	__be32 pod[4];
	__be32 called[4];
	__be32 asked[4];
	__be32 answered[4];
	__be16 pod_port;
	__be16 called_port;
	__be16 asked_port;
	__be16 answered_port;
	__u32 service;
	__u32 asked_backend;
	__u32 answered_backend;
	__u16 asked_cluster;
	__u16 answered_cluster;
	__u8 protocol;
	__u8 verdict;
	__u8 state;  /* enum flow_state */
	__u8 reason; /* enum failure_reason, of STATE_FAILED */
	__u32 for_caller; /* asked is ejected for this caller alone */
};

/* Payload of connections that have ended. */
struct traffic {
	__u64 sent;
	__u64 received;
};

/* A TCP connection of a pod, as the pod sees it (forward) or as the backend does that it was moved to (reverse). */
struct flow_key {
	__be32 pod[4];
	__be32 peer[4];
	__be16 pod_port;
	__be16 peer_port;
	__u32 reverse;
};

/*
 * What replaces the peer's address, its port and the pod's. The port of the pod changes only where it is in use towards the
 * new peer. Everything after the ports is kept in the forward entry alone.
 */
struct flow {
	__be32 peer[4];
	__be16 peer_port;
	__be16 pod_port;
	/* enum flow_flag. A byte for each writer: of one word, what two processors write at once would be lost. */
	__u8 pod_flags;	   /* of what the pod sends */
	__u8 peer_flags;   /* of what the peer sends */
	__u8 socket_flags; /* of the pod's socket */
	__u8 unused;
	__u32 backend;
	__u32 acknowledged; /* by the pod's last segment: the only sequence number of a RST that ends its connection */
	__u32 fin_end[2]; /* the sequence number after the FIN, of the pod and of the peer */
	__u64 used;	  /* CLOCK_MONOTONIC, ns: the last segment but a SYN of the pod's */
};

/*
 * The last SYN to a backend that a connect has left, since it got no answer in time: a later answer is the backend's success.
 * An answer is recognised by the sequence number, whatever else an element may be reused for.
 */
struct unanswered {
	__u64 sent;	/* CLOCK_MONOTONIC, ns */
	__u32 sequence; /* of the SYN */
	__u32 backend;
	__u32 generation;
	__u32 service;
	__u32 caller; /* attempt.caller */
	__u16 cluster;
	__u16 answered; /* the answer arrived and was counted */
};

/* How long a backend takes to answer a SYN, as RFC 6298 has it for segments. */
struct handshake {
	__u32 generation; /* of the backend; the entry is void for another one */
	__u32 smoothed;	  /* ns */
	__u32 deviation;  /* ns */
	__u32 reserved;
};

/* Connects of one second, and how many of them were moved before config.syn_timeout. */
struct early_moves {
	__u64 second;
	__u32 connects;
	__u32 connects_before; /* in the second before */
	__u32 moves;
	__u32 reserved;
};

/* What replaces the peer and the pod's port in datagrams of a socket whose backend has gone. A peer_port of 0: they are dropped. */
struct udp_flow {
	__be32 peer[4];
	__be16 peer_port;
	__be16 pod_port;
	__u32 service; /* what the socket called; datagrams of another call or socket with this tuple are not rewritten */
	__u64 socket;  /* cookie */
};

/*
 * The failed connects of a backend, of all callers. It is ejected for the node when it is ejected for two pods at a time,
 * in two network namespaces, neither of which need be true: claimant is the one that found it dead last.
 */
struct failing {
	__u32 generation;   /* the backend's */
	__u32 failures;	    /* in a row */
	__u64 since;	    /* CLOCK_MONOTONIC, ns: when it was ejected */
	__u64 until;	    /* 0: it is not ejected. Later: no call but a trial */
	__u64 last;	    /* the last failure */
	__u32 level;	    /* how often it was ejected without pause; the time doubles with it */
	__u32 reason;	    /* enum failure_reason, of the last */
	__u64 claim_until;  /* how long it is ejected for the claimant */
	__u32 claimant;	    /* attempt.caller */
	__u32 claimant_pod; /* attempt.pod */
	__u64 answered;	    /* the last connect to it that succeeded while this entry existed */
	__u32 answered_to;  /* attempt.caller, of that connect */
	__u32 unused;
};

/* One caller's entry for a backend: another backend of the same cell takes its place. */
struct caller_key {
	__u32 caller; /* attempt.caller */
	__u32 cell;   /* backend % CALLER_CELLS: bounds the entries of one caller */
};

/* The failed connects of one caller to a backend. */
struct caller_failing {
	__u32 backend;
	__u32 generation;
	__u32 failures; /* in a row */
	__u16 level;	/* as in failing */
	__u16 reason;
	__u64 since;
	__u64 until; /* 0: not ejected for this caller */
	__u64 last;
	__u64 trial; /* when the one call began that tries it again */
};

struct denial_key {
	__u32 caller; /* attempt.caller */
	__u32 backend;
};

/* Connects of one caller that a policy denied a backend by ICMP. For people: no call looks at it. */
struct denial {
	__u32 generation; /* the backend's */
	__u32 unused;
	__u64 connects;
	__u64 last; /* CLOCK_MONOTONIC, ns */
};

/* What the agent found out about a backend that callers have failures with. It counts until its time is over. */
struct probed {
	__u32 generation; /* the backend's */
	__u32 verdict;	  /* enum probe_verdict */
	__u64 since;	  /* CLOCK_MONOTONIC, ns: how long the verdict has been this one */
	__u64 until;
};

/*
 * Words that keep calls cheap while nothing fails: gates counts entries as they are made, and settled has the counts that
 * the agent read before it found the maps empty. Where both agree, a program need not look. Each has one writer: of one
 * count that both write, what a program adds between the agent's look and its write would be lost.
 */
struct gate {
	__u32 failing; /* entries made in the map of that name */
	__u32 moved;   /* connections moved: entries made in flows */
};

/* Change of a backend's state. Numbers are resolved here, since the entries they stand for may go before it is read. */
struct event {
	__u64 time; /* CLOCK_MONOTONIC, ns */
	__u64 until;
	__be32 address[4];
	__be16 port;
	__u8 protocol;
	__u8 kind;   /* enum event_kind */
	__u8 reason; /* enum failure_reason */
	__u8 reserved;
	__u16 cluster;
	__u32 failures;
	__u32 service; /* whose call it was */
	__u32 caller;  /* attempt.caller */
	__u32 unused;
};

/* What the kernel has, found out before the programs are loaded; the verifier drops what depends on the rest. */
struct constants {
	__u32 has_set_retval; /* 5.18 */
	__u32 has_mptcp;      /* 5.19: bpf_skc_to_mptcp_sock */
};

/* SO_PRIORITY of the name server's questions to the cluster DNS (src/isthmus/dns/dialing.py): they are not steered. */
enum own_question { OWN_QUESTION = 0x69730035 };

enum alive_flag {
	ALIVE_TCP = 1, /* DNS over TCP is steered to it too */
};

enum alive_server {
	ALIVE_DNS = 0,
	ALIVE_DNS_SECOND = 1, /* another process on the same addresses */
	ALIVE_SERVERS = 2,
};

struct frontend_key {
	__be32 address[4];
	__be16 port;
	__u8 protocol; /* IPPROTO_ */
	__u8 scope;    /* bits of enum scope */
};

struct frontend {
	__be32 tail; /* this and the next three repeat the end of the key, against recycling */
	__be16 port;
	__u8 protocol;
	__u8 scope;
	__u32 plan;
};

struct group {
	__u32 cumulative_weight; /* of 2^31: the group of a random number is the first whose bound is above it. 0: none */
	__u32 weight;		 /* share within the tier; 0: never used */
	__u32 count;		 /* slots 0 to count - 1 exist */
	__u32 tier;		 /* groups are sorted by it; calls go to the lowest that has a backend */
};

struct plan {
	__u32 generation;
	__u32 id;
	__u32 service; /* stays when a large change takes a new plan */
	__u32 flags;
	__u32 affinity_timeout; /* seconds */
	__u32 eject_after;	/* failed connects in a row after which a backend is ejected; 0: never */
	__u32 eject_first;	/* ms: how long the first time */
	__u32 eject_longest;	/* ms: each time twice as long as the one before, up to this */
	__u32 size;		/* groups in use */
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
	__u32 generation; /* the backend's; of backend 0, which refuses: the errno of the call, ECONNREFUSED */
};

struct backend {
	__u32 generation;
	__be32 address[4];
	__be16 port;
	__u8 protocol;
	__u8 flags; /* 1: this node's proxy */
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
	__u64 namespace; /* hash of the name of the pod's namespace; 0: not known beyond doubt, never a consumer */
};

struct consumer_key {
	__u64 namespace; /* as in struct caller */
	__u32 plan;
	__u32 reserved;
};

/* A caller's sockets that are bound to a port, towards a backend: the kernel allows one connection of such a tuple. */
struct port_key {
	__u32 caller; /* attempt.caller */
	__u32 backend;
	__u16 port; /* in host order */
	__u16 protocol;
};

struct affinity_key {
	__u64 client; /* as attempt.caller: cookie of the caller's network namespace, its lower half */
	__u32 cell;   /* service % config.affinity_cells: bounds the entries of one client */
	__u32 reserved;
};

struct affinity {
	__u64 used; /* CLOCK_MONOTONIC, ns */
	__u32 service;
	__u32 backend;
	__u32 generation;
	__u32 reserved;
};

struct service {
	char name[160]; /* zero-terminated, so that ids can be restored and shown */
};

struct cluster {
	char name[32]; /* zero-padded */
};

struct resolver {
	__be32 dns[4];	  /* the cluster DNS address in the pods' resolv.conf */
	__be32 server[4]; /* the node's own server: queries to dns are sent there while it is alive */
	__be16 dns_port;  /* 0: none of this family */
	__be16 server_port;
};

struct config {
	__u32 layout;
	__u32 flags;
	__u32 affinity_cells;
	__u32 syn_timeout; /* jiffies before the first SYN is sent again; 0: the kernel's own second */
	__u32 hz;	   /* jiffies in a second */
	__u32 flows;	   /* one call of so many is recorded, and all that fail; 0: none */
	__u32 epoch;	   /* of these maps alone: sockets live longer, and bring numbers of others */
	__u32 reserved;
	__u64 pods[POD_CGROUPS]; /* ids of cgroups: that of all pods, and those of classes of service below it */
	struct resolver resolvers[FAMILIES];
};

struct alive {
	__u64 deadline; /* CLOCK_MONOTONIC, ns: the server is used until then */
	__u32 tied;	/* 1: and only while its socket is in sockets */
	__u32 flags;	/* enum alive_flag */
};

struct counter_key {
	__u32 service; /* 0: DNS, or no service was found */
	__u16 cluster; /* of the backend; 0: none */
	__u8 verdict;
	__u8 reserved;
};

struct counter {
	__u64 calls;
};

/* A rewritten destination: what the application called, and the backend that stands in for it. */
struct orig_dst {
	__be32 address[4];
	__be32 backend_address[4];
	__be16 port;
	__be16 backend_port;
	__u32 service;
	__u32 backend; /* 0: the node's DNS server */
	__u32 generation;
};

/*
 * What a TCP socket called, and what becomes of the connect. Its size stays, and where it has backend, moved and epoch:
 * sockets live across upgrades.
 */
struct tcp_call {
	struct orig_dst dst;
	struct attempt attempt; /* none while its backend is 0 */
};

/*
 * Where a TCP socket has that until it ends, and a UDP socket the first that it called: no allocation, which is the most of
 * what a call costs.
 */
struct call_place {
	__u64 socket; /* cookie of the socket whose call this is; 0 if none */
	__u64 claims; /* sum of the cookies of its owner and of those that try for it at the moment; 0: free */
	struct tcp_call call;
};

/*
 * The last few of a UDP socket, as a ring: once all are used, next is overwritten next. Of several
 * entries with one backend, only that of the service called last names the sender of answers.
 */
struct orig_dsts {
	__u32 next;
	__u32 used;
	__u8 answers[MAX_ORIG_DST];
	struct orig_dst dst[MAX_ORIG_DST];
};

/* An address and port that clients call → its plan. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct frontend_key);
	__type(value, struct frontend);
} frontends SEC(".maps");

/* Plan id → how a frontend's calls are distributed: tiers of weighted groups. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct plan);
} plans SEC(".maps");

/* Plan, group, n → the n-th backend of the group. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct slot_key);
	__type(value, struct slot);
} slots SEC(".maps");

/* Backend id → its address; a generation of 0: there is none. Written once, shared by all plans that have it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65537);
	__type(key, __u32);
	__type(value, struct backend);
} backends SEC(".maps");

/* Plan, backend → the backend is in the plan. Only plans with affinity or a ring, and of UDP, whose choices must be checked. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct member_key);
	__type(value, struct member);
} members SEC(".maps");

/* Pods that a redirect leaves out: their calls follow the plan in SCOPE_ORIGINAL, or are not touched without one. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct skip_key);
	__type(value, __u32);
} skips SEC(".maps");

/* Plan, namespace → the one backend of that namespace's callers: the node's proxy, where the namespace has routes. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct consumer_key);
	__type(value, struct slot);
} consumers SEC(".maps");

/* Plan, chunk → backends by hash of the caller, for consistent hashing; equal on every node. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct ring_key);
	__type(value, struct ring);
} rings SEC(".maps");

/* Cookie of a network namespace → its pod. Only while some plan hashes, or has skips or consumers. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct caller);
} callers SEC(".maps");

/* The backend that a client last called, for services with affinity. Written by the kernel. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct affinity_key);
	__type(value, struct affinity);
} affinity SEC(".maps");

/* Caller, port that a socket was bound to before it connected, backend → the socket's cookie. Written by the kernel. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct port_key);
	__type(value, __u64);
} fixed_ports SEC(".maps");

/* Backend id → its failed connects. Written by the kernel; entries that say nothing more are deleted by the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct failing);
} failing SEC(".maps");

/* Caller, cell → its failed connects to one backend. Entries matter while the backend has one in failing. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 32768);
	__type(key, struct caller_key);
	__type(value, struct caller_failing);
} caller_failing SEC(".maps");

/* Backend id → the agent's verdict, which comes before that of callers. Deleted by the kernel where one connects after all. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct probed);
} probed SEC(".maps");

/* Backend id → when the call began that tries a backend which is ejected for the node: there is one at a time. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, __u64);
} trials SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gate);
} gates SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gate);
} settled SEC(".maps");

/* Connections moved to another backend, two entries each. Written by the kernel; the agent deletes forgotten ones. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct flow_key);
	__type(value, struct flow);
} flows SEC(".maps");

/* A pod's tuple, as the backend knows it → the SYN that the backend has not answered in time. Written by the kernel. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flow_key);
	__type(value, struct unanswered);
} unanswered SEC(".maps");

/* Backend id → its handshakes, beside backends. Written by the kernel. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65537);
	__type(key, __u32);
	__type(value, struct handshake);
} handshakes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct early_moves);
} early_moves SEC(".maps");

/* Connected UDP sockets that were moved to another backend, two entries each: keys as in flows. Written by the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct flow_key);
	__type(value, struct udp_flow);
} udp_flows SEC(".maps");

/* 1 while there may be an entry in udp_flows: else no datagram is looked up there. Written by the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} udp_gate SEC(".maps");

/* Written by the kernel, the most recent ones; the agent deletes old ones. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct denial_key);
	__type(value, struct denial);
} denials SEC(".maps");

/* Index of a pod's interface on the node → the node's id for the pod's network namespace. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u32);
} pod_links SEC(".maps");

/* Cluster id → round-trip time to its backends in µs: at once up, slowly down; 0: not known. Written by the kernel. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CLUSTERS);
	__type(key, __u32);
	__type(value, __u32);
} round_trips SEC(".maps");

/* struct event for the agent. One that finds no room is lost; the map of failing backends has the state. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} events SEC(".maps");

/* struct flow_record for the agent, which looks every 50 ms: waking it for each would cost the callers its processor. */
#define FLOW_RECORDS_SIZE 262144
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, FLOW_RECORDS_SIZE);
} flow_records SEC(".maps");

/* Interval and caller, as caller_of() has it → the time (ns) from which it may have another record: is_over_share(). */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, __u64);
} flow_allowances SEC(".maps");

/* Flow records that found no room. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} lost_records SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct passed_over);
} passed_over SEC(".maps");

/* Cluster id → bytes of connections to its backends, counted when they end. Written by the kernel. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_CLUSTERS);
	__type(key, __u32);
	__type(value, struct traffic);
} traffic SEC(".maps");

/* Service id → name. For people and for a restarted agent; the kernel does not read it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct service);
} services SEC(".maps");

/* Cluster id → name. For people and for a restarted agent; the kernel does not read it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_CLUSTERS);
	__type(key, __u32);
	__type(value, struct cluster);
} clusters SEC(".maps");

/* Which calls of a cgroup, and of all cgroups below it, are not translated. */
enum exemption {
	EXEMPT = 1,	  /* all calls: of configured cgroups */
	EXEMPT_CALLS = 2, /* calls of services, not questions for names: of pods that are left alone */
};

/* Id of a cgroup → enum exemption. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, __u32);
} exempt SEC(".maps");

/* The one entry of settings. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct config);
} config SEC(".maps");

/* enum alive_server → until when the server is used unless it renews the entry. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ALIVE_SERVERS);
	__type(key, __u32);
	__type(value, struct alive);
} alive SEC(".maps");

/* The sockets of those servers: the kernel removes one when it is closed, also by SIGKILL. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, ALIVE_SERVERS);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* Calls by service, cluster of the backend and verdict. Written by the kernel. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct counter_key);
	__type(value, struct counter);
} counters SEC(".maps");

/* The same of VERDICT_DENIED, which versions that share these maps do not know in counters. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct counter_key);
	__type(value, struct counter);
} denied SEC(".maps");

/*
 * What sockets called, by cookie % CALL_PLACES: cookies count up, on each processor in batches of 4,096 (linux/cookie.h), so
 * sockets of several processors can have the same place. A socket whose place is another's has it in tcp_calls or udp_calls.
 * Only the owner frees a place: TCP when the connection ends, or the socket is closed that made no SYN, UDP when it is closed.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CALL_PLACES);
	__type(key, __u32);
	__type(value, struct call_place);
} call_places SEC(".maps");

/* What a TCP socket called that found no place; freed with the socket. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct tcp_call);
} tcp_calls SEC(".maps");

/* What a UDP socket sent to after the first service, or called without a place; freed with the socket. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct orig_dsts);
} udp_sent SEC(".maps");

/* Cookie of a connected UDP socket without a place → what it called: the kernel does not list the storage of UDP sockets. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct orig_dst);
} udp_connects SEC(".maps");

/* 1 since udp_connects was full for a socket: of connected sockets without an entry it is not known what they called. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} udp_unknown SEC(".maps");
