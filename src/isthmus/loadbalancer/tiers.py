"""How what may be reached is shared out: the tiers and weights of a policy, flattened to groups.

The rule, the same for the kernel and for a proxy. A tier has ``usable`` backends, wants ``M`` of them (a count, or a
percentage of the backends known, rounded up) and takes ``min(1, usable / M)`` of the calls that the tiers before it
leave; where the last tier leaves some, all shares are scaled to make one. Within a tier, calls go to the shares that
have something usable, by weight; where none has a weight, to all backends alike. Weight 0 is never called.

What is being drained has a part of its share left, in percent. A tier counts for as much as the backend of it that has
most left, and so does a share within its tier; within a share, each backend counts for what it has left. So a drained
cluster's calls decrease evenly to none, and those of a drained node go to the other backends of its share.

What stands for the endpoints of an island counts as so many backends.

Every group with calls is of tier 0 in the plan, with an integer weight. What has none now is a fallback, in order, for
the kernel to use when it finds all of tier 0 dead. Nothing here remembers: hysteresis belongs to what judges health.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import gcd, lcm
from typing import Final, NamedTuple

from msgspec.structs import replace

from isthmus.loadbalancer.selection import Clusters, Reasons, ignore
from isthmus.model import chunked
from isthmus.model.balancing import Backend, BackendKey, Group, Target
from isthmus.model.names import ClusterName
from isthmus.model.policies import ANY_OTHER, THIS_CLUSTER, Share, Tier

MAX_GROUPS: Final = 32
"""Groups that a plan in the kernel has room for."""

MAX_TOTAL_WEIGHT: Final = 1_000_000
"""Sum of integer weights up to which shares are exact; beyond it they are rounded to a millionth."""

SharePosition = tuple[int, int]
"""A share by its position: of the tier, and in it."""


Positions = Mapping[ClusterName, SharePosition]
"""The share that each cluster belongs to; a cluster that no share means is not there."""

Left = Mapping[BackendKey, int]
"""Percent of its share that each backend has left; 100 for those that are not there."""

WHOLE: Final = 100
NOTHING_DRAINED: Final[Left] = {}


class Sized(NamedTuple):
    """A tier with what it can reach: the backends of each share that counts, and how many it wants."""

    shares: tuple[tuple[Share, list[Backend]], ...]
    wanted: int

    @property
    def usable(self) -> int:
        """Backends that calls can reach."""
        return sum(backend.count for _, backends in self.shares for backend in backends)


def named(
    backends: Sequence[Backend], tiers: Sequence[Tier], *, positions: Positions, reasons: Reasons = ignore
) -> Sequence[Backend]:
    """The backends of clusters that a policy calls at all."""
    left_out = {name: _uncalled(tiers, positions.get(name)) for name in {backend.key.cluster for backend in backends}}
    if not any(left_out.values()):
        return backends
    left: list[Backend] = []
    for backend in backends:
        if reason := left_out[backend.key.cluster]:
            reasons(backend, reason)
        else:
            left.append(backend)
    return left


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
    known: Sequence[Backend] = (),
    left: Left = NOTHING_DRAINED,
) -> tuple[Group, ...]:
    """The groups of a plan; none where nothing is to be reached. ``known``: whatever its readiness, for percentages.

    ``left``: of what is being drained; all that is chosen has some left, or none of it has.
    """
    if not any(left.values()):
        left = NOTHING_DRAINED
    if not tiers:
        if len(set(left.values())) > 1:
            return _fewer(_of_tier(0, _by_mass(chosen, left)), [])
        return together(chosen)
    sized = _sized(chosen, tiers, positions, known)
    most = [_most(each, left) for each in sized]
    parts = shares([each.usable for each in sized], [each.wanted for each in sized], most)
    parted = list(zip(parts, sized, strict=True))
    called = [
        (part * fraction, backends) for part, each in parted if part for fraction, backends in _by_weight(each, left)
    ]
    behind = [each for part, each in parted if not part and each.usable]
    fallbacks = [group for tier, each in enumerate(behind, 1) for group in _of_tier(tier, _by_weight(each, left))]
    return _fewer(_of_tier(0, called), fallbacks)


def together(chosen: Sequence[Backend]) -> tuple[Group, ...]:  # hot:
    """All that is chosen, alike: in one group unless something stands for several; none where nothing is."""
    if len(chosen) == 1:
        return (Group(_targets(chosen)),)
    if any(backend.stands_for > 1 for backend in chosen):
        return _fewer(_of_tier(0, _by_mass(chosen, NOTHING_DRAINED)), [])
    return (Group(_targets(chosen)),) if chosen else ()


def behind_each_other(steps: Iterable[tuple[Group, ...]]) -> tuple[Group, ...]:
    """The groups of each step as fallbacks of those before it."""
    first, *others = steps
    if not others:
        return first
    found = list(first)
    for step in others:
        tier = found[-1].tier + 1 if found else 0
        found += [replace(group, tier=tier + group.tier) for group in step]
    called = [group for group in found if group.tier == 0]
    return _fewer(called, found[len(called) :])


def shares(usable: Sequence[int], wanted: Sequence[int], left: Sequence[int] | None = None) -> list[Fraction]:
    """The part of all calls that each tier takes; all are 0 where nothing is usable. ``left``: of each, in percent."""
    remaining, parts = Fraction(1), []
    for count, minimum, most in zip(usable, wanted, left or [WHOLE] * len(usable), strict=True):
        parts.append(remaining * min(Fraction(1), Fraction(count, minimum)) * Fraction(most, WHOLE))
        remaining -= parts[-1]
    total = sum(parts)
    return [part / total for part in parts] if total else parts


def _sized(
    chosen: Sequence[Backend], tiers: Sequence[Tier], positions: Positions, known: Sequence[Backend]
) -> list[Sized]:
    usable, all_known = _members(chosen, positions), _members(known, positions)
    found: list[Sized] = []
    for number, tier in enumerate(tiers):
        counting = [(at, share) for at, share in enumerate(tier.shares) if share.weight != 0]
        there = sum(each.count for at, _ in counting for each in all_known.get((number, at), ()))
        wanted = -(-tier.min_percent * there // 100) if tier.min_percent else tier.min_healthy
        reached = tuple((share, usable[number, at]) for at, share in counting if (number, at) in usable)
        found.append(Sized(reached, max(1, wanted)))
    return found


def positions(names: Iterable[ClusterName], tiers: Sequence[Tier], clusters: Clusters) -> Positions:
    """The one share of each cluster: the first by its name, else by region, zone and labels, else as any other."""
    found: dict[ClusterName, SharePosition] = {}
    shares = [(share, (t, s)) for t, tier in enumerate(tiers) for s, share in enumerate(tier.shares)]
    for name in names:
        ranked = [(match, place) for share, place in shares if (match := _match(share, name, clusters)) is not None]
        if ranked:
            found[name] = min(ranked)[1]
    return found


def tiers_called(names: Iterable[ClusterName], tiers: Sequence[Tier], clusters: Clusters) -> dict[ClusterName, int]:
    """The number of the tier of each cluster that a policy calls; one that it never calls is not there."""
    found = positions(names, tiers, clusters)
    return {name: position[0] for name, position in found.items() if not _uncalled(tiers, position)}


def _match(share: Share, name: ClusterName, clusters: Clusters) -> int | None:
    """How exactly a share means a cluster, 0 best; None: not at all."""
    if share.cluster == name or (share.cluster == THIS_CLUSTER and name == clusters.own):
        return 0
    if share.region or share.zone or share.labels:
        row = clusters.known.get(name)
        there = row is not None and share.region in ("", row.region) and share.zone in ("", row.zone)
        return 1 if there and row is not None and set(share.labels) <= set(row.labels) else None
    return 2 if share.cluster == ANY_OTHER else None


def _members(backends: Iterable[Backend], positions: Positions) -> dict[SharePosition, list[Backend]]:  # hot:
    by_cluster: dict[ClusterName, list[Backend]] = {}
    for backend in backends:
        by_cluster.setdefault(backend.key.cluster, []).append(backend)
    found: dict[SharePosition, list[Backend]] = {}
    for name, members in by_cluster.items():
        if (position := positions.get(name)) is not None:
            found.setdefault(position, []).extend(members)
    return found


def _by_weight(tier: Sized, left: Left) -> list[tuple[Fraction, list[Backend]]]:
    """The groups of a tier with their parts of its calls. Beside shares that have a weight, none counts as 1."""
    if all(share.weight is None for share, _ in tier.shares):
        return _by_mass([backend for _, backends in tier.shares for backend in backends], left)
    weights = [
        (1 if share.weight is None else share.weight) * max(left.get(each.key, WHOLE) for each in backends)
        for share, backends in tier.shares
    ]
    return [
        (Fraction(weight, sum(weights)) * part, group)
        for weight, (_, backends) in zip(weights, tier.shares, strict=True)
        for part, group in _by_mass(backends, left)
    ]


def _by_mass(backends: Sequence[Backend], left: Left) -> list[tuple[Fraction, list[Backend]]]:
    """Groups of backends that count as much as each other, with their parts of the calls of all.

    A backend counts for what it has left, as often as it stands for endpoints of an island.
    """
    if not left and not any(backend.stands_for > 1 for backend in backends):
        return [(Fraction(1), list(backends))]
    found: dict[int, list[Backend]] = {}
    for backend in backends:
        found.setdefault(left.get(backend.key, WHOLE) * backend.count, []).append(backend)
    total = sum(each * len(group) for each, group in found.items())
    return [(Fraction(each * len(group), total), group) for each, group in sorted(found.items(), reverse=True)]


def _most(tier: Sized, left: Left) -> int:
    """What the backend of a tier that has most left has, in percent."""
    return max((left.get(each.key, WHOLE) for _, backends in tier.shares for each in backends), default=WHOLE)


def _of_tier(tier: int, weighted: Sequence[tuple[Fraction, list[Backend]]]) -> list[Group]:
    weights = _integers([weight for weight, _ in weighted])
    return [Group(_targets(backends), tier, weight) for weight, (_, backends) in zip(weights, weighted, strict=True)]


def _integers(parts: Sequence[Fraction]) -> list[int]:
    """Integer weights in the same proportions, as small as can be; each at least 1."""
    common = lcm(*(part.denominator for part in parts))
    exact = [int(part * common) for part in parts]
    least = gcd(*exact) or 1
    if sum(exact) // least <= MAX_TOTAL_WEIGHT:
        return [weight // least for weight in exact]
    return [max(1, round(part / sum(parts) * MAX_TOTAL_WEIGHT)) for part in parts]


def _fewer(called: list[Group], fallbacks: list[Group]) -> tuple[Group, ...]:
    """No more groups than there is room for. The last of those that are called are joined, and the last fallbacks."""
    room = MAX_GROUPS - (1 if fallbacks else 0)
    called = _joined(called, room)
    return (*called, *_joined(fallbacks, MAX_GROUPS - len(called)))


def _joined(found: list[Group], room: int) -> list[Group]:
    if len(found) <= room:
        return found
    kept, rest = found[: room - 1], found[room - 1 :]
    targets = sorted({target for group in rest for target in group.targets})
    return [*kept, Group(chunked.sequence(targets), rest[0].tier, sum(group.weight for group in rest))]


def _targets(backends: Sequence[Backend]) -> Sequence[Target]:  # hot:
    if len(backends) == 1:
        key = backends[0].key
        return (Target(key.address, key.port, key.protocol, key.cluster, backends[0].stands_for > 0),)
    pairs = [(backend.key, backend.stands_for > 0) for backend in backends]
    found = [Target(key.address, key.port, key.protocol, key.cluster, proxy) for key, proxy in pairs]
    found.sort()
    return tuple(found) if len(found) <= chunked.SMALL else chunked.sequence(found)


def target(key: BackendKey) -> Target:
    """What a plan has of a backend."""
    return Target(key.address, key.port, key.protocol, key.cluster)
