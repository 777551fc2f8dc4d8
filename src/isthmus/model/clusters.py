"""Input rows: the clusters of the clusterset."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, Literal

from msgspec import Struct

from isthmus import bounds
from isthmus.model.drains import Drain
from isthmus.model.names import ClusterName
from isthmus.model.services import Labels

PeerState = Literal["connecting", "listing", "ready", "silent", "stale", "refused", "distrusted"]
"""``silent``: its etcd answers, but no publisher maintains its records. ``stale``: it was ready and cannot be reached.
In both states its last known records are used. ``refused``, ``distrusted``: none of its records is used."""


class Cluster(Struct, frozen=True, gc=False, kw_only=True):
    """A cluster of the clusterset: its configuration, its own record, and the state of its connection."""

    name: ClusterName
    id: int = 0
    """1 to 255 (or 511), 0 while it is unknown."""
    own: bool = False
    state: PeerState = "connecting"
    since: str = ""
    """Time of the last change of state, RFC 3339."""
    reason: str = ""
    """Reason of the state in one sentence."""
    endpoints: tuple[str, ...] = ()
    """Addresses of its etcd."""
    synced: tuple[str, ...] = ()
    """Kinds of record with a complete first list: 'services', 'serviceexports'."""
    exports_enabled: bool | None = None
    cached: bool = False
    own_ranges: tuple[str, ...] = ()
    """Configured ranges of the own cluster's pods, Services and nodes, as CIDRs; empty in rows of peers."""
    service_ranges: tuple[str, ...] = ()
    """Ranges of Services among ``own_ranges``."""
    node_ranges: tuple[str, ...] = ()
    """Ranges of nodes among ``own_ranges``."""
    network: str = ""
    """Network of its pods. Clusters of one network reach each other's pods; the default network is empty."""
    region: str = ""
    zone: str = ""
    labels: Labels = ()
    """Further properties from its configuration, by which policies select clusters."""
    gateways: tuple[str, ...] = ()
    """Addresses of its gateways, ``host:port``, for calls from other networks."""
    drains: tuple[Drain, ...] = ()
    """Drains that a peer publishes, of itself or of parts of it."""
    signing_key: str = ""
    """X25519 public key of a peer in base64, by which signatures of callers are made; empty if it publishes none."""
    verifies: bool = False
    """``True`` if its nodes verify signatures of callers."""
    version: str = ""
    """Version of its Isthmus, empty if it runs another implementation."""
    connected: bool = False
    """``True`` while its etcd answers."""
    failures: int = 0
    last_failure: str = ""
    """Time of the last failure to reach it, RFC 3339."""
    last_failure_reason: str = ""
    file_problem: str = ""
    """Reason why its file cannot be used now. The last usable content is in effect meanwhile."""
    failing: str = ""
    """Reasons why parts of this process that follow it fail, and are restarted; empty while all of them work."""
    certificate_ends: str = ""
    """Earliest end of the certificates by which it is reached, RFC 3339; empty without certificates."""
    dropped: int = 0
    """Number of refused records: bad JSON, another cluster's name, too large, or not the peer's to publish."""
    dropped_example: str = ""
    """Key of one of them, with the reason."""


CERTIFICATE_URGENT: Final = timedelta(days=2)
"""Time before the end of a certificate from which it is a problem: warnings may go unread, and a weekend may pass."""


def is_ending(certificate_ends: str, now: datetime) -> bool:
    """True if the certificates by which a cluster is reached end within days, or have ended; empty never ends."""
    return bool(certificate_ends) and bounds.timestamp(certificate_ends) - now <= CERTIFICATE_URGENT


UNATTENDED: Final = frozenset({"silent", "stale"})
"""States in which a cluster's records are used although they may be out of date."""


class PeerPolicy(Struct, frozen=True, gc=False, kw_only=True):
    """A decision of the own cluster's administrators about a peer, from an object of the API server."""

    cluster: ClusterName
    distrusted: bool = False
    """``True`` if none of its records may be used."""


class OwnRanges(Struct, frozen=True, gc=False):
    """Known addresses of the own cluster's pods, Services, nodes and API servers."""

    ranges: tuple[str, ...] = ()
    """Ranges of pods, Services and nodes, as CIDRs."""
    addresses: frozenset[str] = frozenset()
    """Addresses of its nodes and API servers."""
    services: tuple[str, ...] = ()
    """Ranges of Services among ``ranges``."""
    nodes: tuple[str, ...] = ()
    """Ranges of nodes among ``ranges``. Other machines may have addresses in them as well."""
    api_servers: frozenset[str] = frozenset()
    """Endpoints of the Service ``default/kubernetes``, as address:port."""


Reachability = Literal["direct", "gateway", "none"]


def reachability(own: Cluster | None, peer: Cluster | None) -> Reachability:
    """Return the way from a pod of the own cluster to a pod of a peer.

    ``direct``: both are on one network, so a pod's address is valid in both. ``gateway``: the peer is on another
    network and has gateways. ``none``: it is on another network and has none. An unknown cluster is taken to be on the
    flat network.
    """
    network, has_gateway = _network(peer)
    return "direct" if network == _network(own)[0] else "gateway" if has_gateway else "none"


def reachability_changed(old: Cluster | None, new: Cluster | None) -> bool:
    """True if a change of a cluster's row may change how it is reached, or how it reaches others."""
    return _network(old) != _network(new)


def _network(cluster: Cluster | None) -> tuple[str, bool]:
    """Return a cluster's network, empty for the flat one, and ``True`` if it has a gateway."""
    return (cluster.network, bool(cluster.gateways)) if cluster is not None else ("", False)
