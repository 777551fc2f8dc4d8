"""Computes the fewest slots to write so that a group holds other backends.

A change is an :class:`Edit`, which is applied to the group when its writes have succeeded. A small group is a tuple of
backend ids. A large one is a :class:`Many`, which finds the slot of a backend and keeps its targets, so that a small
change costs the same whatever the size of the group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from isthmus.model.balancing import Target
from isthmus.model.chunked import Chunked

Group = Sequence[int]
"""Backend ids by slot: a tuple, or Many."""


class Edit(NamedTuple):
    """Change of a group: slots to write as (n, backend), the size afterwards, and the targets of a large group."""

    writes: Sequence[tuple[int, int]]
    size: int
    targets: Chunked[Target] | None = None

    def changes(self, group: Group) -> bool:
        """True if the edit changes the group."""
        return bool(self.writes) or self.size != len(group)

    def released(self, group: Group) -> list[int]:
        """The backend of each slot that is overwritten or cut off."""
        size = len(group)
        return [group[n] for n, _ in self.writes if n < size] + [group[n] for n in range(self.size, size)]

    def applied(self, group: Group) -> Group:
        """Return the group after the edit; a large one is changed in place."""
        if isinstance(group, Many) and self.targets is not None:
            group.apply(self)
            return group
        if self.targets is None and not self.changes(group):
            return group
        numbers = list(group)
        _write(numbers, self)
        return tuple(numbers) if self.targets is None else Many(numbers, self.targets)


MAX_SCANNED: Final = 2_048
"""Largest group that is searched linearly; building its index takes as long as ten searches, and memory."""
MAX_SCANS: Final = 8
"""Largest number of changed slots that are searched linearly."""


class Many(Sequence[int]):
    """The distinct backends of a large group by slot."""

    __slots__ = ("_places", "numbers", "targets")

    def __init__(self, numbers: list[int], targets: Chunked[Target]) -> None:
        self.numbers = numbers
        self.targets = targets
        self._places: dict[int, int] | None = None
        """Slot by backend; built by the first change that is too large for linear searches."""

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)

    def __getitem__(self, n: int) -> int:  # type: ignore[override]  # no slices
        return self.numbers[n]

    def __contains__(self, number: object) -> bool:
        return number in (self._places if self._places is not None else self.numbers)

    @property
    def places(self) -> dict[int, int]:
        """Slot by backend."""
        if self._places is None:
            self._places = dict(zip(self.numbers, range(len(self.numbers)), strict=True))
        return self._places

    def edit(self, removed: Sequence[int], added: Sequence[int], targets: Chunked[Target]) -> Edit:
        """The edit that removes and adds backends."""
        few = len(removed) + len(added) <= MAX_SCANS and len(self.numbers) <= MAX_SCANNED and self._places is None
        holes = sorted(map(self.numbers.index if few else self.places.__getitem__, removed))
        writes, size = _fill(self.numbers, holes, added)
        return Edit(writes, size, targets)

    def apply(self, edit: Edit) -> None:
        """Apply an edit in place."""
        if self._places is not None:
            for number in edit.released(self):
                self._places.pop(number, None)
            self._places.update((number, n) for n, number in edit.writes)
        _write(self.numbers, edit)
        self.targets = edit.targets if edit.targets is not None else self.targets


def moves(old: tuple[int, ...], new: tuple[int, ...], targets: Chunked[Target] | None = None) -> Edit:  # hot:
    """The edit with the fewest writes after which ``old`` holds exactly the backends of ``new``, each once."""
    if old == new:
        return Edit((), len(old), targets)
    current, desired = set(old), set(new)
    added = [number for number in new if number not in current]
    # A duplicate, left by a process that died between two writes, is a hole in its second slot.
    duplicated = len(current) < len(old)
    holes = list(_holes(old, desired)) if duplicated else [n for n, number in enumerate(old) if number not in desired]
    return Edit(*_fill(old, holes, added), targets)


def _fill(slots: Sequence[int], holes: Sequence[int], added: Sequence[int]) -> tuple[list[tuple[int, int]], int]:
    """(slots to write, size afterwards): added backends fill holes first, then the last slots fill remaining holes."""
    size = len(slots)
    writes = list(zip(holes, added, strict=False))
    for number in added[len(holes) :]:
        writes.append((size, number))
        size += 1
    remaining = deque(holes[len(added) :])
    while remaining:  # remaining holes are above the filled ones, so no slot that moves was written above
        size -= 1
        if remaining[-1] == size:
            remaining.pop()
        else:
            writes.append((remaining.popleft(), slots[size]))
    return writes, size


def _write(numbers: list[int], edit: Edit) -> None:
    for n, number in edit.writes:
        if n < len(numbers):
            numbers[n] = number
        else:
            numbers.append(number)
    del numbers[edit.size :]


def _holes(old: Iterable[int], desired: Collection[int]) -> Iterator[int]:
    remaining = set(desired)
    for n, number in enumerate(old):
        if number in remaining:
            remaining.discard(number)
        else:
            yield n
