"""The listeners of a node's Envoy for services of islands: which there are, and at which addresses and ports. Pure.

Each service port that an island exports has a listener of its own, as has each port of a pod of a headless import. The
planner decides the island's share of the calls, with the listener as a backend (``loadbalancer/islands.py``);
:mod:`isthmus.gateway.islands` encodes listeners for Envoy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from isthmus.loadbalancer.services import names_for_import, resolve
from isthmus.model.clusters import reachability, reachability_changed
from isthmus.model.islands import THROUGH_GATEWAYS, IslandListener, IslandPod
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Import, Port, Service
from isthmus.model.tables import CLUSTERS, IMPORTS, ISLAND_LISTENERS, ISLAND_PODS, SERVICES
from isthmus.proxy.ports import Range, share_ports
from isthmus.proxy.protocols import http_version
from isthmus.proxy.tracing import Tracing
from isthmus.statedb import Derived, Reader, on_change, part, unit_of

ListenerKey = tuple[Any, ...]
"""Key of a listener: a service, its cluster and a port."""


class NodeSettings(NamedTuple):
    """Settings of the node's Envoy: its cluster, the clusterset's domain, and its addresses and ports for pods."""

    cluster: ClusterName
    domain: str
    directory: Path
    addresses: tuple[str, ...]
    first_port: int
    ports: int
    connect_timeout: float = 0.25
    """Seconds until a connect to a gateway, including its handshake, fails and another one is tried."""
    pod_ports: int = 0
    """Number of ports, after those for services, for pods of headless imports."""
    pod_addresses: tuple[IPv4Network | IPv6Network, ...] = ()
    """Ranges of the addresses that represent such pods, at most one of each family."""
    preconnect: bool = False
    """Open connections for HTTP before they are needed."""
    tracing: Tracing | None = None
    """Traces of requests; ``None`` for none."""
    accounts: bool = False
    """Pass the accounts of calling pods to gateways of clusters that verify them."""


def derived(node: NodeSettings) -> Derived[IslandListener]:
    """Declare ``island_listeners``."""
    whole = unit_of(lambda row: True)
    reads: dict[Any, Any] = {
        IMPORTS: on_change(("clusters", "ports", "type"), whole),
        SERVICES: _by_service,
        CLUSTERS: on_change(reachability_changed, whole),
        ISLAND_PODS: whole,
    }
    return Derived(
        ISLAND_LISTENERS,
        compute=partial(listeners, node=node),
        reads=reads,
        unit="all",
        arrived=lambda reader, sources: (True,),
    )


def listeners(reader: Reader, unit: bool, *, node: NodeSettings) -> Iterable[IslandListener]:
    """Return the listeners of imports with an address (one for each TCP or UDP port and exporting island) and of pods.

    Listeners keep their ports. So no port is assigned until all imports are listed: otherwise the island whose imports
    are listed first would take every port.
    """
    if reader.pending(IMPORTS) or reader.pending(SERVICES):
        return reader.all(ISLAND_LISTENERS)
    return _listeners(reader, node)


def _listeners(reader: Reader, node: NodeSettings) -> Iterator[IslandListener]:
    reachable = islands(reader, node.cluster)
    desired: dict[ListenerKey, IslandListener] = {}
    for imported in reader.all(IMPORTS) if reachable else ():
        name = imported.name
        rows = part(
            name, partial(_of_import, reader, imported, reachable, node), last=partial(_last_rows, reader, name)
        )
        desired.update((_key(row.service, row.cluster, row), row) for row in rows)
    for key, number in _shared(reader, desired, Range(node.first_port, node.ports)).items():
        yield replace(desired[key], listen_port=number)
    yield from _of_pods(reader, node)


def _of_import(
    reader: Reader, imported: Import, reachable: set[ClusterName], node: NodeSettings
) -> list[IslandListener]:
    """Return the listeners of an import, without their ports."""
    rows: list[IslandListener] = []
    for name in set(names_for_import(reader, imported)):
        subject = resolve(reader, name, which="all")
        if subject is None or subject.headless or not subject.import_of:
            continue
        for cluster in reachable.intersection(subject.exporters or ()):
            rows += [
                IslandListener(
                    service=name,
                    cluster=cluster,
                    port=port.port,
                    protocol=port.protocol,
                    addresses=node.addresses,
                    listen_port=0,
                    import_of=subject.import_of,
                    http=http_version(port) is not None,
                )
                for port in subject.ports
                if port.protocol in THROUGH_GATEWAYS
            ]
    return rows


def _last_rows(reader: Reader, imported: ServiceName) -> list[IslandListener]:
    rows = reader.by(ISLAND_LISTENERS, "all", True)
    return [row for row in rows if row.import_of == imported and not row.pod]


def _shared(reader: Reader, keys: Iterable[ListenerKey], ports: Range) -> dict[ListenerKey, int]:
    """Assign ports to keys: current ones are kept, and free ports are shared fairly among islands."""
    current = {_key_of(row): row.listen_port for row in reader.all(ISLAND_LISTENERS)}
    return share_ports(keys, ports, group=lambda key: str(key[1]), order=lambda key: key, current=current)


def _key_of(row: IslandListener) -> ListenerKey:
    return _key(row.service, row.cluster, Port("", row.port, row.protocol))


def _key(name: ServiceName, cluster: ClusterName, port: Port | IslandListener) -> ListenerKey:
    """Key by which a listener's port is assigned. That of TCP has no protocol, as in versions without UDP."""
    return (name, cluster, port.port) if port.protocol == "TCP" else (name, cluster, port.port, port.protocol)


def _of_pods(reader: Reader, node: NodeSettings) -> Iterator[IslandListener]:
    """Yield the listeners of pods. They have their own port range, so that churn of pods takes none from services."""
    ports_by_key = {
        _key(row.name, row.cluster, port): (row, port) for row in reader.all(ISLAND_PODS) for port in row.ports
    }
    for key, number in _shared(reader, ports_by_key, Range(node.first_port + node.ports, node.pod_ports)).items():
        row, port = ports_by_key[key]
        yield IslandListener(
            service=row.name,
            cluster=row.cluster,
            port=port.port,
            protocol=port.protocol,
            addresses=node.addresses,
            listen_port=number,
            import_of=row.import_of,
            pod=row.pod,
            http=_is_http(reader, row, port),
        )


def _is_http(reader: Reader, row: IslandPod, port: Port) -> bool:
    """True if the import's port of the same name speaks HTTP."""
    imported = reader.get(IMPORTS, row.import_of)
    return any(
        each.name == port.name and http_version(each) is not None for each in (imported.ports if imported else ())
    )


def islands(reader: Reader, own: ClusterName) -> set[ClusterName]:
    """Return the clusters that are reached through their gateways."""
    here = reader.get(CLUSTERS, own)
    return {row.name for row in reader.all(CLUSTERS) if not row.own and reachability(here, row) == "gateway"}


def _by_service(reader: Reader, old: Service | None, new: Service | None) -> Iterator[bool]:
    """A derived Service affects the listeners if it is added, deleted, or changes its ports."""
    before, after = ((row.import_of, row.ports) if row is not None and row.import_of else () for row in (old, new))
    if before != after:
        yield True
