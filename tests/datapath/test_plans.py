"""What a change writes, and what it does not: as sentences, counted on a map double."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pytest
from datapath_worlds.bpf_model import TellingMaps
from datapath_worlds.bpf_world import done, group, plan
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from isthmus.datapath import PlanTarget, view
from isthmus.datapath.core.ids import Ids
from isthmus.datapath.core.shapes import ID
from isthmus.datapath.services import codecs
from isthmus.datapath.services.installed import State
from isthmus.datapath.services.restore import restore
from isthmus.model.balancing import Group, Plan

VIP = "10.96.0.7"


class CountingMaps(TellingMaps):
    """Which maps were written, how often."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: Counter[str] = Counter()

    def put(self, name: str, items: Sequence[tuple[bytes, bytes]]) -> Mapping[int, str]:
        """Count, then write."""
        self.writes[name] += len(items)
        return super().put(name, items)

    def drop(self, name: str, keys: Sequence[bytes]) -> Mapping[int, str]:
        """Count, then delete."""
        self.writes[f"-{name}"] += len(keys)
        return super().drop(name, keys)


class Bench:
    """A target over counting maps, with a clock that the test moves."""

    def __init__(self) -> None:
        self.maps = CountingMaps()
        self.now = 0.0
        self.target = PlanTarget(self.maps, State(), grace=1.0, clock=lambda: self.now)

    def update(self, *rows: Plan) -> dict[str, int]:
        """The writes of an update."""
        return self.writes(lambda: done(self.target.update(rows)))

    def writes(self, act: Callable[[], object]) -> dict[str, int]:
        """The writes of anything."""
        self.maps.writes.clear()
        act()
        return {name: count for name, count in self.maps.writes.items() if count}

    def plan_ids(self) -> list[int]:
        """Plans that frontends point to."""
        return [row["plan_id"] for row in view.dump(self.maps)["frontends"]]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def many(first: int, last: int) -> Group:
    return group(*(f"10.1.{n >> 8}.{n & 255}:80" for n in range(first, last)))


def test_an_update_that_changes_nothing_writes_nothing(bench: Bench) -> None:
    bench.update(plan("echo", VIP, many(0, 5)))
    assert bench.update(plan("echo", VIP, many(0, 5))) == {}


def test_one_backend_of_a_thousand_costs_the_same_as_one_of_ten(bench: Bench) -> None:
    bench.update(plan("small", VIP, many(0, 10)), plan("big", "10.96.0.8", many(0, 1000)))
    small = bench.update(plan("small", VIP, many(1, 11)))
    big = bench.update(plan("big", "10.96.0.8", many(1, 1001)))
    assert small == {"slots": 1, "plans": 1}
    assert big == {"backends": 1, "slots": 1, "plans": 1}


def test_a_backend_that_two_plans_share_is_written_once_and_goes_with_the_last(bench: Bench) -> None:
    first, second = plan("one", VIP, many(0, 1)), plan("two", "10.96.0.8", many(0, 1))
    assert bench.update(first, second)["backends"] == 1
    done(bench.target.delete([first]))
    bench.now += 1
    bench.target.sweep_due()
    assert len(view.dump(bench.maps)["backends"]) == 1
    done(bench.target.delete([second]))
    bench.now += 1
    bench.target.sweep_due()
    assert view.dump(bench.maps)["backends"] == []


def test_the_same_address_in_two_clusters_is_two_backends(bench: Bench) -> None:
    bench.update(plan("echo", VIP, group("10.1.0.1:80", cluster="c1"), group("10.1.0.1:80", cluster="c2")))
    assert [row["cluster"] for row in view.dump(bench.maps)["backends"]] == ["c1", "c2"]


def test_a_large_change_takes_a_new_plan_and_a_small_one_does_not(bench: Bench) -> None:
    bench.update(plan("echo", VIP, many(0, 40)))
    [first] = bench.plan_ids()
    bench.update(plan("echo", VIP, many(2, 42)))
    assert bench.plan_ids() == [first]
    bench.update(plan("echo", VIP, many(100, 140)))
    assert bench.plan_ids() != [first]


def test_other_tiers_or_affinity_take_a_new_plan_and_another_weight_does_not(bench: Bench) -> None:
    seen = []
    for row in (
        plan("echo", VIP, many(0, 3), many(3, 5)),
        plan("echo", VIP, many(0, 3), replace(many(3, 5), weight=7)),
        plan("echo", VIP, many(0, 3), replace(many(3, 5), tier=1)),
        plan("echo", VIP, many(0, 3), replace(many(3, 5), tier=1), affinity=60),
        plan("echo", VIP, many(0, 3), replace(many(3, 5), tier=1), affinity=90),
    ):
        bench.update(row)
        seen += bench.plan_ids()
    assert [seen.index(number) for number in seen] == [0, 0, 2, 3, 3]


def test_nothing_goes_before_the_grace_period_is_over(bench: Bench) -> None:
    bench.update(plan("echo", VIP, many(0, 3)))
    bench.update(plan("echo", VIP, many(0, 1)))
    bench.now += 0.99
    assert bench.writes(bench.target.sweep_due) == {}
    bench.now += 0.01
    assert bench.writes(bench.target.sweep_due) == {"-slots": 2, "-backends": 2}


def test_a_slot_that_is_wanted_again_within_the_grace_period_stays(bench: Bench) -> None:
    bench.update(plan("echo", VIP, many(0, 3)))
    bench.update(plan("echo", VIP, many(0, 1)))
    bench.update(plan("echo", VIP, many(0, 3)))
    bench.now += 1
    bench.target.sweep_due()
    assert len(view.dump(bench.maps)["slots"]) == len(view.dump(bench.maps)["backends"]) == 3


def test_pruning_leaves_slots_alone_whose_grace_period_is_not_over(bench: Bench) -> None:
    bench.update(plan("echo", VIP, many(0, 40)))
    row = plan("echo", VIP, many(0, 39))
    bench.update(row)
    assert "-slots" not in bench.writes(lambda: done(bench.target.prune([row])))
    bench.now += 1
    assert bench.writes(bench.target.sweep_due)["-slots"] == 1


def test_a_plan_that_a_frontend_could_not_leave_goes_with_its_service(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = plan("echo", VIP, many(0, 40))
    bench.update(row)
    put = bench.maps.put
    monkeypatch.setattr(bench.maps, "put", lambda name, of: {0: "full"} if name == "frontends" else put(name, of))
    done(bench.target.update([replace(row, affinity="ClientIP")]))
    assert len(view.dump(bench.maps)["plans"]) == 2
    done(bench.target.delete([row]))
    bench.now += 1
    bench.target.sweep_due()
    assert not any(bench.target.state.sizes().values())


def test_a_frontend_that_two_rows_of_a_batch_have_stays_with_the_one_that_is_written(bench: Bench) -> None:
    """It moves from one to the other, whose row comes first: the row that still has it wrote nothing of it."""
    held, other = plan("held", VIP, many(0, 1)), plan("other", "10.96.0.8", many(1, 2))
    [shared], [own] = held.frontends, other.frontends
    held = replace(held, frontends=(shared, replace(shared, address="10.96.0.9")))
    bench.update(held, other)
    bench.update(replace(other, frontends=(own, shared)), replace(held, groups=(many(0, 2),)))
    bench.update(replace(held, frontends=held.frontends[1:], groups=(many(0, 2),)))
    assert codecs.frontend_key(shared) in dict(bench.maps.items("frontends"))


def test_a_plan_without_frontends_is_not_programmed(bench: Bench) -> None:
    row = plan("echo", VIP, many(0, 3))
    bench.update(replace(row, frontends=()))
    assert not any(bench.maps.maps.values())
    bench.update(row)
    bench.update(replace(row, frontends=()))
    assert view.dump(bench.maps)["frontends"] == []


def test_what_the_maps_cannot_hold_is_refused_by_a_sentence_and_leaves_no_trace(bench: Bench) -> None:
    crowded = plan("crowded", VIP, *(group(f"10.1.0.{n}:80", tier=n) for n in range(33)))
    heavy = plan("heavy", "10.96.0.8", Group((), weight=1 << 25))
    fine = plan("fine", "10.96.0.9", many(0, 2))
    failures = done(bench.target.update([crowded, heavy, fine]))
    assert failures == {
        crowded.key: "33 groups of backends; the datapath has room for 32",
        heavy.key: "the weight of a group is not between 0 and 16777216",
    }
    assert [row["name"] for row in view.dump(bench.maps)["services"]] == [str(fine.key)]
    assert len(bench.target.state.units) == 1


def test_a_plan_that_cannot_be_encoded_costs_itself_and_no_number(bench: Bench) -> None:
    """A port beyond 65,535 is a bug of whoever made the row: alone, in a batch of new plans, and in a changed one."""
    fine, other = plan("fine", VIP, many(0, 2)), plan("other", "10.96.0.8", many(2, 4))
    bad = plan("bad", "10.96.0.9", group("10.1.0.9:80"))
    bad = replace(bad, groups=(Group((replace(bad.groups[0].targets[0], port=70_000),)),))
    for _ in range(3):
        failures = done(bench.target.update([fine, bad, other]))
        assert [*failures] == [bad.key]
        assert failures[bad.key].startswith("OverflowError: ")
        assert "(a bug, at " in failures[bad.key]
        sizes = bench.target.state.sizes()
        assert (sizes["plans"], sizes["plan_ids"], sizes["service_ids"]) == (2, 2, 3)
    assert {row["name"] for row in view.dump(bench.maps)["services"]} == {str(fine.key), str(other.key)}
    failures = done(bench.target.update([replace(other, groups=(*other.groups, *bad.groups))]))
    assert [*failures] == [other.key]
    assert len(bench.plan_ids()) == 2, "what was there stays"
    done(bench.target.prune([fine, other]))
    bench.now += 5
    bench.target.sweep_due()
    assert bench.target.state.sizes()["service_ids"] == 2


def test_the_counters_of_a_service_go_with_it_and_no_map_is_read_for_that(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, stays = plan("echo", VIP, group("10.1.0.1:80")), plan("stays", "10.96.0.8", group("10.1.0.1:80"))
    bench.update(row, stays)
    numbers = {each["name"]: each["id"] for each in view.dump(bench.maps)["services"]}
    keys = {
        name: codecs.COUNTER_KEY.pack(number, cluster, 0, 0) for name, number in numbers.items() for cluster in (1,)
    }
    bench.maps.put("counters", [(key, codecs.COUNTER.pack(7)) for key in keys.values()])
    done(bench.target.delete([row]))
    bench.now = 2.0
    monkeypatch.setattr(bench.maps, "items", lambda name: pytest.fail(f"{name} was read"))
    bench.target.sweep_due()
    assert list(bench.maps.maps["counters"]) == [keys[str(stays.key)]]


def test_a_service_of_a_name_that_no_plan_has_is_pruned(bench: Bench) -> None:
    row = plan("echo", VIP, group("10.1.0.1:80"))
    bench.update(row)
    bench.maps.put("services", [(ID.pack(77), codecs.SERVICE.pack(b"another version's name"))])
    restarted = PlanTarget(bench.maps, restore(bench.maps), grace=0.0, clock=lambda: bench.now)
    done(restarted.prune([row]))
    restarted.sweep_due()
    assert [each["name"] for each in view.dump(bench.maps)["services"]] == [str(row.key)]


def test_a_backend_of_two_with_one_target_leaves_the_other_the_target_as_it_goes() -> None:
    state, [target] = State(), group("10.1.0.1:80").targets
    first, second = state.backend(target), state.backend(target)
    state.hold([first.id])
    state.release([first.id])
    assert (state.by_target[target], [*state.backends]) == (second, [codecs.REFUSING, second.id])


def test_numbers_are_not_given_out_again_before_all_others() -> None:
    ids = Ids([3], most=4)
    given = [ids.take(), ids.take(), ids.take()]
    ids.release([4])
    assert given == [4, 1, 2]
    assert ids.take() == 4


def test_numbers_that_an_array_has_no_room_for_are_given_out_only_while_all_others_are_in_use() -> None:
    ids = Ids([2], most=3)
    assert ids.take_many(4) == [3, 1, 4, 5]
    ids.release([4])
    assert ids.take() == 6, "nor again at once"
    ids.release([1, 5])
    assert ids.take_many(2) == [1, 7]
    assert len(ids) == 5
    assert Ids([1, 2, 9], most=2).take() == 10, "restored ones are not given out"


@given(
    st.lists(
        st.lists(st.integers(0, 700), max_size=3)
        | st.builds(lambda first, count: [*range(first, first + count)], st.integers(0, 700), st.integers(0, 300)),
        max_size=60,
    ),
    st.sets(st.integers(1, 600), max_size=9),
)
def test_an_id_is_not_given_out_twice_until_it_is_given_back(releases: list[list[int]], restored: set[int]) -> None:
    """Three hundred of them are within the room of the array."""
    ids, taken = Ids(restored, most=300), set(restored)
    for numbers in releases:
        ids.release(numbers)
        taken.difference_update(numbers)
        for _ in range(5):
            new = ids.take()
            assert new not in taken
            taken.add(new)
        assert len(ids) == len(taken)


def test_the_lowest_tier_with_a_backend_shares_the_whole_die_by_weight() -> None:
    die = 1 << 31
    assert codecs.cumulative_weights([(0, 1, 0), (1, 1, 5), (1, 3, 1), (2, 9, 9)]) == [0, die // 4, die, 0]
    assert codecs.cumulative_weights([(0, 0, 5), (1, 2, 1)]) == [0, die]
    assert codecs.cumulative_weights([(0, 1, 0)]) == [0]


def test_a_masked_dump_reads_like_documentation(bench: Bench) -> None:
    bench.update(plan("echo", VIP, group("10.1.0.1:80", cluster="c1"), group("10.2.0.1:80", cluster="c2", tier=1)))
    assert view.render(view.dump(bench.maps, masked=True)) == (
        "frontends:\n"
        "  frontend=10.96.0.7:80/TCP plan=demo/echo:80/TCP/IPv4\n"
        "plans:\n"
        "  plan=demo/echo:80/TCP/IPv4 groups=[tier=0 weight=1 count=1; tier=1 weight=1 count=1]\n"
        "slots:\n"
        "  plan=demo/echo:80/TCP/IPv4 group=0 n=0 backend=10.1.0.1:80/TCP\n"
        "  plan=demo/echo:80/TCP/IPv4 group=1 n=0 backend=10.2.0.1:80/TCP\n"
        "backends:\n"
        "  backend=10.1.0.1:80/TCP cluster=c1\n"
        "  backend=10.2.0.1:80/TCP cluster=c2\n"
        "services:\n"
        "  name=demo/echo:80/TCP/IPv4\n"
        "clusters:\n"
        "  name=c1\n"
        "  name=c2"
    )


def test_values_of_a_batch_have_numbers_of_their_own_also_where_numbers_begin_again() -> None:
    state = State()
    state.generation = 0xFFFF_FFFF - 3
    taken = [*state.next_generations(2), *state.next_generations(3)]
    assert taken == [0xFFFF_FFFD, 0xFFFF_FFFE, 0xFFFF_FFFF, 1, 2]
