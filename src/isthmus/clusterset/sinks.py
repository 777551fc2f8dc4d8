"""From a peer's keys to rows: one kind of record, of one peer.

A key that cannot be used is counted and named; it hides no other. While the connection lasts, what its last good
value said still counts; a list that has it only as bad does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Protocol

from isthmus import logs
from isthmus.clusterset import endpoints, exports, keys
from isthmus.clusterset.errors import RecordError
from isthmus.etcd import KeyValue, Limits
from isthmus.model.mcs import RecordKind
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import EndpointSet, Export
from isthmus.model.tables import ENDPOINT_SETS, EXPORTS
from isthmus.reflector import Event
from isthmus.statedb import Database, Reader, Table, WriteTxn

log = logs.get("records")

TABLES: Final[Mapping[RecordKind, Table[Any, Any]]] = {"serviceexports": EXPORTS, "services": ENDPOINT_SETS}
NAMED: Final = 20
"""How many unusable keys of a kind are named in the log, by peer and connection; all are counted."""
MOST: Final = Limits(keys=20_000, size=64 * 1024 * 1024)
"""What is held of one kind of one peer."""

Row = Export | EndpointSet


class Bad(Enum):
    """A record that cannot be used."""

    BAD = 0


BAD: Final = Bad.BAD


class Decode(Protocol):
    """From a record to its row, None where the record says that there is none; RecordError where it is bad."""

    def __call__(self, value: bytes, *, name: ServiceName) -> Row | None: ...


def decoder(kind: RecordKind, *, cluster: ClusterName, cluster_id: int) -> Decode:
    """How records of a kind are read that this cluster, of this id, may publish."""

    def service(value: bytes, *, name: ServiceName) -> Row | None:
        return endpoints.decode(value, cluster=cluster, cluster_id=cluster_id, name=name)

    def export(value: bytes, *, name: ServiceName) -> Row | None:
        return exports.decode(value, cluster=cluster, name=name)

    return export if kind == "serviceexports" else service


def row_key(kind: RecordKind, cluster: ClusterName, name: ServiceName) -> Any:
    """The key of the row that a record becomes."""
    return (cluster, name) if kind == "serviceexports" else (name, cluster, endpoints.SOURCE, endpoints.PART)


def rows_of(reader: Reader, kind: RecordKind, cluster: ClusterName) -> list[Any]:
    """The rows of a kind that a peer's records became, not those of other sources."""
    rows = reader.by(TABLES[kind], "cluster", cluster)
    return rows if kind == "serviceexports" else [row for row in rows if row.source == endpoints.SOURCE]


def drain(txn: WriteTxn, kind: RecordKind, cluster: ClusterName) -> int:
    """Remove every row of a kind that came from a peer; gives how many."""
    rows = rows_of(txn, kind, cluster)
    for row in rows:
        txn.delete(TABLES[kind], TABLES[kind].key(row))
    return len(rows)


class RecordSink:
    """A ``reflector.Sink``: the records of one kind and peer as rows. ``listed`` ends the transaction of each list,
    ``told`` hears after each change how many records cannot be used."""

    def __init__(
        self,
        db: Database,
        kind: RecordKind,
        *,
        cluster: ClusterName,
        decode: Decode,
        listed: Callable[[WriteTxn], None],
        told: Callable[[int], None],
    ) -> None:
        self._db = db
        self._kind = kind
        self._cluster = cluster
        self._decode = decode
        self._listed = listed
        self._told = told
        self._bad: set[str] = set()
        self._sizes: dict[str, int] = {}
        self._size = 0
        self._named = 0

    def replace(self, items: Mapping[str, KeyValue], *, partial: bool) -> None:
        """These are all records of the peer."""
        table = TABLES[self._kind]
        self._bad.clear()
        self._sizes.clear()
        self._size = 0
        read = [self._read(key, kv) for key, kv in items.items()]
        rows = {table.key(row): row for row in read if row is not None and row is not BAD}
        with self._db.write() as txn:
            for present in rows_of(txn, self._kind, self._cluster):
                if (key := table.key(present)) not in rows and not partial:
                    txn.delete(table, key)
            for row in rows.values():
                txn.put(table, row)
            self._listed(txn)
        self._told(len(self._bad))

    def apply(self, events: Sequence[Event[KeyValue]]) -> None:
        """These records changed."""
        table = TABLES[self._kind]
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
                    txn.delete(table, row_key(self._kind, self._cluster, ServiceName(key)))
        self._told(len(self._bad))

    def _read(self, key: str, kv: KeyValue) -> Row | Bad | None:
        try:
            name = keys.parse(key)
            self._check_room(key, len(kv.value))
            row = self._decode(kv.value, name=name)
        except RecordError as why:
            if len(self._bad) < MOST.keys:
                self._bad.add(key)
            if self._named < NAMED:
                self._named += 1
                log.warning("record dropped", cluster=self._cluster, kind=self._kind, key=ascii(key), why=str(why))
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
