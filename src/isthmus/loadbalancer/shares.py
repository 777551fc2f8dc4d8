"""Computes each cluster's and each policy tier's share of a plan's calls.

Shares are read from the plan itself, so the kernel, a status and an explanation agree. They ignore a node's ejections.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from isthmus.loadbalancer.selection import Clusters
from isthmus.loadbalancer.tiers import positions
from isthmus.model.balancing import Plan
from isthmus.model.names import ClusterName
from isthmus.model.policies import Policy, Share, Tier

SHOWN: Final = 8
"""Number of clusters shown with their share; the others are only counted."""


class TierShare(Struct, frozen=True):
    """A tier of a policy and its share of a plan's calls."""

    tier: int
    """Position in the policy, from 1."""
    clusters: str
    part: float
    """Share of all calls, 0 to 1."""
    usable: int
    wanted: str
    """The tier's minimum as the policy states it: a count or a percentage."""


def by_cluster(plan: Plan) -> dict[ClusterName, float]:
    """Return each cluster's share of the calls, 0 to 1, without clusters that get none.

    The empty name has the share of calls that a route refuses.
    """
    active = [group for group in plan.groups if group.tier == 0 and group.targets]
    total = sum(group.weight for group in active)
    parts: dict[ClusterName, float] = {}
    for group in active:
        for target in group.targets:
            parts[target.cluster] = parts.get(target.cluster, 0.0) + group.weight / total / len(group.targets)
    return parts


def text(parts: Mapping[ClusterName, float]) -> str:
    """Format shares as ``c1 90%, c2 10%``, largest first, or ``none``."""
    ranked = sorted(parts.items(), key=lambda each: (-each[1], each[0]))
    shown = [f"{name or 'refused'} {100 * part:.3g}%" for name, part in ranked[:SHOWN]]
    more = len(ranked) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "") if shown else "none"


def by_tier(plan: Plan, policy: Policy, clusters: Clusters) -> tuple[TierShare, ...]:
    """Return every tier of a plan's policy, including tiers that get no calls now."""
    targets = [target for group in plan.groups for target in group.targets]
    tier_of = positions({target.cluster for target in targets}, policy.tiers, clusters)
    parts = by_cluster(plan)
    return tuple(
        TierShare(
            tier=number + 1,
            clusters=", ".join(map(_spelled, tier.shares)),
            part=sum(part for name, part in parts.items() if tier_of[name][0] == number),
            usable=sum(tier_of[target.cluster][0] == number for target in targets),
            wanted=_wanted(tier),
        )
        for number, tier in enumerate(policy.tiers)
    )


def _wanted(tier: Tier) -> str:
    return f"{tier.min_percent}%" if tier.min_percent else str(tier.min_healthy)


def _spelled(share: Share) -> str:
    labels = [f"{key}={value}" for key, value in share.labels]
    where = share.cluster or "/".join(filter(None, (share.region, share.zone, *labels)))
    return where if share.weight is None else f"{where} weight {share.weight}"
