"""The service record: the endpoints that one cluster has for one service, import or global.

Inside ``frontends`` and ``backends`` the keys ``Protocol`` and ``Port`` are capitalised. The record carries no
readiness: the writer leaves out what is not to be called. One address that is none costs the whole record: half a
set of endpoints would look like a scale-down. Fields of ours, which Cilium skips: ``nodes``, by which peers follow the
drain of a node, and ``claimed``: only Services that a MultiClusterService of Karmada claims take the endpoints. Such a
record is not shared, so that Cilium takes none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from isthmus.clusterset import decoding
from isthmus.clusterset.errors import RecordError
from isthmus.model.names import ClusterName, ServiceName, split
from isthmus.model.services import Condition, Endpoint, EndpointSet, Labels, Port
from isthmus.model.sources import CLUSTERSET

LIMIT: Final = 4 * 1024 * 1024
PART: Final = "record"
READY: Final = Condition.READY


class NamedPort(Struct, gc=False):
    """A port of an endpoint; its name is the key that it is under."""

    port: int = msgspec.field(name="Port")
    protocol: str = msgspec.field(name="Protocol", default="")


class _Named(Struct, gc=False):
    name: str = ""


class Zone(Struct, gc=False):
    """Where an endpoint is, and the zones that are to prefer it."""

    zone: str = ""
    for_zones: list[_Named] | None = msgspec.field(name="forZones", default=None)


Backends = dict[str, dict[str, NamedPort]]
"""Ports by name, by address, as all maps of a record are."""
Zones = dict[str, Zone]
Texts = dict[str, str]


class Record(Struct, gc=False):
    """A record as it is written; what we do not read is left out."""

    cluster: str
    namespace: str
    name: str
    backends: Backends | None = None
    hostnames: Texts | None = None
    zones: Zones | None = None
    nodes: Texts | None = None
    shared: bool = False
    claimed: bool = False
    cluster_id: int = msgspec.field(name="clusterID", default=0)


DECODER: Final = msgspec.json.Decoder(Record)


class Header(Protocol):
    """Which cluster and service a record is of, and who may take its endpoints."""

    cluster: str
    namespace: str
    name: str
    shared: bool
    claimed: bool
    cluster_id: int


def decode(value: bytes, *, cluster: ClusterName, cluster_id: int, name: ServiceName) -> EndpointSet | None:
    """The endpoints in a record of this cluster; None where it shares them with no Service."""
    fields = decoding.decode(value, DECODER, limit=LIMIT)
    if not is_given(fields, cluster=cluster, cluster_id=cluster_id, name=name):
        return None
    found = read(fields.backends or {}, fields.hostnames or {}, fields.zones or {}, fields.nodes or {})
    return EndpointSet(name, cluster, CLUSTERSET, PART, tuple(found), fields.shared)


def is_given(header: Header, *, cluster: ClusterName, cluster_id: int, name: ServiceName) -> bool:
    """Whether some Service may take a record's endpoints; RecordError where it is of another name or cluster."""
    decoding.check_owner(
        cluster=header.cluster, namespace=header.namespace, name=header.name, expected_cluster=cluster, expected=name
    )
    if header.cluster_id != cluster_id:
        raise RecordError(f"its clusterID is {header.cluster_id}, the cluster's is {cluster_id}")
    return header.shared or header.claimed


def read(backends: Backends, hostnames: Texts, zones: Zones, nodes: Texts) -> list[Endpoint]:
    """Endpoints, sorted by address; RecordError where one has an address or a port that none may have."""
    endpoints: list[Endpoint] = []
    for text, named in backends.items():  # hot:
        if len(named) == 1:  # nearly always
            [(name, port)] = named.items()
            ports = _alone(name, port.port, port.protocol)
        else:
            ports = _ports(tuple([(name, port.port, port.protocol) for name, port in named.items()]))
        zone = zones.get(text)
        endpoints.append(
            Endpoint(
                decoding.address(text),
                ports,
                READY,
                hostnames.get(text, ""),
                nodes.get(text, ""),
                zone.zone if zone else "",
                tuple([each.name for each in zone.for_zones]) if zone and zone.for_zones else (),
            )
        )
    if len(endpoints) > 1:
        endpoints.sort(key=attrgetter("address"))
    return endpoints


def encode(
    name: ServiceName,
    *,
    cluster: ClusterName,
    cluster_id: int,
    endpoints: Iterable[Endpoint],
    frontends: Mapping[str, Iterable[Port]],
    labels: Labels = (),
    selector: Labels = (),
    shared: bool = True,
) -> bytes:
    """The record of a service. Terminating endpoints are in it only where nothing else is left.

    ``shared``: whether all Services that take endpoints of other clusters may take these; else those that are claimed.
    """
    namespace, short = split(name)
    chosen = {endpoint.address: endpoint for endpoint in callable_endpoints(endpoints)}
    named = [chosen[each] for each in sorted(chosen)]
    hostnames = {each.address: each.hostname for each in named if each.hostname}
    zones = {each.address: _zone_json(each) for each in named if each.zone}
    nodes = {each.address: each.node for each in named if each.node}
    fields: dict[str, Any] = {"cluster": cluster, "namespace": namespace, "name": short}
    fields |= {"frontends": {address: _ports_json(ports) for address, ports in sorted(frontends.items())}}
    fields |= {"backends": {each.address: _ports_json(each.ports) for each in named}}
    fields |= {"hostnames": hostnames} if hostnames else {}
    fields |= {"zones": zones} if zones else {}
    fields |= {"nodes": nodes} if nodes else {}
    fields |= {"labels": dict(labels), "selector": dict(selector)}
    fields |= {} if shared else {"claimed": True}
    fields |= {"includeExternal": True, "shared": shared, "clusterID": cluster_id}
    return msgspec.json.encode(fields)


def callable_endpoints(endpoints: Iterable[Endpoint]) -> list[Endpoint]:
    """The ready ones; where there are none, those that still serve while they end."""
    known = list(endpoints)
    ready = [each for each in known if each.condition is Condition.READY]
    return ready or [each for each in known if each.condition is Condition.TERMINATING]


@lru_cache(4096)
def _ports(written: tuple[tuple[str, int, str], ...]) -> tuple[Port, ...]:
    """Records have few different ports, and share them: it takes less time, and less room."""
    return tuple(sorted([_port(*each) for each in written], key=lambda port: port.name))


@lru_cache(4096)
def _alone(name: str, number: int, written: str) -> tuple[Port, ...]:
    """The same of one port."""
    return (_port(name, number, written),)


def _port(name: str, number: int, written: str) -> Port:
    protocol = decoding.protocol(written)
    if protocol is None or not 0 < number < 65_536:
        raise RecordError(f"port {name!r}: {number}/{written} is no port")
    return Port(name, number, protocol)


def _ports_json(ports: Iterable[Port]) -> dict[str, Any]:
    return {port.name: {"Protocol": port.protocol, "Port": port.port} for port in ports}


def _zone_json(endpoint: Endpoint) -> dict[str, Any]:
    return {"zone": endpoint.zone} | (
        {"forZones": [{"name": zone} for zone in endpoint.for_zones]} if endpoint.for_zones else {}
    )
