/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Which backend a call gets: frontend, plan, tier, group, slot. -EAGAIN: an element changed while it was read. */
#pragma once

#include <linux/errno.h>
#include <linux/in.h>
#include <stdbool.h>

#include "maps.h"
#include "count.h"
#include "failures.h"
#include "records.h"
#include "sockets.h"

#define PICK_FAILED(errno) ((__u64)(errno) << 32)

/* Checked after the frontend was found, so that calls that are not ours do not pay for it. */
__walked_once int is_exempt(__u32 config_flags)
{
	if (!(config_flags & CONFIG_EXEMPT))
		return 0;
#pragma clang loop unroll(disable)
	for (int level = 1; level <= 8; level++) {
		__u64 id = bpf_get_current_ancestor_cgroup_id(level);

		if (!id)
			break;
		if (bpf_map_lookup_elem(&exempt, &id))
			return 1;
	}
	return 0;
}

/* All datagrams of a socket get one number for a service, however often this is called; each TCP connect a new one. */
static __always_inline __u32 random32(struct bpf_sock_addr *ctx, __u32 salt)
{
	if (ctx->protocol == IPPROTO_TCP)
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
 * The plan of a frontend; -ENOENT where the address is not a frontend, which is all that a call that is not ours costs.
 * Where an address has a plan for calls of pods as well (SCOPE_INTERNAL), that one is returned, with key changed to it.
 * An address never has an internal plan alone.
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

/* Whether the plan's redirect leaves this pod out. A pod that is not in callers yet is redirected as any other. */
__walked_once int is_left_out(struct bpf_sock_addr *ctx, __u32 plan_id)
{
	__u64 cookie = bpf_get_netns_cookie(ctx);
	const struct caller *caller = bpf_map_lookup_elem(&callers, &cookie);
	struct skip_key who = { .plan = plan_id };

	if (!caller)
		return 0;
	copy_address(who.address, caller->address);
	return bpf_map_lookup_elem(&skips, &who) ? 1 : 0;
}

static __always_inline int pick_slot(struct bpf_sock_addr *ctx, const struct plan *plan, __u32 plan_id,
				     struct orig_dst *dst)
{
	struct slot_key where = { .plan = plan_id };
	const struct slot *slot;
	__u32 size = 0;
	int group;

	group = pick_group(plan, random32(ctx, plan->service), &size);
	if (group < 0)
		return group;
	where.group = group;
	where.n = scale(random32(ctx, ~plan->service), size);
	slot = bpf_map_lookup_elem(&slots, &where);
	if (!slot)
		return -EAGAIN;
	dst->backend = READ_ONCE(slot->backend);
	dst->generation = READ_ONCE(slot->generation);
	barrier();
	return READ_ONCE(slot->plan) == plan_id ? 0 : -EAGAIN;
}

/* The caller's cell is a hash of its pod's address, equal on every node; of its cookie while that is not in callers. */
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
				     struct orig_dst *dst)
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
	who.backend = dst->backend = READ_ONCE(ring->backends[cell % RING_CHUNK]);
	barrier();
	if (READ_ONCE(ring->plan) != plan_id)
		return -EAGAIN;
	member = bpf_map_lookup_elem(&members, &who);
	if (!member)
		return -EAGAIN;
	dst->generation = READ_ONCE(member->generation);
	return 0;
}

/* A backend by random number or by the caller's hash; another one where that is ejected, and it where all are. */
static __always_inline int pick(struct bpf_sock_addr *ctx, const struct plan *plan, __u32 plan_id,
				struct orig_dst *dst)
{
	__u64 other;
	int err;

	if (plan->flags & PLAN_CONSISTENT)
		err = pick_cell(ctx, plan, plan_id, dst);
	else
		err = pick_slot(ctx, plan, plan_id, dst);
	if (err || !plan->eject_after || !anything_fails() || !is_ejected(dst->backend, dst->generation))
		return err;
	other = pick_other(plan_id, plan->flags & PLAN_CONSISTENT ? cell_of(ctx) : random32(ctx, plan->service));
	if (other) {
		note_passed_over(ctx, dst->backend);
		dst->backend = other;
		dst->generation = other >> 32;
	}
	return 0;
}

/*
 * The backend that this client last called, if that is recent and it is still in the plan. The time is compared with a
 * sign: another CPU may have written a later one than we have read from the clock.
 */
static __always_inline int lookup_affinity(const struct plan *plan, __u32 plan_id, const struct affinity_key *client,
				struct orig_dst *dst, bool *stale, __u32 *ejected)
{
	struct affinity *last = bpf_map_lookup_elem(&affinity, client);
	struct member_key who = { .plan = plan_id };
	const struct member *member;
	__u64 now = bpf_ktime_get_ns();

	if (!last)
		return -ENOENT;
	*stale = true;
	if (last->service != plan->service || (__s64)(now - last->used) >= (__s64)plan->affinity_timeout * NSEC_PER_SEC)
		return -ENOENT;
	who.backend = dst->backend = last->backend;
	dst->generation = last->generation;
	member = bpf_map_lookup_elem(&members, &who);
	if (!member || READ_ONCE(member->generation) != dst->generation)
		return -ENOENT;
	if (plan->eject_after && anything_fails() && is_ejected(dst->backend, dst->generation)) {
		*ejected = dst->backend;
		return -ENOENT;
	}
	last->used = now;
	return 0;
}

/*
 * Remember what a client was given. Of two first calls at once one loses here, and starts over to go where the other went.
 * Full: no affinity. Not inlined, so that the stack has room for what pick calls.
 */
__walked_once int keep_affinity(struct bpf_sock_addr *ctx, __u32 service, __u32 cell, __u64 picked, __u64 flags)
{
	struct affinity_key client = { .client = bpf_get_netns_cookie(ctx), .cell = cell };
	struct affinity chosen = {
		.used = bpf_ktime_get_ns(),
		.service = service,
		.backend = picked,
		.generation = picked >> 32,
	};

	return bpf_map_update_elem(&affinity, &client, &chosen, flags) == -EEXIST ? -EAGAIN : 0;
}

static __always_inline int pick_with_affinity(struct bpf_sock_addr *ctx, const struct plan *plan, __u32 plan_id,
					      struct orig_dst *dst)
{
	struct affinity_key client = { .client = bpf_get_netns_cookie(ctx) };
	const struct config *cfg;
	__u32 zero = 0, ejected = 0;
	bool stale = false;
	int err;

	cfg = bpf_map_lookup_elem(&config, &zero);
	if (cfg && cfg->affinity_cells)
		client.cell = plan->service % cfg->affinity_cells;
	if (!lookup_affinity(plan, plan_id, &client, dst, &stale, &ejected))
		return 0;
	err = pick(ctx, plan, plan_id, dst);
	if (err)
		return err;
	if (ejected && ejected != dst->backend)
		note_passed_over(ctx, ejected);
	return keep_affinity(ctx, plan->service, client.cell, PICKED(dst->backend, dst->generation),
			     stale ? BPF_ANY : BPF_NOEXIST);
}

/*
 * The backend that this UDP socket last sent to for a service, as long as its entry exists: it stays when others come
 * and go. Generation << 32 | id, since a global function returns scalars only; 0: none.
 */
__walked_once __u64 kept_backend(struct bpf_sock_addr *ctx, __u32 service)
{
	const struct orig_dsts *stored = bpf_sk_storage_get(&udp_calls, ctx->sk, 0, 0);
	const struct tcp_call *first = call_in_place(bpf_get_socket_cookie(ctx));
	const struct backend *found;
	__u32 id = 0, generation = 0, place;

	if (first && first->dst.backend_port && first->dst.service == service) {
		id = first->dst.backend;
		generation = first->dst.generation;
	}
	place = stored ? stored->next : 0; /* the oldest */
#pragma clang loop unroll(disable)
	for (__u32 i = 0; stored && i < MAX_ORIG_DST; i++, place++) {
		if (place >= MAX_ORIG_DST)
			place = 0;
		if (stored->dst[place].service != service)
			continue;
		id = stored->dst[place].backend;
		generation = stored->dst[place].generation;
	}
	found = bpf_map_lookup_elem(&backends, &id);
	if (!found || READ_ONCE(found->generation) != generation)
		return 0;
	return (__u64)generation << 32 | id;
}

static __always_inline int keep_backend(struct bpf_sock_addr *ctx, const struct plan *plan, struct orig_dst *dst)
{
	__u64 kept = kept_backend(ctx, plan->service);

	dst->backend = kept;
	dst->generation = kept >> 32;
	return kept ? 0 : -ENOENT;
}

static __always_inline int find_backend(struct orig_dst *dst, struct choice *choice)
{
	const struct backend *found = bpf_map_lookup_elem(&backends, &dst->backend);

	if (!found)
		return -EAGAIN;
	copy_address(dst->backend_address, found->address);
	dst->backend_port = found->port;
	choice->cluster = found->cluster;
	barrier();
	return READ_ONCE(found->generation) == dst->generation ? 0 : -EAGAIN;
}

static __always_inline int pick_in(struct bpf_sock_addr *ctx, const struct plan *plan, __u32 plan_id, bool sends,
				   struct orig_dst *dst)
{
	if (sends && !keep_backend(ctx, plan, dst))
		return 0;
	if (plan->flags & PLAN_AFFINITY)
		return pick_with_affinity(ctx, plan, plan_id, dst);
	return pick(ctx, plan, plan_id, dst);
}

/*
 * A plan's backend for this call, unless the plan changes meanwhile: generation << 32 | id; an id of 0 and a positive errno:
 * none. drawn: by random numbers alone.
 */
static __always_inline __u64 pick_unchanged(struct bpf_sock_addr *ctx, const struct plan *plan, __u32 plan_id, bool sends,
					    bool drawn)
{
	__u32 generation = READ_ONCE(plan->generation);
	struct orig_dst dst = {};
	int err = drawn ? pick_slot(ctx, plan, plan_id, &dst) : pick_in(ctx, plan, plan_id, sends, &dst);

	barrier();
	if (READ_ONCE(plan->generation) != generation || READ_ONCE(plan->id) != plan_id)
		return PICK_FAILED(EAGAIN);
	return err ? PICK_FAILED(-err) : PICKED(dst.backend, dst.generation);
}

__walked_once __u64 pick_backend(struct bpf_sock_addr *ctx, __u32 plan_id, __u32 sends)
{
	const struct plan *plan = bpf_map_lookup_elem(&plans, &plan_id);

	return plan ? pick_unchanged(ctx, plan, plan_id, sends, false) : PICK_FAILED(EAGAIN);
}

/*
 * Whether random numbers alone decide on a connect, as on most: no affinity, no ring, and nothing on this node fails.
 * Accepts a race: a plan that gains affinity or a ring at that moment has one more call drawn.
 */
static __always_inline bool is_drawn(const struct plan *plan)
{
	return !(READ_ONCE(plan->flags) & (PLAN_AFFINITY | PLAN_CONSISTENT)) && !anything_fails();
}

static __always_inline int try_choose(struct bpf_sock_addr *ctx, const struct frontend_key *key,
				      const struct config *cfg, bool sends, struct orig_dst *dst, struct choice *choice)
{
	struct frontend_key found = *key;
	const struct plan *plan;
	__u64 picked;
	__u32 id;
	int err;

	err = find_plan(&found, &id);
	if (err)
		return err;
	if (is_exempt(cfg->flags))
		return -ENOENT;
	plan = bpf_map_lookup_elem(&plans, &id);
	if (plan && READ_ONCE(plan->flags) & PLAN_SKIP && is_left_out(ctx, id)) {
		found.scope |= SCOPE_ORIGINAL;
		err = read_frontend(&found, &id);
		if (err)
			return err;
		plan = bpf_map_lookup_elem(&plans, &id);
	}
	if (!plan)
		return -EAGAIN;
	choice->service = dst->service = READ_ONCE(plan->service);
	choice->plan = id;
	if (!sends && is_drawn(plan))
		picked = pick_unchanged(ctx, plan, id, false, true); /* without another look-up of the plan */
	else
		picked = pick_backend(ctx, id, sends);
	dst->backend = picked;
	dst->generation = picked >> 32;
	return dst->backend ? find_backend(dst, choice) : -(int)dst->generation;
}

/* 0 with dst filled in; -ENOENT: not ours; else the errno that the application gets. sends: a datagram, no connect. */
static __always_inline int choose(struct bpf_sock_addr *ctx, const struct frontend_key *key, const struct config *cfg,
				  bool sends, struct orig_dst *dst, struct choice *choice)
{
	int err = -EAGAIN;

#pragma clang loop unroll(disable)
	for (int i = 0; i < 3 && err == -EAGAIN; i++)
		err = try_choose(ctx, key, cfg, sends, dst, choice);
	if (!err && anything_fails())
		choice->passed_over = take_passed_over(ctx);
	if (!err || err == -ENOENT)
		return err;
	choice->plan = 0;
	choice->verdict = err == -EAGAIN ? VERDICT_LOST : VERDICT_REFUSED;
	return -ECONNREFUSED;
}
