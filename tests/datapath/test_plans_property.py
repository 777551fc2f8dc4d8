"""Any sequence of plans ends in the maps that the last ones give; at every write on the way each call has a backend."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import partial

import pytest
from datapath_worlds.bpf_model import Died, TellingMaps, canonical, wanted
from datapath_worlds.bpf_world import done
from hypothesis import given, settings
from hypothesis import strategies as st
from rows.small_chunks import small_chunks

from isthmus.datapath import PlanTarget, view
from isthmus.datapath.core.manifest import Row
from isthmus.datapath.services import codecs, moves
from isthmus.datapath.services.audit import AWAY
from isthmus.datapath.services.installed import State
from isthmus.datapath.services.restore import restore
from isthmus.model import chunked
from isthmus.model.balancing import Consumer, FrontendKey, Group, Plan, PlanKey, Target
from isthmus.model.names import ClusterName, ServiceName

GRACE = 1.0


@pytest.fixture(autouse=True, scope="module")
def small_rings() -> Iterator[None]:
    """Rings of a few cells: what is tested is when they are written, not how they are filled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codecs, "RING_CELLS", 509)
        yield


@pytest.fixture(autouse=True, scope="module")
def large_groups() -> Iterator[None]:
    """A group of seven is a large one, so that large and small ones are as common, and turn into each other."""
    with small_chunks(chunk=3, small=6) as patch:
        patch.setattr(moves, "MAX_SCANNED", 9)
        patch.setattr(moves, "MAX_SCANS", 2)
        yield


VIPS = [FrontendKey(f"10.96.0.{n}", 80, "TCP") for n in range(6)]
PROXIES = [Target("169.254.7.1", 15_100 + n, "TCP", ClusterName("c0"), proxy=True) for n in range(2)]
consuming = st.sampled_from(((), (), ("app",), ("app", "bbb")))
TARGETS = [Target(f"10.{n % 3}.0.{n}", 80, "TCP", ClusterName(f"c{n % 3}")) for n in range(40)]

groups = st.builds(
    lambda chosen, tier, weight: Group(chunked.sequence(sorted(chosen)), tier, weight),
    st.sets(st.sampled_from(TARGETS[:8]), max_size=6) | st.sets(st.sampled_from(TARGETS), max_size=30),
    st.sampled_from((0, 0, 0, 1, 2)),
    st.sampled_from((1, 1, 1, 1, 0, 2)),
)
"""Often alike but for a few targets, so that changes within a plan are as common as plans made anew."""


@st.composite
def rows(draw: st.DrawFn) -> Plan:
    service = draw(st.integers(0, 2))
    extra = draw(st.integers(0, 1))
    affinity, consistent = draw(st.booleans()), draw(st.booleans())
    return Plan(
        key=PlanKey(ServiceName(f"demo/s{service}"), 80, "TCP", "IPv4"),
        frontends=tuple(VIPS[2 * service : 2 * service + 1 + extra]),
        groups=tuple(draw(st.lists(groups, max_size=3))),
        affinity="ClientIP" if affinity else "None",
        affinity_timeout=60 if affinity else 0,
        consistent=consistent,
        skip=draw(st.sampled_from(((), (), ("10.1.0.8",), ("10.1.0.9", "fd01::9")))),
        consumers=tuple(Consumer(name, draw(st.sampled_from(PROXIES))) for name in draw(consuming)),
        consumers_only=draw(st.booleans()),
    )


steps = st.lists(
    st.one_of(
        rows().map(lambda row: ("update", row)), rows().map(lambda row: ("delete", row)), st.just(("sweep", None))
    ),
    max_size=12,
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Story:
    """A target over maps with hooks, and the rows that should be in them."""

    def __init__(self) -> None:
        self.maps = TellingMaps()
        self.clock = Clock()
        self.want: dict[PlanKey, Plan] = {}
        self.target = self.start()

    def start(self) -> PlanTarget:
        self.target = PlanTarget(self.maps, restore(self.maps), grace=GRACE, clock=self.clock)
        return self.target

    def play(self, kind: str, row: Plan | None) -> Mapping[PlanKey, str]:
        if row is None:
            self.clock.now += GRACE
            self.target.sweep_due()
            return {}
        if kind == "delete":
            self.want.pop(row.key, None)
            return done(self.target.delete([row]))
        self.want[row.key] = row
        return done(self.target.update([row]))

    def settle(self) -> None:
        self.maps.fails = lambda: False
        for row in list(self.want.values()):
            assert done(self.target.update([row])) == {}
        done(self.target.prune(self.want.values()))
        for _ in range(3):
            self.clock.now += GRACE
            self.target.sweep_due()

    def close(self) -> None:
        for row in list(self.want.values()):
            self.play("delete", row)
        self.settle()


def fresh(want: Mapping[PlanKey, Plan]) -> dict[str, list[Row]]:
    """What the maps look like when these plans are all there ever was."""
    maps = TellingMaps()
    assert done(PlanTarget(maps, State()).update(list(want.values()))) == {}
    return canonical(maps)


@given(steps)
def test_any_sequence_ends_in_the_maps_of_the_last_rows(steps: list[tuple[str, Plan | None]]) -> None:
    story = Story()
    for kind, row in steps:
        assert story.play(kind, row) == {}
    story.settle()
    assert canonical(story.maps) == fresh(story.want)


@given(steps)
def test_deleting_all_leaves_maps_and_allocators_empty(steps: list[tuple[str, Plan | None]]) -> None:
    story = Story()
    for kind, row in steps:
        story.play(kind, row)
    story.close()
    assert not any(story.maps.maps.values())
    assert set(story.target.state.sizes().values()) == {0}


@given(steps)
def test_a_connect_gets_a_backend_of_the_old_or_the_new_plan_at_every_write(
    steps: list[tuple[str, Plan | None]],
) -> None:
    story = Story()
    for kind, row in steps:
        old = story.want.get(row.key) if row else None
        new = row if kind == "update" else None
        others = [each for each in story.want.values() if row is None or each.key != row.key]
        story.maps.after = partial(check, story.maps, old, new, others)
        story.play(kind, row)
        story.maps.after = lambda: None


def test_a_backend_that_comes_with_weight_zero_is_never_called_with_the_weight_of_the_one_before() -> None:
    story = Story()
    key = PlanKey(ServiceName("demo/s0"), 80, "TCP", "IPv4")
    before, after = (
        Plan(key=key, frontends=(VIPS[0],), groups=(Group((target,), weight=weight),))
        for target, weight in ((TARGETS[0], 1), (TARGETS[1], 0))
    )
    story.play("update", before)
    story.maps.after = partial(check, story.maps, before, after, [])
    story.play("update", after)


def test_a_backend_is_there_before_the_count_that_makes_it_called() -> None:
    story = Story()
    key = PlanKey(ServiceName("demo/s0"), 80, "TCP", "IPv4")
    before, after = (
        Plan(key=key, frontends=(VIPS[0],), groups=(Group(tuple(sorted(TARGETS[:size]))),)) for size in (5, 6)
    )
    story.play("update", before)
    story.maps.after = partial(check, story.maps, before, after, [])
    story.play("update", after)
    assert story.maps.find(VIPS[0]) == 1, "the change was made within the plan"


def check(maps: TellingMaps, old: Plan | None, new: Plan | None, others: list[Plan]) -> None:
    """Every frontend that is there leads to targets of the one plan or the other; what neither drops is there."""
    for row in others:
        assert all(picked(maps, key) == wanted(row) for key in row.frontends)
    before, after = (set(row.frontends) if row else set() for row in (old, new))
    allowed = {target for row in (old, new) if row for target in wanted(row)}
    for key in before | after:
        found = picked(maps, key)
        assert found is not None or key not in before & after
        assert found is None or found <= allowed
        if old and new and wanted(old) and wanted(new):
            assert found is None or found


def picked(maps: TellingMaps, key: FrontendKey) -> set[Target] | None:
    plan = maps.find(key)
    return None if plan is None else maps.picks(plan)


@given(steps)
def test_a_connect_that_read_its_plan_before_a_change_still_finds_all_of_it(
    steps: list[tuple[str, Plan | None]],
) -> None:
    """Every (plan, group, n) that could be read leads somewhere until a grace period after it could no more."""
    story = Story()
    for kind, row in steps:
        story.maps.after = partial(reach, story.maps, slots(story.maps))
        if kind != "sweep":
            story.play(kind, row)
        story.maps.after = lambda: None
        if kind == "sweep":
            story.play(kind, row)


def reach(maps: TellingMaps, readable: list[tuple[int, int, int]]) -> None:
    for slot in readable:
        maps.target(*slot)


def slots(maps: TellingMaps) -> list[tuple[int, int, int]]:
    return [
        (plan["plan_id"], n, slot)
        for plan in view.dump(maps)["plans"]
        for n, group in enumerate(plan["groups"])
        for slot in range(group["count"])
    ]


@settings(max_examples=200)
@given(steps, st.integers())
def test_failing_writes_are_put_right_and_nothing_leaks(steps: list[tuple[str, Plan | None]], seed: int) -> None:
    story, chance = Story(), random.Random(seed)
    story.maps.fails = lambda: chance.random() < 0.1
    for kind, row in steps:
        story.play(kind, row)
    story.settle()
    assert canonical(story.maps) == fresh(story.want)
    story.close()
    assert not any(story.maps.maps.values())
    assert set(story.target.state.sizes().values()) == {0}


@given(st.lists(st.lists(st.sampled_from(TARGETS), min_size=1, max_size=8), max_size=6), st.integers())
def test_of_new_plans_that_are_written_together_those_fail_whose_entries_do(
    chosen: list[list[Target]], seed: int
) -> None:
    story, chance = Story(), random.Random(seed)
    story.maps.fails = lambda: chance.random() < 0.05
    rows = [
        Plan(
            key=PlanKey(ServiceName(f"demo/s{n}"), 80, "TCP", "IPv4"),
            frontends=(VIPS[n],),
            groups=(Group(chunked.sequence(sorted(set(each)))),),
        )
        for n, each in enumerate(chosen)
    ]
    failures = done(story.target.update(rows))
    for row in rows:
        if row.key not in failures:
            assert picked(story.maps, row.frontends[0]) == set(row.groups[0].targets)
    story.want = {row.key: row for row in rows}
    story.settle()
    assert canonical(story.maps) == fresh(story.want)
    story.close()
    assert not any(story.maps.maps.values())
    assert set(story.target.state.sizes().values()) == {0}


@settings(max_examples=200)
@given(steps, st.integers(0, 200))
@pytest.mark.slow
def test_killed_at_any_write_a_restart_converges_and_keeps_numbers(
    steps: list[tuple[str, Plan | None]], life: int
) -> None:
    story = Story()
    stable = Plan(
        key=PlanKey(ServiceName("demo/stable"), 80, "TCP", "IPv4"),
        frontends=(FrontendKey("10.96.9.9", 80, "TCP"),),
        groups=(Group(tuple(TARGETS[:5])),),
    )
    story.play("update", stable)
    numbers = [row for row in view.dump(story.maps)["slots"] if row["plan"] == str(stable.key)]
    left = iter(range(life))

    def after() -> None:
        assert picked(story.maps, stable.frontends[0]) == set(TARGETS[:5])
        if next(left, None) is None:
            raise Died

    story.maps.after = after
    try:
        for kind, row in steps:
            story.play(kind, row)
    except Died:
        pass
    story.maps.after = lambda: None
    story.start()
    story.settle()
    assert canonical(story.maps) == fresh(story.want)
    assert [row for row in view.dump(story.maps)["slots"] if row["plan"] == str(stable.key)] == numbers
    story.close()
    assert not any(story.maps.maps.values()), "what an earlier life held is counted, and given back"
    assert set(story.target.state.sizes().values()) == {0}


@given(steps, st.lists(rows(), min_size=1, max_size=3))
def test_a_restart_goes_on_counting_generations(steps: list[tuple[str, Plan | None]], more: list[Plan]) -> None:
    """A socket or a client's entry that remembers a generation must never meet another backend under it."""
    story = Story()
    for kind, row in steps:
        story.play(kind, row)
    used = story.target.state.generation
    story.start()
    there = generations(story.maps)
    assert story.target.state.generation >= max(there.values(), default=0)
    for row in more:
        story.play("update", row)
    new = {key: value for key, value in generations(story.maps).items() if there.get(key) != value}
    assert all(value > max(there.values(), default=0) for value in new.values()), (used, there, new)


def generations(maps: TellingMaps) -> dict[tuple[str, bytes], int]:
    """Of each entry that has one of its own."""
    shapes = {"backends": codecs.BACKEND, "plans": codecs.PLAN}
    return {
        (name, key): int(shape.named(value)["generation"])
        for name, shape in shapes.items()
        for key, value in maps.items(name)
    }


def test_a_write_that_fails_is_reported_for_each_plan_that_needs_it() -> None:
    story = Story()
    rows = [
        Plan(
            key=PlanKey(ServiceName(f"demo/s{n}"), 80, "TCP", "IPv4"),
            frontends=(VIPS[n],),
            groups=(Group(tuple(TARGETS[n : n + 3])),),
        )
        for n in range(2)
    ]
    story.maps.fails = lambda: True
    failures = done(story.target.update(rows))
    assert failures.keys() == {row.key for row in rows}
    assert all(failures.values())
    assert not any(story.maps.maps.values())
    story.maps.fails = lambda: False
    assert done(story.target.update(rows)) == {}
    story.maps.fails = lambda: True
    assert done(story.target.delete(rows)).keys() == {row.key for row in rows}


@given(steps, st.integers())
def test_what_others_write_or_delete_is_put_right_by_pruning(steps: list[tuple[str, Plan | None]], seed: int) -> None:
    story, chance = Story(), random.Random(seed)
    for kind, row in steps:
        story.play(kind, row)
    for name, entries in story.maps.maps.items():
        for key in list(entries):
            if chance.random() < 0.2:
                del entries[key]
            elif name in AWAY and chance.random() < 0.2:
                entries[bytes([chance.randrange(255) for _ in key])] = entries[key]
    done(story.target.prune(story.want.values()))
    story.settle()
    assert canonical(story.maps) == fresh(story.want)


@pytest.mark.parametrize("name", AWAY)
def test_entries_that_went_while_no_process_was_there_are_back_after_its_start(name: str) -> None:
    story = Story()
    row = Plan(
        key=PlanKey(ServiceName("demo/s"), 80, "TCP", "IPv4"),
        frontends=tuple(VIPS[:2]),
        groups=(Group(tuple(TARGETS[:3])), Group(tuple(TARGETS[3:5]), 1)),
        affinity="ClientIP",
        affinity_timeout=60,
        consistent=True,
        skip=("10.1.0.8",),
        consumers=(Consumer("app", PROXIES[0]), Consumer("bbb", PROXIES[1])),
    )
    story.play("update", row)
    for key in list(story.maps.maps[name]):
        story.maps.maps[name].pop(key, None)
        story.start()
        story.settle()
        assert canonical(story.maps) == fresh(story.want), key
    story.close()
    assert not any(story.maps.maps.values())
    assert set(story.target.state.sizes().values()) == {0}


@pytest.mark.parametrize("name", ["frontends", "plans", "slots", "members", "skips", "consumers", "rings"])
def test_entries_that_went_while_no_process_was_there_are_back_with_the_first_update(name: str) -> None:
    """Pruning waits until every source is complete, which one that is away may delay for long."""
    story = Story()
    row = Plan(
        key=PlanKey(ServiceName("demo/s"), 80, "TCP", "IPv4"),
        frontends=tuple(VIPS[:2]),
        groups=(Group(tuple(TARGETS[:3])),),
        affinity="ClientIP",
        affinity_timeout=60,
        consistent=True,
        skip=("10.1.0.8",),
        consumers=(Consumer("app", PROXIES[0]), Consumer("bbb", PROXIES[1])),
    )
    story.play("update", row)
    story.maps.maps[name].pop(next(iter(story.maps.maps[name])))
    story.start()
    story.play("update", row)
    there = canonical(story.maps)
    missing = {of: [row for row in rows if row not in there[of]] for of, rows in fresh(story.want).items()}
    assert not any(missing.values()), missing


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("name", AWAY)
def test_values_that_another_process_changed_are_put_right_by_pruning(name: str, restarted: bool) -> None:
    story = Story()
    for n in range(2):
        row = Plan(
            key=PlanKey(ServiceName(f"demo/s{n}"), 80, "TCP", "IPv4"),
            frontends=(VIPS[n],),
            groups=(Group(tuple(TARGETS[n : n + 3])), Group(tuple(TARGETS[n + 3 : n + 5]), 1)),
            affinity="ClientIP",
            affinity_timeout=60,
            consistent=True,
            skip=("10.1.0.8",),
            consumers=(Consumer("app", PROXIES[n]),),
        )
        story.play("update", row)
    if restarted:
        story.start()
        story.settle()
    entries = story.maps.maps[name]
    before = dict(entries)
    assert len(before) >= 2
    for changed in before:
        wrong = entries[changed] = bytes(byte ^ 0x55 for byte in before[changed])
        done(story.target.prune(story.want.values()))
        story.settle()
        assert canonical(story.maps) == fresh(story.want), changed
        assert wrong not in entries.values()


def test_a_frontend_that_moves_between_services_is_never_gone() -> None:
    story = Story()
    key, moved = VIPS[0], VIPS[1]
    first, second = (
        Plan(
            key=PlanKey(ServiceName(f"demo/s{n}"), 80, "TCP", "IPv4"),
            frontends=frontends,
            groups=(Group((TARGETS[n],)),),
        )
        for n, frontends in enumerate([(key, moved), (moved,)])
    )
    story.play("update", first)
    story.maps.after = lambda: _assert(story.maps.find(moved) is not None)
    story.play("update", second)
    story.play("update", Plan(key=first.key, frontends=(key,), groups=first.groups))
    story.play("delete", first)
    assert picked(story.maps, moved) == {TARGETS[1]}


def _assert(held: bool) -> None:
    assert held


owners = st.lists(
    st.tuples(
        st.lists(st.sampled_from((None, 0, 0, 1, 2)), min_size=len(VIPS), max_size=len(VIPS)),
        st.lists(groups.filter(lambda group: group.targets and group.weight), min_size=3, max_size=3),
        st.permutations(range(3)),
    ),
    max_size=8,
)
"""The service of each address, the backends of each service, and the order of updates."""


@given(owners)
def test_an_address_that_passes_from_one_service_to_another_is_answered_by_one_of_them_at_every_write(
    turns: list[tuple[list[int | None], list[Group], list[int]]],
) -> None:
    """Whichever of them goes, comes or stays: a round writes what it has to write, and deletes afterwards."""
    story = Story()
    for owned, chosen, order in turns:
        before = dict(story.want)
        after = {row.key: row for row in (_owning(n, owned, chosen[n]) for n in order) if row.frontends}
        story.maps.after = partial(handed_over, story.maps, before, after)
        story.want = after
        assert done(story.target.update([row for row in after.values() if before.get(row.key) != row])) == {}
        assert done(story.target.delete([row for key, row in before.items() if key not in after])) == {}
        story.maps.after = lambda: None
        story.play("sweep", None)
    story.settle()
    assert canonical(story.maps) == fresh(story.want)


def _owning(n: int, owned: list[int | None], group: Group) -> Plan:
    frontends = tuple(vip for vip, owner in zip(VIPS, owned, strict=True) if owner == n)
    return Plan(key=PlanKey(ServiceName(f"demo/s{n}"), 80, "TCP", "IPv4"), frontends=frontends, groups=(group,))


def handed_over(maps: TellingMaps, before: Mapping[PlanKey, Plan], after: Mapping[PlanKey, Plan]) -> None:
    """Every address that has an owner before and after leads to what the one or the other has."""
    old, new = ({vip: key for key, row in rows.items() for vip in row.frontends} for rows in (before, after))
    for vip in old.keys() & new.keys():
        found = picked(maps, vip)
        rows = [state[key] for state in (before, after) for key in (old[vip], new[vip]) if key in state]
        assert found
        assert found <= {target for row in rows for target in wanted(row)}
