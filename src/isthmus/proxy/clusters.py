"""Plans as Envoy's clusters and endpoints: the planner's groups, which Envoy follows and does not judge again. Pure.

A group is a locality with the group's weight, a tier a priority. Envoy's own rules of health and spill are off: it has
no checks of flat backends, no panic, an overprovisioning that never spills, and takes changes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from isthmus.model.balancing import Group, Plan, Target
from isthmus.model.names import ClusterName
from isthmus.model.xds import Resource
from isthmus.proxy.messages import packed
from isthmus.proxy.resources import KEPT_ALIVE, eds_cluster, eds_localities, hosts
from isthmus.proxy.routing import cluster_name

CONNECT_TIMEOUT: Final = 1.0
"""Seconds until an attempt to connect is given up, and another backend is tried."""
MAX_PRIORITY: Final = 128
HTTP_OPTIONS: Final = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def of_plans(plans: Iterable[Plan], *, http2: frozenset[int], only: Iterable[ClusterName] = ()) -> list[Resource]:
    """Clusters and endpoints of a Service's plans, by port. ``http2``: ports whose backends speak only that.

    ``only``: clusters of the clusterset that routes of the Service refer to; each has a cluster of Envoy's of its own.
    """
    chosen: dict[int, Plan] = {}
    for plan in sorted(plans, key=lambda each: (not each.groups, each.key)):
        chosen.setdefault(plan.key.port, plan)
    found = []
    for port, plan in sorted(chosen.items()):
        for cluster in ("", *sorted(only)):
            name, owner = cluster_name(plan.key.service, port, cluster), _owner(plan)
            found.append(_cluster(name, owner, plan, http2=port in http2))
            followed = toward(plan, cluster) if cluster else plan
            found.append(eds_localities(name, owner, plan.key.service, localities(followed.groups)))
    return found


def toward(plan: Plan, cluster: str) -> Plan:
    """The plan of calls that a route sends to one cluster: to its backends, and as all others while it has none.

    A backend is in one tier only: Envoy keeps a host once, whichever priorities list it.
    """
    own = having(plan.groups, lambda target: target.cluster == cluster)
    others = having(plan.groups, lambda target: target.cluster != cluster)
    first, behind = min((group.tier for group in own), default=0), max((group.tier for group in own), default=-1) + 1
    called = [replace(group, tier=group.tier - first) for group in own]
    return replace(plan, groups=(*called, *(replace(group, tier=group.tier + behind) for group in others)))


def having(groups: Iterable[Group], meant: Callable[[Target], bool]) -> list[Group]:
    """The groups with those of their targets alone; without those that have none."""
    left = [replace(group, targets=tuple(filter(meant, group.targets))) for group in groups]
    return [group for group in left if group.targets]


def http_options(*, http2: bool) -> dict[str, Any]:
    """Backends are called by the client's version of HTTP, or by HTTP/2 where they speak only that."""
    only: dict[str, Any] = {"http2_protocol_options": {}}
    as_called: dict[str, Any] = {"http_protocol_options": {}, "http2_protocol_options": {}}
    protocol = {"explicit_http_config": only} if http2 else {"use_downstream_protocol_config": as_called}
    return {HTTP_OPTIONS: packed(HTTP_OPTIONS, **protocol)}


def _owner(plan: Plan) -> str:
    return f"ServiceImport {plan.import_of}" if plan.import_of else f"Service {plan.key.service}"


def _cluster(name: str, owner: str, plan: Plan, *, http2: bool) -> Resource:
    by_client = plan.affinity == "ClientIP" or plan.consistent
    return eds_cluster(
        name,
        owner,
        plan.key.service,
        connect_timeout=CONNECT_TIMEOUT,
        locality_weights=True,
        lb_policy="MAGLEV" if by_client else "ROUND_ROBIN",
        typed_extension_protocol_options=http_options(http2=http2),
        upstream_connection_options=KEPT_ALIVE,
    )


def localities(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Groups with weight as localities, those of a tier with one priority."""
    tiers = sorted({group.tier for group in groups if group.targets})
    priority = {tier: number for number, tier in enumerate(tiers) if number <= MAX_PRIORITY}
    return [
        _locality(number, group, priority[group.tier])
        for number, group in enumerate(groups)
        if group.targets and group.tier in priority and group.weight
    ]


def _locality(number: int, group: Group, priority: int) -> dict[str, Any]:
    return {
        "locality": {"sub_zone": f"group-{number}"},
        "lb_endpoints": hosts((target.address, target.port) for target in group.targets),
        "load_balancing_weight": {"value": group.weight},
        "priority": priority,
    }
