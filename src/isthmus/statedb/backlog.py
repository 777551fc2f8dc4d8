"""The keys that wait for a reconciler's rounds: a bounded high-priority queue, then a bulk queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from itertools import chain
from typing import Any

Group = tuple[int, dict[Any, None]]
"""A mark, and keys that are reconciled in one round, in their order. No NamedTuple: there is one for nearly each key,
and making it took as long as all else that is done here for that key."""
Queue = dict[Hashable, Group]


class Backlog:
    """Keys that wait for a round. A few changes go into the urgent queue while it has room, masses into the bulk queue.

    The keys of a group are in one queue and leave it together. Each group has a mark: the revision up to which changes
    had been taken in before it. Where not ``grouped`` each key is its own group.

    Invariant: a key is in one group, the one with which it was added last.
    """

    def __init__(self, *, grouped: bool) -> None:
        self._grouped = grouped
        self._group_of: dict[Any, Hashable] = {}
        """Of each key that waits, where they are grouped."""
        self._urgent: Queue = {}
        self._bulk: Queue = {}
        self._count = 0
        self._urgent_keys = 0

    def __len__(self) -> int:
        return self._count

    def add(self, keys: Iterable[tuple[Hashable, Any]], *, mark: int, room: int) -> None:  # hot:
        """Queue keys, each with its group, in their order: as urgent where fewer than ``room`` are.

        A group in the bulk queue becomes urgent with one of its keys.
        """
        urgent, bulk, grouped, group_of = self._urgent, self._bulk, self._grouped, self._group_of
        for group, key in keys:
            if grouped and (before := group_of.setdefault(key, group)) != group:
                self._move(key, before, group)
                continue
            if self._urgent_keys < room and group in bulk:
                urgent[group] = bulk.pop(group)
                self._urgent_keys += len(urgent[group][1])
            there = urgent.get(group) or bulk.get(group)
            if there is None:
                self._count += 1
                if self._urgent_keys < room:
                    urgent[group] = (mark, {key: None})
                    self._urgent_keys += 1
                else:
                    bulk[group] = (mark, {key: None})
            elif key not in there[1]:
                self._count += 1
                there[1][key] = None
                self._urgent_keys += group in urgent

    def _move(self, key: Any, before: Hashable, group: Hashable) -> None:
        """A key that waits is of another group now. It has waited since its old mark, and so has that group from now
        on: as an urgent one, for marks in the bulk queue only rise."""
        urgent, bulk = self._urgent, self._bulk
        queue = urgent if before in urgent else bulk
        mark, left = queue[before]
        del left[key]
        self._urgent_keys -= queue is urgent
        if not left:
            del queue[before]
        if group in bulk:
            urgent[group] = bulk.pop(group)
            self._urgent_keys += len(urgent[group][1])
        lowest, there = urgent.get(group) or (mark, {})
        there[key] = None
        urgent[group] = (min(lowest, mark), there)
        self._urgent_keys += 1
        self._group_of[key] = group

    def take(self, most: int) -> list[Any]:
        """About ``most`` keys, oldest first: whole groups; a quarter from the bulk queue, which never starves."""
        taken = self._from(self._urgent, most - min(most // 4, len(self) - self._urgent_keys))
        taken += self._from(self._bulk, most - len(taken))
        return taken + self._from(self._urgent, most - len(taken))

    def _from(self, queue: Queue, most: int) -> list[Any]:
        taken: list[Any] = []
        groups: list[Hashable] = []
        for group, (_, keys) in queue.items():  # hot:
            if len(taken) >= most:
                break
            taken += keys
            groups.append(group)
        for group in groups:
            del queue[group]
        if self._grouped:
            deque(map(self._group_of.__delitem__, taken), maxlen=0)
        self._count -= len(taken)
        self._urgent_keys -= len(taken) if queue is self._urgent else 0
        return taken

    def mark(self, otherwise: int) -> int:
        """The lowest mark of all groups; ``otherwise`` where there are none."""
        oldest = next(iter(self._bulk.values()), None)  # they are queued in the order of their marks
        return min([mark for mark, _ in chain(self._urgent.values(), (oldest,) if oldest else ())], default=otherwise)
