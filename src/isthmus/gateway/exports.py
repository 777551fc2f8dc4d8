"""The resources of a gateway's Envoy: what the own cluster exports, for the clusters that may import it. Pure.

One listener chooses a filter chain by the ClientHello: by ALPN, where a caller writes which member it is, and by SNI. A
caller is authorised by the chain's TLS handshake, before which nothing is dialled: a pod sees no connection of one that
is refused (Envoy's network RBAC filter would wait for the first byte of the caller, and passes on what a server that
speaks first sends).

Each member has chains of its own, which trust its authority and its nodes' identity alone. When a cluster is no member
any more its chains go, and with them the connections that it holds, once the drain time of Envoy is over; no other
member's do. Who names no member comes to a chain that refuses whatever certificate it shows.

The chain of a member's calls of services sends a connection to the cluster that is called as the SNI, whatever bytes
its caller wrote there, if only its end is that of a service. Exports for some clusters only have filter chains of their
own, ports that speak HTTP share one, those of UDP another one, and the names of their clusters end otherwise: only
their chains reach them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from isthmus.gateway import access_log, http, tls, udp
from isthmus.gateway.matching import ALPN, SNI, OnMatch, by_suffix, by_value, to_chain
from isthmus.gateway.naming import etcd_sni, health_sni, node_identity, protocol, service_sni, services_suffix
from isthmus.mcs.merged import importers
from isthmus.model.clusters import Cluster
from isthmus.model.hosts import Endpoint
from isthmus.model.mcs import OwnExport
from isthmus.model.names import ClusterName, ServiceName, pod_id
from isthmus.model.services import Condition, EndpointSet, Export, Port
from isthmus.model.sources import KUBERNETES
from isthmus.model.tables import CLUSTERS, ENDPOINT_SETS, OWN_EXPORTS, PEER_POLICIES, TRUST_BUNDLES, XDS
from isthmus.model.xds import Resource
from isthmus.proxy.clusters import http_options
from isthmus.proxy.messages import duration, packed
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
from isthmus.statedb import Derived, Reader, Snapshot

LISTENER: Final = "gateway"
"""Name of the one listener, and the unit of the rows that belong to no export."""
STAT_PREFIX: Final = "gateway"
ETCD: Final = "etcd"
"""The cluster of Envoy that is the own etcd."""
CONNECTION_LIMIT: Final = "envoy.extensions.filters.network.connection_limit.v3.ConnectionLimit"
ECHO: Final = "envoy.extensions.filters.network.echo.v3.Echo"
INSPECTOR: Final = "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector"
HELLO_TIMEOUT: Final = 5.0
"""Seconds that a caller has for its ClientHello."""
HANDSHAKE_TIMEOUT: Final = 5.0
"""Seconds that a caller has for the handshake."""
ETCD_IDLE: Final = 60.0
"""Seconds without a byte after which a connection to the etcd ends: followers send pings."""
CONNECT_TIMEOUT: Final = 1.0
"""Seconds until an attempt to connect to a pod is given up, and another pod is tried."""
CONNECT_ATTEMPTS: Final = 3
BUFFER: Final = {"value": 65_536}
"""Bytes that Envoy buffers of a connection whose other side is slow."""


REFUSED: Final = "refused"
"""The chain of who is refused by the handshake, so that it is known whose certificate it showed."""
NOBODY: Final = "nobody"
"""An identity that is nobody's. A member that signs itself this name comes as far as this chain leads: nowhere."""


class GatewayOf(NamedTuple):
    """The gateway: its cluster, the clusterset's domain, where it listens, and the directory of its Envoy."""

    cluster: ClusterName
    domain: str
    listen: tuple[Endpoint, ...]
    """At least one."""
    directory: Path
    etcd: tuple[Endpoint, ...] = ()
    """The own etcd, reached through the gateway by its SNI; none: it is not."""
    connections: int = 10_000
    """That each chain has at most, and the etcd."""


def derived(of: GatewayOf) -> Derived[Resource]:
    """The declaration of ``xds`` for a gateway."""

    def compute(reader: Reader, unit: str) -> Iterator[Resource]:
        if unit == LISTENER:
            exports = sorted((row.export for row in reader.all(OWN_EXPORTS) if row.export), key=lambda each: each.name)
            members = sorted(each for row in reader.all(TRUST_BUNDLES) for each in row.clusters)
            yield access_log.cluster(of.directory, LISTENER)
            apart = [(each, _called_apart(reader, each, of)) for each in exports if _is_apart(each)]
            yield listener(of, apart, members)
            if of.etcd:
                yield from _etcd(of)
            return
        row = reader.get(OWN_EXPORTS, ServiceName(unit))
        if row is not None and row.export is not None:
            yield from of_export(row.export, _own_sets(reader, row.export, of), of)

    def by_endpoints(reader: Reader, old: EndpointSet | None, new: EndpointSet | None) -> Iterator[str]:
        row = new or old
        if row is not None and _is_own(row, of.cluster):
            yield row.service
            own = reader.get(OWN_EXPORTS, row.service)
            if own is not None and own.export is not None and _has_pods_apart(own.export):
                yield LISTENER

    reads: dict[Any, Any] = {OWN_EXPORTS: _by_export, ENDPOINT_SETS: by_endpoints, CLUSTERS: _by_own_cluster}
    reads[TRUST_BUNDLES] = lambda reader, old, new: (LISTENER,)
    return Derived(XDS, compute=compute, reads=reads, unit="unit")


def trusted_apart(now: Snapshot, members: Collection[ClusterName]) -> list[tuple[ClusterName, ...]] | None:
    """Each member is trusted by a file of its own, by its own chains. None: it is not known yet who is distrusted, and
    a gateway that starts would let that one in."""
    return [(each,) for each in members] if now.initialized(PEER_POLICIES) else None


def _by_export(reader: Reader, old: OwnExport | None, new: OwnExport | None) -> Iterator[str]:
    """An export affects its own rows, and the listener where that names, or named, its SNIs."""
    row = new or old
    if row is not None:
        yield row.name
    if any(_is_apart(each.export) for each in (old, new) if each is not None and each.export is not None):
        yield LISTENER


def _by_own_cluster(reader: Reader, old: Cluster | None, new: Cluster | None) -> Iterator[str]:
    """The listener is there from the beginning, whatever is exported: nodes of others check it."""
    if old is None and new is not None and new.own:
        yield LISTENER


def _is_own(row: EndpointSet, cluster: ClusterName) -> bool:
    return (row.cluster, row.source) == (cluster, KUBERNETES)


def _own_sets(reader: Reader, export: Export, of: GatewayOf) -> list[EndpointSet]:
    return [each for each in reader.by(ENDPOINT_SETS, "service", export.name) if _is_own(each, of.cluster)]


def _called_apart(reader: Reader, export: Export, of: GatewayOf) -> list[Called]:
    return called(export, _own_sets(reader, export, of) if export.type == "Headless" else (), of.domain)


def _is_apart(export: Export) -> bool:
    """Whether the listener names ports of it: it is for some clusters only, or speaks HTTP or UDP."""
    return importers(export) is not None or any(_speaks(port) in ("http", "udp") for port in export.ports)


def _has_pods_apart(export: Export) -> bool:
    return export.type == "Headless" and _is_apart(export)


Answering = dict[Condition, set[tuple[str, int]]]
"""Addresses and ports of pods, by their condition."""


Speaks = Literal["bytes", "http", "udp"]
TARGET_ENDS: Final[dict[Speaks, str]] = {"bytes": "", "http": http.TARGET_END, "udp": udp.TARGET_END}
"""How the names of clusters of Envoy end that the shared chains send calls to."""


def _speaks(port: Port) -> Speaks | None:
    """How a port is called; None: it is not, through a gateway."""
    if port.protocol == "TCP":
        return "http" if http.version(port) else "bytes"
    return "udp" if port.protocol == "UDP" else None


class Called(NamedTuple):
    """What one SNI calls: a port of an export on any of its pods, or on one of them where it is headless."""

    sni: str
    port: Port
    """Of the export: what is spoken there."""
    answering: Answering


def called(export: Export, sets: Iterable[EndpointSet], domain: str) -> list[Called]:
    """What can be called of an export: ports of TCP and UDP; of a headless one each pod, at the pod's own numbers."""
    found: dict[str, Called] = {}
    headless = export.type == "Headless"
    ports = {(port.name, port.protocol): port for port in export.ports if _speaks(port) is not None}
    for port in ports.values() if not headless else ():
        sni = service_sni(export.name, port.port, domain, protocol=port.protocol)
        found[sni] = Called(sni, port, {})
    for each in (endpoint for row in sets for endpoint in row.endpoints):
        pod = pod_id(export.name, each.hostname, each.address) if headless else ""
        for own in each.ports:
            of = ports.get((own.name, own.protocol))
            if of is not None:
                number = own.port if headless else of.port
                sni = service_sni(export.name, number, domain, protocol=own.protocol, pod=pod)
                answering = found.setdefault(sni, Called(sni, of, {})).answering
                answering.setdefault(each.condition, set()).add((each.address, own.port))
    return [found[sni] for sni in sorted(found)]


def of_export(export: Export, sets: Iterable[EndpointSet], of: GatewayOf) -> Iterator[Resource]:
    """A cluster and its endpoints for all that can be called."""
    for each in called(export, sets, of.domain):
        name, owner = target(export, each), f"ServiceExport {export.name}"
        policy = "MAGLEV" if export.affinity == "ClientIP" else "RANDOM"
        version = http.version(each.port)
        more: dict[str, Any] = {"typed_extension_protocol_options": http_options(http2=version == 2)} if version else {}
        if each.port.protocol == "TCP":
            more["upstream_connection_options"] = KEPT_ALIVE
        yield eds_cluster(name, owner, export.name, connect_timeout=CONNECT_TIMEOUT, lb_policy=policy, **more)
        yield eds_endpoints(name, owner, export.name, _serving(each.answering))


def target(export: Export, to: Called) -> str:
    """The cluster of Envoy for what an SNI calls: that SNI, if the chain of services may send calls there.

    Another one's name must not end as the SNIs of that chain do: TLS lets a caller write any byte but 0 before.
    """
    if importers(export) is not None:
        return f"{to.sni} restricted"
    return to.sni + TARGET_ENDS[_speaks(to.port) or "bytes"]


def _serving(found: Answering) -> list[tuple[str, int]]:
    """Where pods answer: those that are ready, else those that still serve while they end (KEP-1669)."""
    return sorted(found.get(Condition.READY) or found.get(Condition.TERMINATING) or ())


def listener(
    of: GatewayOf, apart: Iterable[tuple[Export, Iterable[Called]]], members: Sequence[ClusterName]
) -> Resource:
    """The one listener, of members that each have a file of trust. What has no SNI of ours, or no TLS, matches no
    chain, and is closed. ``apart``: exports that it names, with what can be called of each."""
    (first, *more) = [address(*at) for at in of.listen]
    ports = [each for export, calls in apart for each in _ports_apart(export, calls)]
    chains = [_chain(REFUSED, tls.downstream(of.directory, [{"exact": NOBODY}]), [_bytes_to("none")])]
    for member in members:
        chains += _chains(member, ports, of)
    if of.etcd:  # the etcd ends TLS itself: its certificate and its users are not ours to judge
        to_etcd = tcp_proxy(ETCD, stat_prefix=STAT_PREFIX, attempts=CONNECT_ATTEMPTS, idle=ETCD_IDLE)
        chains.append(_chain(ETCD, None, [to_etcd]))
    chosen = _choice(of, ports, members)
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
    """A port of an export, or of one of its pods, that the chain of services does not reach."""

    sni: str
    target: str
    speaks: Speaks
    importers: tuple[ClusterName, ...] | None
    """The clusters that may call it; None: each member."""


def _ports_apart(export: Export, calls: Iterable[Called]) -> Iterator[PortApart]:
    clusters = importers(export)
    for each in calls:
        speaks = _speaks(each.port) or "bytes"
        if speaks != "bytes" or clusters is not None:
            yield PortApart(each.sni, target(export, each), speaks, clusters)


def _chains(member: ClusterName, ports: Sequence[PortApart], of: GatewayOf) -> Iterator[dict[str, Any]]:
    """The chains of a member. Those of exports for some clusters are one for each port, so that the connections of a
    cluster that may not import it any more end."""
    socket = tls.downstream(of.directory, [{"exact": node_identity(member, of.domain)}], trust=tls.trust_of([member]))
    limited = _limit(of.connections)
    yield _chain(f"services {member}", socket, [limited, *_by_sni()])
    yield _chain(f"health {member}", socket, [limited, *_echo()])
    for speaks in sorted({port.speaks for port in ports if port.importers is None}):
        yield _chain(f"{speaks} {member}", socket, [limited, _filter(speaks, member)])
    for port in ports:
        if member in (port.importers or ()):
            yield _chain(f"{port.target} {member}", socket, [limited, _filter(port.speaks, member, port.target)])


def _filter(speaks: Speaks, member: ClusterName, to: str = "") -> dict[str, Any]:
    """The network filter of calls of a member to a cluster of Envoy; without one to that of their SNI."""
    if speaks == "http":
        return http.manager(member, to)
    return udp.manager(member, to) if speaks == "udp" else _bytes_to(to)


def _choice(of: GatewayOf, ports: Sequence[PortApart], members: Iterable[ClusterName]) -> OnMatch:
    """The chain of a ClientHello."""
    health, refused = health_sni(of.cluster, of.domain), to_chain(REFUSED)
    ours = _services(of, refused)
    others = {health: refused} | ({etcd_sni(of.cluster, of.domain): to_chain(ETCD)} if of.etcd else {})
    by_member = {}
    for member in members:
        found = {port.sni: to_chain(_chain_of(port, member)) for port in ports}
        found[health] = to_chain(f"health {member}")
        if (chosen := by_value(SNI, found, _services(of, to_chain(f"services {member}")))) is not None:
            by_member[f"'{protocol(member, of.domain)}'"] = chosen
    return by_value(ALPN, by_member, by_value(SNI, others, ours)) or refused


def _services(of: GatewayOf, found: OnMatch) -> OnMatch:
    """What ends as the SNI of a service does, of TCP or UDP: also one that is not exported, to be counted as that."""
    return by_suffix(SNI, services_suffix(of.domain), found, by_suffix(SNI, services_suffix(of.domain, "UDP"), found))


def _chain_of(port: PortApart, member: ClusterName) -> str:
    if port.importers is None:
        return f"{port.speaks} {member}"
    return f"{port.target} {member}" if member in port.importers else REFUSED


def _chain(name: str, socket: dict[str, Any] | None, filters: list[dict[str, Any]]) -> dict[str, Any]:
    found = {"name": name, "filters": filters, "transport_socket_connect_timeout": duration(HANDSHAKE_TIMEOUT)}
    return found | ({"transport_socket": socket} if socket is not None else {})


def _limit(connections: int) -> dict[str, Any]:
    """The filter that ends connections of a chain beyond so many, before their handshake."""
    config = packed(CONNECTION_LIMIT, stat_prefix=STAT_PREFIX, max_connections={"value": connections})
    return {"name": "envoy.filters.network.connection_limit", "typed_config": config}


def _by_sni() -> list[dict[str, Any]]:
    sni_cluster = packed("envoy.extensions.filters.network.sni_cluster.v3.SniCluster")
    return [{"name": "envoy.filters.network.sni_cluster", "typed_config": sni_cluster}, _bytes_to("none")]


def _echo() -> list[dict[str, Any]]:
    return [{"name": "envoy.filters.network.echo", "typed_config": packed(ECHO)}]


def _bytes_to(cluster: str) -> dict[str, Any]:
    """To a cluster, of which a filter before it may name another. It is dialled when the caller has shown who it is;
    what that sends meanwhile is kept."""
    return tcp_proxy(
        cluster,
        stat_prefix=STAT_PREFIX,
        attempts=CONNECT_ATTEMPTS,
        hash_policy=[{"source_ip": {}}],
        upstream_connect_mode="ON_DOWNSTREAM_TLS_HANDSHAKE",
        max_early_data_bytes=BUFFER,
    )


def _etcd(of: GatewayOf) -> Iterator[Resource]:
    yield resource(
        "cluster",
        ETCD,
        "etcd.endpoints",
        LISTENER,
        type="STRICT_DNS",
        connect_timeout=duration(CONNECT_TIMEOUT),
        load_assignment={"cluster_name": ETCD, "endpoints": [{"lb_endpoints": hosts(of.etcd)}]},
        circuit_breakers=bounded(max_connections=of.connections),
    )
