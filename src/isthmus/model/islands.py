"""Rows of islands: clusters whose pods are reached through gateways, by an Envoy of the calling node."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Port, Protocol

THROUGH_GATEWAYS: Final[tuple[Protocol, ...]] = ("TCP", "UDP")
"""Protocols that gateways forward."""


class IslandPod(Struct, frozen=True, gc=False, kw_only=True):
    """Derived row: a pod of an island behind a headless import, and the addresses that represent it on this node.

    Calls of these addresses reach only this pod: it is a service of its own, with one backend.
    """

    name: ServiceName
    """Name of that service: the import's derived Service, the island, and the hostname or ``pod``, separated by dots,
    which no Service's name contains."""
    import_of: ServiceName
    cluster: ClusterName
    pod: str
    """Identifier of the pod in SNIs (``names.pod_id``)."""
    addresses: tuple[str, ...]
    """One address for each family that Envoy listens in; none is the pod's own."""
    ports: tuple[Port, ...]
    """The pod's own TCP and UDP ports."""
    hostname: str = ""
    node: str = ""
    source: str = ""


class IslandListener(Struct, frozen=True, gc=False, kw_only=True):
    """Derived row: a listener of this node's Envoy for one port of a service in one island."""

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
    """Identifier in SNIs if a pod of a headless import is called; empty for a service."""
    http: bool = False
    """``True`` if the port is declared as HTTP. Safe requests are then retried if a gateway is lost."""

    @property
    def name(self) -> str:
        """Name of the Envoy resource."""
        return f"island {self.cluster} {self.service}:{self.called}"

    @property
    def called(self) -> str:
        """The port, with the protocol if it is not TCP."""
        return f"{self.port}" if self.protocol == "TCP" else f"{self.port}/{self.protocol}"


class TrustBundle(Struct, frozen=True, gc=False):
    """Input row: Envoy's file with the authorities of exactly these clusters exists."""

    clusters: tuple[ClusterName, ...]
    """Sorted."""


class RefusedGateway(Struct, frozen=True, gc=False, kw_only=True):
    """Derived row: a gateway of a peer that nothing here dials."""

    cluster: ClusterName
    address: str
    """host:port, as the peer publishes it."""
    message: str
    """The reason, as a sentence."""
    all_refused: bool = False
    """True if every gateway of the peer is refused."""


class GatewayCheck(Struct, frozen=True, gc=False, kw_only=True):
    """Input row: the result of this node's health checks of a gateway."""

    cluster: ClusterName
    address: str
    """host:port, as the island publishes it."""
    healthy: bool
    reason: str = ""
    """Envoy's reason if it is not healthy."""
    since: float = 0.0
    """Time of the current verdict's first check, Unix seconds."""
    round_trip: float = 0.0
    """Measured seconds, rounded up to a power of two of 1/16 s. 0 if it was not measured."""
