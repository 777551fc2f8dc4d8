"""Every write and every deletion of a round refused in turn, without maps that fail: decisions need no kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from datapath_worlds.bpf_model import TellingMaps, wanted
from datapath_worlds.bpf_world import group, plan
from msgspec.structs import replace

from isthmus.datapath.services.batch import Leaving, finish, prepare, settle, withdraw
from isthmus.datapath.services.grace_queue import GraceQueue
from isthmus.datapath.services.installed import State
from isthmus.datapath.services.manifest import ORDER
from isthmus.model.balancing import Consumer, Group, Plan, PlanKey, Target
from isthmus.model.names import ClusterName

PROXY = Target("169.254.7.1", 15_100, "TCP", ClusterName("c0"), proxy=True)


def many(first: int, last: int) -> Group:
    return group(*(f"10.1.0.{n}:80" for n in range(first, last)))


def moved(row: Plan, to: Plan) -> list[Plan]:
    """The first address of a row moves to another row."""
    return [
        replace(to, frontends=(*to.frontends, row.frontends[0])),
        replace(row, frontends=row.frontends[1:]),
    ]


ECHO, WEB = plan("echo", "10.96.0.7", many(0, 4)), plan("web", "10.96.0.8", many(2, 4))
WIDE = replace(ECHO, frontends=(*ECHO.frontends, replace(ECHO.frontends[0], address="10.96.0.9")))
STICKY = replace(ECHO, affinity="ClientIP", affinity_timeout=60)

ROUNDS: dict[str, tuple[list[Plan], list[Plan]]] = {
    "new": ([], [ECHO, WEB]),
    "new beside a change": ([ECHO], [replace(ECHO, groups=(many(1, 5),)), WEB]),
    "in place": ([ECHO, WEB], [replace(ECHO, groups=(many(1, 5),)), replace(WEB, groups=(many(2, 3),))]),
    "another plan": ([ECHO, WEB], [replace(ECHO, groups=(many(40, 80),)), WEB]),
    "affinity": ([STICKY, WEB], [replace(STICKY, groups=(many(1, 5),)), WEB]),
    "exceptions": ([ECHO], [replace(ECHO, skip=("10.1.0.8",), consumers=(Consumer("app", PROXY),)), WEB]),
    "an address moves": ([WIDE, WEB], moved(WIDE, WEB)),
    "an address more": ([ECHO, WEB], [replace(WIDE, groups=(many(1, 5),)), WEB]),
}


class World:
    """The state, what was written and deleted, and what waits for the end of the grace period."""

    def __init__(self, *rows: Plan) -> None:
        self.maps = TellingMaps()
        self.state = State()
        self.queue = GraceQueue(self.maps, self.state, grace=0.0, clock=lambda: 0.0)
        if rows:
            assert self.round(rows) == {}

    def round(self, rows: Sequence[Plan], refused: int = -1) -> dict[PlanKey, str]:
        """A round of which one write, counted from 0, is refused. Returns failures."""
        batch, count = prepare(self.state, rows), 0
        for name in ORDER:
            entries, count = batch.entries[name], count + len(batch.entries[name])
            position = refused - count + len(entries)
            self.maps.maps[name].update(entry for n, entry in enumerate(entries) if n != position)
            if 0 <= position < len(entries):
                batch.fail(name, {position: f"{name} is full"})
        return self.release(settle(batch), refused - count)

    def release(self, leaving: Leaving, refused: int = -1) -> dict[PlanKey, str]:
        """Delete what goes at once, of which one deletion is refused."""
        keys = [("members", key) for key in leaving.members] + [("frontends", key) for key in leaving.frontends]
        for n, (name, key) in enumerate(keys):
            if n != refused:
                self.maps.drop(name, [key])
        if 0 <= refused < len(keys):
            before = 0 if keys[refused][0] == "members" else len(leaving.members)
            leaving.fail(keys[refused][0], {refused - before: "refused"})
        finish(self.state, leaving)
        self.queue.retire(leaving)
        return leaving.failures

    def writes(self, rows: Sequence[Plan]) -> int:
        """How many writes and deletions a round has."""
        batch = prepare(self.state, rows)
        leaving = settle(batch)
        return sum(map(len, batch.entries.values())) + len(leaving.members) + len(leaving.frontends)

    def called(self, row: Plan) -> list[set[Target]]:
        """The targets that calls of each frontend may be given."""
        found = [self.maps.find(key) for key in row.frontends]
        return [self.maps.picks(number) if number is not None else set() for number in found]

    def leaks(self) -> Iterator[str]:
        """What remains after all services were withdrawn."""
        self.release(withdraw(self.state, list(self.state.units)))
        for _ in range(2):
            self.queue.sweep()
        yield from (f"{name}: {count}" for name, count in self.state.sizes().items() if count)
        yield from (f"{name}: {len(entries)} entries" for name, entries in self.maps.maps.items() if entries)


@pytest.mark.parametrize("name", ROUNDS)
def test_whatever_a_round_is_refused_each_call_has_a_backend_and_the_next_round_completes_it(name: str) -> None:
    before, after = ROUNDS[name]
    count = World(*before).writes(after)
    assert count
    allowed: dict[PlanKey, set[Target]] = {}
    for row in (*before, *after):
        allowed.setdefault(row.key, set()).update(wanted(row))
    every = set().union(*allowed.values())
    for refused in range(count):
        world = World(*before)
        failures = world.round(after, refused)
        assert failures, f"write {refused} of {count}"
        for row in after:
            called = world.called(row)
            if row.key not in failures:
                assert called == [wanted(row)] * len(called)
            elif any(each.key == row.key for each in before):
                assert all(targets <= every for targets in called)
                assert any(called), "it is called as before, or as it will be"
        world.queue.sweep()
        assert world.round(after) == {}
        assert all(targets == wanted(row) for row in after for targets in world.called(row))
        world.queue.sweep()
        assert list(world.leaks()) == []


@pytest.mark.parametrize("name", ROUNDS)
def test_a_service_whose_deletion_is_refused_stays_whole_until_the_next_one(name: str) -> None:
    rows = ROUNDS[name][1]
    count = sum(len(row.frontends) for row in rows)
    for refused in range(count):
        world = World(*rows)
        failures = world.release(withdraw(world.state, [row.key for row in rows]), refused)
        assert list(world.state.units) == list(failures)
        assert len(failures) == 1
        world.queue.sweep()
        [kept] = [row for row in rows if row.key in failures]
        assert [targets for targets in world.called(kept) if targets] == [wanted(kept)]
        assert list(world.leaks()) == []
