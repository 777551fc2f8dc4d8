"""The rows that wait for a reconciler's rounds: a bounded high-priority queue, then a bulk queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Generic, NamedTuple, TypeVar

R = TypeVar("R")

Group = tuple[int, dict[Any, R | None]]
"""A mark, and the rows that are reconciled in one round, by key, in order. A plain tuple: nearly every key makes one,
and a NamedTuple took as long to make as the rest of the work for that key."""
Queue = dict[Hashable, Group[R]]


class Apart(NamedTuple, Generic[R]):
    """Rows that were added to an empty backlog, each alone in its group: the usual bulk load. They are taken straight
    from this iterator, and are spread into a queue only when more rows are added before it is exhausted."""

    mark: int
    urgent: bool
    rows: Iterator[tuple[Any, R | None]]
    groups: Iterator[Hashable] | None
    """The group of each row; ``None`` if each key forms its own group."""


class Backlog(Generic[R]):
    """Rows that wait for a round, by key: the desired row, or ``None`` if the row is to be deleted.

    Small changes enter the urgent queue while it has room, large ones the bulk queue. The keys of a group are in one
    queue and leave it together. Each group has a mark: the revision up to which changes had been read before it.

    Invariant: a key is in exactly one group, that of its latest ``add``, with the row of that call.
    """

    def __init__(self) -> None:
        self._group_of: dict[Any, Hashable] = {}
        """Group of each waiting key that was added with one; any other key forms its own group."""
        self._apart: Apart[R] | None = None
        """Both queues are empty while this holds rows."""
        self._urgent: Queue[R] = {}
        self._bulk: Queue[R] = {}
        self._count = 0
        self._urgent_keys = 0

    def __len__(self) -> int:
        return self._count

    def add(self, rows: Mapping[Any, R | None], groups: Sequence[Hashable] | None, *, mark: int, room: int) -> None:
        """Queue rows in order, each with its group: as urgent while fewer than ``room`` rows are.

        Without groups each key forms its own group. A bulk group becomes urgent when one of its keys does.
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
            entry = urgent.get(group) or bulk.get(group)
            if entry is None:
                self._count += 1
                if self._urgent_keys < room:
                    urgent[group] = (mark, {key: row})
                    self._urgent_keys += 1
                else:
                    bulk[group] = (mark, {key: row})
                continue
            if key not in entry[1]:
                self._count += 1
                self._urgent_keys += group in urgent
            entry[1][key] = row

    def _spread(self) -> None:
        """Move the rows of ``_apart`` into their queue, before more rows join."""
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
        """Move a waiting key to another group. That group takes over the older mark of the two, and becomes urgent:
        marks in the bulk queue must only rise."""
        urgent, bulk = self._urgent, self._bulk
        queue = urgent if before in urgent else bulk
        mark, remaining = queue[before]
        del remaining[key]
        self._urgent_keys -= queue is urgent
        if not remaining:
            del queue[before]
        if group in bulk:
            urgent[group] = bulk.pop(group)
            self._urgent_keys += len(urgent[group][1])
        lowest, waiting = urgent.get(group) or (mark, {})
        waiting[key] = row
        urgent[group] = (min(lowest, mark), waiting)
        self._urgent_keys += 1
        self._group_of[key] = group

    def take(self, most: int) -> list[tuple[Any, R | None]]:
        """Remove and return about ``most`` rows: whole groups, oldest first, a quarter of them from the bulk queue."""
        if self._apart is not None:
            batch = [*islice(self._apart.rows, most)]
            if self._apart.groups is not None:
                deque(islice(self._apart.groups, len(batch)), maxlen=0)
            self._count -= len(batch)
            self._urgent_keys -= len(batch) if self._apart.urgent else 0
            if not self._count:
                self._apart = None
            return batch
        rows = self._from(self._urgent, most - min(most // 4, len(self) - self._urgent_keys))
        rows.update(self._from(self._bulk, most - len(rows)))
        rows.update(self._from(self._urgent, most - len(rows)))
        return [*rows.items()]

    def _from(self, queue: Queue[R], most: int) -> dict[Any, R | None]:
        batch: dict[Any, R | None] = {}
        groups: list[Hashable] = []
        for group, (_, rows) in queue.items():  # hot:
            if len(batch) >= most:
                break
            batch.update(rows)
            groups.append(group)
        deque(map(queue.__delitem__, groups), maxlen=0)
        if self._group_of:
            deque(map(self._group_of.__delitem__, batch), maxlen=0)
        self._count -= len(batch)
        self._urgent_keys -= len(batch) if queue is self._urgent else 0
        return batch

    def mark(self, otherwise: int) -> int:
        """Lowest mark of all groups; ``otherwise`` if nothing waits."""
        if self._apart is not None:
            return self._apart.mark
        oldest = next(iter(self._bulk.values()), None)  # they are queued in the order of their marks
        return min([mark for mark, _ in chain(self._urgent.values(), (oldest,) if oldest else ())], default=otherwise)
