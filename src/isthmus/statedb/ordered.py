"""An index whose values are in order, so that it can be read from a value on, or below a prefix.

A persistent map finds what is under a value; the values beside it are kept sorted in chunks. A commit copies the chunks
it changes and the list of chunks, and shares the rest: a change costs two binary searches and a copy of a chunk, a
snapshot nothing. Both sides have the face of ``immutables.Map`` that an index needs, so that one which is not ordered
has nothing to do with this.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Final

from immutables import Map

from isthmus.statedb.index import Rows

MOST: Final = 1024
"""Values in a chunk; one that has more is split."""

Chunks = tuple[tuple[Any, ...], ...]


class Ordered:
    """An ordered index as it stands in a root."""

    __slots__ = ("_chunks", "_found", "get")

    def __init__(self, found: Map[Any, Rows] = Map(), chunks: Chunks = ()) -> None:  # noqa: B008 never changed
        self._found = found
        self._chunks = chunks
        self.get: Callable[[Hashable], Rows | None] = found.get

    def mutate(self) -> OrderedDraft:
        """What a transaction changes."""
        return OrderedDraft(self._found, self._chunks)

    def since(self, value: Any) -> Iterator[Any]:
        """Its values in order, from this one or the first after it."""
        return since(self._chunks, value)


class OrderedDraft:
    """An ordered index while a transaction changes it. Values that came or went are put in order when they are read."""

    __slots__ = ("_chunks", "_come", "_found", "_gone", "get")

    def __init__(self, found: Map[Any, Rows], chunks: Chunks) -> None:
        self._found: Any = found.mutate()
        self._chunks = chunks
        self._come: dict[Any, None] = {}
        self._gone: dict[Any, None] = {}
        self.get: Callable[[Hashable], Rows | None] = self._found.get

    def __setitem__(self, value: Any, rows: Rows) -> None:
        if value not in self._found:
            self._note(value, self._come, self._gone)
        self._found[value] = rows

    def __delitem__(self, value: Any) -> None:
        del self._found[value]
        self._note(value, self._gone, self._come)

    def since(self, value: Any) -> Iterator[Any]:
        """Its values in order, from this one or the first after it, as they are now."""
        self._put_in_order()
        return since(self._chunks, value)

    def finish(self) -> Ordered:
        """The index as it is now, for good."""
        self._put_in_order()
        return Ordered(self._found.finish(), self._chunks)

    def _note(self, value: Any, here: dict[Any, None], there: dict[Any, None]) -> None:
        if value in there:
            del there[value]
        else:
            here[value] = None

    def _put_in_order(self) -> None:
        if self._come or self._gone:
            self._chunks = changed(self._chunks, come=self._come, gone=self._gone)
            self._come, self._gone = {}, {}


def since(chunks: Chunks, value: Any) -> Iterator[Any]:
    """The values of chunks from one on."""
    first = _place(chunks, value)
    for number in range(first, len(chunks)):
        chunk = chunks[number]
        yield from chunk[bisect_left(chunk, value) :] if number == first else chunk


def changed(chunks: Chunks, *, come: Iterable[Any], gone: Iterable[Any]) -> Chunks:
    """Chunks with some values more and some less; those that nothing changes are the same."""
    work: dict[int, tuple[list[Any], list[Any]]] = {}
    for which, values in enumerate((come, gone)):
        for value in values:
            work.setdefault(_place(chunks, value), ([], []))[which].append(value)
    result = list(chunks)
    for number in sorted(work, reverse=True):
        result[number : number + 1] = _chunks(_merged(result[number] if result else (), *work[number]))
        if sum(map(len, result[number : number + 2])) <= MOST // 2:
            result[number : number + 2] = _chunks([value for chunk in result[number : number + 2] for value in chunk])
    return tuple(result)


def _place(chunks: Chunks, value: Any) -> int:
    """The chunk that a value is in, or would be."""
    return max(0, bisect_right(chunks, value, key=lambda chunk: chunk[0]) - 1)


def _merged(chunk: tuple[Any, ...], come: list[Any], gone: list[Any]) -> list[Any]:
    values = list(chunk)
    for value in gone:
        del values[bisect_left(values, value)]
    if len(come) * 8 > len(values):
        return sorted(values + come)
    for value in come:
        insort(values, value)
    return values


def _chunks(values: list[Any]) -> Iterator[tuple[Any, ...]]:
    """Of values in order: half full, where there are too many for one."""
    size = MOST if len(values) <= MOST else MOST // 2
    for start in range(0, len(values), size):
        yield tuple(values[start : start + size])
