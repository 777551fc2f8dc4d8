"""Key prefixes of the own etcd that one writer owns: the wanted keys below them, and those that the store has.

Wanted values are recorded at once and written later, and only where the store differs. After any failure what the
store has is read anew: it may have been wiped, restored or written by another client meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from isthmus import logs
from isthmus.etcd import Delete, EtcdError, Put, Session
from isthmus.reflector import Expired, Transient

log = logs.get("owned_keys")

TXN_KEYS: Final = 100
"""Keys in one transaction; etcd takes 128 operations (``--max-txn-ops``)."""
TXN_BYTES: Final = 512 * 1024
"""Bytes of values in one transaction; etcd takes requests of 1.5 MiB (``--max-request-bytes``)."""

Op = Put | Delete


class OwnedKeys:
    """Wanted and stored keys below prefixes. Nothing outside of them is read or written."""

    def __init__(self, session: Session, prefixes: Iterable[str]) -> None:
        self._session = session
        self._prefixes = tuple(prefixes)
        self._wanted: dict[str, bytes] = {}
        self._stored: dict[str, bytes] | None = None
        self._open: set[str] = set()
        self._turn = asyncio.Lock()
        self.refused: dict[str, str] = {}
        self.writes = 0

    def __repr__(self) -> str:
        stored = "not read yet" if self._stored is None else len(self._stored)
        counts = f"{len(self._wanted)} wanted, {stored} stored, {self.writes} written, {len(self.refused)} refused"
        return f"<OwnedKeys below {', '.join(self._prefixes)}: {counts}>"

    def want(self, key: str, value: bytes | None) -> None:
        """Set the desired value of a key; ``None`` deletes the key."""
        self._open.add(key)
        if value is None:
            self._wanted.pop(key, None)
        else:
            self._wanted[key] = value

    def want_all(self, values: Mapping[str, bytes]) -> None:
        """Want these keys and no others; the next :meth:`settle` that prunes deletes the rest."""
        self._wanted = dict(values)

    def desired(self, key: str) -> bytes | None:
        """Return the desired value of a key; ``None`` if it should not exist."""
        return self._wanted.get(key)

    def is_open(self, key: str) -> bool:
        """True if a change of the key is not written yet."""
        return key in self._open

    async def flush(self) -> dict[str, str]:
        """Write the changes since the last flush; returns the failures by key."""
        async with self._turn:
            return await self._write(sorted(self._open))

    async def settle(self, *, prune: bool) -> int:
        """Read the store and write what differs; ``prune``: delete unwanted keys, return how many. Or Transient."""
        async with self._turn:
            self._stored = None
            try:
                stored = await self._read()
            except (Expired, EtcdError) as error:
                raise Transient(str(error)) from None
            unwanted = [key for key in stored if key not in self._wanted] if prune else []
            failed = await self._write([*unwanted, *self._wanted])
            if failed:
                raise Transient(next(iter(failed.values())))
            return len(unwanted)

    async def _read(self) -> dict[str, bytes]:
        if self._stored is None:
            stored: dict[str, bytes] = {}
            for prefix in self._prefixes:
                stored |= {kv.key: kv.value for kv in (await self._session.list(prefix)).kvs}
            self._stored = stored
        return self._stored

    async def _write(self, keys: Iterable[str]) -> dict[str, str]:
        failed: dict[str, str] = {}
        operations = [Put(key, self._wanted[key]) if key in self._wanted else Delete(key) for key in keys]
        try:
            stored = await self._read()
        except (Transient, Expired, EtcdError) as error:
            return dict.fromkeys((op.key for op in operations), str(error))
        self._open.difference_update(op.key for op in operations if not _needed(op, stored))
        for batch in _batches(op for op in operations if _needed(op, stored)):
            failed |= await self._commit(batch)
        return failed

    async def _commit(self, batch: Sequence[Op]) -> dict[str, str]:
        try:
            await self._session.txn((), batch)
        except EtcdError as error:
            if len(batch) == 1:
                return self._refused(batch[0].key, str(error))
            halves = batch[: len(batch) // 2], batch[len(batch) // 2 :]
            return {key: error for half in halves for key, error in (await self._commit(half)).items()}
        except (Transient, Expired) as error:
            self._stored = None  # the transaction may have been committed or not
            return dict.fromkeys((op.key for op in batch), str(error))
        for op in batch:
            self._done(op)
        if log.is_enabled_for(logging.DEBUG):
            log.debug("keys written", keys=[op.key for op in batch])
        return {}

    def _done(self, op: Op) -> None:
        self.writes += 1
        self.refused.pop(op.key, None)
        if self._wanted.get(op.key) == (op.value if isinstance(op, Put) else None):
            self._open.discard(op.key)
        if self._stored is None:
            return
        if isinstance(op, Put):
            self._stored[op.key] = op.value
        else:
            self._stored.pop(op.key, None)

    def _refused(self, key: str, reason: str) -> dict[str, str]:
        """The store rejects this key for good: logged, and the canary of its kind does not wait for it."""
        log.error("key not written", key=key, why=reason)
        self.refused[key] = reason
        self._open.discard(key)
        return {}


def _needed(op: Op, stored: Mapping[str, bytes]) -> bool:
    return stored.get(op.key) != op.value if isinstance(op, Put) else op.key in stored


def _batches(operations: Iterable[Op]) -> Iterator[list[Op]]:
    """Split operations into batches that a server accepts as one transaction."""
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
