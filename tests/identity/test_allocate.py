"""Numbers of service accounts: who has which, who gets one, and when one is free again."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from isthmus.identity.allocate import Account, Allocation, ByNumber, allocate
from isthmus.model.identities import Identity, numbers
from isthmus.model.names import ClusterName
from isthmus.times import timestamp

C1 = ClusterName("c1")
NOON = datetime(2026, 11, 27, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
FRONT, BACK = ("demo", "front"), ("demo", "back")
ROOM = numbers(1, 255)


def row(number: int, account: Account, unused_since: str = "") -> Identity:
    namespace, name = account
    return Identity(cluster=C1, number=number, namespace=namespace, service_account=name, unused_since=unused_since)


def give(
    accounts: Iterable[Account],
    existing: Iterable[Identity] = (),
    *,
    before: ByNumber | None = None,
    cluster: ClusterName = C1,
    room: range = ROOM,
    now: datetime = NOON,
) -> Allocation:
    return allocate({*accounts}, existing=existing, before=before or {}, cluster=cluster, room=room, now=now)


def named(allocation: Allocation) -> dict[Account, int]:
    return {(each.namespace, each.service_account): number for number, each in allocation.wanted.items()}


def test_every_account_gets_a_number_of_its_own_in_the_clusters_range() -> None:
    accounts = [("demo", f"a{n}") for n in range(500)] + [("other", f"a{n}") for n in range(500)]
    found = named(give(accounts))
    assert found.keys() == {*accounts}
    assert len({*found.values()}) == 1000
    assert {*found.values()} <= {*ROOM}


def test_four_clusters_with_accounts_of_equal_names_get_different_numbers() -> None:
    accounts = [FRONT, BACK, ("kube-system", "default")]
    given_numbers = [
        number
        for cluster in range(1, 5)
        for number in give(accounts, cluster=ClusterName(f"c{cluster}"), room=numbers(cluster, 255)).wanted
    ]
    assert len({*given_numbers}) == 12
    assert [number >> 16 for number in sorted(given_numbers)] == [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3


def test_an_account_keeps_its_number_whoever_comes_and_goes() -> None:
    before = give([FRONT])
    number = named(before)[FRONT]
    more = give([FRONT, BACK, ("a", "a")], before.wanted.values())
    assert named(more)[FRONT] == number


def test_an_account_mostly_has_the_same_number_again_after_it_was_free() -> None:
    assert named(give([FRONT])) == named(give([FRONT]))


def test_what_was_wanted_and_is_not_written_yet_counts_as_taken() -> None:
    small = range(300, 303)
    first = give([BACK], room=small)
    second = give([BACK, FRONT, ("a", "a")], before=first.wanted, room=small)
    assert named(second)[BACK] == named(first)[BACK]


def test_an_object_of_another_account_under_the_wanted_number_wins() -> None:
    wanted = give([FRONT])
    [number] = wanted.wanted
    found = give([FRONT, BACK], [row(number, BACK)], before=wanted.wanted)
    assert named(found)[BACK] == number
    assert named(found)[FRONT] != number


def test_of_several_numbers_of_an_account_the_smallest_written_one_stays() -> None:
    found = give([FRONT], [row(65_900, FRONT), row(65_800, FRONT)], before={65_800: row(65_800, FRONT)})
    assert found.wanted[65_800].unused_since == ""
    assert found.wanted[65_900].unused_since == timestamp(NOON)
    pending = give([FRONT], [row(65_900, FRONT)], before={65_800: row(65_800, FRONT)})
    assert {*pending.wanted} == {65_900}, "the one that is not written is not wanted any more"


def test_a_number_without_a_pod_is_free_after_an_hour_and_not_before() -> None:
    existing = [row(65_800, FRONT)]
    unused = give([], existing)
    assert unused.wanted == {65_800: row(65_800, FRONT, timestamp(NOON))}
    assert unused.due == NOON + 60 * MINUTE
    late = give([], existing, before=unused.wanted, now=NOON + 59 * MINUTE)
    assert late.wanted == unused.wanted, "since when it is unused does not change"
    assert give([], existing, before=unused.wanted, now=NOON + 60 * MINUTE).wanted == {}


def test_a_process_that_begins_goes_on_with_the_time_that_is_written() -> None:
    existing = [row(65_800, FRONT, timestamp(NOON - 50 * MINUTE))]
    assert give([], existing).due == NOON + 10 * MINUTE
    assert give([], existing, now=NOON + 10 * MINUTE).wanted == {}


def test_an_account_that_is_used_again_starts_its_hour_anew() -> None:
    existing = [row(65_800, FRONT, timestamp(NOON - 50 * MINUTE))]
    used = give([FRONT], existing)
    assert used.wanted == {65_800: row(65_800, FRONT)}
    # the object still shows the old time
    unused = give([], existing, before=used.wanted, now=NOON + 20 * MINUTE)
    assert unused.due == NOON + 80 * MINUTE


def test_a_time_in_the_future_is_now() -> None:
    assert give([], [row(65_800, FRONT, "2199-01-01T00:00:00Z")]).due == NOON + 60 * MINUTE


def test_a_number_is_not_given_while_the_object_of_its_last_account_exists() -> None:
    small = range(300, 301)
    gone = give([BACK], [row(300, FRONT, timestamp(NOON - 60 * MINUTE))], room=small)
    assert gone.wanted == {}
    assert gone.refused == (BACK,)
    assert named(give([BACK], [], room=small)) == {BACK: 300}


def test_a_full_range_costs_only_accounts_that_have_no_number() -> None:
    small = range(300, 310)
    accounts = [("demo", f"a{n}") for n in range(8)]
    first = give(accounts, room=small)
    full = give([*accounts, *[("demo", f"b{n}") for n in range(8)]], first.wanted.values(), room=small)
    assert named(full).items() >= named(first).items()
    assert all(name.startswith("b") for _, name in full.refused)
    assert full.refused


def test_one_namespace_leaves_numbers_for_another() -> None:
    small = range(300, 400)
    many = give([("greedy", f"a{n:03}") for n in range(500)], room=small)
    assert len(many.wanted) == 80
    late = give([*named(many), FRONT, BACK], many.wanted.values(), room=small)
    assert late.refused == ()


def test_numbers_outside_the_clusters_range_and_of_other_clusters_are_not_wanted() -> None:
    foreign = structs.replace(row(65_801, FRONT), cluster=ClusterName("c2"))
    found = give([FRONT], [row(200_000, FRONT), row(300, FRONT), foreign])
    [number] = found.wanted
    assert number in ROOM


ACCOUNTS = st.sets(st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(["x", "y", "z"])))


@pytest.mark.parametrize("size", [3, 5, 40])
@given(st.lists(st.tuples(ACCOUNTS, st.integers(0, 90), st.booleans()), max_size=12))
def test_no_number_ever_moves_to_another_account_without_having_been_deleted(
    size: int, steps: list[tuple[set[Account], int, bool]]
) -> None:
    room = range(300, 300 + size)
    existing: dict[int, Identity] = {}
    before: ByNumber = {}
    now = NOON
    for accounts, minutes, written in steps:
        now += minutes * MINUTE
        allocation = give(accounts, existing.values(), before=before, room=room, now=now)
        numbers_by_account = named(allocation)
        assert {*numbers_by_account} | {*allocation.refused} >= accounts
        assert not {*numbers_by_account} & {*allocation.refused}
        for number, each in allocation.wanted.items():
            if number in existing:
                found = existing[number]
                assert (found.namespace, found.service_account) == (each.namespace, each.service_account)
        again = give(accounts, existing.values(), before=allocation.wanted, room=room, now=now)
        assert _in_use(again) == _in_use(allocation)
        before = allocation.wanted
        if written:
            existing = dict(allocation.wanted)


def _in_use(allocation: Allocation) -> dict[int, Identity]:
    return {number: each for number, each in allocation.wanted.items() if not each.unused_since}
