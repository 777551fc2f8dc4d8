"""Flattens the tiers and weights of a policy into the groups of a plan.

The rule is the same for the kernel and for a proxy. A tier has ``usable`` backends and a minimum ``M`` (a count, or a
percentage of the eligible backends, rounded up). It takes ``min(1, usable / M)`` of the calls that earlier tiers leave;
if the last tier leaves some, all parts are scaled to sum to one. Within a tier, calls are split by weight among the
shares with usable backends; if no share has a weight, evenly among all backends. Weight 0 is never called.

A drain leaves each backend a percentage of its share. A tier is scaled by the largest percentage among its backends,
and so is a share within its tier; within a share, each backend is weighted by its own percentage. So a drained
cluster's calls decrease evenly to none, and those of a drained node move to the other backends of its share.

A backend that represents an island's endpoints is weighted by their number.

Every group with calls has tier 0 in the plan and an integer weight. Groups without calls are fallbacks, in order, which
the kernel uses when all of tier 0 is dead. Nothing here keeps state: hysteresis belongs to health checking.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import floor, gcd, lcm
from typing import Final, NamedTuple

from msgspec.structs import replace

from isthmus.loadbalancer.selection import Clusters, Reasons, ignore
from isthmus.model import chunked
from isthmus.model.balancing import Backend, BackendKey, Group, Target
from isthmus.model.clusters import Cluster
from isthmus.model.names import ClusterName
from isthmus.model.policies import ANY_OTHER, THIS_CLUSTER, Share, Tier

MAX_GROUPS: Final = 32
"""Groups that a plan in the kernel has room for."""

MAX_TOTAL_WEIGHT: Final = 1_000_000
"""Sum of integer weights up to which shares are exact; beyond it they are rounded to a millionth."""

SharePosition = tuple[int, int]
"""A share's position: index of its tier, and index within the tier."""

Positions = Mapping[ClusterName, SharePosition]
"""The share that each cluster belongs to, without clusters that match no share."""

PercentLeft = Mapping[BackendKey, int]
"""Percentage of its share that each backend has left; 100 for backends that are missing."""

WHOLE: Final = 100
NOTHING_DRAINED: Final[PercentLeft] = {}


class SizedTier(NamedTuple):
    """A tier with its usable backends by share (shares of weight 0 left out) and its minimum."""

    shares: tuple[tuple[Share, list[Backend]], ...]
    minimum: int

    @property
    def usable(self) -> int:
        """Number of usable backends, with each island's endpoints counted."""
        return sum(backend.count for _, backends in self.shares for backend in backends)


def named(
    backends: Sequence[Backend], tiers: Sequence[Tier], *, positions: Positions, reasons: Reasons = ignore
) -> Sequence[Backend]:
    """Return the backends of clusters to which the policy gives calls."""
    left_out = {name: _uncalled(tiers, positions.get(name)) for name in {backend.key.cluster for backend in backends}}
    if not any(left_out.values()):
        return backends
    kept: list[Backend] = []
    for backend in backends:
        if reason := left_out[backend.key.cluster]:
            reasons(backend, reason)
        else:
            kept.append(backend)
    return kept


def _uncalled(tiers: Sequence[Tier], position: SharePosition | None) -> str:
    if position is None:
        return "the policy does not name its cluster"
    drained = tiers[position[0]].shares[position[1]].weight == 0
    return "its cluster is drained: the policy gives it weight 0" if drained else ""


def groups(
    chosen: Sequence[Backend],
    tiers: Sequence[Tier],
    *,
    positions: Positions,
    eligible: Sequence[Backend] = (),
    percent_left: PercentLeft = NOTHING_DRAINED,
) -> tuple[Group, ...]:
    """Return the groups of a plan; empty if ``chosen`` is.

    ``eligible``: backends of any readiness, the base of a percentage minimum. ``percent_left``: of backends that are
    being drained; either all chosen backends have some left, or none has.
    """
    if not any(percent_left.values()):
        percent_left = NOTHING_DRAINED
    if not tiers:
        if len(set(percent_left.values())) > 1:
            return _fewer(_of_tier(0, _by_mass(chosen, percent_left)), [])
        return together(chosen)
    sized = _sized(chosen, tiers, positions, eligible)
    max_left = [_max_percent_left(each, percent_left) for each in sized]
    parts = shares([each.usable for each in sized], [each.minimum for each in sized], max_left)
    tier_parts = list(zip(parts, sized, strict=True))
    weighted = [
        (part * fraction, backends)
        for part, each in tier_parts
        if part
        for fraction, backends in _by_weight(each, percent_left)
    ]
    idle = [each for part, each in tier_parts if not part and each.usable]
    fallbacks = [group for tier, each in enumerate(idle, 1) for group in _of_tier(tier, _by_weight(each, percent_left))]
    return _fewer(_of_tier(0, weighted), fallbacks)


def together(chosen: Sequence[Backend]) -> tuple[Group, ...]:  # hot:
    """Spread calls evenly: one group, or several if backends represent different numbers of endpoints."""
    if len(chosen) == 1:
        return (Group(_targets(chosen)),)
    if any(backend.stands_for > 1 for backend in chosen):
        return _fewer(_of_tier(0, _by_mass(chosen, NOTHING_DRAINED)), [])
    return (Group(_targets(chosen)),) if chosen else ()


def in_sequence(steps: Iterable[tuple[Group, ...]]) -> tuple[Group, ...]:
    """Join the groups of several steps, those of each step as fallbacks of the steps before it."""
    first, *fallbacks = steps
    if not fallbacks:
        return first
    joined = list(first)
    for step in fallbacks:
        tier = joined[-1].tier + 1 if joined else 0
        joined += [replace(group, tier=tier + group.tier) for group in step]
    weighted = [group for group in joined if group.tier == 0]
    return _fewer(weighted, joined[len(weighted) :])


def weighted(parts: Sequence[tuple[int, Sequence[Group]]]) -> tuple[Group, ...]:
    """Spread calls over several plans by weight: each part's groups of tier 0 share its weight by their own weights.

    Fallbacks stay in their tiers. If the groups are too many, those of each part and tier are joined, so that the parts
    keep their weights.
    """
    if sum(len(groups) for _, groups in parts) > MAX_GROUPS:
        parts = [(weight, _one_of_each_tier(groups)) for weight, groups in parts]
    by_tier: dict[int, list[tuple[Fraction, Group]]] = {}
    for weight, groups in parts:
        totals: dict[int, int] = {}
        for group in groups:
            totals[group.tier] = totals.get(group.tier, 0) + group.weight
        for group in groups:
            by_tier.setdefault(group.tier, []).append((Fraction(weight * group.weight, totals[group.tier]), group))
    by_order = [
        replace(group, weight=integer)
        for _, members in sorted(by_tier.items())
        for integer, (_, group) in zip(_integers([part for part, _ in members]), members, strict=True)
    ]
    first = [group for group in by_order if group.tier == 0]
    return _fewer(first, by_order[len(first) :])


def _one_of_each_tier(groups: Sequence[Group]) -> list[Group]:
    return [
        _joined([group for group in groups if group.tier == tier], 1)[0]
        for tier in sorted({group.tier for group in groups})
    ]


def shares(usable: Sequence[int], minimums: Sequence[int], max_left: Sequence[int] | None = None) -> list[Fraction]:
    """Return each tier's part of all calls; all 0 if nothing is usable. ``max_left``: each tier's percentage left."""
    remaining, parts = Fraction(1), []
    for count, minimum, percent in zip(usable, minimums, max_left or [WHOLE] * len(usable), strict=True):
        parts.append(remaining * min(Fraction(1), Fraction(count, minimum)) * Fraction(percent, WHOLE))
        remaining -= parts[-1]
    total = sum(parts)
    return [part / total for part in parts] if total else parts


def _sized(
    chosen: Sequence[Backend], tiers: Sequence[Tier], positions: Positions, eligible: Sequence[Backend]
) -> list[SizedTier]:
    usable, eligible_by_share = _members(chosen, positions), _members(eligible, positions)
    sized: list[SizedTier] = []
    for number, tier in enumerate(tiers):
        counting = [(index, share) for index, share in enumerate(tier.shares) if share.weight != 0]
        total = sum(each.count for index, _ in counting for each in eligible_by_share.get((number, index), ()))
        minimum = -(-tier.min_percent * total // 100) if tier.min_percent else tier.min_healthy
        reached = tuple((share, usable[number, index]) for index, share in counting if (number, index) in usable)
        sized.append(SizedTier(reached, max(1, minimum)))
    return sized


def positions(names: Iterable[ClusterName], tiers: Sequence[Tier], clusters: Clusters) -> Positions:
    """Return the share of each cluster: the first that names it, else one that selects it, else ``*`` (any other)."""
    by_cluster: dict[ClusterName, SharePosition] = {}
    shares = [(share, (t, s)) for t, tier in enumerate(tiers) for s, share in enumerate(tier.shares)]
    for name in names:
        ranked = [(match, place) for share, place in shares if (match := _match(share, name, clusters)) is not None]
        if ranked:
            by_cluster[name] = min(ranked)[1]
    return by_cluster


def tiers_called(names: Iterable[ClusterName], tiers: Sequence[Tier], clusters: Clusters) -> dict[ClusterName, int]:
    """Return the tier index of each cluster, without clusters that the policy never calls."""
    by_cluster = positions(names, tiers, clusters)
    return {name: position[0] for name, position in by_cluster.items() if not _uncalled(tiers, position)}


def _match(share: Share, name: ClusterName, clusters: Clusters) -> int | None:
    """Rank of a share's match of a cluster, 0 the most specific; ``None`` if it does not match."""
    if share.cluster == name or (share.cluster == THIS_CLUSTER and name == clusters.own):
        return 0
    if share.region or share.zone or share.labels:
        row = clusters.rows.get(name)
        return 1 if row is not None and selects(share, row) else None
    return 2 if share.cluster == ANY_OTHER else None


def selects(share: Share, row: Cluster) -> bool:
    """True if a cluster has the region, zone and labels of a share."""
    located = share.region in ("", row.region) and share.zone in ("", row.zone)
    return located and set(share.labels) <= set(row.labels)


def _members(backends: Iterable[Backend], positions: Positions) -> dict[SharePosition, list[Backend]]:  # hot:
    by_cluster: dict[ClusterName, list[Backend]] = {}
    for backend in backends:
        by_cluster.setdefault(backend.key.cluster, []).append(backend)
    by_share: dict[SharePosition, list[Backend]] = {}
    for name, members in by_cluster.items():
        if (position := positions.get(name)) is not None:
            by_share.setdefault(position, []).extend(members)
    return by_share


def _by_weight(tier: SizedTier, percent_left: PercentLeft) -> list[tuple[Fraction, list[Backend]]]:
    """Groups of a tier with their parts of its calls. A share without a weight beside weighted ones has weight 1."""
    if all(share.weight is None for share, _ in tier.shares):
        return _by_mass([backend for _, backends in tier.shares for backend in backends], percent_left)
    weights = [
        (1 if share.weight is None else share.weight) * max(percent_left.get(each.key, WHOLE) for each in backends)
        for share, backends in tier.shares
    ]
    return [
        (Fraction(weight, sum(weights)) * part, group)
        for weight, (_, backends) in zip(weights, tier.shares, strict=True)
        for part, group in _by_mass(backends, percent_left)
    ]


def _by_mass(backends: Sequence[Backend], percent_left: PercentLeft) -> list[tuple[Fraction, list[Backend]]]:
    """Split backends into groups of equal mass, each with its part of the calls.

    A backend's mass is its percentage left times the number of endpoints that it represents.
    """
    if not percent_left and not any(backend.stands_for > 1 for backend in backends):
        return [(Fraction(1), list(backends))]
    by_mass: dict[int, list[Backend]] = {}
    for backend in backends:
        by_mass.setdefault(percent_left.get(backend.key, WHOLE) * backend.count, []).append(backend)
    total = sum(each * len(group) for each, group in by_mass.items())
    return [(Fraction(each * len(group), total), group) for each, group in sorted(by_mass.items(), reverse=True)]


def _max_percent_left(tier: SizedTier, percent_left: PercentLeft) -> int:
    """Largest undrained percentage among a tier's backends."""
    return max((percent_left.get(each.key, WHOLE) for _, backends in tier.shares for each in backends), default=WHOLE)


def _of_tier(tier: int, weighted: Sequence[tuple[Fraction, list[Backend]]]) -> list[Group]:
    weights = _integers([weight for weight, _ in weighted])
    return [Group(_targets(backends), tier, weight) for weight, (_, backends) in zip(weights, weighted, strict=True)]


def _integers(parts: Sequence[Fraction]) -> list[int]:
    """Return the smallest integer weights in the same proportions, each at least 1."""
    common = lcm(*(part.denominator for part in parts))
    exact = [floor(part * common) for part in parts]
    least = gcd(*exact) or 1
    if sum(exact) // least <= MAX_TOTAL_WEIGHT:
        return [weight // least for weight in exact]
    return [max(1, round(part / sum(parts) * MAX_TOTAL_WEIGHT)) for part in parts]


def _fewer(weighted: list[Group], fallbacks: list[Group]) -> tuple[Group, ...]:
    """Limit the number of groups to MAX_GROUPS by joining the last called groups, and the last fallbacks."""
    room = MAX_GROUPS - (1 if fallbacks else 0)
    weighted = _joined(weighted, room)
    return (*weighted, *_joined(fallbacks, MAX_GROUPS - len(weighted)))


def _joined(groups: list[Group], room: int) -> list[Group]:
    if len(groups) <= room:
        return groups
    kept, rest = groups[: room - 1], groups[room - 1 :]
    targets = sorted({target for group in rest for target in group.targets})
    return [*kept, Group(chunked.sequence(targets), rest[0].tier, sum(group.weight for group in rest))]


def _targets(backends: Sequence[Backend]) -> Sequence[Target]:  # hot:
    if len(backends) == 1:
        key = backends[0].key
        return (Target(key.address, key.port, key.protocol, key.cluster, backends[0].stands_for > 0),)
    pairs = [(backend.key, backend.stands_for > 0) for backend in backends]
    targets = [Target(key.address, key.port, key.protocol, key.cluster, proxy) for key, proxy in pairs]
    targets.sort()
    return tuple(targets) if len(targets) <= chunked.SMALL else chunked.sequence(targets)


def target(key: BackendKey) -> Target:
    """The target that represents a backend in a plan."""
    return Target(key.address, key.port, key.protocol, key.cluster)
