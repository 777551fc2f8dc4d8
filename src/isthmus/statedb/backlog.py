"""The keys that wait for a reconciler's rounds: a bounded high-priority queue, then a bulk queue."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, NamedTuple


class Group(NamedTuple):
    """Keys that are reconciled in one round."""

    mark: int
    keys: list[Any]


class Backlog:
    """Keys that wait for a round. A few changes go into the urgent queue while it has room, masses into the bulk queue.

    The keys of a group are in one queue and leave it together. Each group has a mark: the revision up to which changes
    had been taken in before it.
    """

    def __init__(self) -> None:
        self._urgent: OrderedDict[Hashable, Group] = OrderedDict()
        self._bulk: OrderedDict[Hashable, Group] = OrderedDict()
        self._keys: set[Any] = set()
        self._urgent_keys = 0

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: Any, *, group: Hashable, mark: int, room: int) -> None:
        """Queue a key, as urgent where fewer than ``room`` are; a group in the bulk queue becomes urgent with it."""
        if self._urgent_keys < room and group in self._bulk:
            self._urgent[group] = self._bulk.pop(group)
            self._urgent_keys += len(self._urgent[group].keys)
        if key in self._keys:
            return
        bulk = group in self._bulk or (group not in self._urgent and self._urgent_keys >= room)
        queue = self._bulk if bulk else self._urgent
        queue.setdefault(group, Group(mark, [])).keys.append(key)
        self._keys.add(key)
        self._urgent_keys += not bulk

    def take(self, most: int) -> list[Any]:
        """About ``most`` keys, oldest first: whole groups; a quarter from the bulk queue, which never starves."""
        taken = self._from(self._urgent, most - min(most // 4, len(self) - self._urgent_keys))
        taken += self._from(self._bulk, most - len(taken))
        return taken + self._from(self._urgent, most - len(taken))

    def _from(self, queue: OrderedDict[Hashable, Group], most: int) -> list[Any]:
        taken: list[Any] = []
        while queue and len(taken) < most:
            taken += queue.popitem(last=False)[1].keys
        self._keys.difference_update(taken)
        self._urgent_keys -= len(taken) if queue is self._urgent else 0
        return taken

    def mark(self, otherwise: int) -> int:
        """The lowest mark of all groups; ``otherwise`` where there are none."""
        marks = [each.mark for each in self._urgent.values()]
        if self._bulk:
            marks.append(next(iter(self._bulk.values())).mark)
        return min(marks, default=otherwise)
