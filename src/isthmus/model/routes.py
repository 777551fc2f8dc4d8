"""Input rows: routes of the Gateway API (HTTPRoute and GRPCRoute) for Services and ServiceImports, and their grants.

Both kinds share one row type: a GRPCRoute's methods are paths, ``/service/method``. A problem of an object is a field
of its row, or of the rule or reference concerned, which then has no other effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.services import Port

RouteKind = Literal["HTTPRoute", "GRPCRoute"]
ParentKind = Literal["Service", "ServiceImport"]
RefKind = Literal["Service", "ServiceImport", "Cluster"]
PathEditType = Literal["ReplaceFullPath", "ReplacePrefixMatch"]
PathType = Literal["Exact", "PathPrefix", "RegularExpression"]
SessionType = Literal["Cookie", "Header"]
RefusalReason = Literal["RefusedByEnvoy", "NoPortLeft"]

ROUTE_KINDS: Final[tuple[RouteKind, ...]] = get_args(RouteKind)
PortKey = tuple[int, str]
"""A port of a Service, and the namespace of its callers; '' for every other namespace."""
RouteKey = tuple[RouteKind, ServiceName]

RULE: Final = ", rule "
"""Separator between a route and the number of a rule in texts for people."""
MAX_REFUSALS: Final = 64
"""Largest number of (route, parent) pairs in a node's report of refusals."""
MAX_REFUSAL: Final = 512
"""Largest number of characters of one refusal in a report."""


class ValueMatch(Struct, frozen=True, gc=False, order=True):
    """A header or query parameter that equals a value or matches a regular expression."""

    name: str
    value: str
    regex: bool = False


class Match(Struct, frozen=True, gc=False):
    """Conditions on a request, all of which must hold."""

    path: str = "/"
    path_type: PathType = "PathPrefix"
    method: str = ""
    headers: tuple[ValueMatch, ...] = ()
    query: tuple[ValueMatch, ...] = ()


class ServiceRef(Struct, frozen=True, gc=False, order=True):
    """A port of a Service or ServiceImport; the kind Cluster selects the parent's backends in one cluster."""

    kind: RefKind
    name: ServiceName
    """namespace/name; the cluster's name if the kind is Cluster."""
    port: int = 0
    """0 selects every port of a parent, and the called port of a backend of kind Cluster."""

    @property
    def service(self) -> ServiceName:
        """Service whose plans are referred to: the derived Service of an import, empty for a cluster."""
        if self.kind == "Cluster":
            return ServiceName("")
        return self.name if self.kind == "Service" else derived(self.name)


class ParentRef(ServiceRef, frozen=True, gc=False, order=True):
    """A parent of a route, or one port of it."""

    section: str = ""
    """Name of the port (``sectionName``); empty matches every name."""
    namespace: str = ""
    """Namespace in the reference; empty for the route's own."""

    def includes(self, port: Port) -> bool:
        """True if the reference includes a port of its Service, by number, name or both. Only TCP has routes."""
        return port.protocol == "TCP" and self.port in (0, port.port) and self.section in ("", port.name)


class HeaderEdit(Struct, frozen=True, gc=False):
    """Changes to the headers of a request or an answer."""

    set: tuple[tuple[str, str], ...] = ()
    add: tuple[tuple[str, str], ...] = ()
    remove: tuple[str, ...] = ()


class PathEdit(Struct, frozen=True, gc=False):
    """A new path, whole or for the prefix that matched."""

    type: PathEditType
    value: str


class Redirection(Struct, frozen=True, gc=False):
    """A redirect answer. Empty fields keep the request's value."""

    scheme: str = ""
    host: str = ""
    port: int = 0
    path: PathEdit | None = None
    status: int = 302


class Rewrite(Struct, frozen=True, gc=False):
    """Replacement of the host or path before a request is sent to the backend."""

    host: str = ""
    path: PathEdit | None = None


class BackendRef(Struct, frozen=True, gc=False):
    """A destination of calls, with its weight among the backends of its rule."""

    to: ServiceRef
    weight: int = 1
    reason: str = ""
    """Reason of the condition ResolvedRefs if it cannot be used. Its share of the calls is answered with 500."""
    message: str = ""
    request: HeaderEdit = HeaderEdit()
    response: HeaderEdit = HeaderEdit()


class Mirror(Struct, frozen=True, gc=False):
    """A destination of copies of some requests. Their answers are dropped."""

    to: ServiceRef
    numerator: int = 1
    denominator: int = 1


class Retries(Struct, frozen=True, gc=False):
    """Status codes that cause a retry, the largest number of retries, and the pause between them in seconds."""

    codes: tuple[int, ...] = ()
    attempts: int = 1
    backoff: float = 0.0


class Cors(Struct, frozen=True, gc=False):
    """Rules for browsers that call from pages of other origins (Fetch standard, "CORS protocol")."""

    origins: tuple[str, ...] = ()
    """``*``, or scheme and host without the scheme's default port. A first label of ``*`` is any number of labels."""
    methods: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    exposed: tuple[str, ...] = ()
    credentials: bool = False
    max_age: int = 5
    """Seconds for which a browser may keep the answer to a preflight."""


class Session(Struct, frozen=True, gc=False):
    """A cookie or header by which the requests of a session reach one endpoint (GEP-1619)."""

    type: SessionType = "Cookie"
    name: str = ""
    """Name of the cookie or header; empty for one made from the rule's."""
    lifetime: float = 0.0
    """Seconds for which a client keeps the cookie; 0 until it ends."""


class RouteRule(Struct, frozen=True, gc=False, kw_only=True):
    """A rule: requests that meet any of the matches are sent to the backends."""

    matches: tuple[Match, ...] = (Match(),)
    backends: tuple[BackendRef, ...] = ()
    request: HeaderEdit = HeaderEdit()
    response: HeaderEdit = HeaderEdit()
    redirect: Redirection | None = None
    rewrite: Rewrite | None = None
    mirrors: tuple[Mirror, ...] = ()
    timeout: float = 0.0
    """Seconds for the whole request. 0 disables the limit."""
    backend_timeout: float = 0.0
    """Seconds for each attempt."""
    retries: Retries | None = None
    cors: Cors | None = None
    session: Session | None = None


class Reference(Struct, frozen=True, gc=False):
    """A backend or mirror of a route, with reason and message of the condition ResolvedRefs if it cannot be used."""

    to: ServiceRef
    reason: str = ""
    message: str = ""


class Route(Struct, frozen=True, gc=False, kw_only=True):
    """A route of the own cluster's API server, with those of its parents that Isthmus serves.

    Its rules are kept encoded: decoded, they take five times the memory of the object, in every agent.
    """

    kind: RouteKind
    name: ServiceName
    parents: tuple[ParentRef, ...] = ()
    encoded_rules: bytes = b""
    matches: int = 0
    """Number of matches of all rules."""
    references: tuple[Reference, ...] = ()
    """Backends and mirrors of all rules, each once and in the order of the rules."""
    invalid: str = ""
    """Reason why no parent accepts the object, empty if it is usable."""
    unread: tuple[str, ...] = ()
    """Fields of a usable route that nothing follows, as paths; the first ones if they are many."""
    created: str = ""
    uid: str = ""
    generation: int = 0
    size: int = 0
    """Approximate bytes of Envoy's configuration for its rules, for each port."""

    @property
    def key(self) -> RouteKey:
        """Key of the row."""
        return self.kind, self.name

    @property
    def rules(self) -> tuple[RouteRule, ...]:
        """Its rules, decoded at every call: some ms for the largest route."""
        return _RULES.decode(self.encoded_rules) if self.encoded_rules else ()

    @property
    def owner(self) -> str:
        """Kind and name of the object, for people."""
        return f"{self.kind} {self.name}"

    @property
    def namespace(self) -> str:
        """Namespace of the object."""
        return self.name.partition("/")[0]

    def targets(self) -> frozenset[ServiceName]:
        """Return the Services that are backends or mirrors."""
        return frozenset(each.to.service for each in self.references if each.to.kind != "Cluster")

    def clusters(self) -> frozenset[ClusterName]:
        """Return the clusters that the rules refer to."""
        return frozenset(ClusterName(each.to.name) for each in self.references if each.to.kind == "Cluster")


_RULES: Final = msgspec.msgpack.Decoder(tuple[RouteRule, ...])


def with_rules(row: Route, rules: Sequence[RouteRule]) -> Route:
    """Return a route with these rules."""
    return replace(
        row,
        encoded_rules=msgspec.msgpack.encode(rules),
        matches=sum(len(rule.matches) for rule in rules),
        references=tuple(dict.fromkeys(each for rule in rules for each in _references(rule))),
    )


def _references(rule: RouteRule) -> Iterator[Reference]:
    yield from (Reference(each.to, each.reason, each.message) for each in rule.backends)
    yield from (Reference(each.to) for each in rule.mirrors)


class PortRoutes(Struct, frozen=True, gc=False):
    """The routes of one port of a Service, for callers of one namespace or for all others."""

    port: int
    callers: str
    """Namespace of the callers; empty for every other."""
    routes: tuple[RouteKey, ...]
    """Keys of the routes, the oldest first."""
    owner: str
    """Kind and name of the oldest route."""
    created: str
    """Creation time of the oldest route."""
    size: int
    """Approximate bytes of Envoy's configuration for the routes."""

    @property
    def key(self) -> PortKey:
        """The port and its callers."""
        return self.port, self.callers


class Unattached(Struct, frozen=True, gc=False):
    """A route without effect for a Service that is its parent."""

    route: RouteKey
    reason: str
    """Reason of the condition Accepted."""
    message: str


class Attachment(Struct, frozen=True, gc=False):
    """Derived row: the routes of a Service by port and callers, and its refused routes."""

    service: ServiceName
    ports: tuple[PortRoutes, ...] = ()
    refused: tuple[Unattached, ...] = ()

    def port_routes(self, key: PortKey) -> PortRoutes | None:
        """Return the routes of a port and its callers, ``None`` if there are none."""
        return next((each for each in self.ports if each.key == key), None)


class EncodedMatch(Struct, frozen=True, gc=False):
    """A match of a rule as an Envoy route, with its sort key among all matches of a port."""

    order: tuple[Any, ...]
    body: bytes
    """The encoded message."""


class RouteParts(Struct, frozen=True, gc=False, kw_only=True):
    """Derived row: a route as Envoy's configuration.

    A route with backends of kind Cluster has a row for each of its parents' ports, since such a backend is that port's
    backends in the cluster. Any other route has one row, without a port.
    """

    route: RouteKey
    service: ServiceName = ServiceName("")
    port: int = 0
    matches: tuple[EncodedMatch, ...] = ()
    targets: tuple[ServiceRef, ...] = ()
    """Distinct ports of Services to which calls are sent."""
    problem: str = ""
    """Reason why Envoy would refuse it; it has no matches then."""


class RouteRefusal(Struct, frozen=True, gc=False, order=True):
    """A route that has no effect on a node for one parent, or only the effect of its previous version."""

    kind: RouteKind
    name: ServiceName
    service: ServiceName
    """Service of the parent: for an import, its derived Service."""
    message: str
    reason: RefusalReason = "RefusedByEnvoy"


class NodeRefusals(Struct, frozen=True, gc=False, kw_only=True):
    """Routes that a node's Envoy refused. The node's agent reports the row, the operator reads it."""

    name: str
    """Name of the node."""
    uid: str = ""
    """Uid of the Node object, which owns the report; not read back."""
    routes: tuple[RouteRefusal, ...] = ()


class Grant(Struct, frozen=True, gc=False, kw_only=True):
    """A ReferenceGrant: routes of these kinds and namespaces may refer to targets in its own namespace."""

    name: ServiceName
    sources: frozenset[tuple[str, str]] = frozenset()
    """(kind, namespace)."""
    targets: frozenset[tuple[str, str]] = frozenset()
    """(kind, name); an empty name matches every name."""

    def allows(self, kind: str, namespace: str, target: ServiceRef) -> bool:
        """True if a route of that kind and namespace may refer to a target of this namespace."""
        short = target.name.partition("/")[2]
        return (kind, namespace) in self.sources and bool({(target.kind, short), (target.kind, "")} & self.targets)
