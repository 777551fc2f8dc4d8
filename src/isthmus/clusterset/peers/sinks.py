"""Sinks that turn the keys of a peer into rows, one kind of record at a time.

A record that is not taken is counted and named; it hides no other. While the connection lasts its last good value
counts; a list in which it is bad withdraws it. A record whose decoding raises what nobody expected is a row of
``faults``, and keeps its last good value through lists, too: that is our error and not the peer's. How many records are
taken is the peer's quota, which its namespaces share (``quotas``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from isthmus import logs
from isthmus.bounds import OutOfBounds
from isthmus.clusterset.errors import RecordError, Refusal
from isthmus.clusterset.records.admission import Admission
from isthmus.clusterset.records.forms import Decoded, Form, admitted
from isthmus.clusterset.records.quotas import Quota, Size
from isthmus.clusterset.records.refusals import RefusedRecords
from isthmus.etcd import KeyValue, Limits
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.tables import FAULTS, IMPORTS
from isthmus.reflector import Event, in_turns
from isthmus.statedb import Database, Faults, WriteTxn

log = logs.get("records")

NAMED: Final = 20
"""Records that are not taken which the log names, by kind, peer and connection; all are counted."""
RECORD_LIMITS: Final = Limits(keys=20_000, size=64 * 1024 * 1024, group=lambda key: key.partition("/")[0])
"""Bounds of a list of one kind of one peer, and of what is counted as not taken; namespaces share them."""
IMPORTS_WAIT: Final = 10.0
"""Seconds that a list beyond its quota waits for the own cluster's imports, which show what was taken before."""


def record_faults(db: Database, form: Form, cluster: ClusterName) -> Faults:
    """Faults of the records of one kind of a peer."""
    return Faults(db, FAULTS, form.table.name, kind=f"records of {cluster}")


class RecordSink:
    """A ``reflector.Sink``: the records of one kind and peer as rows.

    ``listed`` ends the transaction of each list. ``received`` is called after each change with the records that are not
    taken, ``list_again`` when there is room for some of them, and ``unread`` returns those that the list left out.
    ``quota`` and ``faults`` are those of the peer's records of the kind, which outlive a connection.
    """

    def __init__(
        self,
        db: Database,
        form: Form,
        *,
        cluster_id: int,
        admission: Admission,
        quota: Quota,
        listed: Callable[[WriteTxn], None],
        received: Callable[[RefusedRecords], None],
        list_again: Callable[[], None] = lambda: None,
        unread: Callable[[], Mapping[str, int]] = dict,
        faults: Faults | None = None,
    ) -> None:
        self._db = db
        self._form = form
        self._cluster = admission.cluster
        self._cluster_id = cluster_id
        self._listed = listed
        self._received = received
        self._list_again = list_again
        self._unread = unread
        self._admission = admission
        self._quota = quota
        self._refused = RefusedRecords()
        self._waiting: set[str] = set()
        """Records that are refused for want of room alone."""
        self._faults = faults if faults is not None else record_faults(db, form, admission.cluster)
        self._named = 0
        self._row_keys: dict[str, Any] = {}
        """Row keys of the records whose key depends on their content."""

    async def replace(self, items: Mapping[str, KeyValue], *, partial: bool) -> None:
        """These are all records of the peer. They are read over several turns of the loop, and then written at once.

        Content is held meanwhile as far as there is room for it. Of records beyond that the size is held alone; what is
        taken of them in the end is decoded a second time.
        """
        table = self._form.table
        self._refused.clear()
        self._waiting.clear()
        self._faults.retain(items.keys())
        if self._form.key is None:
            rows_before = self._form.rows(self._db.snapshot(), self._cluster)
            self._row_keys = {self._form.usage(row)[0]: table.key(row) for row in rows_before}
        sizes, decoded = await self._decode_all(items)
        divided = self._quota.divided(sizes, await self._imported(sizes))
        self._quota.retain(divided.keys() | {key for key in items if key in self._faults})
        rows: dict[Any, Any] = {}
        kept = {self._row_key(key) for key in items if key in self._faults}
        async for part in in_turns(sizes):
            for key, size in part:
                units = divided.get(key, 0)
                content = decoded.pop(key, None) or (self._decode(key, items[key]) if units else None)
                row = self._take(key, size.units, units, content)
                if row is not None:
                    rows[table.key(row)] = row
                    self._remember(key, row)
                elif units:  # it has grown beyond its quota and is not divisible: what was taken of it stays
                    kept.add(self._row_key(key))
        with self._db.write() as txn:
            current = [row for row in self._form.rows(txn, self._cluster) if table.key(row) not in rows]
            obsolete = [row for row in current if table.key(row) not in kept or not admitted(row, self._admission)]
            txn.delete_all(table, [] if partial else [*map(table.key, obsolete)])
            txn.put_all(table, [*rows.values()])
            self._faults.write(txn)
            self._listed(txn)
        self._report()

    def apply(self, events: Sequence[Event[KeyValue]]) -> None:
        """These records changed."""
        table = self._form.table
        rows: dict[str, Any] = {}
        before = self._quota.used
        for key, kv in events:
            if self._refused:
                self._refused.discard(key)
                self._waiting.discard(key)
            if kv is None:
                self._faults.succeeded(key)
                self._quota.hold(key, 0)
                rows[key] = None
            elif (content := self._decode(key, kv)) is not None:
                units = content.size.units
                row = self._take(key, units, self._quota.available(key, units), content)
                if row is not None or not units:  # of one that is refused, the last good value still counts
                    rows[key] = row
        obsolete = [old for key, row in rows.items() if (old := self._replaced(key, row)) is not None]
        for key, row in rows.items():
            self._remember(key, row)
        with self._db.write() as txn:
            txn.delete_all(table, obsolete)
            txn.put_all(table, [row for row in rows.values() if row is not None])
            self._faults.write(txn)
        if log.is_enabled_for(logging.DEBUG):
            log.debug("records changed", cluster=self._cluster, table=table.name, records=[*rows])
        if self._waiting and self._quota.used < before:
            self._list_again()
        self._report()

    def _report(self) -> None:
        self._refused.unread = self._unread()
        self._received(self._refused)

    def _row_key(self, key: str) -> Any:
        """The key of the row of a record that was read before; None if it had none."""
        if self._form.key is None:
            return self._row_keys.get(key)
        return self._form.key(self._cluster, ServiceName(key))

    def _replaced(self, key: str, row: Any) -> Any:
        """The key of the earlier row of a record that is gone, or whose row has another key now; None if it stays."""
        if row is None:
            return self._row_key(key)
        before = self._row_keys.get(key) if self._form.key is None else None
        return before if before != self._form.table.key(row) else None

    def _remember(self, key: str, row: Any) -> None:
        if self._form.key is not None:
            return
        if row is None:
            self._row_keys.pop(key, None)
        else:
            self._row_keys[key] = self._form.table.key(row)

    async def _decode_all(self, items: Mapping[str, KeyValue]) -> tuple[dict[str, Size], dict[str, Decoded]]:
        """The size of each record that can be used, and the content of the first that there is room for together."""
        sizes: dict[str, Size] = {}
        decoded: dict[str, Decoded] = {}
        total = 0
        async for part in in_turns(items):
            for key, kv in part:
                if (content := self._decode(key, kv)) is not None:
                    sizes[key] = content.size
                    total += content.size.units
                    if total <= self._quota.room:
                        decoded[key] = content
        return sizes, decoded

    async def _imported(self, sizes: Mapping[str, Size]) -> frozenset[str]:
        """The records that were taken before this process started; none where there is room for all."""
        if sum(size.units for size in sizes.values()) <= self._quota.room or IMPORTS.name not in self._db.tables:
            return frozenset()
        with suppress(TimeoutError):
            async with asyncio.timeout(IMPORTS_WAIT):
                await self._db.until(lambda reader: reader.initialized(IMPORTS))
        snapshot = self._db.snapshot()
        return frozenset(key for key in sizes if self._form.imported(snapshot, self._cluster, ServiceName(key)))

    def _take(self, key: str, requested: int, units: int, content: Decoded | None) -> Any:
        """Let a record have some of the units that it wants; its row, or None where it has none or is refused."""
        if content is not None and units == requested:  # hot:
            self._quota.hold(key, units)
            return content.row
        row = self._form.part(content.row, units, requested) if content is not None and units else None
        self._quota.hold(key, units if row is not None else min(units, self._quota.units(key)))
        self._waiting.add(key)
        self._refuse(key, self._quota.refusal(key, requested, units if row is not None else 0))
        return row

    def _decode(self, key: str, kv: KeyValue) -> Decoded | None:
        """The content of a record; None where it cannot be used."""
        try:
            content = self._form.decode(kv.value, self._admission, self._cluster_id, self._form.parse(key))
        except (RecordError, OutOfBounds) as bad:
            self._refuse(key, bad.refusal if isinstance(bad, RecordError) else Refusal("Invalid", str(bad)))
            self._faults.succeeded(key)
            return None
        except MemoryError:
            raise
        except Exception as error:
            self._faults.failed(key, error)
            self._refuse(key, Refusal("Invalid", repr(error)))
            return None
        if self._faults:
            self._faults.succeeded(key)
        return content

    def _refuse(self, key: str, refusal: Refusal) -> None:
        """Count a record that is not taken, and name it in the log if few were."""
        self._refused.add(key, refusal)
        if self._named < NAMED:
            self._named += 1
            why = refusal.message
            log.warning("record dropped", cluster=self._cluster, table=self._form.table.name, key=ascii(key), why=why)


class OneKey:
    """A ``reflector.Sink`` of a KeyStore; calls ``changed`` with each value, or ``None`` without one."""

    def __init__(self, changed: Callable[[KeyValue | None], None]) -> None:
        self._changed = changed

    async def replace(self, items: Mapping[str, KeyValue], *, partial: bool) -> None:
        """Take the value that was listed."""
        self._changed(items.get(""))

    def apply(self, events: Sequence[Event[KeyValue]]) -> None:
        """Take each value in turn."""
        for _, kv in events:
            self._changed(kv)
