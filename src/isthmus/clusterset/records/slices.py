"""The endpoint slice record: an EndpointSlice of one cluster, in Cilium 1.20's form: protobuf, compressed by Zstandard.

A cluster publishes service records, slice records, or both, and its configuration says which
(``endpointSlicesExportMode``). As with Cilium's default, slices are read where there is nothing else: of a cluster that
publishes both the service records count. Slices carry readiness, and one record has one family and one set of ports.

One invalid address or port rejects the whole record: half a set of endpoints would look like a scale-down.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from isthmus import bounds
from isthmus.bounds import OutOfBounds, Syntax
from isthmus.clusterset.errors import RecordError
from isthmus.clusterset.records import decoding
from isthmus.model.hosts import family
from isthmus.model.names import LABEL, QUALIFIED, ClusterName, ServiceName, service_name, split
from isthmus.model.services import Condition, Endpoint, EndpointSet, Labels, Port
from isthmus.model.sources import CLUSTERSET

LIMIT: Final = 512 * 1024
MAX_CONTENT: Final = 1024 * 1024
"""Bytes that a record may be decompressed to. A thousand endpoints with all fields take 300 kB."""
MAX_RATIO: Final = 100
SMALL: Final = 4_096
"""A record may be decompressed to this plus MAX_RATIO times its size, so that the cost of a list follows its size."""
MAX_ENDPOINTS: Final = 1_000
MAX_PORTS: Final = 100
MAX_FOR_ZONES: Final = 8
"""Bounds of EndpointSlices in Kubernetes."""
MAX_ENTRY: Final = 4_096
"""Bytes of a label, an endpoint or a port: its longest texts together."""
MAX_TEXT: Final = 253
MAX_LABELS: Final = 1_000

KIND: Final = "endpointslices"
OF_SERVICE: Final = "kubernetes.io/service-name"

TABLE: Final = """
Pair         1 key string, 2 value string
Conditions   1 ready ?bool, 2 serving ?bool, 3 terminating ?bool
ForZone      1 name string
Hints        1 forZones *ForZone
Endpoint     1 addresses *string, 2 conditions Conditions, 3 hostname string, 6 nodeName string, 7 zone string, 8 hints Hints
EndpointPort 1 name ?string, 2 protocol string, 3 port int32, 4 appProtocol string
Slice        1 cluster string, 2 clusterID uint32, 3 namespace string, 4 name string, 5 labels *bytes, 7 addressType string, 8 endpoints *bytes, 9 ports *bytes
"""  # noqa: E501 a table reads better in whole lines
"""Entries of a slice are of type bytes, so that they can be counted before each is decoded."""


@cache
def message(name: str) -> Any:
    """The class of a message of the table. Protobuf is imported with the first slice: few processes decode one."""
    return _messages()(name)


@cache
def _messages() -> Callable[[str], Any]:
    from isthmus import protos

    return protos.messages("isthmus.cilium", TABLE)


_LABEL = r"(?!-)[-a-z0-9]{1,63}(?<!-)"
_NAME: Final = Syntax(
    rf"{_LABEL}/(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*", most=63 + len("/") + MAX_TEXT, meaning="<namespace>/<slice>"
)
"""An EndpointSlice's name is that of a DNS subdomain, and longer than its Service's."""

CONDITIONS: Final = {Condition.READY: (True, True, False), Condition.TERMINATING: (False, True, True)}
"""``ready``, ``serving`` and ``terminating`` of the endpoints that are published."""
PART_SIZE: Final = 100
"""Average number of endpoints in a record of a larger service. A changed endpoint rewrites one record."""


class Decoded(NamedTuple):
    """The row of a record, and the bytes that its endpoints have uncompressed."""

    row: EndpointSet | None
    size: int


def parse(key: str) -> ServiceName:
    """The namespace and name of the slice that a key names; RecordError if it names none."""
    if not _NAME.fits(key):
        raise RecordError("the key is not <namespace>/<slice>")
    return ServiceName(key)


def decode(value: bytes, *, cluster: ClusterName, cluster_id: int, name: ServiceName) -> Decoded:
    """Decode a slice of a cluster; without a row if it belongs to no Service.

    RecordError for an invalid field, and where the record names another slice or cluster.
    """
    fields = _fields(value)
    decoding.check_owner(
        cluster=fields.cluster, namespace=fields.namespace, name=fields.name, expected_cluster=cluster, expected=name
    )
    if fields.clusterID != cluster_id:
        raise RecordError(f"its clusterID is {fields.clusterID}, the cluster's is {cluster_id}")
    if fields.addressType not in ("IPv4", "IPv6"):
        raise RecordError(f"{bounds.shown(fields.addressType)} is not a type of addresses")
    pairs = _entries(fields.labels, "Pair", most=MAX_LABELS, field="labels")
    service = next((pair.value for pair in pairs if pair.key == OF_SERVICE), "")
    if not service:
        return Decoded(None, 0)
    if not LABEL.fits(service):
        raise RecordError(f"{OF_SERVICE}: {bounds.shown(service)} is not the name of a Service")
    row = EndpointSet(service_name(fields.namespace, service), cluster, CLUSTERSET, name, _endpoints(fields))
    return Decoded(row, sum(map(len, fields.endpoints)))


def _fields(value: bytes) -> Any:
    """The message of a record; RecordError where it is too large, compressed or not, or none."""
    if len(value) > LIMIT:
        raise RecordError(f"{len(value)} bytes, at most {LIMIT} are taken")
    try:
        content = bounds.inflated(value, most=min(MAX_CONTENT, SMALL + MAX_RATIO * len(value)))
    except OutOfBounds as error:
        raise RecordError(str(error)) from None
    return _parsed("Slice", content, field="content")


def _parsed(name: str, content: bytes, *, field: str) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return message(name).FromString(content)
    except DecodeError as error:
        raise RecordError(f"{field}: it is not the message {name}: {error}") from None


def _entries(written: Sequence[bytes], name: str, *, most: int, field: str) -> list[Any]:
    """The messages of a slice's entries; RecordError where they are too many, or one is too large or none."""
    try:
        bounds.size(written, most=most, field=field)
        for each in written:
            bounds.size(each, most=MAX_ENTRY, field=field)
    except OutOfBounds as error:
        raise RecordError(str(error)) from None
    return [_parsed(name, each, field=field) for each in written]


def _endpoints(fields: Any) -> tuple[Endpoint, ...]:
    """Return the endpoints by address. One that is listed twice has its best condition, as in our own slices."""
    ports = _ports(_entries(fields.ports, "EndpointPort", most=MAX_PORTS, field="ports"))
    endpoints: dict[str, Endpoint] = {}
    for each in _entries(fields.endpoints, "Endpoint", most=MAX_ENDPOINTS, field="endpoints"):
        if not each.addresses:
            raise RecordError("an endpoint has no address")
        address = decoding.address(each.addresses[0])
        if family(address) != fields.addressType:
            raise RecordError(f"{address} is not of type {fields.addressType}")
        condition = _condition(each.conditions)
        if address not in endpoints or condition < endpoints[address].condition:
            zones = tuple(sorted(_text(zone.name) for zone in each.hints.forZones[:MAX_FOR_ZONES]))
            endpoints[address] = Endpoint(
                address, ports, condition, _text(each.hostname), _text(each.nodeName), _text(each.zone), zones
            )
    return tuple(endpoints[address] for address in sorted(endpoints))


def _condition(conditions: Any) -> Condition:
    """Join the three conditions (KEP-1669). A missing ``ready`` is true, and ready wins over terminating."""
    if conditions.ready or not conditions.HasField("ready"):
        return Condition.READY
    if not conditions.terminating:
        return Condition.NOT_READY
    return Condition.TERMINATING if conditions.serving else Condition.GONE


def _ports(written: Iterable[Any]) -> tuple[Port, ...]:
    """Convert ports. One without a number, which means all ports, is left out."""
    ports = {_port(each) for each in written if each.port}
    return tuple(sorted(ports, key=lambda port: (port.name, port.port, port.protocol)))


def _port(written: Any) -> Port:
    protocol = decoding.protocol(written.protocol)
    if written.name and not LABEL.fits(written.name):
        raise RecordError(f"{bounds.shown(written.name)} is not the name of a port")
    if protocol is None:
        raise RecordError(f"port {bounds.shown(written.name)}: {bounds.shown(written.protocol)} is not a protocol")
    app_protocol = written.appProtocol if QUALIFIED.fits(written.appProtocol) else ""
    try:
        return Port(written.name, bounds.port(written.port), protocol, app_protocol)
    except OutOfBounds as error:
        raise RecordError(f"port {bounds.shown(written.name)}: {error}") from None


def _text(text: str) -> str:
    if len(text) > MAX_TEXT:
        raise RecordError(f"{bounds.shown(text)} has more than {MAX_TEXT} characters")
    return text


def encode(
    service: ServiceName, *, cluster: ClusterName, cluster_id: int, endpoints: Iterable[Endpoint], labels: Labels = ()
) -> Iterator[tuple[ServiceName, bytes]]:
    """Yield the slices of a service, each with its name. Endpoints that cannot serve are in none."""
    namespace, short = split(service)
    for name, part in _cut(short, endpoints):
        pairs = sorted({**dict(labels), OF_SERVICE: short}.items())
        fields = message("Slice")(
            cluster=cluster,
            clusterID=cluster_id,
            namespace=namespace,
            name=name,
            labels=[message("Pair")(key=key, value=value).SerializeToString() for key, value in pairs],
            addressType=family(part[0].address),
            endpoints=[_endpoint_message(each).SerializeToString() for each in part],
            ports=[_port_message(each).SerializeToString() for each in part[0].ports],
        )
        yield service_name(namespace, name), bounds.deflated(fields.SerializeToString())


def _endpoint_message(endpoint: Endpoint) -> Any:
    ready, serving, terminating = CONDITIONS[endpoint.condition]
    written = message("Endpoint")(
        addresses=[endpoint.address],
        conditions={"ready": ready, "serving": serving, "terminating": terminating},
        hostname=endpoint.hostname,
        nodeName=endpoint.node,
        zone=endpoint.zone,
    )
    for zone in endpoint.for_zones:
        written.hints.forZones.add(name=zone)
    return written


def _port_message(port: Port) -> Any:
    return message("EndpointPort")(
        name=port.name, protocol=port.protocol, port=port.port, appProtocol=port.app_protocol
    )


def _cut(service: str, endpoints: Iterable[Endpoint]) -> Iterator[tuple[str, list[Endpoint]]]:
    """Cut endpoints by family and ports, and further by a hash of the address, into parts with a name each.

    When a part splits in two, one half keeps the name.
    """
    groups: dict[tuple[str, tuple[Port, ...]], list[Endpoint]] = {}
    for endpoint in sorted(endpoints, key=lambda each: each.address):
        if endpoint.condition in CONDITIONS:
            groups.setdefault((family(endpoint.address), endpoint.ports), []).append(endpoint)
    for (of_family, ports), members in groups.items():
        number = 1
        while number * PART_SIZE < len(members):
            number *= 2
        parts: dict[int, list[Endpoint]] = {}
        for member in members:
            parts.setdefault(int.from_bytes(_hash(member.address)[:4]) & number - 1, []).append(member)
        listed = [f"{port.name} {port.port} {port.protocol} {port.app_protocol}" for port in ports]
        key = _hash(",".join((of_family, *listed))).hex()[:8]
        yield from ((f"{service}-{key}{f'-{part}' if part else ''}", parts[part]) for part in sorted(parts))


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
