"""Sorted immutable sequences that may be large and change a little at a time.

Up to ``SMALL`` items are a plain tuple. More are stored in chunks, and a new version shares the unchanged chunks: the
cost of creating it, comparing it with its predecessor and computing the difference depends on the size of the change.
The distribution over chunks depends on earlier changes and has no meaning: equal items are equal sequences.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final, Protocol, TypeVar, overload


class Ordered(Protocol):
    """A type with an order."""

    def __lt__(self, other: Any, /) -> bool: ...


T = TypeVar("T", bound=Ordered)

CHUNK: Final = 256
"""Items in a new chunk: near the root of the largest service's size, where chunks and their items cost the same. It is
split when it has twice as many."""
SMALL: Final = 256
"""Items up to which copying all of them costs less than finding a chunk."""

_first = itemgetter(0)


class Chunked(Sequence[T]):
    """Sorted distinct items in chunks, none of them empty. Immutable except for ``step``, which only saves work.

    ``step``: the predecessor from which :func:`changed` created it, and the removed and added items. A sequence drops
    its own step when a successor is created, so that no more than two versions are retained.
    """

    __slots__ = ("_size", "chunks", "step")

    def __init__(self, chunks: Iterable[tuple[T, ...]]) -> None:
        self.chunks = tuple(chunks)
        self._size = sum(map(len, self.chunks))
        self.step: tuple[Chunked[T], list[T], list[T]] | None = None

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self.chunks)

    def __repr__(self) -> str:
        return f"<Chunked of {self._size} in {len(self.chunks)} chunks>"

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return tuple(self)[index]

    def __contains__(self, item: Any) -> bool:
        chunk = self.chunks[_place(self.chunks, item)]
        index = bisect_left(chunk, item)
        return index < len(chunk) and bool(chunk[index] == item)

    def first(self, item: T) -> T | None:
        """Return the first item that is not less than this one; ``None`` if there is none."""
        place = _place(self.chunks, item)
        index = bisect_left(self.chunks[place], item)
        if index < len(self.chunks[place]):
            return self.chunks[place][index]
        return self.chunks[place + 1][0] if place + 1 < len(self.chunks) else None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Chunked):
            return tuple(self) == other if isinstance(other, tuple) else NotImplemented
        if self._size != other._size:
            return False
        for chunk, other_chunk in zip(self.chunks, other.chunks, strict=False):
            if chunk is other_chunk:
                continue
            least = min(len(chunk), len(other_chunk))
            if chunk[:least] != other_chunk[:least]:
                return False  # all earlier items are equal, so both chunks start at the same position
            if len(chunk) != len(other_chunk):
                return tuple(self) == tuple(other)  # chunk boundaries differ from here on
        return True

    def __hash__(self) -> int:
        return hash(tuple(self))


def sequence(items: Sequence[T]) -> Sequence[T]:
    """Return sorted distinct items as a tuple, or in chunks if there are many."""
    if len(items) <= SMALL:
        return tuple(items)
    return Chunked(tuple(items[start : start + CHUNK]) for start in range(0, len(items), CHUNK))


def plain(value: Any) -> Any:
    """Convert a large sequence to a tuple, for encoders of rows (``enc_hook`` of msgspec)."""
    if isinstance(value, Chunked):
        return tuple(value)
    raise NotImplementedError(f"{type(value).__name__} is no part of a row")


def changed(items: Sequence[T], *, removed: Collection[T], added: Collection[T]) -> Sequence[T]:
    """Return the sequence with ``removed`` taken out and ``added`` (not present before) put in."""
    if not isinstance(items, Chunked):
        return sequence(sorted([*(item for item in items if item not in removed), *added]))
    edits: dict[int, tuple[list[T], list[T]]] = {}
    for item in removed:
        edits.setdefault(_place(items.chunks, item), ([], []))[0].append(item)
    for item in added:
        edits.setdefault(_place(items.chunks, item), ([], []))[1].append(item)
    chunks: list[tuple[T, ...]] = []
    done = 0
    for index, (out, into) in sorted(edits.items()):
        chunks += items.chunks[done:index]
        chunks += _edited(items.chunks[index], out, into)
        done = index + 1
    result = Chunked([*chunks, *items.chunks[done:]])
    if len(result) <= SMALL // 2:
        return sequence(tuple(result))
    result.step, items.step = (items, list(removed), list(added)), None
    return result


def difference(old: Sequence[T], new: Sequence[T]) -> tuple[list[T], list[T]]:
    """Return (items only in the old one, items only in the new one). Shared chunks are skipped."""
    if old is new:
        return [], []
    if isinstance(new, Chunked) and new.step is not None and new.step[0] is old:
        _, removed, added = new.step
        return list(removed), list(added)
    befores, afters = (each.chunks if isinstance(each, Chunked) else (tuple(each),) for each in (old, new))
    shared = set(map(id, befores)).intersection(map(id, afters))
    before, after = (_by_id([chunk for chunk in chunks if id(chunk) not in shared]) for chunks in (befores, afters))
    removed = [before[each] for each in before.keys() - after.keys()]
    added = [after[each] for each in after.keys() - before.keys()]
    if removed and added:  # equal items that are different objects
        unchanged = set(removed).intersection(added)
        if unchanged:
            removed = [item for item in removed if item not in unchanged]
            added = [item for item in added if item not in unchanged]
    return removed, added


def _by_id(chunks: Sequence[tuple[T, ...]]) -> dict[int, T]:
    items = list(chain.from_iterable(chunks))
    return dict(zip(map(id, items), items, strict=True))


def _place(chunks: Sequence[tuple[T, ...]], item: T) -> int:
    """Return the index of the chunk that contains an item, or would."""
    return max(0, bisect_right(chunks, item, key=_first) - 1)


def _edited(chunk: tuple[T, ...], removed: Sequence[T], added: Sequence[T]) -> list[tuple[T, ...]]:
    """Apply changes to a chunk: no chunk if it is empty then, several if it has grown too large."""
    items = list(chunk)
    for item in removed:
        del items[bisect_left(items, item)]
    if len(added) * 8 > len(items):
        items += added
        items.sort()
    else:
        for item in added:
            insort(items, item)
    if len(items) < 2 * CHUNK:
        return [tuple(items)] if items else []
    return [tuple(items[start : start + CHUNK]) for start in range(0, len(items), CHUNK)]
