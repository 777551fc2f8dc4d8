"""Converts plans to Envoy's clusters and endpoints. Envoy applies the planner's groups without judging them. Pure.

A group becomes a locality with the group's weight, a tier becomes a priority. Envoy's own rules of health and spill are
off: it has no health checks of flat backends, no panic, an overprovisioning that never spills, and no merge window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from msgspec.structs import replace

from isthmus.model.balancing import Group, Plan, Target
from isthmus.model.names import ClusterName
from isthmus.model.xds import Resource
from isthmus.proxy.backend_tls import PortTls
from isthmus.proxy.messages import duration, packed
from isthmus.proxy.resources import KEPT_ALIVE, eds_cluster, eds_localities, hosts
from isthmus.proxy.routing import cluster_name

CONNECT_TIMEOUT: Final = 1.0
"""Seconds until a connect attempt fails and another backend is tried."""
MAX_PRIORITY: Final = 128
HTTP_OPTIONS: Final = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def of_plans(
    plans: Iterable[Plan],
    *,
    http2: frozenset[int],
    only: Iterable[ClusterName] = (),
    tls: Mapping[int, PortTls] = MappingProxyType({}),
) -> list[Resource]:
    """Return clusters and endpoints of a Service's plans, by port. ``http2``: ports whose backends speak only HTTP/2.

    ``only``: members of the clusterset that routes of the Service refer to; each gets an Envoy cluster of its own.
    ``tls``: of ports whose backends are called by TLS. One with a problem gets no endpoints, so that calls fail.
    """
    resources = []
    for plan in sorted(plans, key=lambda each: each.key.port):
        port, encrypted = plan.key.port, tls.get(plan.key.port)
        withheld = encrypted is not None and bool(encrypted.problem)
        secure = {"transport_socket": encrypted.socket()} if encrypted is not None and not withheld else {}
        for cluster in ("", *sorted(only)):
            name, owner = cluster_name(plan.key.service, port, cluster), _owner(plan)
            resources.append(_cluster(name, owner, plan, http2=port in http2, **secure))
            followed = toward(plan, cluster) if cluster else plan
            endpoints = [] if withheld else localities(followed.groups)
            resources.append(eds_localities(name, owner, plan.key.service, endpoints))
    return resources


def toward(plan: Plan, cluster: str) -> Plan:
    """Return a plan that prefers the backends of one cluster and has all others as fallbacks.

    A backend is in one tier only: Envoy keeps a host once, whichever priorities list it.
    """
    own = having(plan.groups, lambda target: target.cluster == cluster)
    rest = having(plan.groups, lambda target: target.cluster != cluster)
    first, fallback_tier = (
        min((group.tier for group in own), default=0),
        max((group.tier for group in own), default=-1) + 1,
    )
    preferred = [replace(group, tier=group.tier - first) for group in own]
    return replace(plan, groups=(*preferred, *(replace(group, tier=group.tier + fallback_tier) for group in rest)))


def having(groups: Iterable[Group], selected: Callable[[Target], bool]) -> list[Group]:
    """Restrict groups to the selected targets, without groups that have none left."""
    filtered = [replace(group, targets=tuple(filter(selected, group.targets))) for group in groups]
    return [group for group in filtered if group.targets]


def http_options(*, http2: bool, idle: float = 0.0) -> dict[str, Any]:
    """Protocol options: call backends by the client's version of HTTP, or by HTTP/2 if they speak only that.

    ``idle``: seconds after which a connection without a request is closed; 0 selects Envoy's default, an hour.
    """
    only: dict[str, Any] = {"http2_protocol_options": {}}
    as_called: dict[str, Any] = {"http_protocol_options": {}, "http2_protocol_options": {}}
    protocol = {"explicit_http_config": only} if http2 else {"use_downstream_protocol_config": as_called}
    common = {"common_http_protocol_options": {"idle_timeout": duration(idle)}} if idle else {}
    return {HTTP_OPTIONS: packed(HTTP_OPTIONS, **protocol, **common)}


def _owner(plan: Plan) -> str:
    return f"ServiceImport {plan.import_of}" if plan.import_of else f"Service {plan.key.service}"


def _cluster(name: str, owner: str, plan: Plan, *, http2: bool, **more: Any) -> Resource:
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
        **more,
    )


def localities(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Convert groups with a weight to localities, with one priority for each tier."""
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
