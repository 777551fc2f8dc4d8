"""Fair shares of bounded resources, by namespace and by whatever is above namespaces (peers). Pure.

Two rules. Existing holdings are kept: they are held unconditionally, and newcomers share what is left. Of that, the
group that holds least is served next (max-min fairness), so no group gets more than its share while another waits.

Holdings that are kept make a third rule necessary: whoever came first must not have taken everything. A group that
holds n therefore leaves n // SPARE free for others (the dynamic threshold of shared-memory switches: Choudhury and
Hahne, 1998). One group alone gets four fifths of a resource, and a newcomer always finds some room.

Results follow from what is held and wanted, never from the order of arrival.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heapreplace
from operator import itemgetter
from typing import Any, Final, TypeVar

T = TypeVar("T")

Path = tuple[str, ...]
"""A group within its groups, the outermost first: ``("c2", "demo")``. All paths of one resource are equally long."""

SPARE: Final = 4
"""A group leaves one free for each so many that it holds. Lower values waste more while one group is alone; higher
ones leave less for the next."""
STEPS: Final = 256
"""Parts of a room in which :func:`allot` deals it out: shares are equal to within one part."""


class Shares:
    """Holdings of one bounded resource, by group and by every group above it. ``reserve``: whether groups leave room
    for newcomers; needless where all holdings are dealt out anew each time."""

    def __init__(self, room: int, *, reserve: bool = True) -> None:
        self.room = room
        self._spare = SPARE if reserve else 0
        self._held: Counter[Path] = Counter()

    def __repr__(self) -> str:
        return f"<Shares: {self._held[()]} of {self.room} held>"

    def used(self, path: Path = ()) -> int:
        """Units that a group holds; without a path, all together."""
        return self._held[path]

    def hold(self, path: Path, units: int = 1) -> None:
        """Add units to a group's holdings, whether or not there is room: they exist. Negative units are released."""
        if units:
            for end in range(len(path) + 1):
                self._held[path[:end]] += units
                if not self._held[path[:end]]:
                    del self._held[path[:end]]

    def headroom(self, path: Path) -> int:
        """Units that a group may take now, on top of those that it holds."""
        room = max(0, self.room - self._held[()])
        if not self._spare:
            return room
        for end in range(1, len(path) + 1):
            if not room:
                return 0
            held = self._held[path[:end]]
            # the largest n with n + n // SPARE <= room + held, less what is held
            room = max(0, (self._spare * (room + held) + self._spare - 1) // (self._spare + 1) - held)
        return room

    def fits(self) -> bool:
        """True if all holdings fit, with what each group leaves free: then everything would have been granted."""
        if self._held[()] > self.room:
            return False
        spare = self._spare
        return not spare or all(held // spare <= self.headroom(path[:-1]) for path, held in self._held.items() if path)

    def least(self, paths: Iterable[Path]) -> Path:
        """The one of some groups that holds least: what several groups want together is charged to it."""
        return min(paths, key=lambda path: ([self._held[path[:end]] for end in range(1, len(path) + 1)], path))


def always_fits(room: int, *, levels: int) -> int:
    """Units that fit whatever the groups are: what one group alone may hold, within so many levels of groups."""
    for _ in range(levels):
        room = (SPARE * room + SPARE - 1) // (SPARE + 1)
    return room


def allot(wanted: Mapping[Path, int], shares: Shares) -> dict[Path, int]:
    """Units for each group, of those that it wants beyond its holdings. They are held afterwards."""
    given: Counter[Path] = Counter()
    step = max(1, shares.room // STEPS)

    def take(path: Path, room: int) -> int:
        units = min(step, wanted[path] - given[path], room)
        given[path] += units
        return units

    _serve(shares, wanted, take)
    return dict(+given)


def grant(
    wishes: Iterable[T],
    shares: Shares,
    *,
    holders: Callable[[T], Iterable[Path]],
    order: Callable[[T], Any],
) -> list[T]:
    """The wishes for one unit each that are granted, in the order of granting. Their units are held afterwards.

    ``holders`` gives the groups that a wish can be charged to: one with room suffices. ``order`` sorts the wishes of a
    group, and has no ties.
    """
    waiting: defaultdict[Path, deque[tuple[Any, T]]] = defaultdict(deque)
    for place, wish in sorted(((order(wish), wish) for wish in wishes), key=itemgetter(0)):
        for path in holders(wish):
            waiting[path].append((place, wish))
    granted: dict[Any, T] = {}

    def take(path: Path, room: int) -> int:
        queue = waiting[path]
        while queue and queue[0][0] in granted:
            queue.popleft()
        if not queue or not room:
            return 0
        place, wish = queue.popleft()
        granted[place] = wish
        return 1

    _serve(shares, waiting, take)
    return list(granted.values())


def _serve(shares: Shares, paths: Iterable[Path], take: Callable[[Path, int], int]) -> None:
    """Let groups take units in turns, always the one that holds least, until none takes any.

    ``take`` is called with a group and its headroom and returns the units taken. A group that took none gets no further
    turn, since headroom only shrinks meanwhile.
    """
    members: defaultdict[Path, set[str]] = defaultdict(set)
    for path in paths:
        for end in range(len(path)):
            members[path[:end]].add(path[end])
    turns = {path: [(shares.used((*path, name)), name) for name in names] for path, names in members.items()}
    for heap in turns.values():
        heapify(heap)

    def turn(path: Path) -> bool:
        if path not in turns:
            units = take(path, shares.headroom(path))
            shares.hold(path, units)
            return units > 0
        heap = turns[path]
        while heap:
            name = heap[0][1]
            member = (*path, name)
            if turn(member):
                heapreplace(heap, (shares.used(member), name))
                return True
            heappop(heap)
        return False

    while turns and turn(()):
        pass
