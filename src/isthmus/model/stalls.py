"""Rows of stalled connections: those that send data which the other end does not acknowledge."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from isthmus.model.names import ClusterName, ServiceName


class Stall(Struct, frozen=True, kw_only=True):
    """Stalled connections of one node's pods with the backends of a service in one cluster."""

    service: ServiceName
    """The import, or the Service where there is none; empty for connections to a cluster's gateways."""
    cluster: ClusterName
    """Cluster of the backends or gateways."""
    sends: Literal["calls", "answers"]
    """``calls`` if the pods call the backends, ``answers`` if they are the backends."""
    by_size: bool
    """True if only large segments are lost: smaller ones were acknowledged on the same connections."""
    connections: int
    since: float
    """Time of the longest stall's last acknowledgment, Unix seconds."""
    segment: int
    """Bytes of data in the largest unacknowledged segment, without headers."""
    path_mtu: int
    """Bytes of the largest packet that the kernel assumes to pass."""
    peers: tuple[str, ...] = ()
    """Addresses and ports of some of the other ends."""
