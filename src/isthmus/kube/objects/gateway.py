"""gateway.networking.k8s.io/v1: routes and grants, as much of them as mesh routes use."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Raw, field

from isthmus.kube.kind import Kind
from isthmus.kube.objects.meta import Meta, Wire


class ParentRef(Wire, frozen=True):
    """Parent of a route."""

    group: str | None = None
    kind: str | None = None
    namespace: str | None = None
    name: str = ""
    port: int | None = None
    section_name: str | None = None


class ObjectRef(Wire, frozen=True):
    """A target of calls."""

    group: str | None = None
    kind: str | None = None
    namespace: str | None = None
    name: str = ""
    port: int | None = None


class HeaderMatch(Wire, frozen=True):
    """A header, or a query parameter."""

    name: str = ""
    value: str = ""
    type: str | None = None


class PathMatch(Wire, frozen=True):
    """A path."""

    type: str | None = None
    value: str | None = None


class HttpMatch(Wire, frozen=True):
    """Conditions on an HTTP request."""

    path: PathMatch | None = None
    headers: list[HeaderMatch] | None = None
    query_params: list[HeaderMatch] | None = None
    method: str | None = None


class GrpcMethod(Wire, frozen=True):
    """A method of gRPC."""

    type: str | None = None
    service: str | None = None
    method: str | None = None


class GrpcMatch(Wire, frozen=True):
    """Conditions on a gRPC request."""

    method: GrpcMethod | None = None
    headers: list[HeaderMatch] | None = None


class Header(Wire, frozen=True):
    """A header to be written."""

    name: str = ""
    value: str = ""


class HeaderModifier(Wire, frozen=True):
    """Changes to headers."""

    set: list[Header] | None = None
    add: list[Header] | None = None
    remove: list[str] | None = None


class PathModifier(Wire, frozen=True):
    """A new path."""

    type: str = ""
    replace_full_path: str | None = None
    replace_prefix_match: str | None = None


class RequestRedirect(Wire, frozen=True):
    """An answer that sends the client elsewhere."""

    scheme: str | None = None
    hostname: str | None = None
    port: int | None = None
    path: PathModifier | None = None
    status_code: int | None = None


class UrlRewrite(Wire, frozen=True):
    """Replacement of host and path."""

    hostname: str | None = None
    path: PathModifier | None = None


class Fraction(Wire, frozen=True):
    """A part of the requests."""

    numerator: int = 0
    denominator: int | None = None


class RequestMirror(Wire, frozen=True):
    """Destination of copies of requests."""

    backend_ref: ObjectRef = ObjectRef()
    percent: int | None = None
    fraction: Fraction | None = None


class Cors(Wire, frozen=True):
    """Answers to browsers that call from pages of other origins."""

    allow_origins: list[str] | None = None
    allow_credentials: bool | None = None
    allow_methods: list[str] | None = None
    allow_headers: list[str] | None = None
    expose_headers: list[str] | None = None
    max_age: int | None = None


class Filter(Wire, frozen=True):
    """One change of a request or of its response, or a second place that the request is sent to."""

    type: str = ""
    request_header_modifier: HeaderModifier | None = None
    response_header_modifier: HeaderModifier | None = None
    request_redirect: RequestRedirect | None = None
    url_rewrite: UrlRewrite | None = None
    request_mirror: RequestMirror | None = None
    cors: Cors | None = None


class BackendRef(Wire, frozen=True):
    """A target with a weight."""

    group: str | None = None
    kind: str | None = None
    namespace: str | None = None
    name: str = ""
    port: int | None = None
    weight: int | None = None
    filters: list[Filter] | None = None


class L4Target(ObjectRef, frozen=True):
    """A target of connections or datagrams, with a weight."""

    weight: int | None = None


class Timeouts(Wire, frozen=True):
    """GEP-2257 durations."""

    request: str | None = None
    backend_request: str | None = None


class Retry(Wire, frozen=True):
    """Retries by status code."""

    codes: list[int] | None = None
    attempts: int | None = None
    backoff: str | None = None


class CookieConfig(Wire, frozen=True):
    """The cookie of a session."""

    lifetime_type: str | None = None


class SessionPersistence(Wire, frozen=True):
    """Requests of one session reach one endpoint."""

    session_name: str | None = None
    absolute_timeout: str | None = None
    type: str | None = None
    cookie_config: CookieConfig | None = None


class Rule(Wire, frozen=True):
    """Fields of both kinds of rules."""

    name: str | None = None
    """Its name in the route, for people."""
    filters: list[Filter] | None = None
    backend_refs: list[BackendRef] | None = None
    timeouts: Timeouts | None = None
    retry: Retry | None = None
    session_persistence: SessionPersistence | None = None


class HttpRule(Rule, frozen=True):
    """A rule of an HTTPRoute."""

    matches: list[HttpMatch] | None = None


class GrpcRule(Rule, frozen=True):
    """A rule of a GRPCRoute."""

    matches: list[GrpcMatch] | None = None


class L4Rule(Wire, frozen=True):
    """The rule of a TCPRoute or UDPRoute."""

    name: str | None = None
    backend_refs: list[L4Target] | None = None


class RouteSpec(Wire, frozen=True):
    """Desired state of a route.

    Its rules (:class:`HttpRule`, :class:`GrpcRule` or :class:`L4Rule`) are read where they are bounded.
    """

    parent_refs: list[ParentRef] | None = None
    hostnames: list[str] | None = None
    """Hosts of requests; of Gateways alone (Gateway API, GEP-1426)."""
    rules: Raw = Raw(b"null")


class RouteStatus(Wire, frozen=True):
    """Observed state of a route: an entry per parent and controller, as JSON, to write others' back."""

    parents: list[dict[str, Any]] | None = None


class HttpRoute(Wire, frozen=True):
    """A route of HTTP."""

    metadata: Meta
    spec: RouteSpec = RouteSpec()
    status: RouteStatus | None = None


class GrpcRoute(Wire, frozen=True):
    """A route of gRPC."""

    metadata: Meta
    spec: RouteSpec = RouteSpec()
    status: RouteStatus | None = None


class TcpRoute(Wire, frozen=True):
    """A route of connections."""

    metadata: Meta
    spec: RouteSpec = RouteSpec()
    status: RouteStatus | None = None


class UdpRoute(Wire, frozen=True):
    """A route of datagrams."""

    metadata: Meta
    spec: RouteSpec = RouteSpec()
    status: RouteStatus | None = None


class PolicyTarget(Wire, frozen=True):
    """An object of its own namespace that a policy applies to."""

    group: str = ""
    kind: str = ""
    name: str = ""
    section_name: str | None = None


class LocalRef(Wire, frozen=True):
    """An object of the same namespace."""

    group: str = ""
    kind: str = ""
    name: str = ""


class SubjectAltName(Wire, frozen=True):
    """A name in a certificate."""

    type: str = ""
    hostname: str | None = None
    uri: str | None = None


class BackendTlsValidation(Wire, frozen=True):
    """Authorities and names by which a backend is trusted."""

    ca_certificate_refs: list[LocalRef] | None = None
    well_known_ca_certificates: str | None = field(default=None, name="wellKnownCACertificates")
    hostname: str = ""
    subject_alt_names: list[SubjectAltName] | None = None


class BackendTlsSpec(Wire, frozen=True):
    """Desired state of a BackendTLSPolicy."""

    target_refs: list[PolicyTarget] | None = None
    validation: BackendTlsValidation = BackendTlsValidation()
    options: dict[str, str] | None = None


class PolicyStatus(Wire, frozen=True):
    """Observed state of a policy: an entry per ancestor and controller, as JSON, to write others' back."""

    ancestors: list[dict[str, Any]] | None = None


class BackendTlsPolicy(Wire, frozen=True):
    """TLS to backends."""

    metadata: Meta
    spec: BackendTlsSpec = BackendTlsSpec()
    status: PolicyStatus | None = None


class GrantFrom(Wire, frozen=True):
    """Referrers that a grant allows."""

    group: str = ""
    kind: str = ""
    namespace: str = ""


class GrantTo(Wire, frozen=True):
    """Targets that a grant allows."""

    group: str = ""
    kind: str = ""
    name: str | None = None


class GrantSpec(Wire, frozen=True):
    """Referrers and targets of a grant."""

    from_: list[GrantFrom] | None = field(default=None, name="from")
    to: list[GrantTo] | None = None


class ReferenceGrant(Wire, frozen=True):
    """References across namespaces that the target's namespace allows."""

    metadata: Meta
    spec: GrantSpec = GrantSpec()


GROUP: Final = "gateway.networking.k8s.io"
HTTP_ROUTE: Final = Kind(GROUP, "v1", "httproutes", "HTTPRoute", HttpRoute)
GRPC_ROUTE: Final = Kind(GROUP, "v1", "grpcroutes", "GRPCRoute", GrpcRoute)
TCP_ROUTE: Final = Kind(GROUP, "v1", "tcproutes", "TCPRoute", TcpRoute)
UDP_ROUTE: Final = Kind(GROUP, "v1", "udproutes", "UDPRoute", UdpRoute)
BACKEND_TLS_POLICY: Final = Kind(GROUP, "v1", "backendtlspolicies", "BackendTLSPolicy", BackendTlsPolicy)
REFERENCE_GRANT: Final = Kind(GROUP, "v1beta1", "referencegrants", "ReferenceGrant", ReferenceGrant)
