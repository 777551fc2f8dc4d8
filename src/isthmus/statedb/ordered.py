"""A dict whose keys can also be read in order, from a given key on: the storage of an ordered index.

The sorted keys are kept in chunks, which are tuples: an ordered read captures the current chunks, and later writes
replace the chunks that they change. Added and removed keys are merged into the chunks by the next ordered read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import Any, Final

CHUNK_KEYS: Final = 1024
"""Largest chunk; a longer one is split. A key that is added or removed copies half of one on average."""

Chunks = tuple[tuple[Any, ...], ...]


class SortedDict(dict[Any, Any]):
    """A dict with :meth:`keys_from`; written by ``[key] = value`` and ``del [key]`` only."""

    __slots__ = ("_added", "_chunk_keys", "_chunks", "_removed")

    def __init__(self, *, chunk_keys: int) -> None:
        super().__init__()
        self._chunk_keys = chunk_keys
        self._chunks: Chunks = ()
        self._added: dict[Any, None] = {}
        self._removed: dict[Any, None] = {}

    def __setitem__(self, key: Any, value: Any) -> None:
        if key not in self:
            _note(key, self._added, self._removed)
        super().__setitem__(key, value)

    def __delitem__(self, key: Any) -> None:
        super().__delitem__(key)
        _note(key, self._removed, self._added)

    def keys_from(self, key: Any) -> Iterator[Any]:
        """The current keys in order, from this one or the first after it; later writes do not change the iterator."""
        if self._added or self._removed:
            self._chunks = changed(self._chunks, added=self._added, removed=self._removed, chunk_keys=self._chunk_keys)
            self._added, self._removed = {}, {}
        return _keys_from(self._chunks, key)


def _note(key: Any, noted: dict[Any, None], opposite: dict[Any, None]) -> None:
    """Note a change of a key, unless it cancels the opposite change."""
    if key in opposite:
        del opposite[key]
    else:
        noted[key] = None


def _keys_from(chunks: Chunks, key: Any) -> Iterator[Any]:
    first = _place(chunks, key)
    for number in range(first, len(chunks)):
        chunk = chunks[number]
        yield from chunk[bisect_left(chunk, key) :] if number == first else chunk


def changed(chunks: Chunks, *, added: Iterable[Any], removed: Iterable[Any], chunk_keys: int) -> Chunks:
    """Add and remove keys. Chunks without a change stay the same objects."""
    work: dict[int, tuple[list[Any], list[Any]]] = {}
    for which, keys in enumerate((added, removed)):
        for key in keys:
            work.setdefault(_place(chunks, key), ([], []))[which].append(key)
    result = list(chunks)
    for number in sorted(work, reverse=True):
        result[number : number + 1] = _split(_merged(result[number] if result else (), *work[number]), chunk_keys)
        if sum(map(len, result[number : number + 2])) <= chunk_keys // 2:
            joined = [key for chunk in result[number : number + 2] for key in chunk]
            result[number : number + 2] = _split(joined, chunk_keys)
    return tuple(result)


def _place(chunks: Chunks, key: Any) -> int:
    """Number of the chunk that contains a key, or would."""
    return max(0, bisect_right(chunks, key, key=lambda chunk: chunk[0]) - 1)


def _merged(chunk: tuple[Any, ...], added: list[Any], removed: list[Any]) -> list[Any]:
    keys = list(chunk)
    for key in removed:
        del keys[bisect_left(keys, key)]
    if len(added) * 8 > len(keys):
        return sorted(keys + added)
    for key in added:
        insort(keys, key)
    return keys


def _split(keys: list[Any], chunk_keys: int) -> Iterator[tuple[Any, ...]]:
    """Split sorted keys into chunks: a single one if they fit, otherwise half-full ones, so that each can grow."""
    size = chunk_keys if len(keys) <= chunk_keys else chunk_keys // 2
    for start in range(0, len(keys), size):
        yield tuple(keys[start : start + size])
