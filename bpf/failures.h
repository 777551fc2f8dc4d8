/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Backends that fail connects are ejected: calls go to others, until a single call finds that one answers again.
 * State is per node and per backend; every socket's outcome counts once.
 */
#pragma once

#include <linux/errno.h>
#include <stdbool.h>

#include "count.h"
#include "draw.h"
#include "maps.h"
#include "sockets.h"

#define NSEC_PER_MSEC 1000000ULL
#define NSEC_PER_SEC 1000000000LL
#define TRIAL_TIMEOUT (10 * NSEC_PER_SEC) /* of a trial whose outcome nobody saw */
#define MAX_LEVEL 16
#define REDRAWS 4
#define MAX_SCAN 32 /* slots of a group looked at when every draw was ejected too */
#define PICKED(backend, generation) ((__u64)(generation) << 32 | (backend))

static __always_inline struct gate *get_gate(void *map) /* gates or settled */
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(map, &zero);
}

static __always_inline bool anything_fails(void)
{
	const struct gate *gate = get_gate(&gates), *looked = get_gate(&settled);

	return gate && looked && READ_ONCE(gate->failing) != READ_ONCE(looked->failing);
}

/*
 * Whether a backend is to be passed over. When its time is over, one call at a time is let through to try it. Inlined in
 * use_slot: before 6.9 each function under way takes a multiple of 32 bytes of stack, of 512 for all of them.
 */
static __always_inline int find_ejected(__u32 backend, __u32 generation)
{
	const struct failing *found = bpf_map_lookup_elem(&failing, &backend);
	__u64 now = bpf_ktime_get_ns(), until;
	__u64 *trial;

	if (!found || READ_ONCE(found->generation) != generation)
		return 0;
	until = READ_ONCE(found->until);
	if (!until)
		return 0;
	if (now < until)
		return 1;
	if (!bpf_map_update_elem(&trials, &backend, &now, BPF_NOEXIST))
		return 0;
	trial = bpf_map_lookup_elem(&trials, &backend);
	if (!trial || (__s64)(now - READ_ONCE(*trial)) < TRIAL_TIMEOUT)
		return 1;
	*trial = now;
	return 0;
}

__walked_once int is_ejected(__u32 backend, __u32 generation)
{
	return find_ejected(backend, generation);
}

/* The backend of a slot, unless it is ejected (any: even then) or the slot is not what it was. */
__walked_once __u64 use_slot(__u32 plan_id, __u32 group, __u32 n, __u32 any)
{
	struct slot_key where = { .plan = plan_id, .group = group, .n = n };
	const struct slot *slot = bpf_map_lookup_elem(&slots, &where);
	__u32 backend, generation;

	if (!slot)
		return 0;
	backend = READ_ONCE(slot->backend);
	generation = READ_ONCE(slot->generation);
	barrier();
	if (READ_ONCE(slot->plan) != plan_id || (!any && find_ejected(backend, generation)))
		return 0;
	return PICKED(backend, generation);
}

__walked_once __u64 draw_slot(__u32 plan_id, __u32 seed)
{
	const struct plan *plan = bpf_map_lookup_elem(&plans, &plan_id);
	__u32 size = 0;
	int group;

	if (!plan)
		return 0;
	group = pick_group(plan, mix(seed) >> 32, &size);
	return group < 0 ? 0 : use_slot(plan_id, group, scale(mix(~seed), size), 0);
}

/* The first of a group's slots that can be used, from a random one on; of a large group MAX_SCAN are looked at. */
__walked_once __u64 scan_group(__u32 plan_id, __u32 group, __u32 size, __u32 seed)
{
	__u32 n = scale(mix(seed), size);

#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < MAX_SCAN; i++) {
		__u64 found = i < size ? use_slot(plan_id, group, (n + i) % size, 0) : 0;

		if (found)
			return found;
	}
	return 0;
}

/*
 * A backend of the plan that is not ejected, in the place of one that is: a few random draws by weight, then one group
 * after the other, the next tiers included. 0: none was found; then the first choice stands.
 */
__walked_once __u64 pick_other(__u32 plan_id, __u32 seed)
{
	const struct plan *plan = bpf_map_lookup_elem(&plans, &plan_id);

	if (!plan)
		return 0;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < REDRAWS; i++) {
		__u64 found = draw_slot(plan_id, seed + i);

		if (found)
			return found;
	}
#pragma clang loop unroll(disable)
	for (__u32 group = 0; group < MAX_GROUPS; group++) {
		__u32 size = plan->groups[group].weight ? READ_ONCE(plan->groups[group].count) : 0;
		__u64 found = size ? scan_group(plan_id, group, size, seed) : 0;

		if (found)
			return found;
	}
	return 0;
}

/* Follow a TCP connect from here on. */
static __always_inline struct attempt *begin_attempt(struct tcp_call *call, const struct orig_dst *dst,
						     const struct choice *choice, __u32 epoch)
{
	struct attempt *attempt = &call->attempt;

	attempt->started = anything_fails() ? bpf_ktime_get_ns() : 0;
	attempt->plan = choice->plan;
	attempt->service = dst->service;
	attempt->backend = dst->backend;
	attempt->generation = dst->generation;
	attempt->cluster = choice->cluster;
	attempt->failed = 0;
	attempt->moved = 0;
	attempt->tries = 1;
	attempt->tried[0] = dst->backend;
	for (int i = 1; i < MAX_TRIED; i++)
		attempt->tried[i] = 0; /* of the connect before, or of another socket */
	attempt->passed_over = choice->passed_over;
	attempt->recorded = 0;
	attempt->epoch = epoch;
	attempt->unsent = 1;
	return attempt;
}

/* Not inlined, so that BTF has the struct, which isthmus.datapath checks its codec against. */
static __attribute__((noinline)) long emit(struct event *event)
{
	return bpf_ringbuf_output(&events, event, sizeof(*event), 0);
}

static __always_inline void report(const struct attempt *attempt, const struct failing *state, __u8 kind, __u8 reason)
{
	const struct backend *backend = get_backend(attempt->backend);
	struct event event = {
		.time = bpf_ktime_get_ns(),
		.until = state->until,
		.kind = kind,
		.reason = reason,
		.failures = state->failures,
		.cluster = attempt->cluster,
		.service = attempt->service,
	};

	if (!backend)
		return;
	copy_address(event.address, backend->address);
	event.port = backend->port;
	event.protocol = backend->protocol;
	emit(&event);
}

static __always_inline struct failing *get_failing(const struct attempt *attempt)
{
	struct failing *found = bpf_map_lookup_elem(&failing, &attempt->backend);
	struct failing first = { .generation = attempt->generation };
	struct gate *gate;

	if (found && READ_ONCE(found->generation) == attempt->generation)
		return found;
	if (bpf_map_update_elem(&failing, &attempt->backend, &first, BPF_ANY))
		return 0;
	gate = get_gate(&gates);
	if (gate)
		add_relaxed(&gate->failing, 1);
	return bpf_map_lookup_elem(&failing, &attempt->backend);
}

/*
 * One more failure in a row. The time of ejection is raised once for each window: calls that began before it ended do
 * not raise it again, however many fail late.
 */
static __always_inline void count_failure(struct attempt *attempt, __u8 reason)
{
	const struct plan *plan = bpf_map_lookup_elem(&plans, &attempt->plan);
	struct failing *state;
	__u64 now = bpf_ktime_get_ns(), time;
	__u32 level;

	if (attempt->failed || !plan || !plan->eject_after)
		return;
	attempt->failed = 1;
	state = get_failing(attempt);
	if (!state)
		return;
	add_relaxed(&state->failures, 1);
	state->last = now;
	state->reason = reason;
	if (READ_ONCE(state->failures) >= plan->eject_after && attempt->started >= READ_ONCE(state->until)) {
		level = READ_ONCE(state->level);
		if (level > MAX_LEVEL)
			level = MAX_LEVEL;
		time = (__u64)plan->eject_first << level;
		if (time > plan->eject_longest)
			time = plan->eject_longest;
		state->level = level + 1;
		state->since = now;
		state->until = now + time * NSEC_PER_MSEC;
		report(attempt, state, EVENT_EJECTED, reason);
	}
	bpf_map_delete_elem(&trials, &attempt->backend);
}

/* The backend answers: whatever failed before is over, but for how long it is ejected the next time. */
static __always_inline void count_success(const struct attempt *attempt)
{
	struct failing *state;
	__u64 until;

	if (!anything_fails())
		return;
	state = bpf_map_lookup_elem(&failing, &attempt->backend);
	if (!state || READ_ONCE(state->generation) != attempt->generation)
		return;
	until = READ_ONCE(state->until);
	state->failures = 0;
	state->until = 0;
	if (until)
		report(attempt, state, EVENT_RESTORED, state->reason);
	bpf_map_delete_elem(&trials, &attempt->backend);
}
