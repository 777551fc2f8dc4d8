"""The reconciler on virtual time, against a target that fails on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.statedb import Backoff, Database, NotPruned, Reconciler, Status, Table
from isthmus.statedb.backlog import Backlog
from isthmus.statedb.reconciler import MAX_ROUND, MIN_ROUND, ROUND_SECONDS, URGENT_ROUNDS

pytestmark = pytest.mark.looptime

Row = tuple[str, int]
WANTED = Table[str, Row]("wanted", tuple, key=lambda row: row[0])
STATUS = Table[str, Status[str]]("wanted_status", Status[str], key=lambda row: row.key)


class Target:
    """Holds rows; takes ``seconds`` for each operation; fails for the keys in ``broken``."""

    def __init__(self, **held: int) -> None:
        self.held = dict(held)
        self.broken: set[str] = set()
        self.raising: set[str] = set()
        """Keys with which an operation raises, half done."""
        self.seconds = 0.0
        self.calls: list[tuple[float, str, tuple[str, ...]]] = []
        self.deleted: list[Row] = []

    async def update(self, rows: Sequence[Row]) -> Mapping[str, str]:
        return await self._do("update", rows)

    async def delete(self, rows: Sequence[Row]) -> Mapping[str, str]:
        return await self._do("delete", rows)

    async def prune(self, rows: Iterable[Row]) -> str:
        wanted = {name for name, _ in rows}
        gone = [name for name in self.held if name not in wanted]
        self._called("prune", gone)
        if "prune" in self.raising:
            raise KeyError("prune")
        if "prune" in self.broken:
            raise NotPruned("it is broken")
        for name in gone:
            del self.held[name]
        return f"{len(gone)} pruned"

    async def _do(self, what: str, rows: Sequence[Row]) -> Mapping[str, str]:
        self._called(what, [name for name, _ in rows])
        if self.seconds:
            await asyncio.sleep(self.seconds)
        for name, number in rows:
            if name in self.raising:
                raise KeyError(name)
            if name in self.broken:
                continue
            if what == "update":
                self.held[name] = number
            else:
                self.deleted.append((name, number))
                self.held.pop(name, None)
        return {name: "it is broken" for name, _ in rows if name in self.broken}

    def _called(self, what: str, names: Sequence[str]) -> None:
        self.calls.append((asyncio.get_running_loop().time(), what, tuple(sorted(names))))

    def times(self, what: str) -> list[float]:
        return [round(when, 6) for when, called, names in self.calls if called == what]


def database() -> Database:
    return Database(WANTED, STATUS)


def put(db: Database, **rows: int) -> int:
    with db.write() as txn:
        for row in rows.items():
            txn.put(WANTED, row)
    return db.snapshot().revision(WANTED)


def delete(db: Database, *names: str) -> int:
    with db.write() as txn:
        for name in names:
            txn.delete(WANTED, name)
    return db.snapshot().revision(WANTED)


def make(db: Database, target: Target, **more: Any) -> Reconciler[str, Row]:
    backoff = more.pop("backoff", Backoff(first=1.0, most=8.0))
    clock = asyncio.get_running_loop().time
    return Reconciler(db, WANTED, target, status=STATUS, backoff=backoff, clock=clock, **more)


@asynccontextmanager
async def running(reconciler: Reconciler[str, Row]) -> AsyncIterator[None]:
    task = asyncio.create_task(reconciler.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def error_of(reconciler: Reconciler[str, Row], key: str) -> str:
    return reconciler.failing[key].error if key in reconciler.failing else ""


async def test_a_row_with_which_the_target_raises_fails_alone_and_is_tried_again() -> None:
    db, target = database(), Target()
    reconciler = make(db, target)
    put(db, a=1, b=1, c=1)
    target.raising, target.broken = {"b"}, {"c"}
    await reconciler.step()
    assert target.held == {"a": 1}
    assert error_of(reconciler, "b").startswith("KeyError: 'b' (a bug, at statedb/test_statedb_reconciler.py:")
    assert error_of(reconciler, "c") == "it is broken"
    assert {row.key for row in db.snapshot().all(STATUS)} == {"b", "c"}
    target.raising, target.broken = set(), set()
    await asyncio.sleep(2)
    await reconciler.step()
    assert target.held == {"a": 1, "b": 1, "c": 1}
    assert db.snapshot().count(STATUS) == 0


async def test_rows_of_one_group_with_which_the_target_raises_fail_together() -> None:
    db, target = database(), Target()
    reconciler = make(db, target, together=lambda row: row[0][0])
    target.raising = {"a2"}
    put(db, a1=1, a2=1, b1=1)
    await reconciler.step()
    assert {*reconciler.failing} == {"a1", "a2"}
    assert target.held["b1"] == 1


async def test_a_deletion_and_a_pruning_that_raise_end_nothing() -> None:
    db, target = database(), Target(left=1)
    reconciler = make(db, target)
    put(db, a=1, b=1)
    target.raising = {"prune"}
    async with running(reconciler):
        await asyncio.sleep(0.5)
        assert "not pruned: KeyError: 'prune' (a bug, at " in reconciler.outcome
        target.raising = {"a", "prune"}
        delete(db, "a", "b")
        await asyncio.sleep(3)
        assert target.held == {"a": 1, "left": 1}
        target.raising = set()
        await asyncio.sleep(10)
        assert target.held == {}
        assert reconciler.stats().pruned


async def test_rows_come_to_be_held_and_rows_that_go_are_let_go() -> None:
    db, target = database(), Target()
    reconciler = make(db, target)
    put(db, a=1, b=1)
    assert await reconciler.step() == "2 updated, 0 deleted, 0 failed; 0 pruned"
    put(db, a=2)
    delete(db, "b")
    assert await reconciler.step() == "1 updated, 1 deleted, 0 failed"
    assert target.held == {"a": 2}


@pytest.mark.parametrize("many", [10, 500])
async def test_however_much_passes_from_rows_to_others_at_once_all_is_updated_before_anything_is_deleted(
    many: int,
) -> None:
    db, target = database(), Target()
    reconciler = make(db, target)
    for turn in range(3):
        with db.write() as txn:
            for n in range(many):
                txn.delete(WANTED, f"{turn - 1}-{n}")
                txn.put(WANTED, (f"{turn}-{n}", 1))
        del target.calls[:]
        await reconciler.step()
        done = [what for _, what, names in target.calls for _ in names]
        assert done == ["update"] * many + ["delete"] * (many if turn else 0)


async def test_what_passes_from_a_row_that_goes_to_another_is_never_nobodys_deletes_come_last() -> None:
    db, target = database(), Target()
    reconciler = make(db, target)
    put(db, a=1)
    await reconciler.step()
    put(db, b=1)
    delete(db, "a")
    await reconciler.step()
    assert [(what, names) for _, what, names in target.calls[-2:]] == [("update", ("b",)), ("delete", ("a",))]


async def test_a_failure_is_tried_again_with_a_doubling_capped_back_off_and_the_rest_goes_on() -> None:
    db, target = database(), Target()
    target.broken = {"a"}
    put(db, a=1, b=1)
    async with running(make(db, target)):
        await asyncio.sleep(31.5)
    assert target.times("update") == [0, 1, 3, 7, 15, 23, 31]
    assert target.held == {"b": 1}
    assert [names for _, what, names in target.calls if what == "update"][1:] == [("a",)] * 6


async def test_the_back_off_runs_from_the_failure_not_from_the_start_of_a_slow_round() -> None:
    db, target = database(), Target()
    target.broken, target.seconds = {"a"}, 10.0
    put(db, a=1)
    async with running(make(db, target)):
        await asyncio.sleep(25)
    assert target.times("update") == [0, 11, 23]


async def test_a_changed_row_is_tried_at_once_however_long_its_back_off() -> None:
    db, target = database(), Target()
    target.broken = {"a"}
    put(db, a=1)
    async with running(make(db, target)):
        await asyncio.sleep(7.5)
        target.broken = set()
        put(db, a=2)
        await asyncio.sleep(0)
        await asyncio.sleep(0.1)
    assert target.held == {"a": 2}
    assert target.times("update")[-1] == 7.5


async def test_failures_are_rows_of_the_status_table_until_they_are_none() -> None:
    db, target = database(), Target()
    target.broken = {"a"}
    reconciler = make(db, target)
    put(db, a=1, b=1)
    await reconciler.step()
    assert list(db.snapshot().all(STATUS)) == [Status("a", "it is broken", 1, 1.0)]
    assert reconciler.failing == {"a": Status("a", "it is broken", 1, 1.0)}
    target.broken = set()
    put(db, a=2)
    await reconciler.step()
    assert db.snapshot().count(STATUS) == 0


async def test_a_failing_row_that_is_deleted_is_let_go_and_no_failure_any_more() -> None:
    db, target = database(), Target()
    target.broken = {"a"}
    reconciler = make(db, target)
    put(db, a=1)
    await reconciler.step()
    delete(db, "a")
    target.broken = set()
    assert await reconciler.step() == "0 updated, 1 deleted, 0 failed"
    assert not reconciler.failing


async def test_a_delete_that_failed_is_tried_again_with_the_row_as_it_was_held() -> None:
    db, target = database(), Target()
    put(db, a=1)
    async with running(make(db, target)):
        await asyncio.sleep(0.5)
        target.broken = {"a"}
        delete(db, "a")
        await asyncio.sleep(4)
        assert target.held == {"a": 1}
        target.broken = set()
        await asyncio.sleep(4)
    assert target.held == {}
    assert target.times("delete") == [0.5, 1.5, 3.5, 7.5]


async def test_a_delete_is_given_the_row_as_the_target_last_held_it() -> None:
    db, target = database(), Target()
    target.broken = {"z"}
    reconciler = make(db, target)
    put(db, a=1, b=1, z=1)
    await reconciler.step()
    put(db, a=2)
    await reconciler.step()
    target.broken |= {"b"}
    put(db, b=2)
    await reconciler.step()
    target.broken = {"z"}
    delete(db, "a", "b")
    await reconciler.step()
    assert target.deleted == [("a", 2), ("b", 1)]


async def test_a_row_put_again_while_its_delete_fails_is_held_and_not_deleted_later() -> None:
    db, target = database(), Target()
    put(db, a=1)
    async with running(make(db, target)):
        await asyncio.sleep(0.5)
        target.broken = {"a"}
        delete(db, "a")
        await asyncio.sleep(0.1)
        target.broken = set()
        put(db, a=2)
        await asyncio.sleep(60)
    assert target.held == {"a": 2}
    assert target.times("delete") == [0.5]


async def test_what_changes_while_a_round_awaits_its_target_is_the_next_rounds() -> None:
    db, target = database(), Target()
    target.seconds = 1.0
    put(db, a=1, b=1)
    async with running(make(db, target)):
        await asyncio.sleep(0.5)
        put(db, a=2, c=1)
        delete(db, "b")
        await asyncio.sleep(5)
    assert target.held == {"a": 2, "c": 1}


async def test_an_earlier_processs_leftovers_go_only_when_the_table_is_complete() -> None:
    db, target = database(), Target(stale=1, a=0)
    source = db.initializer(WANTED, "source")
    put(db, a=1)
    async with running(make(db, target)):
        await asyncio.sleep(100)
        assert target.held == {"stale": 1, "a": 1}
        with db.write() as txn:
            txn.put(WANTED, ("b", 1))
            source.complete(txn)
        await asyncio.sleep(1)
    assert target.held == {"a": 1, "b": 1}
    assert target.times("prune") == [100]


async def test_a_table_that_becomes_complete_while_a_round_awaits_its_target_is_pruned_by_the_next() -> None:
    db, target = database(), Target(stale=1)
    target.seconds = 1.0
    source = db.initializer(WANTED, "source")
    put(db, a=1)
    async with running(make(db, target)):
        await asyncio.sleep(0.5)
        with db.write() as txn:
            source.complete(txn)
        await asyncio.sleep(1)
    assert target.held == {"a": 1}


async def test_rows_put_while_a_round_awaits_its_target_survive_its_pruning() -> None:
    db, target = database(), Target(stale=1)
    target.seconds = 1.0
    put(db, a=1)
    async with running(make(db, target)):
        await asyncio.sleep(0.5)
        put(db, b=1)
        await asyncio.sleep(5)
    assert target.held == {"a": 1, "b": 1}


async def test_pruning_comes_back_now_and_then_and_does_not_spin_while_the_table_is_incomplete() -> None:
    db, target = database(), Target()
    reconciler = make(db, target, prune_every=100.0)
    async with running(reconciler):
        await asyncio.sleep(250)
        assert target.times("prune") == [0, 100, 200]
        late = db.initializer(WANTED, "late")
        await asyncio.sleep(250)
        assert target.times("prune") == [0, 100, 200]
        assert reconciler.rounds < 6
        with db.write() as txn:
            late.complete(txn)
        await asyncio.sleep(1)
    assert target.times("prune") == [0, 100, 200, 500]


async def test_a_pruning_that_failed_is_tried_again_after_the_back_off_and_then_comes_now_and_then() -> None:
    db, target = database(), Target(stale=1)
    target.broken = {"prune"}
    reconciler = make(db, target, prune_every=100.0)
    async with running(reconciler):
        await asyncio.sleep(5)
        assert target.times("prune") == [0, 1, 3]
        assert "not pruned: it is broken" in repr(reconciler)
        assert repr(reconciler).endswith("; not pruned yet>")
        target.broken.clear()
        await asyncio.sleep(5)
        assert target.held == {}
        await asyncio.sleep(100)
    assert target.times("prune") == [0, 1, 3, 7, 107]


async def test_waiting_until_reconciled_ends_with_the_round_that_holds_all_up_to_the_revision() -> None:
    db, target = database(), Target()
    target.seconds, target.broken = 1.0, {"a"}
    reconciler = make(db, target)
    async with running(reconciler):
        revision = put(db, a=1, b=1)
        waiting = asyncio.create_task(reconciler.wait_until_reconciled(revision))
        await asyncio.sleep(2.5)
        assert not waiting.done()
        target.broken = set()
        await waiting
    assert asyncio.get_running_loop().time() == 3.0  # tried at 0, failed at 1, tried again at 2
    assert target.held == {"a": 1, "b": 1}


def many(start: int, count: int) -> dict[str, int]:
    return {f"n{number:05}": number for number in range(start, start + count)}


async def test_a_round_has_as_many_rows_as_the_target_does_in_a_moment() -> None:
    db, target = database(), Target()
    put(db, **many(0, 2_500))
    reconciler = make(db, target)
    await reconciler.step()
    sizes = [len(names) for _, what, names in target.calls if what == "update"]
    assert sizes == [MIN_ROUND, 128, 256, 512, MAX_ROUND, 2_500 - 960 - MAX_ROUND]
    target.seconds = 2 * ROUND_SECONDS
    put(db, **dict.fromkeys(many(0, 2_500), -1))
    await reconciler.step()
    sizes = [len(names) for _, what, names in target.calls if what == "update"][6:]
    assert sizes[:5] == [MAX_ROUND, 500, 250, 125, MIN_ROUND]
    assert set(sizes[5:-1]) == {MIN_ROUND}


async def test_a_round_has_no_more_rows_than_the_target_is_to_have_at_once() -> None:
    db, target = database(), Target()
    put(db, **many(0, 500))
    reconciler = make(db, target, max_round=100)
    await reconciler.step()
    assert [len(names) for _, what, names in target.calls if what == "update"] == [MIN_ROUND, 100, 100, 100, 100, 36]


async def test_a_change_waits_for_the_round_under_way_and_for_no_backlog() -> None:
    db, target = database(), Target()
    target.seconds = 1.0
    put(db, **many(0, 1_000))
    async with running(make(db, target)):
        await asyncio.sleep(3.5)
        put(db, new=1)
        await asyncio.sleep(2.0)
        assert "new" in target.held
        assert len(target.held) < 500


async def test_a_change_waits_for_no_backlog_that_begets_changes_by_being_worked_off() -> None:
    """As objects do that are written: they come back by the watch, each a little later."""
    db = database()

    class Echoing(Target):
        async def update(self, rows: Sequence[Row]) -> Mapping[str, str]:
            failed = await super().update(rows)
            put(db, **{f"{name}-echo": 1 for name, _ in rows if "-echo-echo" not in name})
            return failed

    target = Echoing()
    target.seconds = 1.0
    put(db, **many(0, 2_000))
    async with running(make(db, target)):
        await asyncio.sleep(20.5)
        put(db, new=1)
        await asyncio.sleep(2 * URGENT_ROUNDS)
        assert "new" in target.held
        assert len(target.held) < 2_000
        await asyncio.sleep(200)
    assert len(target.held) == 3 * 2_000 + 3


async def test_a_change_of_what_waits_in_a_backlog_waits_no_longer_than_another() -> None:
    db, target = database(), Target()
    target.seconds = 1.0
    put(db, **many(0, 1_000))
    async with running(make(db, target)):
        await asyncio.sleep(3.5)
        [last] = many(999, 1)
        assert last not in target.held
        put(db, **{last: -1})
        await asyncio.sleep(2.0)
        assert target.held[last] == -1
        assert len(target.held) < 500


async def test_what_waits_longest_is_done_though_newer_changes_never_cease() -> None:
    db, target = database(), Target()
    target.seconds = 1.0
    put(db, **many(0, 100))
    async with running(make(db, target)):
        for turn in range(1, 11):
            await asyncio.sleep(1.0)
            put(db, **many(1_000 * turn, 200))
    assert target.held.keys() >= many(0, 100).keys()


async def test_retries_that_are_due_together_hold_no_change_up_and_are_held_up_by_none() -> None:
    db, target = database(), Target()
    target.seconds = 1.0
    target.broken = {*many(0, 500)}
    put(db, **many(0, 500))
    reconciler = make(db, target, backoff=Backoff(20.0, 20.0))
    async with running(reconciler):
        await asyncio.sleep(19)
        assert len(reconciler.failing) == 500
        target.broken = set()
        await asyncio.sleep(3)
        for number in range(20):
            put(db, **{f"new{number}": 1})
            await asyncio.sleep(2)
            assert f"new{number}" in target.held
    assert not reconciler.failing


async def test_rows_of_a_group_are_never_in_two_rounds() -> None:
    db, target = database(), Target()
    target.seconds = 1.0
    put(db, **{f"g{number // 7}-{number}": 1 for number in range(1_000)})
    async with running(make(db, target, together=lambda row: row[0].partition("-")[0])):
        await asyncio.sleep(100)
    rounds = [{name.partition("-")[0] for name in names} for _, what, names in target.calls if what == "update"]
    assert len(rounds) > 10
    assert sum(map(len, rounds)) == len(set().union(*rounds))


async def test_a_row_that_changes_its_group_while_it_waits_is_reconciled_once_with_the_new_one() -> None:
    db, target = database(), Target()
    reconciler = make(db, target, together=lambda row: row[1])
    put(db, a=1, **dict.fromkeys(many(0, MIN_ROUND), 1), c=2)
    reconciler._take_in()
    put(db, a=2)
    reconciler._take_in()
    while reconciler._backlog:
        await reconciler._work()
    rounds = [names for _, _, names in target.calls]
    assert [sum(name in names for names in rounds) for name in "ac"] == [1, 1]
    assert [names for names in rounds if "a" in names] == [names for names in rounds if "c" in names]


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abcdef"), st.none() | st.integers(1, 3), min_size=1) | st.just("round"),
        max_size=12,
    ),
    st.sampled_from([0, 2, 100]),
)
def test_keys_that_change_their_groups_are_waiting_once_each_with_their_last_one(steps: list[Any], room: int) -> None:
    backlog: Backlog[int] = Backlog()
    waiting: dict[str, tuple[int, int]] = {}
    for mark, step in enumerate(steps):
        if step == "round":
            taken = dict(backlog.take(2))
            groups = {waiting[key][0] for key in taken}
            assert taken == {key: group or None for key, (group, _) in waiting.items() if group in groups}
            waiting = {key: of for key, of in waiting.items() if key not in taken}
        else:
            changed = {key: group or 0 for key, group in step.items()}
            rows = {key: group or None for key, group in changed.items()}
            backlog.add(rows, list(changed.values()), mark=mark, room=room)
            waiting |= {key: (group, waiting[key][1] if key in waiting else mark) for key, group in changed.items()}
        assert len(backlog) == len(waiting)
        assert backlog.mark(99) <= min([since for _, since in waiting.values()], default=99)
    left: dict[str, int | None] = {}
    while backlog:
        left.update(backlog.take(1))
    assert left == {key: group or None for key, (group, _) in waiting.items()}
    assert backlog.mark(99) == 99


def test_what_finds_no_room_among_urgent_rows_waits_behind_those_that_do() -> None:
    backlog: Backlog[int] = Backlog()
    backlog.add({"a": 1, "b": 1, "c": 1, "d": 1}, None, mark=0, room=2)
    backlog.add({"e": 1}, None, mark=1, room=3)
    assert [key for key, _ in backlog.take(3)] == ["a", "b", "e"]


async def test_a_row_that_changes_its_group_while_it_waits_and_goes_is_deleted_once() -> None:
    db, target = database(), Target()
    reconciler = make(db, target, together=lambda row: row[1])
    put(db, a=1, b=2)
    await reconciler.step()
    put(db, a=2, **many(100, 2 * MIN_ROUND))
    reconciler._take_in()
    put(db, a=3)
    reconciler._take_in()
    delete(db, "a")
    assert await reconciler.step() == f"{2 * MIN_ROUND} updated, 1 deleted, 0 failed"
    assert target.deleted == [("a", 1)]


async def test_pruning_waits_until_nothing_waits() -> None:
    db, target = database(), Target(stale=1)
    target.seconds = 1.0
    put(db, **many(0, 200))
    async with running(make(db, target)):
        await asyncio.sleep(10)
    assert target.times("prune") == [4]
    assert "stale" not in target.held


async def test_waiting_until_reconciled_is_for_what_came_up_to_the_revision_and_not_for_what_came_later() -> None:
    db, target = database(), Target()
    target.seconds = 1.0
    reconciler = make(db, target)
    async with running(reconciler):
        revision = put(db, a=1)
        waiting = asyncio.create_task(reconciler.wait_until_reconciled(revision))
        await asyncio.sleep(0.5)
        put(db, **many(0, 1_000))
        await asyncio.sleep(1.0)
        assert waiting.done()
        late = asyncio.create_task(reconciler.wait_until_reconciled(db.snapshot().revision(WANTED)))
        await asyncio.sleep(3.0)
        assert not late.done()
        await late
    assert len(target.held) == 1_001


async def test_its_repr_tells_the_outcome() -> None:
    db, target = database(), Target()
    target.broken = {"a"}
    source = db.initializer(WANTED, "source")
    reconciler = make(db, target)
    assert repr(reconciler) == "<Reconciler of wanted: has not run; 0 failing; not pruned yet>"
    put(db, a=1)
    with db.write() as txn:
        source.complete(txn)
    await reconciler.step()
    assert repr(reconciler) == "<Reconciler of wanted: 0 updated, 0 deleted, 1 failed; 0 pruned; 1 failing>"


STEPS = st.lists(
    st.one_of(
        st.dictionaries(st.sampled_from("abcd"), st.none() | st.integers(0, 3), min_size=1),
        st.frozensets(st.sampled_from("abcd")),
        st.floats(0.1, 5.0),
    ),
    max_size=15,
)


@given(
    steps=STEPS,
    left=st.frozensets(st.sampled_from("abxy")),
    seconds=st.sampled_from([0.0, 0.3, 0.6]),
    least=st.sampled_from([1, 2, MIN_ROUND]),
)
@settings(max_examples=200, deadline=None)
async def test_whatever_fails_when_the_target_comes_to_hold_exactly_the_rows(
    steps: list[Any], left: frozenset[str], seconds: float, least: int
) -> None:
    db, target = database(), Target(**dict.fromkeys(left, 9))
    target.seconds = seconds
    with mock.patch("isthmus.statedb.reconciler.MIN_ROUND", least):
        await disturbed(db, target, steps)


async def disturbed(db: Database, target: Target, steps: list[Any]) -> None:
    """Rows change, the target fails and mends; in the end it holds what it should."""
    reconciler = make(db, target, backoff=Backoff(0.5, 4.0))
    async with running(reconciler):
        for step in steps:
            match step:
                case dict():
                    put(db, **{name: number for name, number in step.items() if number is not None})
                    delete(db, *(name for name, number in step.items() if number is None))
                case frozenset():
                    target.broken = set(step)
                case _:
                    await asyncio.sleep(step)
        target.broken = set()
        await asyncio.sleep(60)
    assert target.held == dict(db.snapshot().all(WANTED))
    assert not reconciler.failing
    assert db.snapshot().count(STATUS) == 0
    assert not reconciler._held


async def test_no_snapshot_is_held_while_waiting_for_the_next_change() -> None:
    db, target = database(), Target()
    waiting = asyncio.create_task(db.until(lambda now: now.count(WANTED) == 3))
    async with running(make(db, target)):
        await asyncio.sleep(1)
        put(db, a=1)
        await asyncio.sleep(1)
        assert db._live_snapshots() == ()
    waiting.cancel()


def test_rows_that_came_at_once_are_taken_as_they_came_while_no_more_come() -> None:
    backlog: Backlog[int] = Backlog()
    backlog.add({"a": 1, "b": None, "c": 3, "d": 4}, [1, 2, 3, 4], mark=7, room=0)
    assert (backlog.take(1), len(backlog), backlog.mark(99)) == ([("a", 1)], 3, 7)
    backlog.add({}, [], mark=8, room=9)
    assert (backlog.take(1), len(backlog), backlog.mark(99)) == ([("b", None)], 2, 7)
    backlog.add({"c": 5, "e": 6}, [3, 4], mark=9, room=9)
    assert (backlog.take(9), len(backlog), backlog.mark(99)) == ([("c", 5), ("d", 4), ("e", 6)], 0, 99)


def test_rows_that_came_at_once_as_urgent_ones_stay_urgent_as_more_come() -> None:
    backlog: Backlog[int] = Backlog()
    backlog.add({"a": 1, "b": 1}, None, mark=0, room=9)
    backlog.take(1)
    backlog.add(dict.fromkeys("stuvwxyz", 1), None, mark=1, room=0)
    backlog.add({"c": 1}, None, mark=2, room=2)
    assert [key for key, _ in backlog.take(4)] == ["b", "c", "s", "t"]


async def test_a_round_says_how_many_rows_it_updated_deleted_and_failed() -> None:
    db, target = database(), Target()
    reconciler = make(db, target)
    put(db, a=1, b=1, c=1)
    await reconciler.step()
    target.broken = {"b", "x"}
    put(db, x=1, y=1, z=1)
    delete(db, "a", "b")
    assert (await reconciler.step()).startswith("2 updated, 1 deleted, 2 failed")
