"""What waits for a reconciler's rounds: a little in front, and masses behind."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, NamedTuple


class Group(NamedTuple):
    """Keys that go together."""

    mark: int
    keys: list[Any]


class Backlog:
    """Keys that wait for a round: a few in front, as there is room, and the rest behind; those of a group go together.

    Each group has a mark: the revision up to which changes had come before it.
    """

    def __init__(self) -> None:
        self._front: OrderedDict[Hashable, Group] = OrderedDict()
        self._behind: OrderedDict[Hashable, Group] = OrderedDict()
        self._keys: set[Any] = set()
        self._in_front = 0

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: Any, *, group: Hashable, mark: int, room: int) -> None:
        """Let a key wait, in front where fewer than ``room`` do; a group that waited behind comes in front with it."""
        if self._in_front < room and group in self._behind:
            self._front[group] = self._behind.pop(group)
            self._in_front += len(self._front[group].keys)
        if key in self._keys:
            return
        behind = group in self._behind or (group not in self._front and self._in_front >= room)
        queue = self._behind if behind else self._front
        queue.setdefault(group, Group(mark, [])).keys.append(key)
        self._keys.add(key)
        self._in_front += not behind

    def take(self, most: int) -> list[Any]:
        """So many, and what a last group has more, oldest first; a quarter is for those behind."""
        taken = self._from(self._front, most - min(most // 4, len(self) - self._in_front))
        taken += self._from(self._behind, most - len(taken))
        return taken + self._from(self._front, most - len(taken))

    def _from(self, queue: OrderedDict[Hashable, Group], most: int) -> list[Any]:
        taken: list[Any] = []
        while queue and len(taken) < most:
            taken += queue.popitem(last=False)[1].keys
        self._keys.difference_update(taken)
        self._in_front -= len(taken) if queue is self._front else 0
        return taken

    def mark(self, otherwise: int) -> int:
        """The lowest mark of all that wait; where none do, another."""
        marks = [each.mark for each in self._front.values()]
        if self._behind:
            marks.append(next(iter(self._behind.values())).mark)
        return min(marks, default=otherwise)
