/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Backends that fail connects are ejected: calls go to others, until a single call finds that one answers again. Every
 * socket's outcome counts once, and for its caller: a backend is ejected for all callers of the node where it is for two
 * pods at a time, or where the agent cannot connect either.
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
#define TRIAL_TIMEOUT (10 * NSEC_PER_SEC) /* of a trial whose outcome no hook observed */
#define ANSWER_LIFETIME (600 * NSEC_PER_SEC) /* as of the agent's own connects: policies change */
#define MAX_LEVEL 16
#define REDRAWS 4
#define MAX_SCAN 32 /* slots of a group looked at when every draw was ejected too */
#define POD_LEVELS 10 /* that of all pods is seldom below the fourth */
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

/* The caller of a connect: its network namespace. Cookies count up, so that their lower half is no other's for long. */
static __always_inline __u32 caller_of(struct bpf_sock_addr *ctx)
{
	return bpf_get_netns_cookie(ctx);
}

/*
 * The calling pod, by the lower half of its cgroup's id: the first cgroup below that of all pods that is none of a class of
 * service. Unlike its network namespace a pod cannot leave it, nor make another. 0: not found.
 */
__walked_once int pod_of(void)
{
	__u32 zero = 0;
	const struct config *cfg = bpf_map_lookup_elem(&config, &zero);
	bool below = false;

	if (!cfg)
		return 0;
#pragma clang loop unroll(disable)
	for (int level = 1; level <= POD_LEVELS; level++) {
		__u64 id = bpf_get_current_ancestor_cgroup_id(level);

		if (!id)
			break;
		if (below && id != cfg->pods[1] && id != cfg->pods[2])
			return id;
		below |= id == cfg->pods[0];
	}
	return 0;
}

/* The caller's entry for a backend, if it has one. */
static __always_inline struct caller_failing *find_caller(__u32 backend, __u32 generation, __u32 caller)
{
	struct caller_key key = { .caller = caller, .cell = backend % CALLER_CELLS };
	struct caller_failing *found = bpf_map_lookup_elem(&caller_failing, &key);

	return found && READ_ONCE(found->backend) == backend && READ_ONCE(found->generation) == generation ? found : 0;
}

/* Time until which a backend is ejected for all callers; 0 if it is not. The agent's verdict overrides theirs. */
static __always_inline __u64 ejected_until(struct failing *state, __u32 backend, __u64 now)
{
	const struct probed *verdict = bpf_map_lookup_elem(&probed, &backend);

	if (verdict && READ_ONCE(verdict->generation) == state->generation && now < READ_ONCE(verdict->until)) {
		if (READ_ONCE(verdict->verdict) == PROBE_DEAD)
			return verdict->until;
		if (READ_ONCE(state->until))
			state->until = 0;
	}
	return READ_ONCE(state->until);
}

/* True for one call at a time: it tries a backend whose time is over. */
static __always_inline bool begin_trial(__u32 backend, __u64 now)
{
	__u64 *trial;

	if (!bpf_map_update_elem(&trials, &backend, &now, BPF_NOEXIST))
		return true;
	trial = bpf_map_lookup_elem(&trials, &backend);
	if (!trial || (__s64)(now - READ_ONCE(*trial)) < TRIAL_TIMEOUT)
		return false;
	*trial = now;
	return true;
}

/* The same of one caller's time. Accepts a race: two of its calls at once may both try. */
static __always_inline bool begin_callers_trial(struct caller_failing *own, __u64 now)
{
	if (READ_ONCE(own->trial) && (__s64)(now - READ_ONCE(own->trial)) < TRIAL_TIMEOUT)
		return false;
	own->trial = now;
	return true;
}

enum ejected {
	NOT_EJECTED,
	EJECTED,
	EJECTED_FOR_CALLER,
};

/*
 * Whether a backend is to be passed over. When a time is over, one call is let through to try it: of the caller, or of all
 * callers. Inlined in use_slot: before 6.9 each function under way takes a multiple of 32 bytes of stack, of 512 for all.
 */
static __always_inline int find_ejected(__u32 backend, __u32 generation, __u32 caller)
{
	struct failing *state = bpf_map_lookup_elem(&failing, &backend);
	struct caller_failing *own;
	__u64 now, until;

	if (!state || READ_ONCE(state->generation) != generation)
		return NOT_EJECTED;
	now = bpf_ktime_get_ns();
	own = find_caller(backend, generation, caller);
	if (own && now < READ_ONCE(own->until))
		return EJECTED_FOR_CALLER;
	until = ejected_until(state, backend, now);
	if (until && (now < until || !begin_trial(backend, now)))
		return EJECTED;
	if (own && READ_ONCE(own->until) && !begin_callers_trial(own, now) && !until)
		return EJECTED_FOR_CALLER;
	return NOT_EJECTED;
}

__walked_once int is_ejected(__u32 backend, __u32 generation, __u32 caller)
{
	return find_ejected(backend, generation, caller);
}

/* The backend of a slot, unless it is ejected (any: even then) or the slot was reused. */
__walked_once __u64 use_slot(__u32 plan_id, __u32 group, __u32 n, __u32 any, __u32 caller)
{
	struct slot_key where = { .plan = plan_id, .group = group, .n = n };
	const struct slot *slot = bpf_map_lookup_elem(&slots, &where);
	__u32 backend, generation;

	if (!slot)
		return 0;
	backend = READ_ONCE(slot->backend);
	generation = READ_ONCE(slot->generation);
	barrier();
	if (READ_ONCE(slot->plan) != plan_id || (!any && find_ejected(backend, generation, caller)))
		return 0;
	return PICKED(backend, generation);
}

__walked_once __u64 draw_slot(__u32 plan_id, __u32 seed, __u32 caller)
{
	const struct plan *plan = bpf_map_lookup_elem(&plans, &plan_id);
	__u32 size = 0;
	int group;

	if (!plan)
		return 0;
	group = pick_group(plan, mix(seed) >> 32, &size);
	return group < 0 ? 0 : use_slot(plan_id, group, scale(mix(~seed), size), 0, caller);
}

/* The first of a group's slots that can be used, from a random one on; of a large group MAX_SCAN are looked at. */
__walked_once __u64 scan_group(__u32 plan_id, __u32 group, __u32 size, __u32 seed, __u32 caller)
{
	__u32 n = scale(mix(seed), size);

#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < MAX_SCAN; i++) {
		__u64 found = i < size ? use_slot(plan_id, group, (n + i) % size, 0, caller) : 0;

		if (found)
			return found;
	}
	return 0;
}

/*
 * A backend of the plan that is not ejected, in the place of one that is: a few random draws by weight, then one group
 * after the other, the next tiers included. 0: none was found; then the first choice stands.
 */
__walked_once __u64 pick_other(__u32 plan_id, __u32 seed, __u32 caller)
{
	const struct plan *plan = bpf_map_lookup_elem(&plans, &plan_id);

	if (!plan)
		return 0;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < REDRAWS; i++) {
		__u64 found = draw_slot(plan_id, seed + i, caller);

		if (found)
			return found;
	}
#pragma clang loop unroll(disable)
	for (__u32 group = 0; group < MAX_GROUPS; group++) {
		__u32 size = plan->groups[group].weight ? READ_ONCE(plan->groups[group].count) : 0;
		__u64 found = size ? scan_group(plan_id, group, size, seed, caller) : 0;

		if (found)
			return found;
	}
	return 0;
}

/* Follow a TCP connect from here on. */
static __always_inline struct attempt *begin_attempt(struct tcp_call *call, const struct orig_dst *dst,
						     const struct choice *choice, __u32 epoch, __u32 caller)
{
	struct attempt *attempt = &call->attempt;
	bool fails = anything_fails();

	attempt->started = fails ? bpf_ktime_get_ns() : 0;
	attempt->caller = caller;
	attempt->pod = fails ? pod_of() : 0;
	attempt->plan = choice->plan;
	attempt->service = dst->service;
	attempt->backend = dst->backend;
	attempt->generation = dst->generation;
	attempt->cluster = choice->cluster;
	attempt->failed = UNCOUNTED;
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

static __always_inline void report(const struct attempt *attempt, __u32 failures, __u64 until, __u8 kind, __u8 reason)
{
	const struct backend *backend = get_backend(attempt->backend);
	struct event event = {
		.time = bpf_ktime_get_ns(),
		.until = until,
		.kind = kind,
		.reason = reason,
		.failures = failures,
		.cluster = attempt->cluster,
		.service = attempt->service,
		.caller = attempt->caller,
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

/* The caller's entry for the backend, in the place of one that it had for another backend of the cell. */
static __always_inline struct caller_failing *get_caller(const struct attempt *attempt)
{
	struct caller_failing *found = find_caller(attempt->backend, attempt->generation, attempt->caller);
	struct caller_failing first = { .backend = attempt->backend, .generation = attempt->generation };
	struct caller_key key = { .caller = attempt->caller, .cell = attempt->backend % CALLER_CELLS };

	if (found)
		return found;
	if (bpf_map_update_elem(&caller_failing, &key, &first, BPF_ANY))
		return 0;
	return bpf_map_lookup_elem(&caller_failing, &key);
}

/* ns of the next ejection: twice as long each time, between the plan's bounds. */
static __always_inline __u64 ejection_time(const struct plan *plan, __u32 level)
{
	__u64 time = (__u64)plan->eject_first << (level > MAX_LEVEL ? MAX_LEVEL : level);

	return (time > plan->eject_longest ? plan->eject_longest : time) * NSEC_PER_MSEC;
}

/*
 * One more failure of this caller's in a row. The time of ejection is raised once for each window: calls that began before it
 * ended do not raise it again, however many fail late. True where it was raised.
 */
static __always_inline bool eject_for_caller(const struct attempt *attempt, const struct plan *plan, __u8 reason, __u64 now,
					     __u64 *until)
{
	struct caller_failing *own = get_caller(attempt);
	__u32 level;

	if (!own)
		return false;
	add_relaxed(&own->failures, 1);
	own->last = now;
	own->reason = reason;
	own->trial = 0;
	if (READ_ONCE(own->failures) < plan->eject_after || attempt->started < READ_ONCE(own->until))
		return false;
	level = own->level;
	*until = now + ejection_time(plan, level);
	own->level = level < MAX_LEVEL ? level + 1 : level;
	own->since = now;
	own->until = *until;
	report(attempt, own->failures, *until, EVENT_CALLER_EJECTED, reason);
	return true;
}

/* True if a third caller connected to the backend lately: a policy may deny it to the two, and to the node. */
static __always_inline bool answers_a_third(const struct failing *state, const struct attempt *attempt, __u64 now)
{
	__u64 answered = READ_ONCE(state->answered);

	return answered && (__s64)(now - answered) < ANSWER_LIFETIME && state->answered_to != attempt->caller &&
	       state->answered_to != state->claimant;
}

/*
 * The backend is ejected for this caller until then. It is ejected for the node when it is for a second pod of another
 * network namespace as well, unless the agent or a third pod connects to it: what pods do, or are forbidden, is of no effect
 * on others.
 */
static __always_inline void claim(struct failing *state, const struct attempt *attempt, const struct plan *plan, __u8 reason,
				  __u64 now, __u64 until)
{
	const struct probed *verdict;
	__u32 level;

	if (!attempt->pod)
		return;
	if (now >= READ_ONCE(state->claim_until) || state->claimant == attempt->caller ||
	    state->claimant_pod == attempt->pod) {
		state->claimant = attempt->caller;
		state->claimant_pod = attempt->pod;
		state->claim_until = until;
		return;
	}
	verdict = bpf_map_lookup_elem(&probed, &attempt->backend);
	if (verdict && READ_ONCE(verdict->generation) == attempt->generation && now < READ_ONCE(verdict->until))
		return;
	if (attempt->started < READ_ONCE(state->until) || answers_a_third(state, attempt, now))
		return;
	level = READ_ONCE(state->level);
	state->level = level + 1;
	state->since = now;
	state->until = now + ejection_time(plan, level);
	state->claim_until = 0;
	report(attempt, state->failures, state->until, EVENT_EJECTED, reason);
}

/*
 * A connect failed at the backend that it is at. for_all: it is known to be the backend that failed it, and so counts for
 * others as well as for the caller. Not inlined: the way to another backend has no stack to spare for this.
 */
static __attribute__((noinline)) void count_failure(struct attempt *attempt, __u8 reason, bool for_all)
{
	const struct plan *plan = bpf_map_lookup_elem(&plans, &attempt->plan);
	struct failing *state;
	__u64 now = bpf_ktime_get_ns(), until = 0;

	if (attempt->failed || !plan || !plan->eject_after)
		return;
	attempt->failed = COUNTED;
	state = get_failing(attempt);
	if (!state)
		return;
	add_relaxed(&state->failures, 1);
	state->last = now;
	state->reason = reason;
	if (eject_for_caller(attempt, plan, reason, now, &until) && for_all)
		claim(state, attempt, plan, reason, now, until);
	bpf_map_delete_elem(&trials, &attempt->backend);
}

/* The call that may have been the one to try an ejected backend came to nothing: another may. */
static __always_inline void end_trial(const struct attempt *attempt)
{
	struct caller_failing *own;

	if (!anything_fails())
		return;
	own = find_caller(attempt->backend, attempt->generation, attempt->caller);
	if (own)
		own->trial = 0;
	bpf_map_delete_elem(&trials, &attempt->backend);
}

/* What came of the connect, at the backend that it is at, is not that backend's failure. */
static __always_inline void excuse(struct attempt *attempt, __u8 as)
{
	attempt->failed = as;
	end_trial(attempt);
}

/* Note that a policy denies the caller the backend that its connect is at. */
static __attribute__((noinline)) void note_denial(const struct attempt *attempt)
{
	struct denial_key key = { .caller = attempt->caller, .backend = attempt->backend };
	struct denial first = { .generation = attempt->generation };
	struct denial *found = bpf_map_lookup_elem(&denials, &key);

	if (!found || READ_ONCE(found->generation) != attempt->generation) {
		if (bpf_map_update_elem(&denials, &key, &first, BPF_ANY))
			return;
		found = bpf_map_lookup_elem(&denials, &key);
	}
	if (!found)
		return;
	add_relaxed(&found->connects, 1);
	found->last = bpf_ktime_get_ns();
}

/*
 * The backend answers: whatever failed before is over, but for how long it is ejected the next time. What other callers'
 * connects came to stays with them.
 */
static __always_inline void count_success(const struct attempt *attempt)
{
	struct caller_failing *own;
	struct failing *state;
	__u64 now, until;

	if (!anything_fails())
		return;
	state = bpf_map_lookup_elem(&failing, &attempt->backend);
	if (!state || READ_ONCE(state->generation) != attempt->generation)
		return;
	own = find_caller(attempt->backend, attempt->generation, attempt->caller);
	if (own) {
		own->failures = 0;
		own->until = 0;
		own->trial = 0;
	}
	now = bpf_ktime_get_ns();
	until = ejected_until(state, attempt->backend, now);
	state->answered = now;
	state->answered_to = attempt->caller;
	state->failures = 0;
	state->until = 0;
	state->claim_until = 0;
	if (until) {
		bpf_map_delete_elem(&probed, &attempt->backend); /* the verdict that it is dead */
		report(attempt, 0, 0, EVENT_RESTORED, state->reason);
	}
	bpf_map_delete_elem(&trials, &attempt->backend);
}

/* A late answer of a backend that a connect has left is a success of that backend, and of the caller that has another one. */
static __attribute__((noinline)) void count_late_success(const struct unanswered *syn)
{
	struct attempt attempt = {
		.backend = syn->backend,
		.generation = syn->generation,
		.service = syn->service,
		.cluster = syn->cluster,
		.caller = syn->caller,
	};

	count_success(&attempt);
}
