"""The keys of a list within limits: none beyond them, or a fair share for each group of keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from isthmus.etcd.errors import TooLarge
from isthmus.etcd.values import KeyValue, Limits
from isthmus.fair import Shares, allot


class BoundedKeys:
    """Keys as a list brings them, page by page. No more than half as many again as the limits allow are held."""

    def __init__(self, prefix: str, limits: Limits) -> None:
        self._prefix = prefix
        self._limits = limits
        self._kvs: list[KeyValue] = []
        self._size = 0
        self._listed = 0
        self.left_out: Counter[str] = Counter()
        """Keys beyond their group's share, by group."""

    def add(self, kvs: Sequence[KeyValue]) -> None:
        """Add a page; TooLarge beyond the limits, where groups do not share them."""
        self._kvs += kvs
        self._size += sum(len(kv.value) for kv in kvs)
        self._listed += len(kvs)
        keys, size, group, listed = self._limits
        if group is None and len(self._kvs) > keys:
            raise TooLarge(f"{self._prefix}: more than {keys} keys are not read")
        if group is None and self._size > size:
            raise TooLarge(f"{self._prefix}: more than {size} bytes are not read")
        if self._listed > listed:
            raise TooLarge(f"{self._prefix}: more than {listed} keys are not looked at")
        if group is not None and (2 * len(self._kvs) > 3 * keys or 2 * self._size > 3 * size):
            self._trim(group)

    def held(self) -> list[KeyValue]:
        """The keys within the limits, in order."""
        keys, size, group, _ = self._limits
        if group is not None and (len(self._kvs) > keys or self._size > size):
            self._trim(group)
        return self._kvs

    def _trim(self, group: Callable[[str], str]) -> None:
        groups = [group(kv.key) for kv in self._kvs]
        keys = _shares(Counter(groups), self._limits.keys)
        sizes: Counter[str] = Counter()
        for kv, name in zip(self._kvs, groups, strict=True):
            sizes[name] += len(kv.value)
        size = _shares(sizes, self._limits.size)
        kept: list[KeyValue] = []
        for kv, name in zip(self._kvs, groups, strict=True):
            if keys[name] > 0 and size[name] >= len(kv.value):
                keys[name] -= 1
                size[name] -= len(kv.value)
                kept.append(kv)
            else:
                keys[name] = 0  # of a group that is cut the first keys stay, whatever the size of later ones
                self.left_out[name] += 1
        self._kvs = kept
        self._size = sum(len(kv.value) for kv in kept)


def _shares(counts: Mapping[str, int], room: int) -> Counter[str]:
    shares = allot({(name,): count for name, count in counts.items()}, Shares(room, reserve=False))
    return Counter({name: count for (name,), count in shares.items()})
