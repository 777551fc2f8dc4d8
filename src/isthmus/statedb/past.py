"""The state of a table at a snapshot, after later transactions have changed the table in place.

A snapshot reads the current state until a transaction writes the table; from then on it reads through a PastState: a
key written since is read from the undo, any other key from the current state. So a held snapshot costs each transaction
in proportion to the rows that it touches, and nothing once it is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from heapq import merge
from itertools import groupby, islice
from typing import Any, Final

from isthmus.statedb.index import Index, Rows, rows_of
from isthmus.statedb.ordered import SortedDict
from isthmus.statedb.states import TableState

NOTHING: Final[dict[Any, Any]] = {}


class PastState:
    """A table at one commit: the current state and an undo.

    Invariant: ``_undo`` maps each key written since the commit to its row at the commit, ``None`` for none. Rows that
    the open transaction touches enter it at each read and at the transaction's end, even if it is rolled back: an undo
    entry for an unchanged key is harmless.
    """

    __slots__ = ("_current", "_indexes", "_open", "_size", "_taken", "_undo", "revision")

    def __init__(self, current: TableState) -> None:
        self._current = current
        self.revision, self._size = current.before
        self._undo: dict[Any, Any] = {}
        self._indexes: dict[int, Index] = {}
        """Indexes over the rows of the undo, by position; built at the first look-up."""
        self.begin()

    def __len__(self) -> int:
        return self._size

    def begin(self) -> None:
        """A transaction begins to write the table."""
        self._open = NOTHING if self._current.touched is None else self._current.touched
        self._taken = 0

    def end(self) -> None:
        """The transaction that wrote the table ends: take over the rest of what it touched."""
        self._follow()
        self._open, self._taken = NOTHING, 0

    def get(self, key: Any) -> Any:
        """The row of this key at the commit, or ``None``."""
        self._follow()
        return self._undo[key] if key in self._undo else self._current.get(key)

    def many(self, keys: Collection[Any]) -> list[Any]:
        """The row of each key at the commit, ``None`` for none."""
        return [*map(self.get, keys)]

    def all(self) -> list[Any]:
        """Every row at the commit."""
        self._follow()
        undo = self._undo
        rows = [row for key, row in self._current.rows.items() if key not in undo]
        return rows + [old for old in undo.values() if old is not None]

    def keys_from(self, position: int, value: Any) -> Iterator[Any]:
        """The values of an ordered index in order; some of them may have had no rows."""
        self._follow()
        undone = self._index(position).entries
        assert isinstance(undone, SortedDict)  # the table's ordered_position() gave the position
        values = merge(self._current.keys_from(position, value), undone.keys_from(value))
        return (each for each, _ in groupby(values))

    @property
    def finders(self) -> list[Callable[[Any], Rows | None]]:
        """Functions from a value of each index to its rows at the commit.

        They are not kept: a state that refers to itself is freed by the collector only, which may run an hour later.
        """
        return [partial(self._find, position) for position in range(len(self._current.table.values))]

    def finder(self, position: int) -> Callable[[Any], Rows | None]:
        """The function from a value of an index to its rows at the commit."""
        return partial(self._find, position)

    def _find(self, position: int, value: Any) -> Rows | None:
        """Rows of a value at the commit: the current rows that were not written since, and those of the undo."""
        self._follow()
        undo, key = self._undo, self._current.table.key
        rows = {key(row): row for row in rows_of(self._current.finders[position](value))}
        result = {each: row for each, row in rows.items() if each not in undo}
        result.update((key(row), row) for row in rows_of(self._index(position).get(value)))
        return result or None

    def _index(self, position: int) -> Index:
        index = self._indexes.get(position)
        if index is None:
            index = self._indexes[position] = Index(self._current.table, position)
            for old in self._undo.values():
                if old is not None:
                    index.add(old)
        return index

    def _follow(self) -> None:
        """Copy rows that the open transaction has touched since the last call; its dict only ever grows."""
        if len(self._open) == self._taken:
            return
        undo = self._undo
        for key, old in islice(self._open.items(), self._taken, None):  # hot:
            if key not in undo:
                undo[key] = old
                if old is not None:
                    for index in self._indexes.values():
                        index.add(old)
        self._taken = len(self._open)
