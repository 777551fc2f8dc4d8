"""Rows of islands: clusters whose pods are reached through gateways, by an Envoy of the calling node."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Port, Protocol

THROUGH_GATEWAYS: Final[tuple[Protocol, ...]] = ("TCP", "UDP")
"""Protocols that gateways pass on."""


class IslandPod(Struct, frozen=True, gc=False, kw_only=True):
    """Derived row: a pod of an island behind a headless import, and the addresses that stand for it on this node.

    Calls of these go to it alone: it is a service of its own, with one backend.
    """

    name: ServiceName
    """Of that service: that of the import's derived one, the island, and its hostname or ``pod``, with dots between, as
    no Service can be called."""
    import_of: ServiceName
    cluster: ClusterName
    pod: str
    """What it is called in SNIs (``names.pod_id``)."""
    addresses: tuple[str, ...]
    """One of each family that Envoy listens in; none is the pod's."""
    ports: tuple[Port, ...]
    """The pod's own, of TCP and UDP."""
    hostname: str = ""
    node: str = ""
    source: str = ""


class IslandListener(Struct, frozen=True, gc=False, kw_only=True):
    """Derived row: where this node's Envoy takes calls of one port of a service for one island."""

    service: ServiceName
    cluster: ClusterName
    """The island."""
    port: int
    """The service's port, which the island exports."""
    protocol: Protocol = "TCP"
    """TCP or UDP."""
    addresses: tuple[str, ...]
    listen_port: int
    import_of: ServiceName = ServiceName("")
    pod: str = ""
    """Where it is a pod of a headless import that is called: what SNIs call it."""
    http: bool = False
    """Whether it speaks HTTP, as far as is declared: requests are then sent again where a gateway is lost."""

    @property
    def name(self) -> str:
        """Of the resource of Envoy."""
        return f"island {self.cluster} {self.service}:{self.called}"

    @property
    def called(self) -> str:
        """The port, with the protocol where that is not TCP."""
        return f"{self.port}" if self.protocol == "TCP" else f"{self.port}/{self.protocol}"


class TrustBundle(Struct, frozen=True, gc=False):
    """Input row: Envoy's file with the authorities of these clusters, and of no other, is there."""

    clusters: tuple[ClusterName, ...]
    """Sorted."""


class GatewayCheck(Struct, frozen=True, gc=False, kw_only=True):
    """Input row: what this node's Envoy found of a gateway of an island."""

    cluster: ClusterName
    address: str
    """host:port, as the island publishes it."""
    healthy: bool
    reason: str = ""
    """Why not, in Envoy's words."""
    since: float = 0.0
    """When the verdict came to be this one, Unix time, s."""
    round_trip: float = 0.0
    """As it was measured, s, rounded up to a power of two of 1/16; 0: none was."""
