"""Rows of overrides: what sends a service's calls elsewhere while it is there, and what that comes to on this node.

An override is a row of its own beside the service it is about, so either may come first, and the service is never
touched: when the row goes, what is computed without it is the original.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from isthmus.model.balancing import Target
from isthmus.model.names import ServiceName
from isthmus.model.services import Family, Labels, Port, Protocol


class Requirement(Struct, frozen=True, gc=False, order=True):
    """What a selector asks of one label."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = ()

    def met_by(self, labels: Labels) -> bool:
        """Whether labels are as it wants them."""
        value = dict(labels).get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None


class LocalRedirect(Struct, frozen=True, gc=False, kw_only=True):
    """Input row: calls of a service, or of an address that is no service's, go to pods of the caller's own node.

    It has either ``service`` or ``address``. Without ``ports`` every port of the service is meant.
    """

    name: ServiceName
    service: ServiceName = ServiceName("")
    address: str = ""
    ports: tuple[Port, ...] = ()
    selector: tuple[Requirement, ...] = ()
    """All of them; a pod of the same namespace that meets them answers as soon as it is ready."""
    backend_ports: tuple[Port, ...] = ()
    skip_from_backend: bool = False
    """Calls of those pods themselves go where they went without the redirect."""
    created: str = ""
    uid: str = ""

    @property
    def subject(self) -> ServiceName:
        """The service whose calls are redirected; for an address one that stands for it, which no Service is called."""
        return self.service or ServiceName(f"{self.name}:local-redirect")


class Listener(Struct, frozen=True, gc=False):
    """A port of a proxy on this node, and the ports of a service that go through it; none: all that no other has."""

    address: str
    port: int
    ports: tuple[int, ...] = ()


class ProxyRedirect(Struct, frozen=True, gc=False, kw_only=True):
    """Input row: calls of a service go through a proxy of this node, all of them or those to some ports. TCP only."""

    service: ServiceName
    owner: str
    """The object that asks for it: 'HTTPRoute demo/route'."""
    listeners: tuple[Listener, ...]
    created: str = ""


class Rule(Struct, frozen=True, gc=False, order=True):
    """Calls of a service's port go to these targets. ``port`` 0 means every port, ``port_name`` None every name."""

    port: int
    protocol: Protocol
    targets: tuple[Target, ...]
    port_name: str | None = None


class RedirectedPort(Struct, frozen=True, gc=False, order=True):
    """Calls that have one answer to where they are redirected: of a port of a service, in one address family."""

    service: ServiceName
    port: int
    protocol: Protocol
    family: Family
    original: bool = False
    """Calls that no local redirect means: from its own pods, or of addresses that were not allocated."""


class PortRedirect(Struct, frozen=True, gc=False, kw_only=True):
    """Derived row: where calls of a port go instead of the service's backends, by the redirect that comes first."""

    key: RedirectedPort
    owner: str
    kind: Literal["local", "proxy"]
    targets: tuple[Target, ...]
    skip: tuple[str, ...] = ()
    """Addresses of the pods whose own calls are not redirected."""


class Redirect(Struct, frozen=True, gc=False, kw_only=True):
    """Derived row: one owner's override of one service, as it is on this node now. What has no target is not there."""

    service: ServiceName
    owner: str
    kind: Literal["local", "proxy"]
    rules: tuple[Rule, ...]
    address: str = ""
    """The address that is called, where the override is of an address; the service then stands for the policy."""
    skip: tuple[str, ...] = ()
    """Addresses of the pods whose own calls are not redirected."""
    created: str = ""
