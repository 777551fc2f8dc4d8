"""The kinds of records: how each is decoded, checked, and stored as rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

from msgspec import Struct, structs

from isthmus import bounds
from isthmus.bounds import OutOfBounds
from isthmus.clusterset.errors import RecordError
from isthmus.clusterset.records import addresses, decoding, endpoints, exports, identities, keys, quotas, slices
from isthmus.clusterset.records.admission import Admission
from isthmus.clusterset.records.quotas import Size
from isthmus.model.identities import CallerAddress, Identity
from isthmus.model.mcs import RecordKind
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Endpoint, EndpointSet, Export, Import, Port
from isthmus.model.sources import CLUSTERSET
from isthmus.model.tables import CALLER_ADDRESSES, ENDPOINT_SETS, EXPORTS, IDENTITIES, IMPORTS
from isthmus.statedb import Reader, Table, WriteTxn


class Decoded(Struct, frozen=True, gc=False):
    """The content of a record."""

    row: Any
    """``None`` if the record results in no row."""
    size: Size


class Form(NamedTuple):
    """How the records of one kind become table rows."""

    table: Table[Any, Any]
    decode: Callable[[bytes, Admission, int, ServiceName], Decoded]
    """(value, admission of its publisher, cluster id, name) → its content; RecordError if the record is unusable."""
    key: Callable[[ClusterName, ServiceName], Any] | None
    """Return the key of a record's row; None if it depends on the record's content."""
    rows: Callable[[Reader, ClusterName], list[Any]]
    """Return the rows of a peer's records, without those of other sources."""
    part: Callable[[Any, int, int], Any]
    """(row, granted units, all units of the record) → the part of the row that is admitted; None if there is none."""
    usage: Callable[[Any], tuple[str, int]]
    """(row kept over a restart) → the key of its record, and the most units that it uses."""
    imported: Callable[[Reader, ClusterName, ServiceName], bool] = lambda reader, cluster, name: False
    """True if an import of the own cluster shows that this record was admitted before."""
    parse: Callable[[str], ServiceName] = keys.parse
    """(key below the kind's prefix) → the name of its record; RecordError if it names none."""
    stored: Literal["endpointslices", ""] = ""
    """The kind in the keys of these records, if it is another one than the form's."""
    slices: Form | None = None
    """Form of the records that yield the same rows in a cluster that publishes its endpoints as slices only."""


def _export(value: bytes, admission: Admission, cluster_id: int, name: ServiceName) -> Decoded:
    admission.check_name(name)
    row = exports.decode(value, cluster=admission.cluster, name=name)
    return Decoded(row, Size(1 + len(value) // quotas.EXPORT_BYTES, row.created))


def _endpoint_set(value: bytes, admission: Admission, cluster_id: int, name: ServiceName) -> Decoded:
    admission.check_name(name)
    row = endpoints.decode(value, cluster=admission.cluster, cluster_id=cluster_id, name=name)
    if row is None:
        return Decoded(None, Size(0))
    admission.check_endpoints(row.endpoints)
    return Decoded(row, Size(max(1, len(row.endpoints), len(value) // quotas.ENDPOINT_BYTES)))


def _slice(value: bytes, admission: Admission, cluster_id: int, name: ServiceName) -> Decoded:
    row, size = slices.decode(value, cluster=admission.cluster, cluster_id=cluster_id, name=name)
    if row is None:
        return Decoded(None, Size(0))
    admission.check_name(row.service)
    admission.check_endpoints(row.endpoints)
    return Decoded(row, Size(max(1, len(row.endpoints), size // quotas.ENDPOINT_BYTES)))


def _identity(value: bytes, admission: Admission, cluster_id: int, name: ServiceName) -> Decoded:
    row = identities.decode(value, cluster=admission.cluster, cluster_id=cluster_id, number=name, most=admission.most)
    return Decoded(row, Size(1 + len(value) // quotas.IDENTITY_BYTES if row is not None else 0))


def _caller_address(value: bytes, admission: Admission, cluster_id: int, name: ServiceName) -> Decoded:
    admission.check_address(name)
    row = addresses.decode(value, cluster=admission.cluster, cluster_id=cluster_id, address=name, most=admission.most)
    return Decoded(row, Size(1 + len(value) // quotas.ADDRESS_BYTES if row is not None else 0))


def _address(key: str) -> ServiceName:
    return ServiceName(addresses.parse(key))


def _number(key: str) -> ServiceName:
    identities.parse(key)
    return ServiceName(key)


def _identity_key(cluster: ClusterName, name: ServiceName) -> tuple[ClusterName, int]:
    """The key of an identity's row; that of no row for a key that is no number."""
    try:
        return cluster, identities.parse(name)
    except RecordError:
        return cluster, 0


def _first_endpoints(row: EndpointSet, units: int, whole: int) -> EndpointSet | None:
    """Return a row with the first of its endpoints, in proportion to the granted units; None if that is none."""
    number = len(row.endpoints) * units // whole
    return structs.replace(row, endpoints=tuple(islice(row.endpoints, number))) if number else None


def admitted(row: Export | EndpointSet | Identity | CallerAddress | Any, admission: Admission) -> bool:
    """True if a row from an earlier process is within all bounds and the peer's current file permits it."""
    try:
        if isinstance(row, EndpointSet):
            admission.check_name(row.service)
            _check_endpoints(row.endpoints)
            admission.check_endpoints(row.endpoints)
            return True
        if isinstance(row, CallerAddress):
            admission.check_address(decoding.address(row.address))
            return True
        if isinstance(row, Identity) or "/" not in row.name:
            return True  # it names no service, and callers of any namespace may call
        admission.check_name(row.name)
        if isinstance(row, Export):
            decoding.parse_timestamp(row.created)
            _check_ports(row.ports)
    except (RecordError, OutOfBounds):
        return False
    return True


def _check_endpoints(endpoints: Sequence[Endpoint]) -> None:
    for endpoint in endpoints:
        decoding.address(endpoint.address)
        _check_ports(endpoint.ports)


def _check_ports(ports: Sequence[Port]) -> None:
    for port in ports:
        bounds.port(port.port)


def _endpoint_sets(reader: Reader, cluster: ClusterName) -> list[EndpointSet]:
    return [row for row in reader.by(ENDPOINT_SETS, "cluster", cluster) if row.source == CLUSTERSET]


def _is_exporter(cluster: ClusterName, row: Import | None) -> bool:
    return row is not None and cluster in row.clusters


def _usage(row: EndpointSet) -> tuple[str, int]:
    """The record of a row: a service's, or a slice that an earlier process read."""
    return row.service if row.part == endpoints.PART else row.part, max(1, len(row.endpoints))


Forms = Mapping[RecordKind, Form]

ROWS: Final[Forms] = {
    "serviceexports": Form(
        EXPORTS,
        _export,
        key=lambda cluster, name: (cluster, name),
        rows=lambda reader, cluster: reader.by(EXPORTS, "cluster", cluster),
        part=lambda row, units, whole: None,
        usage=lambda row: (row.name, 1),
        imported=lambda reader, cluster, name: _is_exporter(cluster, reader.get(IMPORTS, name)),
    ),
    "services": Form(
        ENDPOINT_SETS,
        _endpoint_set,
        key=lambda cluster, name: (name, cluster, CLUSTERSET, endpoints.PART),
        rows=_endpoint_sets,
        part=_first_endpoints,
        usage=_usage,
        imported=lambda reader, cluster, name: any(
            _is_exporter(cluster, row) for row in reader.by(IMPORTS, "service", name)
        ),
        slices=Form(
            ENDPOINT_SETS,
            _slice,
            key=None,
            rows=_endpoint_sets,
            part=_first_endpoints,
            usage=_usage,
            parse=slices.parse,
            stored=slices.KIND,
        ),
    ),
    "identities": Form(
        IDENTITIES,
        _identity,
        key=_identity_key,
        rows=lambda reader, cluster: reader.by(IDENTITIES, "cluster", cluster),
        part=lambda row, units, whole: None,
        usage=lambda row: (str(row.number), 1),
        parse=_number,
    ),
    "ip": Form(
        CALLER_ADDRESSES,
        _caller_address,
        key=lambda cluster, name: (cluster, name),
        rows=lambda reader, cluster: reader.by(CALLER_ADDRESSES, "cluster", cluster),
        part=lambda row, units, whole: None,
        usage=lambda row: (row.address, 1),
        parse=_address,
    ),
}
"""Records stored as the rows from which imports and plans are computed, and identities and addresses of callers."""
OPTIONAL: Final[frozenset[RecordKind]] = frozenset({"identities", "ip"})
"""Kinds without which a peer is usable: not every mirror copies them."""


def drain(txn: WriteTxn, form: Form, cluster: ClusterName) -> None:
    """Remove every row of a kind that came from a peer."""
    for row in form.rows(txn, cluster):
        txn.delete(form.table, form.table.key(row))


def lapse(txn: WriteTxn, form: Form, cluster: ClusterName) -> None:
    """Mark the rows of a peer as lapsed: they are used only if a probe finds them alive."""
    for row in form.rows(txn, cluster):
        txn.put(form.table, structs.replace(row, lapsed=True))
