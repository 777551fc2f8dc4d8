"""The part of a node's Envoy that calls islands: listeners for their services, and their gateways. Pure.

A service's port that an island exports has a listener of its own: calls of it go to that island, by the SNI of that
port. Which part of the calls an island has is the planner's, which counts the listener as a backend
(``loadbalancer/islands.py``). There is one cluster of Envoy for the gateways of each island, whatever it exports; where
no gateway of it takes a call, that goes on as :mod:`isthmus.gateway.alternatives` has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from isthmus.gateway import alternatives, http, tls, udp
from isthmus.gateway.alternatives import UNIT, prepared, tunnelled, unit
from isthmus.gateway.exports import BUFFER
from isthmus.gateway.naming import gateway_identity, health_sni, protocol, service_sni
from isthmus.loadbalancer import drains, plans
from isthmus.loadbalancer.services import names_for_import, resolve
from isthmus.model.balancing import Plan
from isthmus.model.clusters import Cluster, reachability, reachability_changed
from isthmus.model.hosts import canonical, endpoint
from isthmus.model.islands import THROUGH_GATEWAYS, GatewayCheck, IslandListener, IslandPod, TrustBundle
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Import, Port, Service
from isthmus.model.tables import (
    CLUSTERS,
    DRAINING,
    GATEWAY_CHECKS,
    IMPORTS,
    ISLAND_LISTENERS,
    ISLAND_PODS,
    PLANS,
    POLICIES,
    ROUTE_PLANS,
    SERVICES,
    TRUST_BUNDLES,
)
from isthmus.model.xds import Resource
from isthmus.proxy import XdsSource
from isthmus.proxy.derived import both
from isthmus.proxy.messages import duration, packed
from isthmus.proxy.ports import assign_ports
from isthmus.proxy.resources import KEPT_ALIVE, address, eds_cluster, eds_endpoints, resource, tcp_proxy
from isthmus.statedb import Affected, Derived, Reader, Snapshot

ListenerKey = tuple[Any, ...]
"""What is called: a service, its cluster and a port."""
STAT_PREFIX: Final = "island"
FILTER_STATE: Final = "envoy.extensions.filters.network.set_filter_state.v3.Config"
SERVER_NAME: Final = "envoy.network.upstream_server_name"
"""Key of the filter state by which Envoy chooses the SNI of a connection."""
CONNECT_ATTEMPTS: Final = 10
"""Connects that end as their gateway is passed over count, too, and each of several may be passed over just then."""
CONNECTIONS_AHEAD: Final = 1.5
"""Connections for HTTP to a gateway for each that a request is under way on, rounded up: one of them is free for the
next client. More would multiply handshakes when many requests come at once."""
CHECK_INTERVAL: Final = 0.5
"""Seconds between two checks of a gateway by this node."""
CHECK_TIMEOUT: Final = 0.5
"""Seconds for a check at least."""
ROUND_TRIPS: Final = 4
"""That a connect with its handshake may take at least: it takes two, and some time of both Envoys."""
LONGEST_TIMEOUT: Final = 5.0
"""Seconds that round trips may make of it: a gateway that answers later and later would raise it for ever."""
CHECK_HELLO: Final = "6973"
"""What a check sends, as hexadecimal digits; a gateway sends it back."""
EJECT_AFTER: Final = 2
"""Connects to a gateway that fail in a row until it is passed over."""
EJECT_TIME: Final = 5.0
"""Seconds until it is tried again, at first: longer than two checks that fail take, so that a dead one is not called in
between. The next check that passes ends it."""
PASSED_OVER: Final = {
    "split_external_local_origin_errors": True,
    "consecutive_local_origin_failure": {"value": EJECT_AFTER},
    "enforcing_consecutive_local_origin_failure": {"value": 100},
    "enforcing_local_origin_success_rate": {"value": 0},
    "enforcing_success_rate": {"value": 0},
    "interval": duration(0.5),
    "base_ejection_time": duration(EJECT_TIME),
    "max_ejection_percent": {"value": 100},
}
"""An ``OutlierDetection`` of gateways: by connects alone, and of all of them if need be."""


class NodeOf(NamedTuple):
    """The node's Envoy: its cluster, the clusterset's domain, and where it listens for pods."""

    cluster: ClusterName
    domain: str
    directory: Path
    addresses: tuple[str, ...]
    first_port: int
    ports: int
    connect_timeout: float = 0.25
    """Seconds until an attempt to connect to a gateway, its handshake included, is given up for another one."""
    pod_ports: int = 0
    """How many ports behind those it listens at for pods of headless imports."""
    pod_addresses: tuple[IPv4Network | IPv6Network, ...] = ()
    """Ranges of the addresses that stand for such pods, one of each family at most."""
    preconnect: bool = False
    """Whether connections for HTTP are made before they are needed."""


def listeners_derived(of: NodeOf) -> Derived[IslandListener]:
    """The declaration of ``island_listeners``."""
    reads: dict[Any, Any] = {
        IMPORTS: _by_import,
        SERVICES: _by_service,
        CLUSTERS: _by_cluster,
        ISLAND_PODS: lambda reader, old, new: (True,),
    }
    return Derived(ISLAND_LISTENERS, compute=partial(listeners, of=of), reads=reads, unit="all")


def xds(of: NodeOf) -> XdsSource:
    """What a node's Envoy has for islands, beside what it has for routes."""
    return XdsSource(
        computes=lambda unit: unit.startswith(UNIT),
        compute=partial(resources, of=of),
        reads={
            ISLAND_LISTENERS: _by_listener,
            CLUSTERS: both(_by_gateways, _listeners_of(plans.by_cluster)),
            TRUST_BUNDLES: _by_trust,
            PLANS: _listeners_of(_service_of_plan),
            ROUTE_PLANS: _listeners_of(_service_of_plan),
            POLICIES: _listeners_of(plans.by_policy),
            DRAINING: _listeners_of(drains.affected),
            GATEWAY_CHECKS: _by_round_trip,
        },
    )


def trusted_apart(now: Snapshot, members: Collection[ClusterName]) -> list[tuple[ClusterName, ...]]:
    """Each member for itself: none may answer as another one. A peer that was one keeps a file, which trusts nothing:
    its gateways are called, and refused, until it is no peer."""
    former = [row.clusters for row in now.all(TRUST_BUNDLES) if now.get(CLUSTERS, row.clusters[0]) is not None]
    return [*((each,) for each in members), *former]


def listeners(reader: Reader, unit: bool, *, of: NodeOf) -> Iterator[IslandListener]:
    """A listener for each port of TCP or UDP of each import with an address, for each island that exports it, and for
    each port of a pod of an island that has an address here."""
    there = islands(reader, of.cluster)
    wanted: dict[ListenerKey, IslandListener] = {}
    for imported in reader.all(IMPORTS) if there else ():
        for name in set(names_for_import(reader, imported)):
            subject = resolve(reader, name, which="all")
            if subject is None or subject.headless or not subject.import_of:
                continue
            for cluster in there.intersection(subject.exporters or ()):
                for port in subject.ports:
                    if port.protocol in THROUGH_GATEWAYS:
                        wanted[_key(name, cluster, port)] = IslandListener(
                            service=name,
                            cluster=cluster,
                            port=port.port,
                            protocol=port.protocol,
                            addresses=of.addresses,
                            listen_port=0,
                            import_of=subject.import_of,
                            http=http.version(port) is not None,
                        )
    for key, number in assign_ports(_fairly(wanted, of.ports), of.first_port, of.ports).items():
        yield replace(wanted[key], listen_port=number)
    yield from _of_pods(reader, of)


def _fairly(wanted: Mapping[ListenerKey, IslandListener], count: int) -> list[ListenerKey]:
    """So many keys: of each island the first, then of each the second, as far as that goes. An island that exports more
    than there is room for takes none of another one's."""
    of_island, ranked = Counter[ClusterName](), list[tuple[int, ListenerKey]]()
    for key in sorted(wanted):
        of_island[wanted[key].cluster] += 1
        ranked.append((of_island[wanted[key].cluster], key))
    return [key for _, key in sorted(ranked)[:count]]


def _key(name: ServiceName, cluster: ClusterName, port: Port) -> ListenerKey:
    """By which a listener gets its port: of TCP the same as before there was another protocol."""
    return (name, cluster, port.port) if port.protocol == "TCP" else (name, cluster, port.port, port.protocol)


def _of_pods(reader: Reader, of: NodeOf) -> Iterator[IslandListener]:
    """Ports of their own: pods, which come and go, take none from services."""
    wanted = {_key(row.name, row.cluster, port): (row, port) for row in reader.all(ISLAND_PODS) for port in row.ports}
    for key, number in assign_ports(wanted, of.first_port + of.ports, of.pod_ports).items():
        row, port = wanted[key]
        yield IslandListener(
            service=row.name,
            cluster=row.cluster,
            port=port.port,
            protocol=port.protocol,
            addresses=of.addresses,
            listen_port=number,
            import_of=row.import_of,
            pod=row.pod,
            http=_is_http(reader, row, port),
        )


def _is_http(reader: Reader, row: IslandPod, port: Port) -> bool:
    """Whether a pod's port speaks HTTP, as the port of its name does that the import has."""
    imported = reader.get(IMPORTS, row.import_of)
    return any(
        each.name == port.name and http.version(each) is not None for each in (imported.ports if imported else ())
    )


def islands(reader: Reader, own: ClusterName) -> set[ClusterName]:
    """The clusters that are reached through their gateways."""
    here = reader.get(CLUSTERS, own)
    return {row.name for row in reader.all(CLUSTERS) if not row.own and reachability(here, row) == "gateway"}


def resources(reader: Reader, unit: str, *, of: NodeOf) -> Iterator[Resource]:
    """The rows of an island (its gateways) whose authorities are there as a file, or of a listener."""
    for listener in reader.by(ISLAND_LISTENERS, "name", unit):
        through = {each.cluster for each in reader.by(ISLAND_LISTENERS, "service", listener.service)}
        yield from _calling(listener, of)
        imported = reader.get(IMPORTS, listener.import_of)
        exporters = imported.clusters if imported is not None and not listener.pod else ()
        plan = alternatives.plan_of(reader, listener)
        fallbacks = alternatives.in_order(reader, listener, through, own=of.cluster)
        yield from alternatives.resources(listener, plan, exporters, through, fallbacks, preconnect=of.preconnect)
    row = reader.get(CLUSTERS, ClusterName(unit.removeprefix(UNIT)))
    if (
        row is not None
        and row.name in islands(reader, of.cluster)
        and (reader.get(TRUST_BUNDLES, (row.name,)) is not None)
    ):
        yield from _of_island(reader, row, of._replace(connect_timeout=_patience(reader, row.name, of)))


def _patience(reader: Reader, island: ClusterName, of: NodeOf) -> float:
    """Seconds for a connect to any gateway of an island: more than is configured where round trips are long."""
    trips = (each.round_trip for each in reader.by(GATEWAY_CHECKS, "cluster", island))
    return max(of.connect_timeout, min(ROUND_TRIPS * max(trips, default=0.0), LONGEST_TIMEOUT))


def _of_island(reader: Reader, row: Cluster, of: NodeOf) -> Iterator[Resource]:
    """The clusters of Envoy that are an island's gateways."""
    yield _cluster(unit(row.name), row.name, of, http.calling_options(preconnect=False))
    yield _gateways(unit(row.name), row)
    if any(each.protocol == "UDP" for each in reader.by(ISLAND_LISTENERS, "cluster", row.name)):
        often = {
            "timeout": duration(of.connect_timeout),
            "interval": duration(udp.CHECK_INTERVAL),
            "unhealthy_edge_interval": duration(udp.CHECK_AGAIN),
        }
        ended = {"close_connections_on_host_health_failure": True}
        yield _cluster(tunnelled(row.name), row.name, of, ended, **often)
        yield _gateways(tunnelled(row.name), row)
    if of.preconnect:
        ahead: dict[str, Any] = {
            "preconnect_policy": {"per_upstream_preconnect_ratio": {"value": CONNECTIONS_AHEAD}},
            "close_connections_on_host_health_failure": True,
        }
        yield _cluster(prepared(row.name), row.name, of, http.calling_options(preconnect=True) | ahead)
        yield _gateways(prepared(row.name), row)


def _calling(row: IslandListener, of: NodeOf) -> Iterator[Resource]:
    sni = service_sni(row.import_of, row.port, of.domain, protocol=row.protocol, pod=row.pod)
    if row.protocol == "UDP":
        yield from udp.calling(row, sni)
        yield _listener(row, sni, name=udp.tunnel(row), internal_listener={})
    else:
        (first, *more) = [address(each, row.listen_port) for each in row.addresses]
        others, reused = [{"address": each} for each in more], {"value": True}
        yield _listener(row, sni, address=first, additional_addresses=others, enable_reuse_port=reused)


def _listener(row: IslandListener, sni: str, *, name: str = "", **where: Any) -> Resource:
    """What calls gateways by an SNI. ``where`` it listens is fields of the message; ``name``: if not the row's."""
    state = packed(
        FILTER_STATE,
        on_new_connection=[
            {"object_key": SERVER_NAME, "format_string": {"text_format_source": {"inline_string": sni}}}
        ],
    )
    to = alternatives.called(row)
    if row.http:
        by = http.calling(to, attempts=CONNECT_ATTEMPTS - 1)
    else:
        by = tcp_proxy(to, stat_prefix=STAT_PREFIX, attempts=CONNECT_ATTEMPTS)
    filters = [{"name": "envoy.filters.network.set_filter_state", "typed_config": state}, by]
    return resource(
        "listener",
        name or row.name,
        f"ServiceImport {row.import_of}",
        row.name,
        filter_chains=[{"name": row.name, "filters": filters}],
        per_connection_buffer_limit_bytes=BUFFER,
        traffic_direction="OUTBOUND",
        stat_prefix=STAT_PREFIX,
        **where,
    )


def _cluster(name: str, island: ClusterName, of: NodeOf, options: dict[str, Any], **check: Any) -> Resource:
    """Gateways that fail connects or checks are passed over for others. ``check``: fields that differ."""
    checked = {
        "timeout": duration(max(CHECK_TIMEOUT, of.connect_timeout)),  # its first one connects
        "interval": duration(CHECK_INTERVAL),
        "interval_jitter_percent": 10,
        "no_traffic_interval": duration(CHECK_INTERVAL),
        "unhealthy_threshold": {"value": 2},
        "healthy_threshold": {"value": 2},
        "reuse_connection": {"value": True},
        "tcp_health_check": {"send": {"text": CHECK_HELLO}, "receive": [{"text": CHECK_HELLO}]},
        **check,
    }
    return eds_cluster(
        name,
        f"cluster {island}",
        unit(island),
        panic=1,  # with all of them passed over, and nothing else to call, they are called all the same
        connect_timeout=of.connect_timeout,
        lb_policy="ROUND_ROBIN",  # a connect that is made again goes to another one
        ignore_health_on_host_removal=True,
        health_checks=[checked],
        outlier_detection=PASSED_OVER,
        transport_socket=tls.upstream(
            of.directory,
            gateway_identity(island, of.domain),
            health_sni(island, of.domain),
            trust=tls.trust_of([island]),
            protocol=protocol(of.cluster, of.domain),
        ),
        upstream_connection_options=KEPT_ALIVE,
        **options,
    )


def _gateways(name: str, row: Cluster) -> Resource:
    """The island's gateways as it publishes them; those that are names are left out, since EDS has addresses only."""
    at = [endpoint(each, port=0) for each in row.gateways]
    return eds_endpoints(name, f"cluster {row.name}", unit(row.name), (each for each in at if canonical(each.host)))


def _by_import(reader: Reader, old: Import | None, new: Import | None) -> Iterator[bool]:
    before, after = ((row.clusters, row.ports, row.type) if row is not None else () for row in (old, new))
    if before != after:
        yield True


def _by_service(reader: Reader, old: Service | None, new: Service | None) -> Iterator[bool]:
    """A derived Service that comes or goes, or has other ports."""
    before, after = ((row.import_of, row.ports) if row is not None and row.import_of else () for row in (old, new))
    if before != after:
        yield True


def _by_cluster(reader: Reader, old: Cluster | None, new: Cluster | None) -> Iterator[bool]:
    if reachability_changed(old, new):
        yield True


def _by_listener(reader: Reader, old: IslandListener | None, new: IslandListener | None) -> Iterator[str]:
    row = new or old
    if row is not None:
        yield row.name
        if row.protocol == "UDP":
            yield unit(row.cluster)


def _service_of_plan(reader: Reader, old: Plan | None, new: Plan | None) -> Iterator[ServiceName]:
    """A plan affects its own service, whose calls it gives somewhere else to go."""
    row = new or old
    if row is not None:
        yield row.key.service


def _listeners_of(services: Affected) -> Affected:
    """The listeners of the services that a change of another table affects."""

    def affected(reader: Reader, old: Any, new: Any) -> Iterator[str]:
        for service in services(reader, old, new):
            yield from (each.name for each in reader.by(ISLAND_LISTENERS, "service", service))

    return affected


def _by_round_trip(reader: Reader, old: GatewayCheck | None, new: GatewayCheck | None) -> Iterator[str]:
    """A gateway that turns out to be farther away than was known, or goes."""
    row = new or old
    if row is not None and (old.round_trip if old else 0.0) != (new.round_trip if new else 0.0):
        yield unit(row.cluster)


def _by_gateways(reader: Reader, old: Cluster | None, new: Cluster | None) -> Iterator[str]:
    """A cluster whose gateways change, or that comes to be an island; the own one's network affects all."""
    row = new or old
    if row is None:
        return
    if row.own:
        yield from (f"{UNIT}{each.name}" for each in reader.all(CLUSTERS))
    elif old is None or new is None or (old.network, old.gateways) != (new.network, new.gateways):
        yield f"{UNIT}{row.name}"


def _by_trust(reader: Reader, old: TrustBundle | None, new: TrustBundle | None) -> Iterator[str]:
    """An island whose file comes."""
    row = new or old
    if row is not None:
        yield from (f"{UNIT}{each}" for each in row.clusters)
