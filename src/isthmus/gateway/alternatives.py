"""Where a call goes on that no gateway of an island takes: to the service's other backends, as its plan has them. Pure.

The kernel sends a call to an island while its gateways pass their checks. Between the moment in which the last of them
falls silent and the next plan this node's Envoy has calls that it cannot get there. It sends them to the plan's pods
that need no gateway, of whichever tier, and where there is none to the other islands, in order of the policy's tiers.

Connects that are under way end when their cluster of Envoy changes. So that one has the same parts in the same order
whichever of them answer now: the order of islands is the policy's, not the plan's, and pods of a cluster that exports
the service have a part while it has none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

from isthmus.gateway import http, udp
from isthmus.loadbalancer import policies
from isthmus.loadbalancer.drains import Drained
from isthmus.loadbalancer.selection import Clusters
from isthmus.loadbalancer.services import resolve
from isthmus.loadbalancer.tiers import tiers_called
from isthmus.model.balancing import Plan
from isthmus.model.islands import IslandListener
from isthmus.model.names import ClusterName
from isthmus.model.tables import CLUSTERS, DRAINING, PLANS, ROUTE_PLANS
from isthmus.model.xds import Resource
from isthmus.proxy.clusters import CONNECT_TIMEOUT, having, localities
from isthmus.proxy.messages import duration, packed
from isthmus.proxy.resources import KEPT_ALIVE, bounded, eds_cluster, eds_localities, resource
from isthmus.statedb import Reader

UNIT: Final = "island "
"""Units of ``xds`` of islands begin with it."""
AGGREGATE: Final = "envoy.extensions.clusters.aggregate.v3.ClusterConfig"


def unit(island: ClusterName) -> str:
    """The cluster of Envoy that is an island's gateways, and the unit of its rows."""
    return f"{UNIT}{island}"


def prepared(island: ClusterName) -> str:
    """The cluster of Envoy that is an island's gateways, called by HTTP on connections that were made before."""
    return f"{unit(island)} http"


def tunnelled(island: ClusterName) -> str:
    """The cluster of Envoy that is an island's gateways, as tunnels of UDP are sent to them."""
    return f"{unit(island)} udp"


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


def in_order(
    reader: Reader, row: IslandListener, islands: Collection[ClusterName], *, own: ClusterName
) -> list[ClusterName]:
    """The other islands that a listener's calls may go on to: by the policy's tiers, then by name.

    One that is drained comes last: it is called only where nothing else is. One that the policy never calls (weight 0,
    in no tier) is not there.
    """
    fallbacks = sorted(each for each in islands if each != row.cluster)
    subject = resolve(reader, row.service, which="all")
    policy = policies.of_service(reader, subject) if subject is not None else None
    if policy is not None and policy.tiers:
        known = Clusters(own, {each.name: each for each in reader.all(CLUSTERS)})
        tiers = tiers_called(fallbacks, policy.tiers, known)
        fallbacks = sorted((each for each in fallbacks if each in tiers), key=tiers.__getitem__)
    drained = Drained(reader.all(DRAINING))
    return sorted(fallbacks, key=lambda each: not drained.left_of(each, row.import_of))


def resources(
    row: IslandListener,
    plan: Plan | None,
    exporters: Collection[ClusterName],
    islands: Collection[ClusterName],
    fallbacks: Iterable[ClusterName],
    *,
    preconnect: bool = False,
) -> Iterator[Resource]:
    """The cluster that a listener's calls go to, and that of the pods that are called in the island's place.

    ``exporters``: of the service; ``islands``: those of them that are called through gateways; ``fallbacks``: of
    these, the ones that calls may go on to, in order. ``preconnect``: whether calls of HTTP have connections that were
    made before.
    """
    groups = [group for group in plan.groups if group.weight] if plan is not None else []
    gateways = tunnelled if row.protocol == "UDP" else prepared if row.http and preconnect else unit
    owner, parts = f"ServiceImport {row.import_of}", [gateways(row.cluster)]
    if set(exporters) - set(islands):
        beside = f"pods beside {row.name}"
        pods = localities(having(groups, lambda target: target.cluster not in islands and not target.proxy))
        probed: dict[str, Any] = {"upstream_connection_options": KEPT_ALIVE} if row.protocol == "TCP" else {}
        yield eds_cluster(beside, owner, row.name, connect_timeout=CONNECT_TIMEOUT, locality_weights=True, **probed)
        yield eds_localities(beside, owner, row.name, pods)
        if row.protocol == "UDP":
            yield from udp.beside(row, beside, present=bool(pods))
        parts.append(udp.tunnels_to(beside) if row.protocol == "UDP" else beside)
    aggregate = packed(AGGREGATE, clusters=[*parts, *map(gateways, fallbacks)])
    more = http.calling_options(preconnect=preconnect) if row.http else {}
    yield resource(
        "cluster",
        called(row),
        owner,
        row.name,
        cluster_type={"name": "envoy.clusters.aggregate", "typed_config": aggregate},
        connect_timeout=duration(CONNECT_TIMEOUT),
        lb_policy="CLUSTER_PROVIDED",
        circuit_breakers=bounded(),
        **more,
    )
