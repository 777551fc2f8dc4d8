"""Input rows: TCPRoutes and UDPRoutes (Gateway API) for Services and ServiceImports.

The kernel follows them: the calls of a port are spread over the backends of the route's only rule. A problem of an
object is a field of its row, or of the reference concerned, which then has no other effect.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from msgspec import Struct

from isthmus.model.balancing import Group
from isthmus.model.names import ServiceName
from isthmus.model.redirects import RedirectedPort
from isthmus.model.routes import BackendRef, ParentRef
from isthmus.model.services import Protocol

L4Kind = Literal["TCPRoute", "UDPRoute"]
L4RouteKey = tuple[L4Kind, ServiceName]
L4_KINDS: Final[tuple[L4Kind, ...]] = get_args(L4Kind)


class L4Route(Struct, frozen=True, gc=False, kw_only=True):
    """A route of connections or datagrams, with those of its parents that Isthmus serves."""

    kind: L4Kind
    name: ServiceName
    parents: tuple[ParentRef, ...] = ()
    backends: tuple[BackendRef, ...] = ()
    invalid: str = ""
    """Reason why no parent accepts the object, empty if it is usable."""
    unread: tuple[str, ...] = ()
    """Fields of a usable route that nothing follows, as paths; the first ones if they are many."""
    created: str = ""
    uid: str = ""
    generation: int = 0

    @property
    def key(self) -> L4RouteKey:
        """Key of the row."""
        return self.kind, self.name

    @property
    def owner(self) -> str:
        """Kind and name of the object, for people."""
        return f"{self.kind} {self.name}"

    @property
    def namespace(self) -> str:
        """Namespace of the object."""
        return self.name.partition("/")[0]

    @property
    def protocol(self) -> Protocol:
        """Protocol of the ports that it is for."""
        return "TCP" if self.kind == "TCPRoute" else "UDP"

    def own_parents(self) -> frozenset[ServiceName]:
        """Return the parents in the route's namespace. On others it has no effect."""
        return frozenset(each.service for each in self.parents if each.service.partition("/")[0] == self.namespace)

    def targets(self) -> frozenset[ServiceName]:
        """Return the Services that are backends."""
        return frozenset(each.to.service for each in self.backends)


class RoutedPort(Struct, frozen=True, gc=False):
    """Derived row: the groups by which a route replaces the service's own backends for a port, in one family.

    A group of tier 0 without a target is the part of a backend that has no endpoint.
    """

    key: RedirectedPort
    owner: str
    """Kind and name of the route."""
    groups: tuple[Group, ...]
