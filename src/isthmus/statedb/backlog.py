"""The keys that wait for a reconciler's rounds: a bounded high-priority queue, then a bulk queue."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
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

    def add(self, keys: Iterable[tuple[Hashable, Any]], *, mark: int, room: int) -> None:  # hot:
        """Queue keys, each with its group, in their order: as urgent where fewer than ``room`` are.

        A group in the bulk queue becomes urgent with one of its keys.
        """
        urgent, bulk, known = self._urgent, self._bulk, self._keys
        for group, key in keys:
            if self._urgent_keys < room and group in bulk:
                urgent[group] = bulk.pop(group)
                self._urgent_keys += len(urgent[group].keys)
            if key in known:
                continue
            known.add(key)
            if group in urgent:
                urgent[group].keys.append(key)
                self._urgent_keys += 1
            elif group in bulk:
                bulk[group].keys.append(key)
            elif self._urgent_keys < room:
                urgent[group] = Group(mark, [key])
                self._urgent_keys += 1
            else:
                bulk[group] = Group(mark, [key])

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
