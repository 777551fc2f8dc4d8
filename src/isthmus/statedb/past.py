"""The state of a table as a snapshot took it, after later transactions have changed the table in place.

A snapshot reads the present state until a transaction writes the table; from then on it reads through one of these: a
key that was written since is read from the undo, any other from the present. So a held snapshot costs each
transaction what that transaction touches, and nothing once it is dropped.
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
    """A table at one commit: the present and an undo.

    Invariant: ``_undo`` maps each key written since the commit to its row at the commit (None: there was none). What
    the open transaction touches is taken into it at each read and at the transaction's end, rolled back or not: an
    undo of a key that is as it was is no error.
    """

    __slots__ = ("_indexes", "_open", "_present", "_size", "_taken", "_undo", "finders", "revision")

    def __init__(self, present: TableState) -> None:
        self._present = present
        self.revision, self._size = present.before
        self._undo: dict[Any, Any] = {}
        self._indexes: dict[int, Index] = {}
        """Indexes over the rows of the undo, by position, for those that were looked into."""
        self.finders: list[Callable[[Any], Rows | None]] = [
            partial(self._find, position) for position in range(len(present.table.values))
        ]
        self.begin()

    def __len__(self) -> int:
        return self._size

    def begin(self) -> None:
        """A transaction begins to write the table."""
        self._open = NOTHING if self._present.touched is None else self._present.touched
        self._taken = 0

    def end(self) -> None:
        """The transaction that wrote the table ends; nothing was read through the undo that is not in it now."""
        self._follow()
        self._open, self._taken = NOTHING, 0

    def get(self, key: Any) -> Any:
        """The row that had this key, or None."""
        self._follow()
        return self._undo[key] if key in self._undo else self._present.get(key)

    def many(self, keys: Collection[Any]) -> list[Any]:
        """The row that each key had, None where there was none."""
        return [*map(self.get, keys)]

    def all(self) -> list[Any]:
        """Every row there was."""
        self._follow()
        undo = self._undo
        rows = [row for key, row in self._present.rows.items() if key not in undo]
        return rows + [old for old in undo.values() if old is not None]

    def keys_from(self, position: int, value: Any) -> Iterator[Any]:
        """The values of an ordered index in order; some of them may have had no rows."""
        self._follow()
        found = self._index(position).found
        assert isinstance(found, SortedDict)  # the table's ordered_position() gave the position
        both = merge(self._present.keys_from(position, value), found.keys_from(value))
        return (each for each, _ in groupby(both))

    def finder(self, position: int) -> Callable[[Any], Rows | None]:
        """The function from a value of an index to what was stored under it."""
        return self.finders[position]

    def _find(self, position: int, value: Any) -> Rows | None:
        """What was stored under a value: the present rows that were not written since, and those of the undo."""
        self._follow()
        undo, key = self._undo, self._present.table.key
        rows = {key(row): row for row in rows_of(self._present.finders[position](value))}
        found = {each: row for each, row in rows.items() if each not in undo}
        found.update((key(row), row) for row in rows_of(self._index(position).get(value)))
        return found or None

    def _index(self, position: int) -> Index:
        index = self._indexes.get(position)
        if index is None:
            index = self._indexes[position] = Index(self._present.table, position)
            for old in self._undo.values():
                if old is not None:
                    index.add(old)
        return index

    def _follow(self) -> None:
        """Take in what the open transaction has touched and this has not yet; it only ever touches more."""
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
