"""The resources of a gateway's Envoy: the own cluster's exports, for the clusters that may import them. Pure.

One listener chooses a filter chain by the ClientHello: by ALPN, in which a caller names its member, and by SNI. The
chain's TLS handshake authorises the caller, and nothing is dialled before: pods see no connection of a refused caller.
(Envoy's network RBAC filter would wait for the caller's first byte, and forwards data of servers that speak first.)

Each member has its own chains, which trust only its authority and its nodes' identity. When a cluster is no longer a
member, its chains are removed, and its connections end after Envoy's drain time; other members are not affected. A
caller that names no member matches a chain that refuses every certificate.

A member's chain for services forwards a connection to the Envoy cluster named like the SNI. It matches only the suffix
of the SNI, the rest is the caller's choice. Exports for some clusters only have their own chains, HTTP ports share one,
and UDP ports another. The names of their Envoy clusters have other suffixes, so that only these chains reach them.

An export is for some clusters only by its annotation, by an ExportPolicy, or by both; a cluster has to be in each. A
policy may allow some accounts of a cluster, which the matcher compares (:mod:`isthmus.gateway.accounts`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from msgspec.structs import replace

from isthmus.gateway import access_log, accounts, http, tls, udp
from isthmus.gateway.matching import (
    ALPN,
    SNI,
    OnMatch,
    by_prefix,
    by_suffix,
    by_value,
    first_of,
    one_of,
    to_chain,
    unless,
)
from isthmus.gateway.naming import etcd_sni, health_sni, node_identity, protocol, service_sni, services_suffix
from isthmus.identity import allow
from isthmus.mcs.merged import importers
from isthmus.mcs.words import IMPORTERS
from isthmus.model.clusters import Cluster
from isthmus.model.export_policies import ExportPolicy
from isthmus.model.hosts import Endpoint
from isthmus.model.mcs import OwnExport
from isthmus.model.names import ClusterName, ServiceName, pod_id
from isthmus.model.services import Condition, EndpointSet, Export, Port
from isthmus.model.sources import KUBERNETES, is_peer
from isthmus.model.tables import (
    CLUSTERS,
    ENDPOINT_SETS,
    EXPORT_POLICIES,
    OWN_EXPORTS,
    PEER_POLICIES,
    TRUST_BUNDLES,
    XDS,
)
from isthmus.model.xds import Resource
from isthmus.proxy.clusters import http_options
from isthmus.proxy.derived import either
from isthmus.proxy.messages import duration, packed
from isthmus.proxy.protocols import http_version
from isthmus.proxy.resources import (
    KEPT_ALIVE,
    address,
    bounded,
    eds_cluster,
    eds_endpoints,
    hosts,
    kept_alive,
    resource,
    tcp_proxy,
)
from isthmus.proxy.tracing import Tracing, named, of_member
from isthmus.statedb import Derived, Reader, Snapshot, on_change

LISTENER: Final = "gateway"
"""Name of the only listener, and unit of the resources that belong to no export."""
STAT_PREFIX: Final = "gateway"
ETCD: Final = "etcd"
"""Envoy cluster of the own etcd."""
CONNECTION_LIMIT: Final = "envoy.extensions.filters.network.connection_limit.v3.ConnectionLimit"
ECHO: Final = "envoy.extensions.filters.network.echo.v3.Echo"
INSPECTOR: Final = "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector"
HELLO_TIMEOUT: Final = 5.0
"""Seconds for a caller to send its ClientHello."""
HANDSHAKE_TIMEOUT: Final = 5.0
"""Seconds for the TLS handshake."""
ETCD_IDLE: Final = 60.0
"""Seconds without a byte after which a connection to the etcd is closed. Followers send pings."""
CONNECT_TIMEOUT: Final = 1.0
"""Seconds until a connect to a pod fails and another pod is tried."""
CONNECT_ATTEMPTS: Final = 3
BUFFER: Final = {"value": 65_536}
"""Bytes that Envoy buffers of a connection whose other side is slow."""


REFUSED: Final = "refused"
"""Chain that refuses callers in the handshake, so that the access log has the certificate they showed."""
NOBODY: Final = "nobody"
"""A placeholder identity that matches no member. A member that issues itself this name gains nothing: the chain has no
destination."""


class GatewaySettings(NamedTuple):
    """Settings of a gateway: its cluster, the clusterset's domain, its listen addresses, and its Envoy's directory."""

    cluster: ClusterName
    domain: str
    listen: tuple[Endpoint, ...]
    """At least one."""
    directory: Path
    etcd: tuple[Endpoint, ...] = ()
    """Endpoints of the own etcd, which is reached through the gateway by its SNI; empty if it is not."""
    connections: int = 10_000
    """Maximum number of connections of each chain, and to the etcd."""
    tracing: Tracing | None = None
    """Traces of requests; ``None`` for none."""
    policies: bool = False
    """``True`` if ExportPolicies are read and enforced."""


def derived(gateway: GatewaySettings) -> Derived[Resource]:
    """Declare ``xds`` for a gateway."""

    def compute(reader: Reader, unit: str) -> Iterator[Resource]:
        if unit == LISTENER:
            judge = judging(reader, gateway)
            exports = sorted(
                (judge(row.export) for row in reader.all(OWN_EXPORTS) if row.export), key=lambda export: export.name
            )
            members = sorted(each for row in reader.all(TRUST_BUNDLES) for each in row.clusters)
            yield access_log.cluster(gateway.directory, LISTENER)
            if gateway.tracing is not None:
                yield gateway.tracing.cluster(LISTENER)
            apart = [(each, _called_apart(reader, each, gateway)) for each in exports if _is_apart(each)]
            yield listener(gateway, apart, members, judging_accounts(reader, gateway))
            if gateway.etcd:
                yield from _etcd(gateway)
            return
        row = reader.get(OWN_EXPORTS, ServiceName(unit))
        if row is not None and row.export is not None:
            export = judging(reader, gateway)(row.export)
            yield from of_export(export, _own_sets(reader, export, gateway), gateway)

    def by_endpoints(reader: Reader, old: EndpointSet | None, new: EndpointSet | None) -> Iterator[str]:
        row = new or old
        if row is not None and _is_own(row, gateway.cluster):
            yield row.service
            own = reader.get(OWN_EXPORTS, row.service)
            if own is not None and own.export is not None and _has_pods_apart(judging(reader, gateway)(own.export)):
                yield LISTENER

    def by_export(reader: Reader, old: OwnExport | None, new: OwnExport | None) -> Iterator[str]:
        """An export affects its own resources, and the listener if it has chains of its own, now or before."""
        row = new or old
        if row is not None:
            yield row.name
        found = [each.export for each in (old, new) if each is not None and each.export is not None]
        if any(_is_apart(each) for each in map(judging(reader, gateway), found)):
            yield LISTENER

    by_cluster = either(_by_own_cluster, on_change(("labels",), _by_labels)) if gateway.policies else _by_own_cluster
    reads: dict[Any, Any] = {OWN_EXPORTS: by_export, ENDPOINT_SETS: by_endpoints, CLUSTERS: by_cluster}
    reads[TRUST_BUNDLES] = lambda reader, old, new: (LISTENER,)
    if gateway.policies:
        reads[EXPORT_POLICIES] = _by_policy
    # A peer that is away delays no export: until it is read, only rules by labels lack it.
    return Derived(XDS, compute=compute, reads=reads, unit="unit", awaits=lambda source: not is_peer(source))


def trusted_apart(
    snapshot: Snapshot, members: Collection[ClusterName], *, policies: bool = False
) -> list[tuple[ClusterName, ...]] | None:
    """Trust each member by a file of its own, in its own chains.

    ``None`` until distrusted peers are known, and the policies if they are read, so that a starting gateway admits
    nobody whom these refuse.
    """
    known = snapshot.initialized(PEER_POLICIES, *([EXPORT_POLICIES] if policies else []))
    return [(each,) for each in members] if known else None


def judging(reader: Reader, gateway: GatewaySettings) -> Callable[[Export], Export]:
    """Return a function from an export to the same with its importers limited to what its ExportPolicy allows."""
    policy_of, labels = _refusing(reader, gateway)

    def judged(export: Export) -> Export:
        policy = policy_of(export.name)
        if policy is None or allow.allows_everyone(policy):
            return export
        allowed, named = allow.clusters_allowed(policy, labels), importers(export)
        if allowed is None:  # any cluster, but some of its accounts only
            allowed = frozenset(each for row in reader.all(TRUST_BUNDLES) for each in row.clusters)
        both = ",".join(sorted(allowed if named is None else allowed & set(named)))
        return replace(export, annotations=tuple({**dict(export.annotations), IMPORTERS: both}.items()))

    return judged


def _refusing(
    reader: Reader, gateway: GatewaySettings
) -> tuple[Callable[[ServiceName], ExportPolicy | None], allow.ClusterLabels]:
    """Return the function from an export to the policy that refuses callers here, and the labels of clusters."""
    if not gateway.policies:
        return lambda export: None, {}
    policy_of = allow.judging(reader)

    def refusing(export: ServiceName) -> ExportPolicy | None:
        policy = policy_of(export)
        return policy if policy is not None and not policy.audit else None

    return refusing, allow.labels_of(reader)


Judge = Callable[[ServiceName, ClusterName], tuple[dict[str, str], ...] | None]
"""Function of an export and a member to matchers of the callers that it allows, the same tuple for all exports of a
policy; ``None`` if every caller of that member is allowed."""


def judging_accounts(reader: Reader, gateway: GatewaySettings) -> Judge:
    """Return the function that judges the accounts of a member's callers by ExportPolicies."""
    policy_of, labels = _refusing(reader, gateway)
    found: dict[tuple[ServiceName, ClusterName], tuple[dict[str, str], ...] | None] = {}

    def callers(policy: ExportPolicy, member: ClusterName) -> tuple[dict[str, str], ...] | None:
        allowed = allow.accounts_allowed(policy, member, labels)
        if allow.EVERY_ACCOUNT in allowed:
            return None
        return (*accounts.matchers(protocol(member, gateway.domain), allowed, unproven=not policy.require),)

    def judged(export: ServiceName, member: ClusterName) -> tuple[dict[str, str], ...] | None:
        policy = policy_of(export)
        if policy is None:
            return None
        if (policy.name, member) not in found:
            found[policy.name, member] = callers(policy, member)
        return found[policy.name, member]

    return judged


def _by_policy(reader: Reader, old: ExportPolicy | None, new: ExportPolicy | None) -> Iterator[str]:
    """A policy affects every export of its namespace, and the listener, whose chains are for the clusters it allows."""
    row = new or old
    if row is not None:
        yield LISTENER
        yield from (each.name for each in reader.by(OWN_EXPORTS, "namespace", row.namespace))


def _by_labels(reader: Reader, old: Cluster | None, new: Cluster | None) -> Iterator[str]:
    """Labels of a cluster affect the exports of policies with rules by labels."""
    for policy in reader.by(EXPORT_POLICIES, "by_labels", True):
        yield from _by_policy(reader, None, policy)


def _by_own_cluster(reader: Reader, old: Cluster | None, new: Cluster | None) -> Iterator[str]:
    """The own cluster's row affects the listener, which exists without exports too: other clusters' nodes check it."""
    if old is None and new is not None and new.own:
        yield LISTENER


def _is_own(row: EndpointSet, cluster: ClusterName) -> bool:
    return (row.cluster, row.source) == (cluster, KUBERNETES)


def _own_sets(reader: Reader, export: Export, gateway: GatewaySettings) -> list[EndpointSet]:
    return [each for each in reader.by(ENDPOINT_SETS, "service", export.name) if _is_own(each, gateway.cluster)]


def _called_apart(reader: Reader, export: Export, gateway: GatewaySettings) -> list[CallTarget]:
    return call_targets(export, _own_sets(reader, export, gateway) if export.type == "Headless" else (), gateway.domain)


def _is_apart(export: Export) -> bool:
    """True if the listener matches an export's SNIs: it is for some clusters only, or has ports of HTTP or UDP."""
    return importers(export) is not None or any(_speaks(port) in ("http", "udp") for port in export.ports)


def _has_pods_apart(export: Export) -> bool:
    return export.type == "Headless" and _is_apart(export)


Answering = dict[Condition, set[tuple[str, int]]]
"""Addresses and ports of pods, by their condition."""


Speaks = Literal["bytes", "http", "udp"]
TARGET_ENDS: Final[dict[Speaks, str]] = {"bytes": "", "http": http.TARGET_END, "udp": udp.TARGET_END}
"""Suffix, after the SNI, of the names of Envoy clusters to which the shared chains forward."""


def _speaks(port: Port) -> Speaks | None:
    """Return how a port is called through a gateway; ``None`` if it is not."""
    if port.protocol == "TCP":
        return "http" if http_version(port) else "bytes"
    return "udp" if port.protocol == "UDP" else None


class CallTarget(NamedTuple):
    """The destination of one SNI: a port of an export on any of its pods, or on one pod if it is headless."""

    sni: str
    port: Port
    """The export's port, which declares the protocol."""
    answering: Answering


def call_targets(export: Export, sets: Iterable[EndpointSet], domain: str) -> list[CallTarget]:
    """Return an export's destinations: its TCP and UDP ports; if headless, those of each pod, by the pod's numbers."""
    targets_by_sni: dict[str, CallTarget] = {}
    headless = export.type == "Headless"
    ports = {(port.name, port.protocol): port for port in export.ports if _speaks(port) is not None}
    for port in ports.values() if not headless else ():
        sni = service_sni(export.name, port.port, domain, protocol=port.protocol)
        targets_by_sni[sni] = CallTarget(sni, port, {})
    for endpoint in (each for row in sets for each in row.endpoints):
        pod = pod_id(export.name, endpoint.hostname, endpoint.address) if headless else ""
        for own in endpoint.ports:
            port_of_export = ports.get((own.name, own.protocol))
            if port_of_export is not None:
                number = own.port if headless else port_of_export.port
                sni = service_sni(export.name, number, domain, protocol=own.protocol, pod=pod)
                answering = targets_by_sni.setdefault(sni, CallTarget(sni, port_of_export, {})).answering
                answering.setdefault(endpoint.condition, set()).add((endpoint.address, own.port))
    return [targets_by_sni[sni] for sni in sorted(targets_by_sni)]


def of_export(export: Export, sets: Iterable[EndpointSet], gateway: GatewaySettings) -> Iterator[Resource]:
    """Yield a cluster and its endpoints for each destination of an export."""
    for call in call_targets(export, sets, gateway.domain):
        name, owner = target(export, call), f"ServiceExport {export.name}"
        policy = "MAGLEV" if export.affinity == "ClientIP" else "RANDOM"
        version = http_version(call.port)
        more: dict[str, Any] = {"typed_extension_protocol_options": http_options(http2=version == 2)} if version else {}
        if version:
            more |= named(gateway.tracing, export.name)
        if call.port.protocol == "TCP":
            more["upstream_connection_options"] = KEPT_ALIVE
        yield eds_cluster(name, owner, export.name, connect_timeout=CONNECT_TIMEOUT, lb_policy=policy, **more)
        yield eds_endpoints(name, owner, export.name, _serving(call.answering))


def target(export: Export, call: CallTarget) -> str:
    """Name of a destination's Envoy cluster: the SNI itself if the chain for services may forward to it.

    Any other name must not have the suffix that this chain matches: callers may write any byte but 0 before it.
    """
    if importers(export) is not None:
        return f"{call.sni} restricted"
    return call.sni + TARGET_ENDS[_speaks(call.port) or "bytes"]


def _serving(answering: Answering) -> list[tuple[str, int]]:
    """Return the addresses of pods that are ready, else of those that are terminating and still serve (KEP-1669)."""
    return sorted(answering.get(Condition.READY) or answering.get(Condition.TERMINATING) or ())


def listener(
    gateway: GatewaySettings,
    apart: Iterable[tuple[Export, Iterable[CallTarget]]],
    members: Sequence[ClusterName],
    judge: Judge = lambda export, member: None,
) -> Resource:
    """Return the listener for members that each have a file of authorities.

    A connection without one of our SNIs, or without TLS, matches no chain and is closed. ``apart``: exports with chains
    of their own, and their destinations. ``judge``: judges accounts of callers.
    """
    (first, *more) = [address(*endpoint) for endpoint in gateway.listen]
    ports = [each for export, calls in apart for each in _ports_apart(export, calls, members, judge)]
    chains = [_chain(REFUSED, tls.downstream(gateway.directory, [{"exact": NOBODY}]), [_bytes_to("none")])]
    for member in members:
        chains += _chains(member, ports, gateway)
    if gateway.etcd:  # the etcd terminates TLS itself and judges its own users
        to_etcd = tcp_proxy(ETCD, stat_prefix=STAT_PREFIX, attempts=CONNECT_ATTEMPTS, idle=ETCD_IDLE)
        chains.append(_chain(ETCD, None, [to_etcd]))
    chosen = _choice(gateway, ports, members)
    return resource(
        "listener",
        LISTENER,
        "Gateway",
        LISTENER,
        address=first,
        additional_addresses=[{"address": each} for each in more],
        listener_filters=[{"name": "envoy.filters.listener.tls_inspector", "typed_config": packed(INSPECTOR)}],
        listener_filters_timeout=duration(HELLO_TIMEOUT),
        filter_chains=chains,
        filter_chain_matcher=chosen["matcher"],
        access_log=[access_log.logger()],
        enable_reuse_port={"value": True},
        socket_options=kept_alive(),
        per_connection_buffer_limit_bytes=BUFFER,
        traffic_direction="INBOUND",
        stat_prefix=STAT_PREFIX,
    )


class PortApart(NamedTuple):
    """A port of an export, or of one of its pods, that the chain for services does not reach."""

    sni: str
    target: str
    speaks: Speaks
    importers: tuple[ClusterName, ...] | None
    """Clusters that may call it; ``None`` for all members."""
    callers: Mapping[ClusterName, tuple[dict[str, str], ...]] = {}
    """Matchers of the allowed callers, by member, for members with some callers that are not allowed."""


def _ports_apart(
    export: Export, calls: Iterable[CallTarget], members: Iterable[ClusterName], judge: Judge
) -> Iterator[PortApart]:
    clusters = importers(export)
    judged = {member: found for member in members if clusters is not None and (found := judge(export.name, member))}
    for call in calls:
        speaks = _speaks(call.port) or "bytes"
        if speaks != "bytes" or clusters is not None:
            callers = {} if speaks == "udp" else judged  # tunnels of UDP are shared by callers
            yield PortApart(call.sni, target(export, call), speaks, clusters, callers)


def _chains(member: ClusterName, ports: Sequence[PortApart], gateway: GatewaySettings) -> Iterator[dict[str, Any]]:
    """Yield the chains of a member.

    Exports for some clusters have one chain for each port, so that connections end when a cluster may no longer import
    it.
    """
    socket = tls.downstream(
        gateway.directory, [{"exact": node_identity(member, gateway.domain)}], trust=tls.trust_of([member])
    )
    limited = _limit(gateway.connections)
    yield _chain(f"services {member}", socket, [limited, *_by_sni()])
    yield _chain(f"health {member}", socket, [limited, *_echo()])
    if any(port.speaks == "http" and member in port.callers for port in ports):
        yield _chain(_forbidding(member), socket, [limited, http.forbidding()])
    for speaks in sorted({port.speaks for port in ports if port.importers is None}):
        yield _chain(f"{speaks} {member}", socket, [limited, _filter(speaks, member, gateway)])
    for port in ports:
        if member in (port.importers or ()):
            filters = [limited, _filter(port.speaks, member, gateway, port.target)]
            yield _chain(_chain_of(port, member), socket, filters)


def _filter(speaks: Speaks, member: ClusterName, gateway: GatewaySettings, cluster: str = "") -> dict[str, Any]:
    """Return the network filter that forwards a member's calls to an Envoy cluster; by default to that of the SNI."""
    if speaks == "http":
        return http.manager(member, cluster, of_member(gateway.tracing, member))
    return udp.manager(member, cluster) if speaks == "udp" else _bytes_to(cluster)


def _choice(gateway: GatewaySettings, ports: Sequence[PortApart], members: Iterable[ClusterName]) -> OnMatch:
    """Return the matcher that chooses a chain by the ClientHello."""
    health, refused = health_sni(gateway.cluster, gateway.domain), to_chain(REFUSED)
    services = _services(gateway, refused)
    infrastructure = {health: refused} | (
        {etcd_sni(gateway.cluster, gateway.domain): to_chain(ETCD)} if gateway.etcd else {}
    )
    by_member = {}
    for member in members:
        by_sni = {port.sni: to_chain(_chain_of(port, member)) for port in ports}
        by_sni[health] = to_chain(f"health {member}")
        if (chosen := by_value(SNI, by_sni, _services(gateway, to_chain(f"services {member}")))) is not None:
            by_member[f"'{protocol(member, gateway.domain)}'"] = first_of([*_refusals(ports, member)], chosen)
    # By the first protocol: the account of the caller may follow, also where no policy asks for it.
    return by_prefix(ALPN, by_member, by_value(SNI, infrastructure, services) or refused)


def _services(gateway: GatewaySettings, on_match: OnMatch) -> OnMatch:
    """Match any SNI of a TCP or UDP service, even if it is not exported, so that such calls are counted."""
    return by_suffix(
        SNI, services_suffix(gateway.domain), on_match, by_suffix(SNI, services_suffix(gateway.domain, "UDP"), on_match)
    )


def _refusals(ports: Iterable[PortApart], member: ClusterName) -> Iterator[dict[str, Any]]:
    """Yield entries that refuse a member's callers, before its chains are chosen: one for all ports of a policy.

    Repeated for each port, the list of callers is large: a policy of 64 and a Service of 30 ports made a listener of
    42 MB for 50 members.

    The handshake refuses a caller by TCP. A caller by HTTP gets an answer: if its connection ended without one, the
    node's Envoy would count a failure of the gateway, and eject it for all callers.
    """
    judged: dict[tuple[int, bool], list[PortApart]] = {}
    for port in ports:
        if member in port.callers and member in (port.importers or ()):
            judged.setdefault((id(port.callers[member]), port.speaks == "http"), []).append(port)
    for (_, answers), alike in judged.items():
        called = one_of(SNI, [{"exact": port.sni} for port in alike])
        refused = to_chain(_forbidding(member) if answers else REFUSED)
        yield unless(called, one_of(ALPN, alike[0].callers[member]), refused)


def _forbidding(member: ClusterName) -> str:
    """Name of a member's chain that answers requests of callers that may not call."""
    return f"forbidden {member}"


def _chain_of(port: PortApart, member: ClusterName) -> str:
    if port.importers is None:
        return f"{port.speaks} {member}"
    if member not in port.importers:
        return REFUSED
    name = f"{port.target} {member}"
    if port.speaks == "http" and member in port.callers:
        # Nodes may send requests of new clients on connections that they have: those are judged by the policy then.
        judged = repr(port.callers[member]).encode()
        return f"{name} {blake2b(judged, digest_size=8).hexdigest()}"
    return name


def _chain(name: str, socket: dict[str, Any] | None, filters: list[dict[str, Any]]) -> dict[str, Any]:
    chain = {"name": name, "filters": filters, "transport_socket_connect_timeout": duration(HANDSHAKE_TIMEOUT)}
    return chain | ({"transport_socket": socket} if socket is not None else {})


def _limit(connections: int) -> dict[str, Any]:
    """Return the filter that closes connections of a chain above a limit, before their handshake."""
    config = packed(CONNECTION_LIMIT, stat_prefix=STAT_PREFIX, max_connections={"value": connections})
    return {"name": "envoy.filters.network.connection_limit", "typed_config": config}


def _by_sni() -> list[dict[str, Any]]:
    sni_cluster = packed("envoy.extensions.filters.network.sni_cluster.v3.SniCluster")
    return [{"name": "envoy.filters.network.sni_cluster", "typed_config": sni_cluster}, _bytes_to("none")]


def _echo() -> list[dict[str, Any]]:
    return [{"name": "envoy.filters.network.echo", "typed_config": packed(ECHO)}]


def _bytes_to(cluster: str) -> dict[str, Any]:
    """Return the filter that forwards bytes to a cluster, unless an earlier filter chose another one.

    The cluster is dialled after the handshake; early data of the caller is buffered.
    """
    return tcp_proxy(
        cluster,
        stat_prefix=STAT_PREFIX,
        attempts=CONNECT_ATTEMPTS,
        hash_policy=[{"source_ip": {}}],
        upstream_connect_mode="ON_DOWNSTREAM_TLS_HANDSHAKE",
        max_early_data_bytes=BUFFER,
    )


def _etcd(gateway: GatewaySettings) -> Iterator[Resource]:
    yield resource(
        "cluster",
        ETCD,
        "etcd.endpoints",
        LISTENER,
        type="STRICT_DNS",
        connect_timeout=duration(CONNECT_TIMEOUT),
        load_assignment={"cluster_name": ETCD, "endpoints": [{"lb_endpoints": hosts(gateway.etcd)}]},
        circuit_breakers=bounded(max_connections=gateway.connections),
    )
