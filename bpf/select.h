/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Which backend a call gets: frontend, plan, tier, group, slot. -EAGAIN: an element changed while it was read. */
#pragma once

#include <linux/errno.h>
#include <linux/in.h>
#include <stdbool.h>

#include "maps.h"

struct choice {
	__u32 service;
	__u16 cluster;
	__u8 verdict;
};

static __always_inline bool same_address(const __be32 *a, const __be32 *b)
{
	return a[3] == b[3] && a[2] == b[2] && a[1] == b[1] && a[0] == b[0];
}

static __always_inline bool is_mapped(const __be32 *address) /* IPv4, as our keys have it */
{
	return address[2] == bpf_htonl(0xffff) && !address[1] && !address[0];
}

static __always_inline void copy_address(__be32 *to, const __be32 *from)
{
	to[0] = from[0];
	to[1] = from[1];
	to[2] = from[2];
	to[3] = from[3];
}

/* Asked only once a call is known to be ours, so others do not pay for it. */
static __always_inline bool is_exempt(const struct config *cfg)
{
	if (!(cfg->flags & CONFIG_EXEMPT))
		return false;
	for (int level = 1; level <= 8; level++) {
		__u64 id = bpf_get_current_ancestor_cgroup_id(level);

		if (!id)
			break;
		if (bpf_map_lookup_elem(&exempt, &id))
			return true;
	}
	return false;
}

static __always_inline void count(const struct choice *choice)
{
	struct counter_key key = {
		.service = choice->service,
		.cluster = choice->cluster,
		.verdict = choice->verdict,
	};
	struct counter first = { .calls = 1 };
	struct counter *found = bpf_map_lookup_elem(&counters, &key);

	if (!found && bpf_map_update_elem(&counters, &key, &first, BPF_NOEXIST))
		found = bpf_map_lookup_elem(&counters, &key); /* another CPU was first */
	else if (!found)
		return;
	if (found)
		__sync_fetch_and_add(&found->calls, 1);
}

/* 0 to below - 1, uniform to within 2^-32: taking the high half of a product needs no division. */
static __always_inline __u32 scale(__u32 die, __u64 below)
{
	return (die * below) >> 32;
}

static __always_inline __u64 mix(__u64 x) /* as splitmix64 does */
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
	return x ^ (x >> 31);
}

/* Datagrams of one socket belong together, so there the socket decides; a TCP call is one connect. */
static __always_inline __u32 dice(struct bpf_sock_addr *ctx, __u32 protocol, __u32 salt)
{
	if (protocol == IPPROTO_TCP)
		return bpf_get_prandom_u32();
	return mix(bpf_get_socket_cookie(ctx) + salt) >> 32;
}

static __always_inline int read_frontend(const struct frontend_key *key, __u32 *plan)
{
	const struct frontend *found = bpf_map_lookup_elem(&frontends, key);

	if (!found)
		return -ENOENT;
	*plan = READ_ONCE(found->plan);
	barrier();
	if (READ_ONCE(found->tail) != key->address[3] || READ_ONCE(found->port) != key->port ||
	    found->protocol != key->protocol || found->scope != key->scope)
		return -EAGAIN;
	return 0;
}

/*
 * The plan of a frontend; -ENOENT where nobody knows the address: the one look-up of a call that is not ours. Pods call
 * from inside: where an address has a plan for that too, it is theirs (and key then says so). It never has only that one.
 */
static __always_inline int find_plan(struct frontend_key *key, __u32 *plan)
{
	int err = read_frontend(key, plan);

	if (err)
		return err;
	key->scope |= SCOPE_INTERNAL;
	err = read_frontend(key, plan);
	if (err != -ENOENT)
		return err;
	key->scope &= ~SCOPE_INTERNAL;
	return 0;
}

/*
 * Whether a redirect does not mean calls of this pod. One whose address is not known yet is treated as any other.
 * A function of its own, which the verifier walks once and not on each way through choose().
 */
__attribute__((noinline)) int is_left_out(struct bpf_sock_addr *ctx, __u32 plan_id)
{
	const struct plan *plan = bpf_map_lookup_elem(&plans, &plan_id);
	struct skip_key who = { .plan = plan_id };
	const struct caller *caller;
	__u64 cookie;

	if (!plan || !(READ_ONCE(plan->flags) & PLAN_SKIP) || READ_ONCE(plan->id) != plan_id)
		return 0;
	cookie = bpf_get_netns_cookie(ctx);
	caller = bpf_map_lookup_elem(&callers, &cookie);
	if (!caller)
		return 0;
	copy_address(who.address, caller->address);
	return bpf_map_lookup_elem(&skips, &who) ? 1 : 0;
}

/* The group whose share the die is in, and how many backends it has; no group has a share: no backend at all. */
static __always_inline int pick_group(const struct plan *plan, __u32 die, __u32 *size)
{
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < MAX_GROUPS; i++) {
		if (die >> 1 < plan->groups[i].until) {
			*size = plan->groups[i].count;
			return i;
		}
	}
	return -ECONNREFUSED;
}

static __always_inline int pick_slot(struct bpf_sock_addr *ctx, const struct frontend_key *key,
				     const struct plan *plan, __u32 plan_id, struct call *call)
{
	struct slot_key where = { .plan = plan_id };
	const struct slot *slot;
	__u32 size = 0;
	int group;

	group = pick_group(plan, dice(ctx, key->protocol, plan->service), &size);
	if (group < 0)
		return group;
	where.group = group;
	where.n = scale(dice(ctx, key->protocol, ~plan->service), size);
	slot = bpf_map_lookup_elem(&slots, &where);
	if (!slot)
		return -EAGAIN;
	call->backend = READ_ONCE(slot->backend);
	call->generation = READ_ONCE(slot->generation);
	barrier();
	return READ_ONCE(slot->plan) == plan_id ? 0 : -EAGAIN;
}

/*
 * The cell of the caller: by its pod's address, so that every node says the same of it. One whose address is not known
 * yet has a cell of its own, on this node.
 */
static __always_inline __u32 cell_of(struct bpf_sock_addr *ctx)
{
	__u64 cookie = bpf_get_netns_cookie(ctx);
	const struct caller *caller = bpf_map_lookup_elem(&callers, &cookie);
	__u64 x = cookie;

	if (caller) {
		x = (__u64)bpf_htonl(caller->address[0]) << 32 | bpf_htonl(caller->address[1]);
		x = mix(x) ^ ((__u64)bpf_htonl(caller->address[2]) << 32 | bpf_htonl(caller->address[3]));
	}
	return scale(mix(x) >> 32, RING_CELLS);
}

static __always_inline int pick_cell(struct bpf_sock_addr *ctx, const struct plan *plan, __u32 plan_id,
				     struct call *call)
{
	__u32 cell = cell_of(ctx), size = 0;
	struct ring_key where = { .plan = plan_id, .chunk = cell / RING_CHUNK };
	struct member_key who = { .plan = plan_id };
	const struct member *member;
	const struct ring *ring;

	if (pick_group(plan, 0, &size) < 0)
		return -ECONNREFUSED;
	ring = bpf_map_lookup_elem(&rings, &where);
	if (!ring)
		return -EAGAIN;
	who.backend = call->backend = READ_ONCE(ring->backends[cell % RING_CHUNK]);
	barrier();
	if (READ_ONCE(ring->plan) != plan_id)
		return -EAGAIN;
	member = bpf_map_lookup_elem(&members, &who);
	if (!member)
		return -EAGAIN;
	call->generation = READ_ONCE(member->generation);
	return 0;
}

static __always_inline int pick(struct bpf_sock_addr *ctx, const struct frontend_key *key, const struct plan *plan,
				__u32 plan_id, struct call *call)
{
	if (plan->flags & PLAN_CONSISTENT)
		return pick_cell(ctx, plan, plan_id, call);
	return pick_slot(ctx, key, plan, plan_id, call);
}

/* The backend this client last called, if it is recent and still in the plan. */
static __always_inline int stay(const struct plan *plan, __u32 plan_id, const struct affinity_key *client,
				struct call *call, bool *expired)
{
	struct affinity *last = bpf_map_lookup_elem(&affinity, client);
	struct member_key who = { .plan = plan_id };
	const struct member *member;
	__u64 now = bpf_ktime_get_ns();

	if (!last)
		return -ENOENT;
	*expired = true;
	if (now - last->used >= plan->affinity_timeout * 1000000000ULL)
		return -ENOENT;
	who.backend = call->backend = last->backend;
	call->generation = last->generation;
	member = bpf_map_lookup_elem(&members, &who);
	if (!member || READ_ONCE(member->generation) != call->generation)
		return -ENOENT;
	last->used = now;
	return 0;
}

static __always_inline int pick_with_affinity(struct bpf_sock_addr *ctx, const struct frontend_key *key,
					      const struct plan *plan, __u32 plan_id, struct call *call)
{
	struct affinity_key client = { .client = bpf_get_netns_cookie(ctx), .service = plan->service };
	struct affinity chosen = {};
	bool expired = false;
	int err;

	if (!stay(plan, plan_id, &client, call, &expired))
		return 0;
	err = pick(ctx, key, plan, plan_id, call);
	if (err)
		return err;
	chosen.used = bpf_ktime_get_ns();
	chosen.backend = call->backend;
	chosen.generation = call->generation;
	/* Of two first calls at once one loses here, and goes where the other went. A full map costs the affinity. */
	err = bpf_map_update_elem(&affinity, &client, &chosen, expired ? BPF_ANY : BPF_NOEXIST);
	return err == -EEXIST ? -EAGAIN : 0;
}

static __always_inline int find_backend(struct call *call, struct choice *choice)
{
	const struct backend *found = bpf_map_lookup_elem(&backends, &call->backend);

	if (!found)
		return -EAGAIN;
	copy_address(call->chosen, found->address);
	call->chosen_port = found->port;
	choice->cluster = found->cluster;
	barrier();
	return READ_ONCE(found->generation) == call->generation ? 0 : -EAGAIN;
}

static __always_inline int try_choose(struct bpf_sock_addr *ctx, const struct frontend_key *key, const struct config *cfg,
				      struct call *call, struct choice *choice)
{
	struct frontend_key found = *key;
	const struct plan *plan;
	__u32 id, generation;
	int err;

	err = find_plan(&found, &id);
	if (err)
		return err;
	if (is_exempt(cfg))
		return -ENOENT;
	if (is_left_out(ctx, id)) {
		found.scope |= SCOPE_ORIGINAL;
		err = read_frontend(&found, &id);
		if (err)
			return err;
	}
	plan = bpf_map_lookup_elem(&plans, &id);
	if (!plan)
		return -EAGAIN;
	generation = READ_ONCE(plan->generation);
	choice->service = call->service = plan->service;
	if (plan->flags & PLAN_AFFINITY)
		err = pick_with_affinity(ctx, key, plan, id, call);
	else
		err = pick(ctx, key, plan, id, call);
	barrier();
	if (READ_ONCE(plan->generation) != generation || READ_ONCE(plan->id) != id)
		return -EAGAIN;
	return err ? err : find_backend(call, choice);
}

/* 0 with call filled in; -ENOENT: not ours; else the errno the caller sees. */
static __always_inline int choose(struct bpf_sock_addr *ctx, const struct frontend_key *key, const struct config *cfg,
				  struct call *call, struct choice *choice)
{
	int err = -EAGAIN;

#pragma clang loop unroll(disable)
	for (int i = 0; i < 3 && err == -EAGAIN; i++)
		err = try_choose(ctx, key, cfg, call, choice);
	if (!err || err == -ENOENT)
		return err;
	choice->verdict = err == -EAGAIN ? VERDICT_LOST : VERDICT_REFUSED;
	return -ECONNREFUSED;
}
