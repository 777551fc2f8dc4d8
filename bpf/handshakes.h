/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * How long backends take to answer a SYN, and when one that has not answered is left for another: as soon as its own
 * handshakes allow, since a cluster has near and far ones. Bounded on each processor, so that a node which stands still for
 * a moment does not move all its connects.
 */
#pragma once

#include "failures.h"

#define MIN_SYN_TIMEOUT_MS 20
#define UNMEASURED_MS 100 /* for a backend without handshakes, in a cluster with some */
#define LONGEST_HANDSHAKE 2000000000U
#define LONGEST_ROUND_TRIP 1000000U
#define EARLY_MOVES 20 /* in a second on a processor, and a tenth of its connects in the second before */

/* µs: bound of a measured round trip. A backend may answer after a minute, and the value is used for its whole cluster. */
static __always_inline void learn_round_trip(__u32 cluster, __u32 measured)
{
	__u32 *known = bpf_map_lookup_elem(&round_trips, &cluster);

	if (!known || !measured)
		return;
	if (measured > LONGEST_ROUND_TRIP)
		measured = LONGEST_ROUND_TRIP;
	if (measured > *known)
		*known = measured;
	else
		*known -= (*known - measured) / 8;
}

/* ns. Accepts a race: of two concurrent measurements one may be lost. */
static __always_inline void learn_handshake(__u32 backend, __u32 generation, __u64 measured)
{
	struct handshake *known = bpf_map_lookup_elem(&handshakes, &backend);
	__u32 time = measured > LONGEST_HANDSHAKE ? LONGEST_HANDSHAKE : measured, smoothed, off;

	if (!known || !time)
		return;
	if (known->generation != generation) {
		known->smoothed = time;
		known->deviation = time / 2;
		WRITE_ONCE(known->generation, generation);
		return;
	}
	smoothed = known->smoothed;
	off = time > smoothed ? time - smoothed : smoothed - time;
	known->deviation += off / 4 - known->deviation / 4;
	known->smoothed = smoothed + time / 8 - smoothed / 8;
}

/* ns within which a connect's backend answers, by its own handshakes; 0 if it had none. jiffy: ns. */
static __always_inline __u64 measured_answer(const struct attempt *attempt, __u64 jiffy)
{
	const struct handshake *known = bpf_map_lookup_elem(&handshakes, &attempt->backend);

	if (!known || READ_ONCE(known->generation) != attempt->generation)
		return 0;
	return known->smoothed + 4ULL * known->deviation + jiffy;
}

/* ns: three round trips to the cluster; 0 if none was measured. */
static __always_inline __u64 three_round_trips(const struct attempt *attempt)
{
	__u32 cluster = attempt->cluster;
	const __u32 *round_trip = bpf_map_lookup_elem(&round_trips, &cluster);

	return round_trip ? 3000ULL * *round_trip : 0;
}

/* ns within which any backend that is alive answers. */
static __always_inline __u64 answer_time(const struct attempt *attempt)
{
	__u64 three = three_round_trips(attempt), own = measured_answer(attempt, 0), least = MIN_SYN_TIMEOUT_MS * NSEC_PER_MSEC;

	least = own > least ? own : least;
	return three > least ? three : least;
}

/*
 * Jiffies until a SYN to the connect's backend is sent again: as configured, but 20 ms and three round trips to the cluster at
 * least; 0: the kernel's own time. With CONFIG_MEASURED by the backend's own handshakes, or its cluster's, where there were any.
 */
static __always_inline __u32 syn_timeout(const struct attempt *attempt, const struct config *cfg)
{
	__u64 three = three_round_trips(attempt), least = MIN_SYN_TIMEOUT_MS * (__u64)cfg->hz / 1000, own, jiffies;

	if (!cfg->syn_timeout || !cfg->hz)
		return 0;
	if (!(cfg->flags & CONFIG_MEASURED)) {
		least = cfg->syn_timeout > least ? cfg->syn_timeout : least;
		jiffies = three * cfg->hz / NSEC_PER_SEC;
		return jiffies > least ? jiffies : least;
	}
	own = measured_answer(attempt, NSEC_PER_SEC / cfg->hz);
	if (!own && three)
		own = UNMEASURED_MS * NSEC_PER_MSEC;
	if (!own)
		return cfg->syn_timeout > least ? cfg->syn_timeout : least;
	own = three > own ? three : own;
	jiffies = (own * cfg->hz + NSEC_PER_SEC - 1) / NSEC_PER_SEC;
	return jiffies > least ? jiffies : least;
}

/* The counts of this second, on this processor. */
static __always_inline struct early_moves *get_early_moves(__u32 hz)
{
	__u32 zero = 0;
	struct early_moves *found = bpf_map_lookup_elem(&early_moves, &zero);
	__u64 second = hz ? bpf_jiffies64() / hz : 0;

	if (found && found->second != second) {
		found->connects_before = found->second + 1 == second ? found->connects : 0;
		found->connects = 0;
		found->moves = 0;
		found->second = second;
	}
	return found;
}

static __always_inline void count_connect(const struct config *cfg)
{
	struct early_moves *early = get_early_moves(cfg->hz);

	if (early)
		early->connects++;
}

/* True if one more connect may be moved before config.syn_timeout is over. */
static __always_inline bool may_move_early(const struct config *cfg)
{
	struct early_moves *early = get_early_moves(cfg->hz);
	__u32 most;

	if (!early)
		return false;
	most = early->connects_before / 10;
	if (early->moves >= (most > EARLY_MOVES ? most : EARLY_MOVES))
		return false;
	early->moves++;
	return true;
}
