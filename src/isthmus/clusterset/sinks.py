"""From a peer's keys to rows: one kind of record, of one peer.

A key that cannot be used is counted and named; it hides no other. While the connection lasts, what its last good
value said still counts; a list that has it only as bad does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from msgspec import structs

from isthmus import logs
from isthmus.clusterset import endpoints, exports, keys
from isthmus.clusterset.errors import RecordError
from isthmus.etcd import KeyValue, Limits
from isthmus.model.mcs import RecordKind
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import EndpointSet, Export
from isthmus.model.sources import CLUSTERSET
from isthmus.model.tables import ENDPOINT_SETS, EXPORTS
from isthmus.reflector import Event
from isthmus.statedb import Database, Reader, Table, WriteTxn

log = logs.get("records")

NAMED: Final = 20
"""How many unusable keys of a kind are named in the log, by peer and connection; all are counted."""
MOST: Final = Limits(keys=20_000, size=64 * 1024 * 1024)
"""What is held of one kind of one peer."""


class Bad(Enum):
    """A record that cannot be used."""

    BAD = 0


BAD: Final = Bad.BAD


class Form(NamedTuple):
    """As what rows the records of a kind are kept."""

    table: Table[Any, Any]
    decode: Callable[[bytes, ClusterName, int, ServiceName], Any]
    """(value, cluster, its id, name) → row, None where the record says that there is none; RecordError if it is bad."""
    key: Callable[[ClusterName, ServiceName], Any]
    """The key of the row that a record becomes."""
    rows: Callable[[Reader, ClusterName], list[Any]]
    """The rows that a peer's records became, not those of other sources."""


def _export(value: bytes, cluster: ClusterName, cluster_id: int, name: ServiceName) -> Export:
    return exports.decode(value, cluster=cluster, name=name)


def _endpoint_set(value: bytes, cluster: ClusterName, cluster_id: int, name: ServiceName) -> EndpointSet | None:
    return endpoints.decode(value, cluster=cluster, cluster_id=cluster_id, name=name)


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
    """What a peer said is good no longer, but for what probes find alive."""
    for row in form.rows(txn, cluster):
        txn.put(form.table, structs.replace(row, lapsed=True))


class RecordSink:
    """A ``reflector.Sink``: the records of one kind and peer as rows. ``listed`` ends the transaction of each list,
    ``told`` hears after each change how many records cannot be used."""

    def __init__(
        self,
        db: Database,
        form: Form,
        *,
        cluster: ClusterName,
        cluster_id: int,
        listed: Callable[[WriteTxn], None],
        told: Callable[[int], None],
    ) -> None:
        self._db = db
        self._form = form
        self._cluster = cluster
        self._cluster_id = cluster_id
        self._listed = listed
        self._told = told
        self._bad: set[str] = set()
        self._sizes: dict[str, int] = {}
        self._size = 0
        self._named = 0

    def replace(self, items: Mapping[str, KeyValue], *, partial: bool) -> None:
        """These are all records of the peer."""
        table = self._form.table
        self._bad.clear()
        self._sizes.clear()
        self._size = 0
        read = [self._read(key, kv) for key, kv in items.items()]
        rows = {table.key(row): row for row in read if row is not None and row is not BAD}
        with self._db.write() as txn:
            for present in self._form.rows(txn, self._cluster):
                if (key := table.key(present)) not in rows and not partial:
                    txn.delete(table, key)
            for row in rows.values():
                txn.put(table, row)
            self._listed(txn)
        self._told(len(self._bad))

    def apply(self, events: Sequence[Event[KeyValue]]) -> None:
        """These records changed."""
        table = self._form.table
        with self._db.write() as txn:
            for key, kv in events:
                self._bad.discard(key)
                row = self._read(key, kv) if kv is not None else None
                if kv is None:
                    self._account(key, 0)
                if row is BAD:
                    continue  # what it last said still counts
                if row is not None:
                    txn.put(table, row)
                else:
                    txn.delete(table, self._form.key(self._cluster, ServiceName(key)))
        self._told(len(self._bad))

    def _read(self, key: str, kv: KeyValue) -> Any:
        try:
            name = keys.parse(key)
            self._check_room(key, len(kv.value))
            row = self._form.decode(kv.value, self._cluster, self._cluster_id, name)
        except RecordError as why:
            if len(self._bad) < MOST.keys:
                self._bad.add(key)
            if self._named < NAMED:
                self._named += 1
                log.warning(
                    "record dropped", cluster=self._cluster, table=self._form.table.name, key=ascii(key), why=str(why)
                )
            return BAD
        self._account(key, len(kv.value))
        return row

    def _check_room(self, key: str, size: int) -> None:
        """A peer cannot make us hold without bound."""
        if key not in self._sizes and len(self._sizes) >= MOST.keys:
            raise RecordError(f"it is one more than the {MOST.keys} that are taken of a cluster")
        if self._size - self._sizes.get(key, 0) + size > MOST.size:
            raise RecordError(f"with it the cluster's records are more than {MOST.size} bytes")

    def _account(self, key: str, size: int) -> None:
        self._size += size - self._sizes.pop(key, 0)
        if size:
            self._sizes[key] = size


class OneKey:
    """A ``reflector.Sink`` for what a KeyStore brings; ``told`` hears what the key is and what becomes of it."""

    def __init__(self, told: Callable[[KeyValue | None], None]) -> None:
        self._told = told

    def replace(self, items: Mapping[str, KeyValue], *, partial: bool) -> None:
        """What the key is."""
        self._told(items.get(""))

    def apply(self, events: Sequence[Event[KeyValue]]) -> None:
        """What became of it."""
        for _, kv in events:
            self._told(kv)
