"""Which slots of a group to write so that it holds other backends than before: as few as there can be."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator


def moves(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[tuple[int, ...], list[tuple[int, int]]]:  # hot:
    """(the group afterwards, the slots to write): the fewest writes that make old hold exactly new, each once."""
    if old == new:
        return old, []
    present, wanted = set(old), set(new)
    added = deque([number for number in new if number not in present])
    # A number that is there twice (an earlier process died between two writes) has a hole where it is again.
    again = len(present) < len(old)
    holes = deque(_holes(old, wanted) if again else [n for n, number in enumerate(old) if number not in wanted])
    slots = list(old)
    writes: list[tuple[int, int]] = []
    while added:
        number = added.popleft()
        if holes:
            slots[holes[0]] = number
            writes.append((holes.popleft(), number))
        else:
            writes.append((len(slots), number))
            slots.append(number)
    while holes:
        last = slots.pop()
        if holes[-1] == len(slots):
            holes.pop()
        else:
            slots[holes[0]] = last
            writes.append((holes.popleft(), last))
    return tuple(slots), writes


def _holes(old: Iterable[int], wanted: set[int]) -> Iterator[int]:
    left = set(wanted)
    for n, number in enumerate(old):
        if number in left:
            left.discard(number)
        else:
            yield n
