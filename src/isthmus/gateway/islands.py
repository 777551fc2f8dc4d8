"""Resources of a node's Envoy for islands: the listeners of their services, and their gateways. Pure.

A listener (:mod:`isthmus.gateway.listeners`) sends calls to its island by the SNI of the service's port. An island's
gateways are one Envoy cluster, whatever it exports; if all of them fail, calls continue as in
:mod:`isthmus.gateway.alternatives`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import Any, Final

from isthmus.gateway import accounts, alternatives, http, tls, udp
from isthmus.gateway.accounts import FILTER_STATE
from isthmus.gateway.alternatives import UNIT, prepared, tunnelled, unit
from isthmus.gateway.exports import BUFFER
from isthmus.gateway.listeners import NodeSettings, islands
from isthmus.gateway.naming import gateway_identity, health_sni, protocol, service_sni
from isthmus.loadbalancer import drains, gateways, plans
from isthmus.model.clusters import Cluster
from isthmus.model.hosts import canonical, endpoint
from isthmus.model.islands import IslandListener, TrustBundle
from isthmus.model.names import ClusterName
from isthmus.model.services import Pod
from isthmus.model.tables import (
    CLUSTERS,
    DRAINING,
    GATEWAY_CHECKS,
    IMPORTS,
    ISLAND_LISTENERS,
    PLANS,
    PODS,
    POLICIES,
    REFUSED_GATEWAYS,
    ROUTE_PLANS,
    TRUST_BUNDLES,
)
from isthmus.model.xds import Resource
from isthmus.proxy import XdsSource
from isthmus.proxy.derived import either
from isthmus.proxy.listeners import host_of
from isthmus.proxy.messages import duration, packed
from isthmus.proxy.resources import KEPT_ALIVE, address, eds_cluster, eds_endpoints, resource, tcp_proxy
from isthmus.proxy.tracing import of_service
from isthmus.statedb import Affected, Reader, Snapshot, on_change, unit_of

STAT_PREFIX: Final = "island"
SERVER_NAME: Final = "envoy.network.upstream_server_name"
"""Key of the filter state from which Envoy takes the SNI of a connection."""
CONNECT_ATTEMPTS: Final = 10
"""Attempts to connect. Attempts that end because their gateway is ejected count too, and several may be at a time."""
CONNECTIONS_AHEAD: Final = 1.5
"""HTTP connections to a gateway for each one in use, rounded up, so that one is free for the next client. More would
multiply handshakes when many requests arrive at once."""
CHECK_INTERVAL: Final = 0.5
"""Seconds between two checks of a gateway by this node."""
CHECK_TIMEOUT: Final = 0.5
"""Minimum timeout of a check, in seconds."""
ROUND_TRIPS: Final = 4
"""Round trips allowed for a connect with its handshake: it needs two, and some time of both Envoys."""
LONGEST_TIMEOUT: Final = 5.0
"""Upper bound of that time in seconds: a gateway that answers ever later must not raise it without limit."""
CHECK_HELLO: Final = "6973"
"""Bytes that a check sends and a gateway echoes, as hexadecimal digits."""
EJECT_AFTER: Final = 2
"""Consecutive failed connects after which a gateway is ejected."""
EJECT_TIME: Final = 5.0
"""Seconds of a first ejection: longer than two failing checks take, so that a dead gateway is not called in between.
The next check that passes ends it."""
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
"""An ``OutlierDetection`` of gateways: by connects alone, and of all gateways if necessary."""


def xds(node: NodeSettings) -> XdsSource:
    """Return the source of a node's Envoy resources for islands."""
    by_island = unit_of(lambda row: unit(row.cluster))
    return XdsSource(
        computes=lambda unit: unit.startswith(UNIT),
        compute=partial(resources, node=node),
        reads={
            **({PODS: on_change(("addresses", "service_account", "phase"), _by_pod)} if node.accounts else {}),
            ISLAND_LISTENERS: _by_listener,
            CLUSTERS: either(_by_gateways, _listeners_of(plans.by_cluster)),
            TRUST_BUNDLES: _by_trust,
            PLANS: _listeners_of(unit_of("key.service")),
            ROUTE_PLANS: _listeners_of(unit_of("key.service")),
            POLICIES: _listeners_of(plans.by_policy),
            DRAINING: _listeners_of(drains.affected),
            GATEWAY_CHECKS: on_change(("round_trip",), by_island),  # the connect timeout follows it
            REFUSED_GATEWAYS: by_island,
        },
    )


def trusted_apart(snapshot: Snapshot, members: Collection[ClusterName]) -> list[tuple[ClusterName, ...]]:
    """Trust each member by a file of its own, so that none can answer as another one.

    A former member that is still a peer keeps its file, which then trusts nothing: its gateways are called and refused.
    """
    former = [
        row.clusters for row in snapshot.all(TRUST_BUNDLES) if snapshot.get(CLUSTERS, row.clusters[0]) is not None
    ]
    return [*((each,) for each in members), *former]


def resources(reader: Reader, unit: str, *, node: NodeSettings) -> Iterator[Resource]:
    """Yield the resources of a listener, or of an island's gateways once the file of its authorities exists."""
    for listener in reader.by(ISLAND_LISTENERS, "name", unit):
        through = {each.cluster for each in reader.by(ISLAND_LISTENERS, "service", listener.service)}
        yield from _calling(listener, node)
        imported = reader.get(IMPORTS, listener.import_of)
        exporters = imported.clusters if imported is not None and not listener.pod else ()
        plan = alternatives.plan_of(reader, listener)
        fallbacks = alternatives.in_order(reader, listener, through, own=node.cluster)
        yield from alternatives.resources(listener, plan, exporters, through, fallbacks, preconnect=node.preconnect)
    row = reader.get(CLUSTERS, ClusterName(unit.removeprefix(UNIT)))
    if row is None or row.name not in islands(reader, node.cluster):
        return
    if node.accounts:
        pods = reader.all(PODS) if row.verifies else ()
        yield accounts.config(row.name, unit, protocol(node.cluster, node.domain), pods)
    if reader.get(TRUST_BUNDLES, (row.name,)) is not None:
        yield from _of_island(reader, row, node._replace(connect_timeout=_patience(reader, row.name, node)))


def _patience(reader: Reader, island: ClusterName, node: NodeSettings) -> float:
    """Connect timeout for an island's gateways in seconds: longer than configured if round trips are long."""
    trips = (each.round_trip for each in reader.by(GATEWAY_CHECKS, "cluster", island))
    return max(node.connect_timeout, min(ROUND_TRIPS * max(trips, default=0.0), LONGEST_TIMEOUT))


def _of_island(reader: Reader, row: Cluster, node: NodeSettings) -> Iterator[Resource]:
    """Yield the Envoy clusters of an island's gateways."""
    yield _cluster(unit(row.name), row.name, node, http.calling_options(preconnect=False))
    yield _gateways(reader, unit(row.name), row)
    if any(each.protocol == "UDP" for each in reader.by(ISLAND_LISTENERS, "cluster", row.name)):
        often = {
            "timeout": duration(node.connect_timeout),
            "interval": duration(udp.CHECK_INTERVAL),
            "unhealthy_edge_interval": duration(udp.CHECK_AGAIN),
        }
        ended = {"close_connections_on_host_health_failure": True}
        yield _cluster(tunnelled(row.name), row.name, node, ended, **often)
        yield _gateways(reader, tunnelled(row.name), row)
    if node.preconnect:
        ahead: dict[str, Any] = {
            "preconnect_policy": {"per_upstream_preconnect_ratio": {"value": CONNECTIONS_AHEAD}},
            "close_connections_on_host_health_failure": True,
        }
        yield _cluster(prepared(row.name), row.name, node, http.calling_options(preconnect=True) | ahead)
        yield _gateways(reader, prepared(row.name), row)


def _calling(row: IslandListener, node: NodeSettings) -> Iterator[Resource]:
    sni = service_sni(row.import_of, row.port, node.domain, protocol=row.protocol, pod=row.pod)
    if row.protocol == "UDP":
        yield from udp.calling(row, sni)
        yield _listener(row, sni, node, name=udp.tunnel(row), internal_listener={})
    else:
        (first, *more) = [address(each, row.listen_port) for each in row.addresses]
        additional, reused = [{"address": each} for each in more], {"value": True}
        yield _listener(row, sni, node, address=first, additional_addresses=additional, enable_reuse_port=reused)


def _listener(row: IslandListener, sni: str, node: NodeSettings, *, name: str = "", **where: Any) -> Resource:
    """Return a listener that calls gateways by an SNI. ``where``: address fields. ``name``: by default the row's."""
    state = packed(
        FILTER_STATE,
        on_new_connection=[
            {"object_key": SERVER_NAME, "format_string": {"text_format_source": {"inline_string": sni}}}
        ],
    )
    cluster = alternatives.calls_cluster(row)
    if row.http:
        spans = of_service(node.tracing, row.import_of, row.port)
        host = host_of(row.import_of)
        caller = http.calling(cluster, attempts=CONNECT_ATTEMPTS - 1, host=host, tracing=spans)
    else:
        caller = tcp_proxy(cluster, stat_prefix=STAT_PREFIX, attempts=CONNECT_ATTEMPTS)
    filters = [{"name": "envoy.filters.network.set_filter_state", "typed_config": state}]
    if node.accounts and row.protocol == "TCP":
        filters.append(accounts.passing(row.cluster))
    filters.append(caller)
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


def _cluster(name: str, island: ClusterName, node: NodeSettings, options: dict[str, Any], **check: Any) -> Resource:
    """Return an Envoy cluster that skips gateways that fail connects or checks. ``check``: fields to override."""
    checked = {
        "timeout": duration(max(CHECK_TIMEOUT, node.connect_timeout)),  # the first check includes the connect
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
        panic=1,  # if all are ejected and there is no alternative, they are called anyway
        connect_timeout=node.connect_timeout,
        lb_policy="ROUND_ROBIN",  # a retried connect picks another one
        ignore_health_on_host_removal=True,
        health_checks=[checked],
        outlier_detection=PASSED_OVER,
        transport_socket=tls.upstream(
            node.directory,
            gateway_identity(island, node.domain),
            health_sni(island, node.domain),
            trust=tls.trust_of([island]),
            protocol=protocol(node.cluster, node.domain),
        ),
        upstream_connection_options=KEPT_ALIVE,
        **options,
    )


def _gateways(reader: Reader, name: str, row: Cluster) -> Resource:
    """Return the endpoints of an island's gateways that are not refused. DNS names are left out: EDS has no names."""
    addresses = [endpoint(each, port=0) for each in gateways.dialed(reader, row)]
    return eds_endpoints(
        name, f"cluster {row.name}", unit(row.name), (each for each in addresses if canonical(each.host))
    )


def _by_listener(reader: Reader, old: IslandListener | None, new: IslandListener | None) -> Iterator[str]:
    row = new or old
    if row is not None:
        yield row.name
        if row.protocol == "UDP":
            yield unit(row.cluster)


def _listeners_of(services: Affected) -> Affected:
    """Map services that a change of another table affects to their listeners."""

    def affected(reader: Reader, old: Any, new: Any) -> Iterator[str]:
        for service in services(reader, old, new):
            yield from (each.name for each in reader.by(ISLAND_LISTENERS, "service", service))

    return affected


def _by_gateways(reader: Reader, old: Cluster | None, new: Cluster | None) -> Iterator[str]:
    """A change of what a cluster publishes affects the cluster; one of the own cluster affects all."""
    row = new or old
    if row is None:
        return
    if row.own:
        yield from (f"{UNIT}{each.name}" for each in reader.all(CLUSTERS))
    elif old is None or new is None or _published(old) != _published(new):
        yield f"{UNIT}{row.name}"


def _published(row: Cluster) -> tuple[Any, ...]:
    return row.network, row.gateways, row.verifies


def _by_pod(reader: Reader, old: Pod | None, new: Pod | None) -> Iterator[str]:
    """A pod affects what is passed to every island."""
    yield from (f"{UNIT}{each.name}" for each in reader.all(CLUSTERS) if not each.own)


def _by_trust(reader: Reader, old: TrustBundle | None, new: TrustBundle | None) -> Iterator[str]:
    """A new or removed file of authorities affects its islands."""
    row = new or old
    if row is not None:
        yield from (f"{UNIT}{each}" for each in row.clusters)
