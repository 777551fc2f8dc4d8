"""Sorted sequences that may be large, and change a little at a time.

Up to ``SMALL`` items are a plain tuple. More are chunks, and the next version shares those it leaves alone: making it,
comparing it with the one before and finding what differs cost what has changed, not what there is. Which items are in
which chunk follows from the changes that led there and means nothing: equal items are equal sequences.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final, Protocol, TypeVar, overload


class Ordered(Protocol):
    """What can be sorted."""

    def __lt__(self, other: Any, /) -> bool: ...


T = TypeVar("T", bound=Ordered)

CHUNK: Final = 256
"""Items of a chunk at first: near the root of the largest service's size, where chunks and their items cost the same.
A chunk that has grown to twice as many is split."""
SMALL: Final = 256
"""Items up to which copying all of them costs less than looking for a chunk."""

_first = itemgetter(0)


class Chunked(Sequence[T]):
    """Sorted distinct items in chunks, none of them empty. Immutable but for what saves work.

    ``step``: the sequence that it was made of by :func:`changed`, and what was removed and added. A sequence lets go of
    its own step when the next is made of it, so that no more than two are kept.
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
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[T]: ...
    def __getitem__(self, at: int | slice) -> T | Sequence[T]:
        return tuple(self)[at]

    def __contains__(self, item: Any) -> bool:
        chunk = self.chunks[_place(self.chunks, item)]
        at = bisect_left(chunk, item)
        return at < len(chunk) and bool(chunk[at] == item)

    def first(self, item: T) -> T | None:
        """The first that is not less than this one; None where all are."""
        place = _place(self.chunks, item)
        at = bisect_left(self.chunks[place], item)
        if at < len(self.chunks[place]):
            return self.chunks[place][at]
        return self.chunks[place + 1][0] if place + 1 < len(self.chunks) else None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Chunked):
            return tuple(self) == other if isinstance(other, tuple) else NotImplemented
        if self._size != other._size:
            return False
        for one, two in zip(self.chunks, other.chunks, strict=False):
            if one is two:
                continue
            least = min(len(one), len(two))
            if one[:least] != two[:least]:
                return False  # all before them is equal, so they begin at the same item
            if len(one) != len(two):
                return tuple(self) == tuple(other)  # from here on chunks are others
        return True

    def __hash__(self) -> int:
        return hash(tuple(self))


def sequence(items: Sequence[T]) -> Sequence[T]:
    """Sorted distinct items as a tuple, or in chunks where they are many."""
    if len(items) <= SMALL:
        return tuple(items)
    return Chunked(tuple(items[at : at + CHUNK]) for at in range(0, len(items), CHUNK))


def plain(value: Any) -> Any:
    """For encoders of rows (``enc_hook`` of msgspec): a large sequence is written as a small one is."""
    if isinstance(value, Chunked):
        return tuple(value)
    raise NotImplementedError(f"{type(value).__name__} is no part of a row")


def changed(items: Sequence[T], *, removed: Collection[T], added: Collection[T]) -> Sequence[T]:
    """The sequence without some of its items and with others, which it had not got."""
    if not isinstance(items, Chunked):
        return sequence(sorted([*(item for item in items if item not in removed), *added]))
    edits: dict[int, tuple[list[T], list[T]]] = {}
    for item in removed:
        edits.setdefault(_place(items.chunks, item), ([], []))[0].append(item)
    for item in added:
        edits.setdefault(_place(items.chunks, item), ([], []))[1].append(item)
    chunks: list[tuple[T, ...]] = []
    done = 0
    for at, (out, into) in sorted(edits.items()):
        chunks += items.chunks[done:at]
        chunks += _edited(items.chunks[at], out, into)
        done = at + 1
    found = Chunked([*chunks, *items.chunks[done:]])
    if len(found) <= SMALL // 2:
        return sequence(tuple(found))
    found.step, items.step = (items, list(removed), list(added)), None
    return found


def difference(old: Sequence[T], new: Sequence[T]) -> tuple[list[T], list[T]]:
    """(what only the old one has, what only the new one has). Chunks that both share are not looked into."""
    if old is new:
        return [], []
    if isinstance(new, Chunked) and new.step is not None and new.step[0] is old:
        _, removed, added = new.step
        return list(removed), list(added)
    befores, afters = (each.chunks if isinstance(each, Chunked) else (tuple(each),) for each in (old, new))
    shared = set(map(id, befores)).intersection(map(id, afters))
    before, after = (_by_id([chunk for chunk in of if id(chunk) not in shared]) for of in (befores, afters))
    removed = [before[each] for each in before.keys() - after.keys()]
    added = [after[each] for each in after.keys() - before.keys()]
    if removed and added:  # equal items that are not the same object
        both = set(removed).intersection(added)
        if both:
            removed = [item for item in removed if item not in both]
            added = [item for item in added if item not in both]
    return removed, added


def _by_id(chunks: Sequence[tuple[T, ...]]) -> dict[int, T]:
    items = list(chain.from_iterable(chunks))
    return dict(zip(map(id, items), items, strict=True))


def _place(chunks: Sequence[tuple[T, ...]], item: T) -> int:
    """The chunk that an item is in, or would be."""
    return max(0, bisect_right(chunks, item, key=_first) - 1)


def _edited(chunk: tuple[T, ...], removed: Sequence[T], added: Sequence[T]) -> list[tuple[T, ...]]:
    """A chunk after its changes: none where it is empty, two where it has grown too large."""
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
    return [tuple(items[at : at + CHUNK]) for at in range(0, len(items), CHUNK)]
