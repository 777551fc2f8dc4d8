"""The rows that wait for a reconciler's rounds: a bounded high-priority queue, then a bulk queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Generic, NamedTuple, TypeVar

R = TypeVar("R")

Group = tuple[int, dict[Any, R | None]]
"""A mark, and rows that are reconciled in one round, by key and in their order. No NamedTuple: there is one for nearly
each key, and making it took as long as all else that is done here for that key."""
Queue = dict[Hashable, Group[R]]


class Apart(NamedTuple, Generic[R]):
    """Rows of one queue, each alone in its group, that came while nothing waited: nearly all that come in masses. They
    are taken as they came, and are in no queue unless more come meanwhile."""

    mark: int
    urgent: bool
    rows: Iterator[tuple[Any, R | None]]
    groups: Iterator[Hashable] | None
    """Of each row; None: the key is a group by itself."""


class Backlog(Generic[R]):
    """Rows that wait for a round, by key: as they are wanted, None for one that is to be deleted.

    A few changes go into the urgent queue while it has room, masses into the bulk queue. The keys of a group are in one
    queue and leave it together. Each group has a mark: the revision up to which changes had been taken in before it.

    Invariant: a key is in one group, the one with which it was added last, with the row that was.
    """

    def __init__(self) -> None:
        self._group_of: dict[Any, Hashable] = {}
        """Of each key that waits and was added with a group; another is a group by itself."""
        self._apart: Apart[R] | None = None
        """While it has rows, the queues have none."""
        self._urgent: Queue[R] = {}
        self._bulk: Queue[R] = {}
        self._count = 0
        self._urgent_keys = 0

    def __len__(self) -> int:
        return self._count

    def add(self, rows: Mapping[Any, R | None], groups: Sequence[Hashable] | None, *, mark: int, room: int) -> None:
        """Queue rows, each with its group, in their order: as urgent where fewer than ``room`` are.

        Without groups each key is one by itself. A group in the bulk queue becomes urgent with one of its keys.
        """
        if not rows:
            return
        if not self._count and not 0 < room < len(rows) and (groups is None or len({*groups}) == len(rows)):
            self._apart = Apart(mark, room > 0, iter(rows.items()), None if groups is None else iter(groups))
            self._count = len(rows)
            self._urgent_keys = len(rows) if room > 0 else 0
            return
        self._spread()
        urgent, bulk, group_of = self._urgent, self._bulk, self._group_of
        for (key, row), group in zip(rows.items(), rows if groups is None else groups, strict=True):  # hot:
            if groups is not None and (before := group_of.setdefault(key, group)) != group:
                self._move(key, row, before, group)
                continue
            if self._urgent_keys < room and group in bulk:
                urgent[group] = bulk.pop(group)
                self._urgent_keys += len(urgent[group][1])
            there = urgent.get(group) or bulk.get(group)
            if there is None:
                self._count += 1
                if self._urgent_keys < room:
                    urgent[group] = (mark, {key: row})
                    self._urgent_keys += 1
                else:
                    bulk[group] = (mark, {key: row})
                continue
            if key not in there[1]:
                self._count += 1
                self._urgent_keys += group in urgent
            there[1][key] = row

    def _spread(self) -> None:
        """Have the rows that wait apart in their queue: more have come."""
        if self._apart is None:
            return
        mark, urgent, rows, groups = self._apart
        queue = self._urgent if urgent else self._bulk
        for key, row in rows:
            group = key if groups is None else next(groups)
            queue[group] = (mark, {key: row})
            if groups is not None:
                self._group_of[key] = group
        self._apart = None

    def _move(self, key: Any, row: R | None, before: Hashable, group: Hashable) -> None:
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
        there[key] = row
        urgent[group] = (min(lowest, mark), there)
        self._urgent_keys += 1
        self._group_of[key] = group

    def take(self, most: int) -> list[tuple[Any, R | None]]:
        """About ``most`` rows, oldest first: whole groups; a quarter from the bulk queue, which never starves."""
        if self._apart is not None:
            taken = [*islice(self._apart.rows, most)]
            if self._apart.groups is not None:
                deque(islice(self._apart.groups, len(taken)), maxlen=0)
            self._count -= len(taken)
            self._urgent_keys -= len(taken) if self._apart.urgent else 0
            if not self._count:
                self._apart = None
            return taken
        rows = self._from(self._urgent, most - min(most // 4, len(self) - self._urgent_keys))
        rows.update(self._from(self._bulk, most - len(rows)))
        rows.update(self._from(self._urgent, most - len(rows)))
        return [*rows.items()]

    def _from(self, queue: Queue[R], most: int) -> dict[Any, R | None]:
        taken: dict[Any, R | None] = {}
        groups: list[Hashable] = []
        for group, (_, rows) in queue.items():  # hot:
            if len(taken) >= most:
                break
            taken.update(rows)
            groups.append(group)
        deque(map(queue.__delitem__, groups), maxlen=0)
        if self._group_of:
            deque(map(self._group_of.__delitem__, taken), maxlen=0)
        self._count -= len(taken)
        self._urgent_keys -= len(taken) if queue is self._urgent else 0
        return taken

    def mark(self, otherwise: int) -> int:
        """The lowest mark of all groups; ``otherwise`` where there are none."""
        if self._apart is not None:
            return self._apart.mark
        oldest = next(iter(self._bulk.values()), None)  # they are queued in the order of their marks
        return min([mark for mark, _ in chain(self._urgent.values(), (oldest,) if oldest else ())], default=otherwise)
