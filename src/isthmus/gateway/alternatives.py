"""Fallback targets for a call when all of an island's gateways fail: the other backends of the service's plan. Pure.

The kernel sends calls to an island while its gateways pass their checks. Between the failure of the last gateway and
the next plan, this node's Envoy has calls that it cannot deliver there. It sends them to the plan's pods that need no
gateway, of any tier, and if there are none to other islands, in order of the policy's tiers.

A change of an Envoy cluster ends its connects in progress. So its parts and their order do not depend on which of them
answer: islands are in the policy's order, not the plan's, and the part for pods exists even while it is empty.
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
"""Prefix of the units of ``xds`` that belong to islands."""
AGGREGATE: Final = "envoy.extensions.clusters.aggregate.v3.ClusterConfig"


def unit(island: ClusterName) -> str:
    """Name of the Envoy cluster of an island's gateways, and the unit of its resources."""
    return f"{UNIT}{island}"


def prepared(island: ClusterName) -> str:
    """Name of the Envoy cluster of an island's gateways for HTTP on connections opened in advance."""
    return f"{unit(island)} http"


def tunnelled(island: ClusterName) -> str:
    """Name of the Envoy cluster of an island's gateways for UDP tunnels."""
    return f"{unit(island)} udp"


def calls_cluster(row: IslandListener) -> str:
    """Name of the Envoy cluster of a listener's calls: the island's gateways, then the fallbacks."""
    return f"calls of {row.name}"


def plan_of(reader: Reader, row: IslandListener) -> Plan | None:
    """Return the plan of the listener's port: that of its routes, if any, else the kernel's."""
    for table in (ROUTE_PLANS, PLANS):
        candidates = [plan for plan in reader.by(table, "service", row.service) if plan.key.port == row.port]
        plans = [
            plan for plan in candidates if plan.key.protocol == row.protocol and plan.groups and not plan.redirected_by
        ]
        if plans:
            return min(plans, key=lambda plan: plan.key)
    return None


def in_order(
    reader: Reader, row: IslandListener, islands: Collection[ClusterName], *, own: ClusterName
) -> list[ClusterName]:
    """Return the other islands as fallbacks of a listener's calls: by the policy's tiers, then by name.

    Drained islands are last, called only if there is nothing else. Islands that the policy never calls (weight 0, or in
    no tier) are left out.
    """
    fallbacks = sorted(each for each in islands if each != row.cluster)
    subject = resolve(reader, row.service, which="all")
    policy = policies.of_service(reader, subject) if subject is not None else None
    if policy is not None and policy.tiers:
        clusters = Clusters(own, {each.name: each for each in reader.all(CLUSTERS)})
        tiers = tiers_called(fallbacks, policy.tiers, clusters)
        fallbacks = sorted((each for each in fallbacks if each in tiers), key=tiers.__getitem__)
    drained = Drained(reader.all(DRAINING))
    return sorted(fallbacks, key=lambda island: not drained.percent_left_of(island, row.import_of))


def resources(
    row: IslandListener,
    plan: Plan | None,
    exporters: Collection[ClusterName],
    islands: Collection[ClusterName],
    fallbacks: Iterable[ClusterName],
    *,
    preconnect: bool = False,
) -> Iterator[Resource]:
    """Yield the Envoy cluster of a listener's calls, and that of the pods that are called as a fallback.

    ``exporters``: clusters that export the service; ``islands``: those called through gateways; ``fallbacks``: other
    islands in order of preference. ``preconnect``: HTTP calls use connections opened in advance.
    """
    groups = plan.groups if plan is not None else ()
    gateways = tunnelled if row.protocol == "UDP" else prepared if row.http and preconnect else unit
    owner, parts = f"ServiceImport {row.import_of}", [gateways(row.cluster)]
    if set(exporters) - set(islands):
        pods_cluster = f"pods beside {row.name}"
        pods = localities(having(groups, lambda target: target.cluster not in islands and not target.proxy))
        probed: dict[str, Any] = {"upstream_connection_options": KEPT_ALIVE} if row.protocol == "TCP" else {}
        yield eds_cluster(
            pods_cluster, owner, row.name, connect_timeout=CONNECT_TIMEOUT, locality_weights=True, **probed
        )
        yield eds_localities(pods_cluster, owner, row.name, pods)
        if row.protocol == "UDP":
            yield from udp.local_tunnels(row, pods_cluster, any_pod=bool(pods))
        parts.append(udp.tunnels_to(pods_cluster) if row.protocol == "UDP" else pods_cluster)
    aggregate = packed(AGGREGATE, clusters=[*parts, *map(gateways, fallbacks)])
    more = http.calling_options(preconnect=preconnect) if row.http else {}
    yield resource(
        "cluster",
        calls_cluster(row),
        owner,
        row.name,
        cluster_type={"name": "envoy.clusters.aggregate", "typed_config": aggregate},
        connect_timeout=duration(CONNECT_TIMEOUT),
        lb_policy="CLUSTER_PROVIDED",
        circuit_breakers=bounded(),
        **more,
    )
