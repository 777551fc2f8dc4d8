"""Keys of our own etcd that are ours alone: what is wanted below some prefixes, and what is there.

It is noted at once and written later, only where the store holds something else. What is held is forgotten after
any failure and read again: it may have been wiped, restored or written by somebody else meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from isthmus import logs
from isthmus.etcd import Delete, EtcdError, Put, Session
from isthmus.reflector import Expired, Transient

log = logs.get("owned_keys")

TXN_KEYS: Final = 100
TXN_BYTES: Final = 512 * 1024

Op = Put | Delete


class OwnedKeys:
    """What is wanted and what is held below prefixes. Nothing outside of them is read or written."""

    def __init__(self, session: Session, prefixes: Iterable[str]) -> None:
        self._session = session
        self._prefixes = tuple(prefixes)
        self._wanted: dict[str, bytes] = {}
        self._held: dict[str, bytes] | None = None
        self._open: set[str] = set()
        self._turn = asyncio.Lock()
        self.refused: dict[str, str] = {}
        self.writes = 0

    def __repr__(self) -> str:
        held = "not read yet" if self._held is None else len(self._held)
        said = f"{len(self._wanted)} wanted, {held} held, {self.writes} written, {len(self.refused)} refused"
        return f"<OwnedKeys below {', '.join(self._prefixes)}: {said}>"

    def want(self, key: str, value: bytes | None) -> None:
        """This key should have this value, or not be there (None)."""
        self._open.add(key)
        if value is None:
            self._wanted.pop(key, None)
        else:
            self._wanted[key] = value

    def want_all(self, wanted: Mapping[str, bytes]) -> None:
        """These keys and no others should be there; what is not among them goes with the next settling that prunes."""
        self._wanted = dict(wanted)

    def wanted(self, key: str) -> bytes | None:
        """The value that a key should have."""
        return self._wanted.get(key)

    def is_open(self, key: str) -> bool:
        """Whether that is yet to be written."""
        return key in self._open

    async def flush(self) -> dict[str, str]:
        """Write what was wanted since; gives by key why it could not be."""
        async with self._turn:
            return await self._write(sorted(self._open))

    async def settle(self, *, prune: bool) -> int:
        """Read what is there and write what is lacking; ``prune``: delete what is not wanted. Gives how many went."""
        async with self._turn:
            self._held = None
            try:
                held = await self._read()
            except (Expired, EtcdError) as why:
                raise Transient(str(why)) from None
            stale = [key for key in held if key not in self._wanted] if prune else []
            failed = await self._write([*stale, *self._wanted])
            if failed:
                raise Transient(next(iter(failed.values())))
            return len(stale)

    async def _read(self) -> dict[str, bytes]:
        if self._held is None:
            held: dict[str, bytes] = {}
            for prefix in self._prefixes:
                held |= {kv.key: kv.value for kv in (await self._session.list(prefix)).kvs}
            self._held = held
        return self._held

    async def _write(self, keys: Iterable[str]) -> dict[str, str]:
        failed: dict[str, str] = {}
        operations = [Put(key, self._wanted[key]) if key in self._wanted else Delete(key) for key in keys]
        try:
            held = await self._read()
        except (Transient, Expired, EtcdError) as why:
            return dict.fromkeys((op.key for op in operations), str(why))
        self._open.difference_update(op.key for op in operations if not _needed(op, held))
        for batch in _batches(op for op in operations if _needed(op, held)):
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
        for op in batch:
            self._done(op)
        return {}

    def _done(self, op: Op) -> None:
        self.writes += 1
        self.refused.pop(op.key, None)
        if self._wanted.get(op.key) == (op.value if isinstance(op, Put) else None):
            self._open.discard(op.key)
        if self._held is None:
            return
        if isinstance(op, Put):
            self._held[op.key] = op.value
        else:
            self._held.pop(op.key, None)

    def _refused(self, key: str, why: str) -> dict[str, str]:
        """The store will never take it: logged, and no reason to hold up the canary of the others."""
        log.error("key not written", key=key, why=why)
        self.refused[key] = why
        self._open.discard(key)
        return {}


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
