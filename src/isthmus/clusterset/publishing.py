"""Records as keys of the own etcd: the target of the reconciler of RECORDS.

It knows what the store holds below the own prefixes and writes only what differs. What it knows is forgotten after
any failure and read again: the store may have been wiped, restored or written by somebody else meanwhile. Only the
own cluster's prefixes are ever touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from isthmus import logs
from isthmus.clusterset import keys
from isthmus.etcd import Delete, EtcdError, Put, Session
from isthmus.model.mcs import Record
from isthmus.model.names import ClusterName
from isthmus.model.tables import RECORDS
from isthmus.reflector import Expired, Transient

log = logs.get("publisher")

KINDS: Final = ("serviceexports", "services")
TXN_KEYS: Final = 100
TXN_BYTES: Final = 512 * 1024

Op = Put | Delete


class RecordTarget:
    """A statedb target: the own cluster's records in the own etcd."""

    def __init__(self, session: Session, cluster: ClusterName) -> None:
        self._session = session
        self._cluster = cluster
        self._wanted: dict[str, bytes] = {}
        self._held: dict[str, bytes] | None = None
        self._turn = asyncio.Lock()  # settle comes from another task than the reconciler's calls
        self.complete = asyncio.Event()
        self.refused: dict[str, str] = {}
        self.writes = 0

    def __repr__(self) -> str:
        held = "not read yet" if self._held is None else len(self._held)
        said = f"{len(self._wanted)} wanted, {held} held, {self.writes} written, {len(self.refused)} refused"
        return f"<RecordTarget of {self._cluster}: {said}>"

    async def update(self, rows: Sequence[Record]) -> Mapping[Any, str]:
        """Write the records that the store does not hold as they are."""
        async with self._turn:
            wanted = {self._key(row): row for row in rows}
            self._wanted |= {key: row.value for key, row in wanted.items()}
            failed = await self._write([Put(key, row.value) for key, row in wanted.items()])
        return {RECORDS.key(wanted[key]): why for key, why in failed.items()}

    async def delete(self, rows: Sequence[Record]) -> Mapping[Any, str]:
        """Delete the records that the store holds."""
        async with self._turn:
            unwanted = {self._key(row): row for row in rows}
            for key in unwanted:
                self._wanted.pop(key, None)
            failed = await self._write([Delete(key) for key in unwanted])
        return {RECORDS.key(unwanted[key]): why for key, why in failed.items()}

    async def prune(self, rows: Iterable[Record]) -> str:
        """Delete what is below our prefixes and no row wants; write again what somebody else removed."""
        async with self._turn:
            self._wanted = {self._key(row): row.value for row in rows}
            self.complete.set()
            try:
                return f"{await self._settle()} stale keys pruned"
            except Transient as why:  # the publisher settles before it calls anything whole
                return f"not pruned: {why}"

    async def settle(self) -> None:
        """Read what the store holds, write what it lacks, delete what is stale if that is known; Transient if not."""
        async with self._turn:
            await self._settle()

    async def _settle(self) -> int:
        self._held = None
        try:
            held = await self._read()
        except (Expired, EtcdError) as why:
            raise Transient(str(why)) from None
        stale = [key for key in held if key not in self._wanted] if self.complete.is_set() else []
        wanted = [Put(key, value) for key, value in self._wanted.items()]
        failed = await self._write([*(Delete(key) for key in stale), *wanted])
        if failed:
            raise Transient(next(iter(failed.values())))
        return len(stale)

    async def _read(self) -> dict[str, bytes]:
        if self._held is None:
            held: dict[str, bytes] = {}
            for kind in KINDS:
                listing = await self._session.list(keys.prefix(kind, self._cluster))
                held |= {kv.key: kv.value for kv in listing.kvs}
            self._held = held
        return self._held

    async def _write(self, operations: Sequence[Op]) -> dict[str, str]:
        """Do what the store needs of these; gives the reason by key for what failed."""
        failed: dict[str, str] = {}
        try:
            held = await self._read()
        except (Transient, Expired, EtcdError) as why:
            return dict.fromkeys((op.key for op in operations), str(why))
        for batch in _batches([op for op in operations if _needed(op, held)]):
            failed |= await self._commit(batch)
        return failed

    async def _commit(self, batch: Sequence[Op]) -> dict[str, str]:
        try:
            await self._session.txn((), batch)
        except EtcdError as why:
            if len(batch) == 1:
                return self._refused(batch[0].key, str(why))
            halves = batch[: len(batch) // 2], batch[len(batch) // 2 :]
            return {key: why for half in halves for key, why in (await self._commit(half)).items()}
        except (Transient, Expired) as why:
            self._held = None  # it may or may not have been done
            return dict.fromkeys((op.key for op in batch), str(why))
        if self._held is not None:
            for op in batch:
                if isinstance(op, Put):
                    self._held[op.key] = op.value
                else:
                    self._held.pop(op.key, None)
        self.writes += len(batch)
        for op in batch:
            self.refused.pop(op.key, None)
        return {}

    def _refused(self, key: str, why: str) -> dict[str, str]:
        """The store will never take it: said, and no reason to keep the others from being called whole."""
        log.error("record not published", key=key, why=why)
        self.refused[key] = why
        return {}

    def _key(self, row: Record) -> str:
        return keys.record(row.kind, self._cluster, row.name)


def _needed(op: Op, held: Mapping[str, bytes]) -> bool:
    return held.get(op.key) != op.value if isinstance(op, Put) else op.key in held


def _batches(operations: Iterable[Op]) -> Iterator[list[Op]]:
    """In portions that a server takes as one transaction."""
    batch: list[Op] = []
    size = 0
    for op in operations:
        more = len(op.value) if isinstance(op, Put) else 0
        if batch and (len(batch) == TXN_KEYS or size + more > TXN_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(op)
        size += more
    if batch:
        yield batch
