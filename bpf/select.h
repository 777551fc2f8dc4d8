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
#include "sharing.h"
#include "sockets.h"

#define PICK_FAILED(errno) ((__u64)(errno) << 32)

/*
 * Which of the caller's calls are not translated: enum exemption; 0: all are. Checked after the frontend was found, so that
 * calls that are not ours do not pay for it.
 */
__walked_once int exemption(__u32 config_flags)
{
	const __u32 *found;

	if (!(config_flags & CONFIG_EXEMPT))
		return 0;
#pragma clang loop unroll(disable)
	for (int level = 1; level <= POD_LEVELS; level++) {
		__u64 id = bpf_get_current_ancestor_cgroup_id(level);

		if (!id)
			break;
		found = bpf_map_lookup_elem(&exempt, &id);
		if (found)
			return *found;
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

static __always_inline __u32 passed_over_as(__u32 backend, int ejected)
{
	return ejected == EJECTED_FOR_CALLER ? backend | FOR_CALLER : backend;
}

/*
 * The backend that callers of this pod's namespace have instead of the plan's: generation << 32 | id. 0: they have none, or
 * it is ejected, and the call goes to a backend of the plan. A pod that is not in callers yet is in no namespace.
 */
__walked_once __u64 consumers_backend(struct bpf_sock_addr *ctx, __u32 plan_id, __u32 plan_flags)
{
	const __u64 not_ours = plan_flags & PLAN_OTHERS ? PICK_FAILED(ENOENT) : 0;
	__u64 cookie = bpf_get_netns_cookie(ctx);
	const struct caller *caller = bpf_map_lookup_elem(&callers, &cookie);
	struct consumer_key who = { .plan = plan_id };
	const struct slot *slot;
	__u32 backend, generation;
	int ejected;

	if (!caller || !caller->namespace)
		return not_ours;
	who.namespace = caller->namespace;
	slot = bpf_map_lookup_elem(&consumers, &who);
	if (!slot)
		return not_ours;
	backend = READ_ONCE(slot->backend);
	generation = READ_ONCE(slot->generation);
	barrier();
	if (READ_ONCE(slot->plan) != plan_id)
		return PICK_FAILED(EAGAIN);
	ejected = anything_fails() ? is_ejected(backend, generation, caller_of(ctx)) : 0;
	if (ejected) {
		note_passed_over(ctx, passed_over_as(backend, ejected));
		return 0;
	}
	return PICKED(backend, generation);
}

/* A backend by random number or by the caller's hash; another one where that is ejected, and it where all are. */
static __always_inline int pick(struct bpf_sock_addr *ctx, const struct plan *plan, __u32 plan_id,
				struct orig_dst *dst)
{
	__u64 other;
	int err, ejected;

	if (plan->flags & PLAN_CONSISTENT)
		err = pick_cell(ctx, plan, plan_id, dst);
	else
		err = pick_slot(ctx, plan, plan_id, dst);
	if (err || !plan->eject_after || !anything_fails())
		return err;
	ejected = is_ejected(dst->backend, dst->generation, caller_of(ctx));
	if (!ejected)
		return 0;
	other = pick_other(plan_id, plan->flags & PLAN_CONSISTENT ? cell_of(ctx) : random32(ctx, plan->service),
			   caller_of(ctx));
	if (other) {
		note_passed_over(ctx, passed_over_as(dst->backend, ejected));
		dst->backend = other;
		dst->generation = other >> 32;
	}
	return 0;
}

/*
 * The backend that this client last called, if that is recent and it is still in the plan. The time is compared with a
 * sign: another CPU may have written a later one than we have read from the clock.
 */
static __always_inline int lookup_affinity(struct bpf_sock_addr *ctx, const struct plan *plan, __u32 plan_id,
					   const struct affinity_key *client, struct orig_dst *dst, bool *stale)
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
	if (plan->eject_after && anything_fails()) {
		int passed_over = is_ejected(dst->backend, dst->generation, client->client);

		if (passed_over) {
			note_passed_over(ctx, passed_over_as(dst->backend, passed_over));
			return -ENOENT;
		}
	}
	last->used = now;
	return 0;
}

static __always_inline __u32 affinity_cell(__u32 service)
{
	__u32 zero = 0;
	const struct config *cfg = bpf_map_lookup_elem(&config, &zero);

	return cfg && cfg->affinity_cells ? service % cfg->affinity_cells : 0;
}

static __always_inline long write_affinity(__u32 caller, __u32 service, __u32 cell, __u64 picked, __u64 flags)
{
	struct affinity_key client = { .client = caller, .cell = cell };
	struct affinity chosen = {
		.used = bpf_ktime_get_ns(),
		.service = service,
		.backend = picked,
		.generation = picked >> 32,
	};

	return bpf_map_update_elem(&affinity, &client, &chosen, flags);
}

/* A connect was moved, and the backend that answered is where its client goes from now on. */
static __always_inline void move_affinity(const struct attempt *attempt)
{
	const struct plan *plan = bpf_map_lookup_elem(&plans, &attempt->plan);

	if (plan && READ_ONCE(plan->flags) & PLAN_AFFINITY && READ_ONCE(plan->service) == attempt->service)
		write_affinity(attempt->caller, attempt->service, affinity_cell(attempt->service),
			       PICKED(attempt->backend, attempt->generation), BPF_ANY);
}

/*
 * Remember what a client was given. Of two first calls at once one loses here, and starts over to go where the other went.
 * Full: no affinity. Not inlined, so that the stack has room for what pick calls.
 */
__walked_once int keep_affinity(struct bpf_sock_addr *ctx, __u32 service, __u32 cell, __u64 picked, __u64 flags)
{
	return write_affinity(caller_of(ctx), service, cell, picked, flags) == -EEXIST ? -EAGAIN : 0;
}

static __always_inline int pick_with_affinity(struct bpf_sock_addr *ctx, const struct plan *plan, __u32 plan_id,
					      struct orig_dst *dst)
{
	struct affinity_key client = { .client = caller_of(ctx), .cell = affinity_cell(plan->service) };
	bool stale = false;
	int err;

	if (!lookup_affinity(ctx, plan, plan_id, &client, dst, &stale))
		return 0;
	err = pick(ctx, plan, plan_id, dst);
	if (err)
		return err;
	return keep_affinity(ctx, plan->service, client.cell, PICKED(dst->backend, dst->generation),
			     stale ? BPF_ANY : BPF_NOEXIST);
}

/* True if a call of a UDP socket keeps its backend; else it is left, and its entry only names the sender of late replies. */
static __always_inline bool keeps_backend(struct orig_dst *call, __u32 plan_id)
{
	struct member_key who = { .plan = plan_id, .backend = call->backend };
	const struct member *member = bpf_map_lookup_elem(&members, &who);

	if (member && READ_ONCE(member->generation) == call->generation)
		return true;
	call->generation = 0;
	return false;
}

static __always_inline bool is_called(const struct orig_dst *call, const __be32 *address, __be16 port)
{
	return call->port == port && same_address(call->address, address) && READ_ONCE(call->generation);
}

/*
 * The backend that this UDP socket last sent to for a service's address, as long as the service has it: it stays when others
 * come and go. Generation << 32 | id, since a global function returns scalars only; 0: none. The address is in two halves.
 */
__walked_once __u64 kept_backend(struct bpf_sock_addr *ctx, __u64 upper, __u64 lower, __u32 port, __u32 plan_id)
{
	const __be32 address[4] = { upper, upper >> 32, lower, lower >> 32 };
	struct orig_dsts *stored = bpf_sk_storage_get(&udp_sent, ctx->sk, 0, 0);
	struct tcp_call *first = call_in_place(bpf_get_socket_cookie(ctx));

	if (first && first->dst.backend_port && is_called(&first->dst, address, port) && keeps_backend(&first->dst, plan_id))
		return PICKED(first->dst.backend, first->dst.generation);
#pragma clang loop unroll(disable)
	for (__u32 i = 0; stored && i < MAX_ORIG_DST && i < stored->used; i++) {
		struct orig_dst *call = &stored->dst[i];

		if (is_called(call, address, port) && keeps_backend(call, plan_id))
			return PICKED(call->backend, call->generation);
	}
	return 0;
}

static __always_inline __u64 keep_backend(struct bpf_sock_addr *ctx, const struct frontend_key *key, const struct plan *plan,
					  __u32 plan_id)
{
	if (!(READ_ONCE(plan->flags) & PLAN_DATAGRAMS))
		return 0; /* written by an earlier agent; this one rewrites it soon */
	return kept_backend(ctx, half_of(key->address), half_of(key->address + 2), key->port, plan_id);
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

static __always_inline int pick_in(struct bpf_sock_addr *ctx, const struct plan *plan, __u32 plan_id,
				   struct orig_dst *dst)
{
	if (plan->flags & PLAN_AFFINITY)
		return pick_with_affinity(ctx, plan, plan_id, dst);
	return pick(ctx, plan, plan_id, dst);
}

/*
 * A plan's backend for this call, unless the plan changes meanwhile: generation << 32 | id; an id of 0 and a positive errno:
 * none. drawn: by random numbers alone.
 */
static __always_inline __u64 pick_unchanged(struct bpf_sock_addr *ctx, const struct plan *plan, __u32 plan_id, bool drawn)
{
	__u32 generation = READ_ONCE(plan->generation);
	struct orig_dst dst = {};
	int err = drawn ? pick_slot(ctx, plan, plan_id, &dst) : pick_in(ctx, plan, plan_id, &dst);

	barrier();
	if (READ_ONCE(plan->generation) != generation || READ_ONCE(plan->id) != plan_id)
		return PICK_FAILED(EAGAIN);
	return err ? PICK_FAILED(-err) : PICKED(dst.backend, dst.generation);
}

__walked_once __u64 pick_backend(struct bpf_sock_addr *ctx, __u32 plan_id)
{
	const struct plan *plan = bpf_map_lookup_elem(&plans, &plan_id);

	return plan ? pick_unchanged(ctx, plan, plan_id, false) : PICK_FAILED(EAGAIN);
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
	bool decided;
	__u32 id;
	int err;

	err = find_plan(&found, &id);
	if (err)
		return err;
	if (exemption(cfg->flags))
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
	picked = READ_ONCE(plan->flags) & PLAN_CONSUMERS ? consumers_backend(ctx, id, plan->flags) : 0;
	if (picked == PICK_FAILED(ENOENT))
		return -ENOENT;
	choice->service = dst->service = READ_ONCE(plan->service);
	choice->plan = id;
	if (!picked && sends)
		picked = keep_backend(ctx, key, plan, id);
	decided = picked; /* by the caller's namespace, or by an earlier datagram */
	if (!picked && !sends && is_drawn(plan))
		picked = pick_unchanged(ctx, plan, id, true); /* without another look-up of the plan */
	else if (!picked)
		picked = pick_backend(ctx, id);
	if (!decided && (sends || fixed_port(ctx)) && (__u32)picked)
		picked = unshare(ctx, id, picked, sends);
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
		choice->passed_over = take_passed_over(ctx, dst->backend);
	if (!err || err == -ENOENT)
		return err;
	choice->plan = 0;
	choice->verdict = err == -EAGAIN ? VERDICT_LOST : VERDICT_REFUSED;
	return -ECONNREFUSED;
}
