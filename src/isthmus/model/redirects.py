"""Rows of redirects, which override a service's backends while they exist, and their effect on this node.

An override is a row of its own, so it may arrive before or after its service, and never changes the service: when the
row is deleted, recomputing restores the original.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from isthmus.model.balancing import Consumer, Group, Target
from isthmus.model.names import ServiceName
from isthmus.model.services import Family, Labels, Port, Protocol

Operator = Literal["In", "NotIn", "Exists", "DoesNotExist"]


class Requirement(Struct, frozen=True, gc=False, order=True):
    """Requirement of a label selector on one label."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def met_by(self, labels: Labels) -> bool:
        """True if labels meet the requirement."""
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
    """Input row: redirects calls of a service, or of an address without a service, to pods of the caller's node.

    It has either ``service`` or ``address``. Without ``ports`` it applies to every port of the service.
    """

    name: ServiceName
    service: ServiceName = ServiceName("")
    address: str = ""
    ports: tuple[Port, ...] = ()
    selector: tuple[Requirement, ...] = ()
    """Requirements for the pods, all of which must hold. Ready pods of the same namespace that meet them answer."""
    backend_ports: tuple[Port, ...] = ()
    skip_from_backend: bool = False
    """Calls of those pods themselves are not redirected."""
    created: str = ""
    uid: str = ""

    @property
    def subject(self) -> ServiceName:
        """Service whose calls are redirected; for an address, a placeholder whose name no Service can have."""
        return self.service or ServiceName(f"{self.name}:local-redirect")


class Listener(Struct, frozen=True, gc=False):
    """A port of a proxy on this node, and the service ports that it proxies; empty for all without another listener."""

    address: str
    port: int
    ports: tuple[int, ...] = ()


class LeftOut(Struct, frozen=True, gc=False):
    """Ports of a service that get no port of the proxy, and the reason."""

    ports: tuple[int, ...]
    why: str


class ProxyRedirect(Struct, frozen=True, gc=False, kw_only=True):
    """Input row: redirects calls of a service, or of some of its TCP ports, through a proxy of this node."""

    service: ServiceName
    owner: str
    """Object that requests it: 'HTTPRoute demo/route'."""
    listeners: tuple[Listener, ...]
    created: str = ""
    callers: str = ""
    """Namespace of the callers on this node to which it applies; empty for all callers."""
    left_out: tuple[LeftOut, ...] = ()
    """Requested ports without a listener; in rows of ``proxy_listeners`` only."""


class Rule(Struct, frozen=True, gc=False, order=True):
    """Targets for calls of a service's port. ``port`` 0 matches every port, ``port_name`` ``None`` every name."""

    port: int
    protocol: Protocol
    targets: tuple[Target, ...]
    port_name: str | None = None


class RedirectedPort(Struct, frozen=True, gc=False, order=True):
    """Key of calls that are redirected alike: a port of a service in one address family."""

    service: ServiceName
    port: int
    protocol: Protocol
    family: Family
    original: bool = False
    """``True`` for calls that local redirects exclude: from their own pods, or to addresses that were not allocated."""


class PortRedirect(Struct, frozen=True, gc=False, kw_only=True):
    """Derived row: targets that replace the service's backends for a port, by the redirect of highest precedence."""

    key: RedirectedPort
    owner: str
    kind: Literal["local", "proxy", "route"]
    targets: tuple[Target, ...]
    """Targets of all callers; empty if only calls of consumers are redirected, and of a route."""
    skip: tuple[str, ...] = ()
    """Addresses of the pods whose own calls are not redirected."""
    consumers: tuple[Consumer, ...] = ()
    """Sorted by namespace, each with one target."""
    groups: tuple[Group, ...] = ()
    """Groups of a TCPRoute or UDPRoute, as in :class:`.l4_routes.RoutedPort`."""


class Redirect(Struct, frozen=True, gc=False, kw_only=True):
    """Derived row: one owner's override of one service on this node. An override without a target has no row."""

    service: ServiceName
    owner: str
    kind: Literal["local", "proxy"]
    rules: tuple[Rule, ...]
    address: str = ""
    """The redirected address, if the policy names one; ``service`` is then the policy's placeholder."""
    skip: tuple[str, ...] = ()
    """Addresses of the pods whose own calls are not redirected."""
    created: str = ""
    callers: str = ""
    """Namespace of the callers to which it applies; empty for all callers."""
