"""The agent's plans as VIPs in nftables, in a lab without BPF. Pure.

What the kernel's programs do beyond that is absent here: a backend that fails is not passed over, a tier is left only
when its plan has no backend in it, and a plan that spreads by caller keeps a caller only while no backend changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from isthmus.model.balancing import FrontendKey, Group, Plan, Scope
from isthmus.model.hosts import family
from isthmus_lab.families import Scheme
from isthmus_lab.node.services import Destination, Vip

PARTS: Final = 1 << 16
"""Into how many parts calls are cut where backends have weights: a share is right to 0.002 %."""


def over(plain: Iterable[Vip], plans: Iterable[Plan], scheme: Scheme) -> list[Vip]:
    """VIPs of Services, and of plans where those have the address. One of a plan without backends is there no more:
    what is still addressed to it is refused.
    """
    vips = {(vip.address, vip.protocol, vip.port): vip for vip in plain}
    for frontend, plan in sorted(_callable_plans(plans, scheme).items()):
        protocol = frontend.protocol.lower()
        replaced = vips.get((frontend.address, protocol, frontend.port))
        weights = _weights(plan.groups)
        vips[frontend.address, protocol, frontend.port] = Vip(
            frontend.address,
            protocol,
            frontend.port,
            tuple(weights),
            outside=replaced is not None and replaced.outside,
            sticky=plan.affinity_timeout if plan.affinity == "ClientIP" else 0,
            owner=str(plan.key),
            weights=tuple(weights.values()) if len(set(weights.values())) > 1 else (),
            hashed=plan.consistent,
        )
    return sorted(vip for vip in vips.values() if vip.targets)


def _callable_plans(plans: Iterable[Plan], scheme: Scheme) -> dict[FrontendKey, Plan]:
    """Plans by the frontend key that pods call: the key of their own scope if there is one."""
    plan_by_key = {key: plan for plan in plans for key in plan.frontends if not key.scope.is_original}
    return {
        key: plan
        for key, plan in plan_by_key.items()
        if family(key.address) == scheme.family and (key.scope or _inside(key) not in plan_by_key)
    }


def _inside(key: FrontendKey) -> FrontendKey:
    return FrontendKey(key.address, key.port, key.protocol, Scope.INTERNAL)


def _weights(groups: Iterable[Group]) -> Mapping[Destination, int]:
    """The targets of the first tier that has some, sorted, and the parts of all calls that each gets."""
    usable = [group for group in groups if group.targets and group.weight]
    tier = [group for group in usable if group.tier == min(each.tier for each in usable)]
    shares: dict[Destination, float] = {}
    for group in tier:
        for target in group.targets:
            where = (target.address, target.port)
            shares[where] = shares.get(where, 0.0) + group.weight / len(group.targets)
    whole, before, weights = sum(shares.values()), 0.0, {}
    for where, share in sorted(shares.items()):
        end = before + share
        weights[where] = round(end / whole * PARTS) - round(before / whole * PARTS)
        before = end
    uniform = len(set(shares.values())) <= 1
    return dict.fromkeys(weights, 1) if uniform else {where: parts for where, parts in weights.items() if parts}
