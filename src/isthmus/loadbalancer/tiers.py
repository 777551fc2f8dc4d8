"""How what may be reached is shared out: groups with tiers and weights, by what a policy says of clusters.

Without a policy all backends are one group, so a cluster's share is its number of ready endpoints. A tier whose
ready endpoints are fewer than it wants is joined by the next, and so on until there are enough: what little is left
of it goes on serving. Tiers after that stay in the plan as they are, for the kernel to fall back to by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from isthmus.loadbalancer.selection import Reasons, silent
from isthmus.model.balancing import ANY_OTHER, Backend, Group, Share, Target, Tier
from isthmus.model.names import ClusterName

MOST_GROUPS: Final = 32
"""What a plan in the kernel has room for."""

Members = dict[ClusterName, list[Backend]]


def groups(chosen: Sequence[Backend], tiers: Sequence[Tier], *, reasons: Reasons = silent) -> tuple[Group, ...]:
    """The groups of a plan; none where nothing is to be reached."""
    if not tiers:
        return (Group(_targets(chosen)),) if chosen else ()
    members = _members(chosen, tiers, reasons)
    found: list[Group] = []
    joined: list[tuple[Share, list[Backend]]] = []
    number = wanted = 0
    for tier in tiers:
        wanted = max(wanted, tier.min_healthy)
        joined += [(share, backends) for share in _spelt_out(tier, members) if (backends := members[share.cluster])]
        if sum(len(backends) for _, backends in joined) >= max(1, wanted):
            found += _shared_out(joined, number)
            joined, wanted, number = [], 0, number + 1
    found += _shared_out(joined, number)
    return _fewer(found)


def _members(chosen: Sequence[Backend], tiers: Sequence[Tier], reasons: Reasons) -> Members:
    """Backends by cluster, as far as some tier calls that cluster."""
    named = {share.cluster for tier in tiers for share in tier.shares}
    members: Members = {}
    for backend in chosen:
        if backend.key.cluster in named or ANY_OTHER in named:
            members.setdefault(backend.key.cluster, []).append(backend)
        else:
            reasons(backend, "the policy does not name its cluster")
    unnamed = sorted(members.keys() - named)
    if unnamed:
        members[ANY_OTHER] = [backend for cluster in unnamed for backend in members[cluster]]
    return members


def _spelt_out(tier: Tier, members: Members) -> Iterable[Share]:
    """The shares of a tier that count: of clusters with something to reach, and not weighted nothing."""
    return [share for share in tier.shares if share.cluster in members and share.weight != 0]


def _shared_out(joined: Sequence[tuple[Share, list[Backend]]], tier: int) -> list[Group]:
    """One group where nobody has a weight; else one for each share, and who has none counts as 1."""
    if not joined:
        return []
    if all(share.weight is None for share, _ in joined):
        together = [backend for _, backends in joined for backend in backends]
        return [Group(_targets(together), tier, 1)]
    return [Group(_targets(backends), tier, share.weight or 1) for share, backends in joined]


def _fewer(found: list[Group]) -> tuple[Group, ...]:
    """No more groups than there is room for: the last of them are one, with all their weight."""
    if len(found) <= MOST_GROUPS:
        return tuple(found)
    kept, rest = found[: MOST_GROUPS - 1], found[MOST_GROUPS - 1 :]
    targets = tuple(sorted({target for group in rest for target in group.targets}))
    return (*kept, Group(targets, rest[0].tier, sum(group.weight for group in rest)))


def _targets(backends: Iterable[Backend]) -> tuple[Target, ...]:  # hot:
    keys = [backend.key for backend in backends]
    found = [Target(key.address, key.port, key.protocol, key.cluster) for key in keys]
    found.sort()
    return tuple(found)
