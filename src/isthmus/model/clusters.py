"""Input rows: the clusters of the clusterset."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from isthmus.model.names import ClusterName


class Cluster(Struct, frozen=True, gc=False, kw_only=True):
    """A cluster of the clusterset: what is configured about it, what it says of itself, how its connection does."""

    name: ClusterName
    id: int = 0
    """1 to 255 (or 511); 0 where the cluster has not said yet."""
    own: bool = False
    state: Literal["connecting", "listing", "ready", "stale", "refused", "leaving"] = "connecting"
    """stale: it was ready and cannot be reached; what it last said still counts."""
    since: str = ""
    """When it came into this state, RFC 3339."""
    reason: str = ""
    """Why it is refused or stale, as a sentence for people."""
    endpoints: tuple[str, ...] = ()
    """Addresses of its etcd."""
    synced: tuple[str, ...] = ()
    """Kinds of record whose first list is whole: 'services', 'serviceexports'."""
    exports_enabled: bool | None = None
    cached: bool = False
    network: str = ""
    """Clusters of one network reach each other's pods; empty: the network everybody is on."""
    region: str = ""
    zone: str = ""
    gateways: tuple[str, ...] = ()
    """Where calls from clusters of other networks come in: host:port."""
    version: str = ""
    """Of its Isthmus; empty for a cluster that has none."""
    connected: bool = False
    """Its etcd answers, whatever it says."""
    failures: int = 0
    last_failure: str = ""
    """When it was last not to be reached, RFC 3339; ``last_failure_reason`` says why."""
    last_failure_reason: str = ""
    dropped: int = 0
    """Records of this peer that were refused: bad JSON, another's name, too large, not for it to publish."""
    dropped_example: str = ""
    """One of them, with the reason."""


def flat(one: Cluster | None, other: Cluster | None) -> bool:
    """Whether the pods of two clusters reach each other. One not known yet says nothing of a network of its own."""
    return (one.network if one is not None else "") == (other.network if other is not None else "")
