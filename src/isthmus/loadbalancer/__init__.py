"""From input rows to what is called, what answers, and what a call is spread over.

What belongs here: pure functions from input rows to frontends, backends and plans, and what decides between sources.
What never does: I/O, time, the kernel, anything that remembers what was. The order in which rows came never matters,
because nothing here depends on it: what backends.py caches saves work and changes no result.

    services.py   what a service is, over the rows of all sources
    claims.py     who may claim an address
    refusals.py   the claims that do not count, as rows
    exposure.py   where a Service is called
    frontends.py  the claims that count, and which one wins
    redirects.py  what overrides a service on this node
    port_redirects.py  which of several redirects counts, for each port
    own_ranges.py the own cluster's addresses
    backends.py   endpoints of all clusters and sources joined
    islands.py    what stands for the endpoints of islands
    selection.py  the rules of selection, one function each
    tiers.py      tiers and weights of a policy, flattened to groups
    shares.py     the parts of the calls that a plan comes to
    policies.py   which policy counts
    policy_objects.py  what came of each policy, as the status of its object
    drains.py     which drains count, how far one has come, and which backends it means
    drain_objects.py  what came of each drain, as the status of its object
    plans.py      ``plan``, the one place that chooses
    checks.py     which backends are to be probed, and how
    affected.py   which services a changed row affects
    members.py    a change of a large service's endpoints, passed on as it came
    units.py      frontends, backends and plans of a service as one unit
    explain.py    the same, with its reasons
"""

from __future__ import annotations

from typing import Final

from isthmus.loadbalancer import checks, own_ranges, port_redirects, redirects, refusals, units
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
    """Redirects, frontends, backends, plans, refused claims and checks as a node of a cluster sees them.

    ``services``: 'multicluster' answers only what crosses clusters (imports, global Services) or is redirected; 'all'
    answers what kube-proxy would, too. ``rules``: which addresses may be claimed beyond those that the API server
    allocated. ``large``: backends above which a change of a service's endpoints is followed (``members.py``).
    """
    return [
        refusals.derived(node, which=services, rules=rules),
        redirects.derived(cluster, node, rules=rules),
        port_redirects.derived(),
        own_ranges.derived(cluster),
        units.derived(cluster, node, which=services, rules=rules, large=large),
        checks.derived(cluster, which=services),
    ]
