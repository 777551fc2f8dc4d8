"""Input rows: routes of the Gateway API (HTTPRoute and GRPCRoute) for Services and ServiceImports, and their grants.

Both kinds are one row: a GRPCRoute's methods are paths, ``/service/method``. What is wrong with an object is a field of
its row, or of the rule or reference that it is about; such a part has no other effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, get_args

from msgspec import Struct

from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.services import Port

RouteKind = Literal["HTTPRoute", "GRPCRoute"]
ParentKind = Literal["Service", "ServiceImport"]
RefKind = Literal["Service", "ServiceImport", "Cluster"]
PathType = Literal["Exact", "PathPrefix", "RegularExpression"]

ROUTE_KINDS: Final[tuple[RouteKind, ...]] = get_args(RouteKind)
RULE: Final = ", rule "
"""Between a route and a number, where people name a rule of it."""
MAX_REFUSALS: Final = 64
"""Pairs of route and parent in a node's report of what its Envoy refused."""
MAX_REFUSAL: Final = 512
"""Characters that a report has of each: names, and what the Envoy wrote."""


class ValueMatch(Struct, frozen=True, gc=False, order=True):
    """A header or a query parameter that has a value, or one that matches an expression."""

    name: str
    value: str
    regex: bool = False


class Match(Struct, frozen=True, gc=False):
    """What a request has to be like; all of it."""

    path: str = "/"
    path_type: PathType = "PathPrefix"
    method: str = ""
    headers: tuple[ValueMatch, ...] = ()
    query: tuple[ValueMatch, ...] = ()


class ServiceRef(Struct, frozen=True, gc=False, order=True):
    """A port of a Service or a ServiceImport; or of kind Cluster, those backends of the parent that a cluster has."""

    kind: RefKind
    name: ServiceName
    """Of kind Cluster the cluster's."""
    port: int = 0
    """0: any port of a parent; a backend names one, but for a Cluster, which means the port that is called."""

    @property
    def service(self) -> ServiceName:
        """The Service whose plans it means: for an import the one derived of it, for a cluster none of its own."""
        if self.kind == "Cluster":
            return ServiceName("")
        return self.name if self.kind == "Service" else derived(self.name)


class ParentRef(ServiceRef, frozen=True, gc=False, order=True):
    """A parent of a route, or one port of it."""

    section: str = ""
    """The name of the port (``sectionName``); empty: whatever its name."""
    namespace: str = ""
    """As the reference has it; empty: it has none, and means the route's own."""

    def includes(self, port: Port) -> bool:
        """Whether it means a port of its Service: by number, by name, or by both; only TCP has routes."""
        return port.protocol == "TCP" and self.port in (0, port.port) and self.section in ("", port.name)


class HeaderEdit(Struct, frozen=True, gc=False):
    """Changes to the headers of a request or an answer."""

    set: tuple[tuple[str, str], ...] = ()
    add: tuple[tuple[str, str], ...] = ()
    remove: tuple[str, ...] = ()


class PathEdit(Struct, frozen=True, gc=False):
    """A new path, whole or for the prefix that matched."""

    type: Literal["ReplaceFullPath", "ReplacePrefixMatch"]
    value: str


class Redirection(Struct, frozen=True, gc=False):
    """An answer that sends the client elsewhere; what is empty stays as the request has it."""

    scheme: str = ""
    host: str = ""
    port: int = 0
    path: PathEdit | None = None
    status: int = 302


class Rewrite(Struct, frozen=True, gc=False):
    """What the backend is asked for in place of what the client asked for."""

    host: str = ""
    path: PathEdit | None = None


class BackendRef(Struct, frozen=True, gc=False):
    """Where calls go, with a weight among those of its rule."""

    to: ServiceRef
    weight: int = 1
    reason: str = ""
    """Why it cannot be used, as a reason of the condition ResolvedRefs; its part of the calls is answered with 500."""
    message: str = ""
    request: HeaderEdit = HeaderEdit()
    response: HeaderEdit = HeaderEdit()


class Mirror(Struct, frozen=True, gc=False):
    """Where a copy of some requests goes, whose answers are dropped."""

    to: ServiceRef
    numerator: int = 1
    denominator: int = 1


class Retries(Struct, frozen=True, gc=False):
    """Which answers are asked for again, how often at most, and after which pause (seconds)."""

    codes: tuple[int, ...] = ()
    attempts: int = 1
    backoff: float = 0.0


class RouteRule(Struct, frozen=True, gc=False, kw_only=True):
    """What matches any of these goes to these backends."""

    matches: tuple[Match, ...] = (Match(),)
    backends: tuple[BackendRef, ...] = ()
    request: HeaderEdit = HeaderEdit()
    response: HeaderEdit = HeaderEdit()
    redirect: Redirection | None = None
    rewrite: Rewrite | None = None
    mirrors: tuple[Mirror, ...] = ()
    timeout: float = 0.0
    """Seconds for the whole request; 0: no limit."""
    backend_timeout: float = 0.0
    """Seconds for each attempt."""
    retries: Retries | None = None


class Route(Struct, frozen=True, gc=False, kw_only=True):
    """A route of the own cluster's API server, with the parents of it that are ours."""

    kind: RouteKind
    name: ServiceName
    parents: tuple[ParentRef, ...] = ()
    rules: tuple[RouteRule, ...] = ()
    invalid: str = ""
    """Why the object cannot be followed; it is accepted by no parent then."""
    created: str = ""
    uid: str = ""
    generation: int = 0

    @property
    def owner(self) -> str:
        """The object, as people name it."""
        return f"{self.kind} {self.name}"

    @property
    def namespace(self) -> str:
        """Where it is."""
        return self.name.partition("/")[0]

    def targets(self) -> frozenset[ServiceName]:
        """The Services that it refers to as backends or mirrors."""
        return frozenset(each.service for each in self.refs() if each.kind != "Cluster")

    def clusters(self) -> frozenset[ClusterName]:
        """The clusters that it refers to."""
        return frozenset(ClusterName(each.name) for each in self.refs() if each.kind == "Cluster")

    def refs(self) -> Iterator[ServiceRef]:
        """What its rules refer to."""
        for rule in self.rules:
            yield from (each.to for each in rule.backends)
            yield from (each.to for each in rule.mirrors)


class RouteRefusal(Struct, frozen=True, gc=False, order=True):
    """What an Envoy refused of a route for one parent: what the Envoy accepted before stays in force there."""

    kind: RouteKind
    name: ServiceName
    service: ServiceName
    """The Service that the parent means: for an import the one derived of it."""
    message: str


class NodeRefusals(Struct, frozen=True, gc=False, kw_only=True):
    """Routes that a node's Envoy refused. On the node a row that is reported, in the operator one that it reads."""

    name: str
    """Of the node."""
    uid: str = ""
    """Of the Node object, with which the report goes; not read back."""
    routes: tuple[RouteRefusal, ...] = ()


class Grant(Struct, frozen=True, gc=False, kw_only=True):
    """A ReferenceGrant: routes of these kinds and namespaces may refer to targets in its own namespace."""

    name: ServiceName
    sources: frozenset[tuple[str, str]] = frozenset()
    """(kind, namespace)."""
    targets: frozenset[tuple[str, str]] = frozenset()
    """(kind, name); an empty name is every one."""

    def allows(self, kind: str, namespace: str, to: ServiceRef) -> bool:
        """Whether a route of that kind and namespace may refer to a target of this namespace."""
        short = to.name.partition("/")[2]
        return (kind, namespace) in self.sources and bool({(to.kind, short), (to.kind, "")} & self.targets)
