"""Where the calls of a plan go: the part that each cluster, and each tier of its policy, has of them.

Read off the plan, so the kernel, a status and an explanation cannot differ. What a node has ejected is not in it.
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
"""Clusters that are shown with their part; the others are counted."""


class TierShare(Struct, frozen=True):
    """A tier of a policy as a plan has it now."""

    tier: int
    """From 1, as the policy lists them."""
    clusters: str
    part: float
    """Of all calls, 0 to 1."""
    usable: int
    wanted: str
    """As the policy has it: a count or a percentage."""


def by_cluster(plan: Plan) -> dict[ClusterName, float]:
    """The part of the calls that each cluster has, 0 to 1; clusters without any are not there."""
    called = [group for group in plan.groups if group.tier == 0 and group.targets]
    total = sum(group.weight for group in called)
    parts: dict[ClusterName, float] = {}
    for group in called:
        for target in group.targets:
            parts[target.cluster] = parts.get(target.cluster, 0.0) + group.weight / total / len(group.targets)
    return parts


def text(parts: Mapping[ClusterName, float]) -> str:
    """``c1 90%, c2 10%``, the greatest first; ``none`` without any."""
    ranked = sorted(parts.items(), key=lambda each: (-each[1], each[0]))
    shown = [f"{name} {100 * part:.3g}%" for name, part in ranked[:SHOWN]]
    more = len(ranked) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "") if shown else "none"


def by_tier(plan: Plan, policy: Policy, clusters: Clusters) -> tuple[TierShare, ...]:
    """Every tier of a plan's policy, also those that have no calls now."""
    targets = [target for group in plan.groups for target in group.targets]
    where = positions({target.cluster for target in targets}, policy.tiers, clusters)
    parts = by_cluster(plan)
    return tuple(
        TierShare(
            tier=number + 1,
            clusters=", ".join(map(_spelled, tier.shares)),
            part=sum(part for name, part in parts.items() if where[name][0] == number),
            usable=sum(where[target.cluster][0] == number for target in targets),
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
