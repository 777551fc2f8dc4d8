"""Rows that claim entries of one map, as a target of a reconciler."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from isthmus.datapath.core.maps import Maps
from isthmus.statedb import NotPruned

R = TypeVar("R")


class Unresolved(Exception):  # noqa: N818
    """A row cannot be written yet; the message says why."""


class Entries(Generic[R]):
    """The entries of one map. Of several rows that claim one, ``choose`` picks a value: the last written by default.

    Invariant: ``_written`` is what the kernel holds, as far as writes of this process and the last ``prune`` have it.
    """

    def __init__(
        self,
        maps: Maps,
        name: str,
        key: Callable[[R], Hashable],
        encode: Callable[[R], Mapping[bytes, bytes]],
        *,
        written: Callable[[], None],
        choose: Callable[[bytes, Sequence[bytes]], bytes] = lambda _, values: values[-1],
    ) -> None:
        self._maps = maps
        self._name = name
        self._key = key
        self._encode = encode
        self._after = written
        self._choose = choose
        self._written = dict(maps.items(name))
        self._claims: dict[bytes, dict[Hashable, bytes]] = {}
        self.rows: dict[Hashable, R] = {}
        """The rows that hold claims."""
        self._keys: dict[Hashable, tuple[bytes, ...]] = {}
        self._left: dict[Hashable, tuple[bytes, ...]] = {}
        """Entries that a row gave up and that could not be written then: its next turn tries them again."""
        self.pruned = False

    def __repr__(self) -> str:
        return f"<Entries of {self._name}: {len(self.rows)} rows, {len(self._written)} entries>"

    def __len__(self) -> int:
        """Number of entries in the map."""
        return len(self._written)

    async def update(self, rows: Sequence[R]) -> Mapping[Hashable, str]:
        """Write the entries of these rows. Returns failures by key."""
        failures: dict[Hashable, str] = {}
        encoded: list[tuple[R, Mapping[bytes, bytes]]] = []
        for row in rows:  # all before any claim changes: one that raises is a bug, and the others are tried again
            try:
                encoded.append((row, self._encode(row)))
            except Unresolved as error:
                failures[self._key(row)] = str(error)
        touched: dict[bytes, Hashable] = {}
        for row, entries in encoded:
            name = self._key(row)
            touched |= dict.fromkeys(self._release(name), name) | dict.fromkeys(entries, name)
            self.rows[name], self._keys[name] = row, tuple(entries)
            for key, value in entries.items():
                self._claims.setdefault(key, {})[name] = value
        return failures | self._settle(touched)

    async def delete(self, rows: Sequence[R]) -> Mapping[Hashable, str]:
        """Give up the claims of these rows. Returns failures by key."""
        released = {key: self._key(row) for row in rows for key in self._release(self._key(row))}
        failed = self._write(released)
        for key in failed:
            self._leave(released[key], key)
        return {released[key]: reason for key, reason in failed.items()}

    async def prune(self, rows: Iterable[R]) -> str:
        """Make the map hold what these rows claim, as it was last updated, and nothing else."""
        wanted = {self._key(row) for row in rows}
        for key in [key for key in self.rows if key not in wanted]:
            self._release(key)
        self._left.clear()
        self._written = dict(self._maps.items(self._name))
        obsolete = [key for key in self._written if key not in self._claims]
        if failures := self._write({**self._claims, **dict.fromkeys(obsolete)}):
            raise NotPruned(next(iter(failures.values())))
        self.pruned = True
        self._after()
        return f"{len(obsolete)} entries of {self._name} removed"

    def _release(self, row: Hashable) -> tuple[bytes, ...]:
        """Remove the claims of a row. Returns the keys that it had, and those that are left of it."""
        self.rows.pop(row, None)
        keys = self._keys.pop(row, ())
        for key in keys:
            claims = self._claims[key]
            del claims[row]
            if not claims:
                del self._claims[key]
        return (*keys, *self._left.pop(row, ()))

    def _leave(self, row: Hashable, key: bytes) -> None:
        self._left[row] = (*self._left.get(row, ()), key)

    def _settle(self, touched: Mapping[bytes, Hashable]) -> dict[Hashable, str]:
        """Write entries, by the row that has or had each. Returns failures by row."""
        failures: dict[Hashable, str] = {}
        for key, reason in self._write(touched).items():
            if key not in self._claims:
                self._leave(touched[key], key)
            failures |= dict.fromkeys(self._claims.get(key, (touched[key],)), reason)
        return failures

    def _write(self, touched: Iterable[bytes]) -> dict[bytes, str]:
        """Write what these entries should be: those that stay before others go. Returns failures by entry."""
        puts, drops = list[tuple[bytes, bytes]](), list[bytes]()
        for key in touched:
            claims = self._claims.get(key)
            if claims is None:
                drops += [key] if key in self._written else []
                continue
            value = self._choose(key, list(claims.values()))
            if self._written.get(key) != value:
                puts.append((key, value))
        failures = {puts[position][0]: reason for position, reason in self._maps.put(self._name, puts).items()}
        self._written |= {key: value for key, value in puts if key not in failures}
        kept = {drops[position]: reason for position, reason in self._maps.drop(self._name, drops).items()}
        for key in drops:
            if key not in kept:
                del self._written[key]
        self._after()
        return failures | kept
