"""Input rows: the clusters of the clusterset."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from isthmus.model.drains import Drain
from isthmus.model.names import ClusterName
from isthmus.model.services import Labels

PeerState = Literal["connecting", "listing", "ready", "silent", "stale", "refused", "distrusted"]
"""silent: its etcd answers, but no publisher keeps its records up to date. stale: it was ready and cannot be reached.
Its last known records still count in both. refused, distrusted: none of them does."""


class Cluster(Struct, frozen=True, gc=False, kw_only=True):
    """A cluster of the clusterset: its configuration, its own record, and the state of its connection."""

    name: ClusterName
    id: int = 0
    """1 to 255 (or 511); 0 while it is not known."""
    own: bool = False
    state: PeerState = "connecting"
    since: str = ""
    """When it came into this state, RFC 3339."""
    reason: str = ""
    """Why it is refused or stale, as a sentence."""
    endpoints: tuple[str, ...] = ()
    """Addresses of its etcd."""
    synced: tuple[str, ...] = ()
    """Kinds of record whose first list is whole: 'services', 'serviceexports'."""
    exports_enabled: bool | None = None
    cached: bool = False
    own_ranges: tuple[str, ...] = ()
    """Of the own cluster: configured ranges of its pods, Services and nodes, as CIDRs."""
    network: str = ""
    """Clusters of one network reach each other's pods; empty: the network everybody is on."""
    region: str = ""
    zone: str = ""
    labels: Labels = ()
    """What its configuration calls it by beside that; policies select clusters by them."""
    gateways: tuple[str, ...] = ()
    """Where calls from clusters of other networks come in: host:port."""
    drains: tuple[Drain, ...] = ()
    """Of a peer: what it publishes as drained, itself or parts of it."""
    version: str = ""
    """Of its Isthmus; empty for a cluster that has none."""
    connected: bool = False
    """Its etcd answers."""
    failures: int = 0
    last_failure: str = ""
    """When it was last not to be reached, RFC 3339; ``last_failure_reason`` is the reason."""
    last_failure_reason: str = ""
    file_problem: str = ""
    """Why its file cannot be used as it is now; what was read of it before counts meanwhile."""
    certificate_ends: str = ""
    """When the first of the certificates by which it is reached ends, RFC 3339; empty: there are none."""
    dropped: int = 0
    """Records of this peer that were refused: bad JSON, another's name, too large, not for it to publish."""
    dropped_example: str = ""
    """One of them, with the reason."""


UNATTENDED: Final = frozenset({"silent", "stale"})
"""States in which a cluster's records still count and are not known to be as it is."""


class PeerPolicy(Struct, frozen=True, gc=False, kw_only=True):
    """What the own cluster's administrators decided about a peer: an object of the API server."""

    cluster: ClusterName
    distrusted: bool = False
    """None of its records counts, until this is undone."""


class OwnRanges(Struct, frozen=True, gc=False):
    """Addresses that are the own cluster's: of its pods, Services and nodes, as far as known."""

    ranges: tuple[str, ...] = ()
    """As CIDRs."""
    addresses: frozenset[str] = frozenset()
    """Of its nodes."""


Reachability = Literal["direct", "gateway", "none"]


def reachability(own: Cluster | None, peer: Cluster | None) -> Reachability:
    """How a pod of the own cluster can reach one of a peer.

    direct: both are on one network, so pods have addresses that mean the same in both. gateway: on another network,
    through a gateway of the peer. none: on another network that has no gateway. A cluster that is not known yet is
    taken to be on the flat network.
    """
    network, has_gateway = _network(peer)
    return "direct" if network == _network(own)[0] else "gateway" if has_gateway else "none"


def reachability_changed(old: Cluster | None, new: Cluster | None) -> bool:
    """Whether a change of a cluster's row may change how it is reached, or how it reaches others."""
    return _network(old) != _network(new)


def _network(cluster: Cluster | None) -> tuple[str, bool]:
    """A cluster's network, empty for the flat one, and whether it has a gateway."""
    return (cluster.network, bool(cluster.gateways)) if cluster is not None else ("", False)
