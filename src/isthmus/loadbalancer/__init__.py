"""From what sources say to what is called, what answers, and what a call is spread over.

What belongs here: pure functions from input rows to frontends, backends and plans, and what decides between sources.
What never does: I/O, time, the kernel, anything that remembers what was. The order in which rows came never matters,
because nothing here knows it: what backends.py keeps of its last turn saves it work and changes no result.

    services.py   what a service is, over all rows that speak of it; precedence between sources
    frontends.py  claims on addresses, and who wins one
    redirects.py  what overrides a service on this node, and whose word counts
    backends.py   endpoints of all clusters and sources joined
    selection.py  the rules of selection, one function each
    plans.py      ``plan``, the one place that chooses
    explain.py    the same, with its reasons
"""

from __future__ import annotations

from typing import Any

from isthmus.loadbalancer import backends, frontends, plans, redirects
from isthmus.loadbalancer.selection import Place, Reasons
from isthmus.loadbalancer.services import Effective, Which
from isthmus.model.names import ClusterName
from isthmus.statedb import Derived

__all__ = ["Effective", "Place", "Reasons", "derived"]


def derived(cluster: ClusterName, node: str, *, services: Which = "multicluster") -> list[Derived[Any]]:
    """Redirects, frontends, backends and plans as a node of a cluster sees them.

    ``services``: only what crosses clusters (imports, global Services) or is redirected, or what kube-proxy would do as
    well.
    """
    return [
        redirects.derived(cluster, node),
        frontends.derived(node, which=services),
        backends.derived(cluster, which=services),
        plans.derived(cluster, node, which=services),
    ]
