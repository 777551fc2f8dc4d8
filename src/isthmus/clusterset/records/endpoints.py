"""The service record: the endpoints of one cluster for one service, imported or global.

Inside ``frontends`` and ``backends`` the keys ``Protocol`` and ``Port`` are capitalised. The record carries no
readiness: the writer leaves out endpoints that must not be called. One invalid address rejects the whole record: half a
set of endpoints would look like a scale-down.

Our own fields, which Cilium skips: ``nodes``, by which peers follow the drain of a node; ``morePorts``, the numbers
of a port name at an address beside the one that ``backends`` has room for (pods in the network of their node may share
an address); and ``claimed``: only Services that a MultiClusterService of Karmada claims take the
endpoints. Such a record is not shared, so that Cilium takes none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw, Struct

from isthmus import bounds
from isthmus.bounds import OutOfBounds
from isthmus.clusterset.errors import RecordError
from isthmus.clusterset.records import decoding
from isthmus.clusterset.records.decoding import Text
from isthmus.model.names import ClusterName, ServiceName, split
from isthmus.model.services import Condition, Endpoint, EndpointSet, Labels, Port
from isthmus.model.sources import CLUSTERSET

LIMIT: Final = 4 * 1024 * 1024
PART: Final = "record"
READY: Final = Condition.READY
MAX_FOR_ZONES: Final = 8
"""Zones that an endpoint is hinted to: the bound of EndpointSlices (KEP-2433)."""


class NamedPort(Struct, gc=False):
    """A port of an endpoint, keyed by its name."""

    port: int = msgspec.field(name="Port")
    protocol: str = msgspec.field(name="Protocol", default="")


MAX_MORE_PORTS: Final = 8
"""Further numbers of one port name at one address: as many pods of a service share a node's network."""
MAX_FRONTENDS: Final = 16_384
"""Bytes of ``frontends`` that are read: a Service has two addresses, and rarely more than a few ports."""
MorePorts = dict[str, dict[Text, Annotated[list[NamedPort], Meta(max_length=MAX_MORE_PORTS)]]]


class _Named(Struct, gc=False):
    name: Text = ""


class Zone(Struct, gc=False):
    """Zone of an endpoint, and the zones that should prefer it."""

    zone: Text = ""
    for_zones: Annotated[list[_Named], Meta(max_length=MAX_FOR_ZONES)] | None = msgspec.field(
        name="forZones", default=None
    )


Backends = dict[str, dict[Text, NamedPort]]
"""Ports by name, by address; the other maps of a record are by address, too."""
Zones = dict[str, Zone]
Texts = dict[str, Text]


class Record(Struct, gc=False):
    """The fields of a record that we read."""

    cluster: str
    namespace: str
    name: str
    backends: Backends | None = None
    hostnames: Texts | None = None
    zones: Zones | None = None
    nodes: Texts | None = None
    more_ports: MorePorts | None = msgspec.field(name="morePorts", default=None)
    frontends: Raw = Raw(b"null")
    shared: bool = False
    claimed: bool = False
    cluster_id: int = msgspec.field(name="clusterID", default=0)


DECODER: Final = msgspec.json.Decoder(Record)
_FRONTENDS: Final = msgspec.json.Decoder(Backends | None)
NO_MORE_PORTS: Final[MorePorts] = {}
MAX_CACHED_PORTS: Final = 16
"""Ports of one address up to which they are cached. More would stay in memory after their record is gone."""


def decode(value: bytes, *, cluster: ClusterName, cluster_id: int, name: ServiceName) -> EndpointSet | None:
    """Decode the endpoints of a cluster's record; None if no Service may use them.

    RecordError for an invalid field, and where the record names another service or cluster.
    """
    fields = decoding.decode(value, DECODER, limit=LIMIT)
    decoding.check_owner(
        cluster=fields.cluster, namespace=fields.namespace, name=fields.name, expected_cluster=cluster, expected=name
    )
    if fields.cluster_id != cluster_id:
        raise RecordError(f"its clusterID is {bounds.shown(fields.cluster_id)}, the cluster's is {cluster_id}")
    if not (fields.shared or fields.claimed):
        return None
    maps = fields.backends or {}, fields.hostnames or {}, fields.zones or {}, fields.nodes or {}
    endpoints = read(*maps, fields.more_ports or {})
    service_ports = _service_ports(bytes(fields.frontends))
    return EndpointSet(name, cluster, CLUSTERSET, PART, tuple(endpoints), fields.shared, service_ports=service_ports)


def _service_ports(frontends: bytes) -> tuple[Port, ...]:
    """Return the ports of the peer's Service; none if unreadable: they only help while ports are renamed."""
    if len(frontends) > MAX_FRONTENDS:
        return ()
    try:
        by_address = decoding.decode(frontends, _FRONTENDS, limit=LIMIT) or {}
        first: Mapping[str, NamedPort] = next(iter(by_address.values()), {})
        return _ports(tuple([(name, port.port, port.protocol) for name, port in first.items()]))
    except RecordError:
        return ()


def read(
    backends: Backends, hostnames: Texts, zones: Zones, nodes: Texts, more_ports: MorePorts = NO_MORE_PORTS
) -> list[Endpoint]:
    """Return the endpoints of a record's maps, sorted by address; RecordError for an invalid address or port."""
    endpoints: list[Endpoint] = []
    for text, named in backends.items():  # hot:
        if more_ports and text in more_ports:
            more = [(name, port) for name, ports in more_ports[text].items() for port in ports]
            ports = _ports(tuple([(name, port.port, port.protocol) for name, port in (*named.items(), *more)]))
        elif len(named) == 1:  # nearly always
            [(name, port)] = named.items()
            ports = _single_port(name, port.port, port.protocol)
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
    """Encode the record of a service. Terminating endpoints are in it only if no endpoint is ready.

    ``shared``: True if all Services with endpoints of other clusters may use these; otherwise only claimed ones may.
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
    more_ports = {each.address: more for each in named if (more := _more_ports_json(each.ports))}
    fields |= {"morePorts": more_ports} if more_ports else {}
    fields |= {"labels": dict(labels), "selector": dict(selector)}
    fields |= {} if shared else {"claimed": True}
    fields |= {"includeExternal": True, "shared": shared, "clusterID": cluster_id}
    return msgspec.json.encode(fields)


def callable_endpoints(endpoints: Iterable[Endpoint]) -> list[Endpoint]:
    """Return the ready endpoints; if there are none, those that still serve while they terminate."""
    candidates = list(endpoints)
    ready = [each for each in candidates if each.condition is Condition.READY]
    return ready or [each for each in candidates if each.condition is Condition.TERMINATING]


def _ports(written: tuple[tuple[str, int, str], ...]) -> tuple[Port, ...]:
    """Convert ports. A few are cached, since records have few different ones: rows share them, which saves memory."""
    return _cached_ports(written) if len(written) <= MAX_CACHED_PORTS else _converted(written)


@lru_cache(4096)
def _cached_ports(written: tuple[tuple[str, int, str], ...]) -> tuple[Port, ...]:
    return _converted(written)


def _converted(written: tuple[tuple[str, int, str], ...]) -> tuple[Port, ...]:
    return tuple(sorted({_port(*each) for each in written}, key=lambda port: (port.name, port.port, port.protocol)))


@lru_cache(4096)
def _single_port(name: str, number: int, written: str) -> tuple[Port, ...]:
    """Convert the port of an endpoint that has one."""
    return (_port(name, number, written),)


def _port(name: str, number: int, written: str) -> Port:
    protocol = decoding.protocol(written)
    if protocol is None:
        raise RecordError(f"port {bounds.shown(name)}: {bounds.shown(written)} is not a protocol")
    try:
        return Port(name, bounds.port(number), protocol)
    except OutOfBounds as error:
        raise RecordError(f"port {bounds.shown(name)}: {error}") from None


def _ports_json(ports: Iterable[Port]) -> dict[str, Any]:
    """Encode ports by name; the lowest number of a name that has several."""
    lowest: dict[str, Port] = {}
    for port in ports:
        if port.name not in lowest or port.port < lowest[port.name].port:
            lowest[port.name] = port
    return {name: _port_json(port) for name, port in lowest.items()}


def _more_ports_json(ports: Sequence[Port]) -> dict[str, list[Any]]:
    """Encode the numbers that :func:`_ports_json` leaves out, as far as peers take them."""
    if len({port.name for port in ports}) == len(ports):
        return {}
    numbers: dict[str, list[Any]] = {}
    for port in sorted(ports, key=lambda each: (each.name, each.port)):
        numbers.setdefault(port.name, []).append(_port_json(port))
    return {name: more[1 : 1 + MAX_MORE_PORTS] for name, more in numbers.items() if len(more) > 1}


def _port_json(port: Port) -> dict[str, Any]:
    return {"Protocol": port.protocol, "Port": port.port}


def _zone_json(endpoint: Endpoint) -> dict[str, Any]:
    return {"zone": endpoint.zone} | (
        {"forZones": [{"name": zone} for zone in endpoint.for_zones]} if endpoint.for_zones else {}
    )
