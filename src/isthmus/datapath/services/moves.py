"""Which slots of a group to write so that it holds other backends than before: as few as there can be.

Nothing here changes a group: a change becomes an :class:`Edit`, which is applied when its writes have succeeded. A
small group is a tuple of backend ids. A large one is :class:`Many`, which finds the slot of a backend and keeps its
targets, so that a change of a few costs the same whatever its size.
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
    """What becomes of a group: slots to write (n, backend), how many slots it has then, its targets where many."""

    writes: Sequence[tuple[int, int]]
    size: int
    targets: Chunked[Target] | None = None

    def changes(self, group: Group) -> bool:
        """Whether the group is another afterwards."""
        return bool(self.writes) or self.size != len(group)

    def freed(self, group: Group) -> list[int]:
        """The backends of slots that are overwritten or cut off, once for each."""
        size = len(group)
        return [group[n] for n, _ in self.writes if n < size] + [group[n] for n in range(self.size, size)]

    def applied(self, group: Group) -> Group:
        """The group afterwards; one of many is changed in place."""
        if isinstance(group, Many) and self.targets is not None:
            group.apply(self)
            return group
        if self.targets is None and not self.changes(group):
            return group
        numbers = list(group)
        _write(numbers, self)
        return tuple(numbers) if self.targets is None else Many(numbers, self.targets)


MAX_SCANNED: Final = 2_048
"""Slots of which some are looked for one by one: a dict of as many costs as much as to look for ten, and its room."""
MAX_SCANS: Final = 8
"""Slots that change at once up to which those are looked for so."""


class Many(Sequence[int]):
    """The distinct backends of a large group by slot."""

    __slots__ = ("_places", "numbers", "targets")

    def __init__(self, numbers: list[int], targets: Chunked[Target]) -> None:
        self.numbers = numbers
        self.targets = targets
        self._places: dict[int, int] | None = None
        """Slot by backend, from the first change on that looks for many, or in many."""

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
        """The edit that takes some backends out and others in."""
        few = len(removed) + len(added) <= MAX_SCANS and len(self.numbers) <= MAX_SCANNED and self._places is None
        holes = sorted(map(self.numbers.index if few else self.places.__getitem__, removed))
        writes, size = _fill(self.numbers, holes, added)
        return Edit(writes, size, targets)

    def apply(self, edit: Edit) -> None:
        """Change it."""
        if self._places is not None:
            for number in edit.freed(self):
                self._places.pop(number, None)
            self._places.update((number, n) for n, number in edit.writes)
        _write(self.numbers, edit)
        self.targets = edit.targets if edit.targets is not None else self.targets


def moves(old: tuple[int, ...], new: tuple[int, ...], targets: Chunked[Target] | None = None) -> Edit:  # hot:
    """The edit with the fewest writes that makes old hold exactly new, each once."""
    if old == new:
        return Edit((), len(old), targets)
    present, wanted = set(old), set(new)
    added = [number for number in new if number not in present]
    # A number that is there twice (an earlier process died between two writes) has a hole where it is again.
    again = len(present) < len(old)
    holes = list(_holes(old, wanted)) if again else [n for n, number in enumerate(old) if number not in wanted]
    return Edit(*_fill(old, holes, added), targets)


def _fill(slots: Sequence[int], holes: Sequence[int], added: Sequence[int]) -> tuple[list[tuple[int, int]], int]:
    """(slots to write, size afterwards): what is added goes into holes first, then the last slots into those left."""
    size = len(slots)
    writes = list(zip(holes, added, strict=False))
    for number in added[len(holes) :]:
        writes.append((size, number))
        size += 1
    left = deque(holes[len(added) :])
    while left:  # holes that are left are above those that were filled, so no slot that moves was written here
        size -= 1
        if left[-1] == size:
            left.pop()
        else:
            writes.append((left.popleft(), slots[size]))
    return writes, size


def _write(numbers: list[int], edit: Edit) -> None:
    for n, number in edit.writes:
        if n < len(numbers):
            numbers[n] = number
        else:
            numbers.append(number)
    del numbers[edit.size :]


def _holes(old: Iterable[int], wanted: Collection[int]) -> Iterator[int]:
    left = set(wanted)
    for n, number in enumerate(old):
        if number in left:
            left.discard(number)
        else:
            yield n
