"""Computes frontends, backends and plans from input rows.

What belongs here: pure functions from input rows to frontends, backends and plans, and the rules of precedence between
sources. What never does: I/O, time, the kernel, memory of earlier states. Results do not depend on the order in which
rows arrive; the caches of backends.py save work and change no result.

    services.py   resolution of a service over the rows of all sources
    claims.py     rules for claims of addresses
    refusals.py   refused claims as rows
    exposure.py   addresses and ports of a Service
    frontends.py  valid claims, and precedence between them
    redirects.py  overrides of a service on this node
    port_redirects.py  precedence between redirects, for each port
    l4_routes.py  TCPRoutes and UDPRoutes: the ports that they have, and the groups of their backends
    references.py references of routes to their backends
    l4_route_objects.py  status of each TCPRoute and UDPRoute
    route_conditions.py  conditions that routes of all kinds have
    own_ranges.py addresses of the own cluster
    backends.py   endpoints of all clusters and sources joined
    islands.py    backends that represent the endpoints of islands
    gateways.py   gateways of peers that are not dialed
    envoy.py      availability of this node's Envoy
    selection.py  the rules of selection, one function each
    tiers.py      tiers and weights of a policy, flattened to groups
    shares.py     each cluster's and tier's share of a plan's calls
    policies.py   precedence between policies
    effects.py    fields of a policy that have no effect
    policy_objects.py  status of each TrafficPolicy
    ignored_pods.py  pods of the node whose calls are not translated
    drains.py     drains in force, their progress, and the backends that they match
    drain_objects.py  status of each Drain
    plans.py      ``plan``, the one place that chooses
    checks.py     health checks of backends
    affected.py   services that a changed row affects
    members.py    incremental updates of large services
    units.py      frontends, backends and plans of a service as one unit
    explain.py    the same decisions with their reasons
"""

from __future__ import annotations

from typing import Final

from isthmus.loadbalancer import checks, gateways, l4_routes, own_ranges, port_redirects, redirects, refusals, units
from isthmus.loadbalancer.claims import ClaimRules
from isthmus.loadbalancer.members import LARGE
from isthmus.loadbalancer.selection import Place, Reasons
from isthmus.loadbalancer.services import ResolvedService, Which
from isthmus.model.names import ClusterName
from isthmus.statedb import Derivation

__all__ = ["ClaimRules", "Place", "Reasons", "ResolvedService", "derived"]

NO_EXCEPTIONS: Final = ClaimRules()


def derived(
    cluster: ClusterName,
    node: str,
    *,
    services: Which = "multicluster",
    rules: ClaimRules = NO_EXCEPTIONS,
    large: int = LARGE,
) -> list[Derivation]:
    """Declare redirects, frontends, backends, plans, refused claims and checks for a node of a cluster.

    ``services``: 'multicluster' answers only services that cross clusters (imports, global Services) or are redirected;
    'all' also answers every Service that kube-proxy would. ``rules``: addresses that may be claimed beyond those that
    the API server allocated. ``large``: number of backends above which updates are incremental (``members.py``).
    """
    return [
        refusals.derived(node, which=services, rules=rules),
        redirects.derived(cluster, node, rules=rules),
        l4_routes.derived(cluster, node),
        port_redirects.derived(),
        own_ranges.derived(cluster),
        gateways.derived(),
        units.derived(cluster, node, which=services, rules=rules, large=large),
        checks.derived(cluster, which=services),
    ]
