"""Where a call goes on that no gateway of an island takes: to the service's other backends, as its plan has them. Pure.

The kernel sends a call to an island while its gateways pass their checks. Between the moment in which the last of them
falls silent and the next plan this node's Envoy has calls that it cannot get there. It sends them to the plan's pods
that need no gateway, and where there is none to the other islands, in order of its tiers.

Connects that are under way end when their cluster of Envoy changes. So that one has the same parts in the same order
whichever of them answer now: also an island that is in no plan, as the last one, and pods of a cluster that exports the
service while it has none. What this does not keep: of two other islands in different tiers the one that falls out of
the plan goes behind the other, and connects under way to this island end then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from isthmus.gateway import http
from isthmus.model.balancing import Group, Plan
from isthmus.model.islands import IslandListener
from isthmus.model.names import ClusterName
from isthmus.model.tables import PLANS, ROUTE_PLANS
from isthmus.model.xds import Resource
from isthmus.proxy.clusters import CONNECT_TIMEOUT, having, localities
from isthmus.proxy.messages import duration, packed
from isthmus.proxy.resources import NO_CIRCUIT_BREAKERS, eds_cluster, eds_localities, resource
from isthmus.statedb import Reader

UNIT: Final = "island "
"""Units of ``xds`` of islands begin with it."""
AGGREGATE: Final = "envoy.extensions.clusters.aggregate.v3.ClusterConfig"
LAST: Final = 1 << 16
"""A tier behind those of all plans."""


def unit(island: ClusterName) -> str:
    """The cluster of Envoy that is an island's gateways, and the unit of its rows."""
    return f"{UNIT}{island}"


def prepared(island: ClusterName) -> str:
    """The cluster of Envoy that is an island's gateways, called by HTTP on connections that were made before."""
    return f"{unit(island)} http"


def called(row: IslandListener) -> str:
    """The cluster of Envoy that a listener's calls go to: the island's gateways, and what is called in their place."""
    return f"calls of {row.name}"


def plan_of(reader: Reader, row: IslandListener) -> Plan | None:
    """The plan of the listener's port: of what its routes lead to, where it has any, else the kernel's."""
    for table in (ROUTE_PLANS, PLANS):
        found = [plan for plan in reader.by(table, "service", row.service) if plan.key.port == row.port]
        plans = [plan for plan in found if plan.key.protocol == row.protocol and plan.groups and not plan.redirected_by]
        if plans:
            return min(plans, key=lambda plan: plan.key)
    return None


def resources(
    row: IslandListener,
    plan: Plan | None,
    exporters: Collection[ClusterName],
    islands: Collection[ClusterName],
    *,
    preconnect: bool = False,
) -> Iterator[Resource]:
    """The cluster that a listener's calls go to, and that of the pods that are called in the island's place.

    Of UDP there are no such pods: what arrives here is a tunnel, which gateways alone end.
    ``exporters``: of the service; ``islands``: those of them that are called through gateways. ``preconnect``: whether
    calls of HTTP have connections that were made before.
    """
    groups = [group for group in plan.groups if group.weight] if plan is not None else []
    gateways = prepared if row.http and preconnect else unit
    owner, parts = f"ServiceImport {row.import_of}", [gateways(row.cluster)]
    if row.protocol == "TCP" and set(exporters) - set(islands):
        parts.append(beside := f"pods beside {row.name}")
        pods = having(groups, lambda target: target.cluster not in islands and not target.proxy)
        yield eds_cluster(beside, owner, row.name, connect_timeout=CONNECT_TIMEOUT, locality_weights=True)
        yield eds_localities(beside, owner, row.name, localities(pods))
    others = sorted(each for each in islands if each != row.cluster)
    others.sort(key=lambda each: min((group.tier for group in groups if _has(group, each)), default=LAST))
    aggregate = packed(AGGREGATE, clusters=[*parts, *map(gateways, others)])
    more = http.calling_options(preconnect=preconnect) if row.http else {}
    yield resource(
        "cluster",
        called(row),
        owner,
        row.name,
        cluster_type={"name": "envoy.clusters.aggregate", "typed_config": aggregate},
        connect_timeout=duration(CONNECT_TIMEOUT),
        lb_policy="CLUSTER_PROVIDED",
        circuit_breakers=NO_CIRCUIT_BREAKERS,
        **more,
    )


def _has(group: Group, cluster: ClusterName) -> bool:
    return any(target.cluster == cluster for target in group.targets)
