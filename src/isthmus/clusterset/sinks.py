"""From a peer's keys to rows: one kind of record, of one peer.

A key that cannot be used is counted and named; it hides no other. While the connection lasts, what its last good
value counts; a list in which it is bad withdraws it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from msgspec import structs

from isthmus import logs
from isthmus.clusterset import endpoints, exports, keys, large_records
from isthmus.clusterset.admission import Admission
from isthmus.clusterset.errors import RecordError
from isthmus.etcd import KeyValue, Limits
from isthmus.model.mcs import RecordKind
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import EndpointSet, Export
from isthmus.model.sources import CLUSTERSET
from isthmus.model.tables import ENDPOINT_SETS, EXPORTS
from isthmus.reflector import Event, in_turns
from isthmus.statedb import Database, Reader, Table, WriteTxn

log = logs.get("records")

NAMED: Final = 20
"""How many unusable keys of a kind are named in the log, by peer and connection; all are counted."""
RECORD_LIMITS: Final = Limits(keys=20_000, size=64 * 1024 * 1024)
"""Most records that are kept of one kind of one peer, and bytes of their values."""


class Unusable(Enum):
    """A record that cannot be used."""

    UNUSABLE = 0


UNUSABLE: Final = Unusable.UNUSABLE


Decoded = tuple[Any, Any]
"""(the row that a record is, None where it holds none; what the next version of a large one is read with, or None)"""


class Form(NamedTuple):
    """As what rows the records of a kind are kept."""

    table: Table[Any, Any]
    decode: Callable[[bytes, Admission, int, ServiceName, Any], Decoded]
    """(value, whose and what it may publish, its id, name, what the version before it left or None) → what is in it;
    RecordError where the record cannot be used."""
    key: Callable[[ClusterName, ServiceName], Any]
    """The key of the row that a record becomes."""
    rows: Callable[[Reader, ClusterName], list[Any]]
    """The rows that a peer's records became, not those of other sources."""


def _export(value: bytes, admission: Admission, cluster_id: int, name: ServiceName, before: None) -> Decoded:
    admission.check_name(name)
    return exports.decode(value, cluster=admission.cluster, name=name), None


def _endpoint_set(
    value: bytes, admission: Admission, cluster_id: int, name: ServiceName, before: large_records.Kept | None
) -> Decoded:
    admission.check_name(name)
    cluster = admission.cluster
    if large_records.may_be_one(value):
        found = large_records.decode(value, cluster=cluster, cluster_id=cluster_id, name=name, before=before)
        admission.check_endpoints(found.added)
        return found.row, found.kept
    row = endpoints.decode(value, cluster=cluster, cluster_id=cluster_id, name=name)
    if row is not None:
        admission.check_endpoints(row.endpoints)
    return row, None


def admitted(row: Export | EndpointSet | Any, admission: Admission) -> bool:
    """Whether a row that was read under an earlier file of the peer may be there under this one."""
    try:
        admission.check_name(row.service if isinstance(row, EndpointSet) else row.name)
        if isinstance(row, EndpointSet):
            admission.check_endpoints(row.endpoints)
    except RecordError:
        return False
    return True


def _endpoint_sets(reader: Reader, cluster: ClusterName) -> list[EndpointSet]:
    return [row for row in reader.by(ENDPOINT_SETS, "cluster", cluster) if row.source == CLUSTERSET]


Forms = Mapping[RecordKind, Form]

ROWS: Final[Forms] = {
    "serviceexports": Form(
        EXPORTS,
        _export,
        key=lambda cluster, name: (cluster, name),
        rows=lambda reader, cluster: reader.by(EXPORTS, "cluster", cluster),
    ),
    "services": Form(
        ENDPOINT_SETS,
        _endpoint_set,
        key=lambda cluster, name: (name, cluster, CLUSTERSET, endpoints.PART),
        rows=_endpoint_sets,
    ),
}
"""As input rows of everything that merges and plans."""


def drain(txn: WriteTxn, form: Form, cluster: ClusterName) -> None:
    """Remove every row of a kind that came from a peer."""
    for row in form.rows(txn, cluster):
        txn.delete(form.table, form.table.key(row))


def lapse(txn: WriteTxn, form: Form, cluster: ClusterName) -> None:
    """Mark the rows of a peer as lapsed: they count only where probes find them alive."""
    for row in form.rows(txn, cluster):
        txn.put(form.table, structs.replace(row, lapsed=True))


class RecordSink:
    """A ``reflector.Sink``: the records of one kind and peer as rows. ``listed`` ends the transaction of each list,
    ``received`` is called after each change with how many records cannot be used, and one of them with the reason."""

    def __init__(
        self,
        db: Database,
        form: Form,
        *,
        cluster_id: int,
        admission: Admission,
        limits: Limits = RECORD_LIMITS,
        limit: int = RECORD_LIMITS.keys,
        listed: Callable[[WriteTxn], None],
        received: Callable[[int, str], None],
    ) -> None:
        self._db = db
        self._form = form
        self._cluster = admission.cluster
        self._cluster_id = cluster_id
        self._listed = listed
        self._received = received
        self._admission = admission
        self._limits = limits
        self._limit = limit
        self._bad: dict[str, str] = {}
        self._sizes: dict[str, int] = {}
        self._kept: dict[str, Any] = {}
        """Of large records, what their next versions are read with: at most as many bytes again as their values."""
        self._size = 0
        self._named = 0

    async def replace(self, items: Mapping[str, KeyValue], *, partial: bool) -> None:
        """These are all records of the peer. They are read over several turns of the loop, and then written at once."""
        table = self._form.table
        self._bad.clear()
        self._sizes.clear()
        self._kept.clear()
        self._size = 0
        rows: dict[Any, Any] = {}
        async for part in in_turns(items):
            read = [self._read(key, kv) for key, kv in part]
            rows |= {table.key(row): row for row in read if row is not None and row is not UNUSABLE}
        with self._db.write() as txn:
            present = map(table.key, self._form.rows(txn, self._cluster))
            txn.delete_all(table, [] if partial else [key for key in present if key not in rows])
            txn.put_all(table, [*rows.values()])
            self._listed(txn)
        self._count()

    def apply(self, events: Sequence[Event[KeyValue]]) -> None:
        """These records changed."""
        table = self._form.table
        found: dict[str, Any] = {}
        for key, kv in events:
            if self._bad:
                self._bad.pop(key, None)
            row = self._read(key, kv) if kv is not None else None
            if kv is None:
                self._size -= self._sizes.pop(key, 0)
                self._kept.pop(key, None)
            if row is not UNUSABLE:  # of one that is, the last good value still counts
                found[key] = row
        gone = [self._form.key(self._cluster, ServiceName(key)) for key, row in found.items() if row is None]
        with self._db.write() as txn:
            txn.delete_all(table, gone)
            txn.put_all(table, [row for row in found.values() if row is not None])
        self._count()

    def _count(self) -> None:
        key = min(self._bad, default="")
        self._received(len(self._bad), f"{ascii(key)[1:-1]}: {self._bad[key]}" if self._bad else "")

    def _read(self, key: str, kv: KeyValue) -> Any:
        try:
            name, size, before = keys.parse(key), len(kv.value), self._sizes.get(key)
            self._check_room(size, before)
            kept = self._kept.get(key) if self._kept else None
            row, left = self._form.decode(kv.value, self._admission, self._cluster_id, name, kept)
        except RecordError as why:
            if len(self._bad) < self._limits.keys:
                self._bad[key] = str(why)
            if self._named < NAMED:
                self._named += 1
                log.warning(
                    "record dropped", cluster=self._cluster, table=self._form.table.name, key=ascii(key), why=str(why)
                )
            return UNUSABLE
        self._size += size - (before or 0)
        self._sizes[key] = size
        if left is not None:
            self._kept[key] = left
        elif kept is not None:
            del self._kept[key]
        return row

    def _check_room(self, size: int, before: int | None) -> None:
        """A peer cannot make us hold without bound. ``before``: the size of its value that is kept, if one is."""
        if before is None and len(self._sizes) >= self._limit:
            raise RecordError(f"it is one more than the {self._limit} that are taken of a cluster")
        if self._size - (before or 0) + size > self._limits.size:
            raise RecordError(f"with it the cluster's records are more than {self._limits.size} bytes")


class OneKey:
    """A ``reflector.Sink`` for what a KeyStore brings; ``changed`` is called with each value, or None."""

    def __init__(self, changed: Callable[[KeyValue | None], None]) -> None:
        self._changed = changed

    async def replace(self, items: Mapping[str, KeyValue], *, partial: bool) -> None:
        """What the key is."""
        self._changed(items.get(""))

    def apply(self, events: Sequence[Event[KeyValue]]) -> None:
        """Its last change."""
        for _, kv in events:
            self._changed(kv)
