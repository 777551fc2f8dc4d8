"""What a group can take of a bounded resource, and what it can never take from another one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.fair import Path, Shares, allot, grant

Wish = tuple[Path, int]
"""A group, and the number of its wish."""
HOSTILE = ("c2", "aaa")

groups = st.tuples(st.sampled_from(["c2", "c3", "c4"]), st.sampled_from(["app", "demo", "team"]))
wanting = st.dictionaries(groups, st.integers(0, 400), max_size=9)
rooms = st.integers(0, 1_000)


def wishes(wanted: dict[Path, int]) -> list[Wish]:
    return [(path, number) for path, count in wanted.items() for number in range(count)]


def granted(wanted: Iterable[Wish], room: int, kept: Iterable[Wish] = ()) -> set[Wish]:
    """All that is held in the end: what was kept, and what is granted beside it."""
    kept = set(kept)
    shares = Shares(room)
    for path, _ in sorted(kept):
        shares.hold(path)
    new = grant((wish for wish in wanted if wish not in kept), shares, holders=lambda w: (w[0],), order=lambda w: w)
    assert shares.used() == len(kept) + len(new)
    return kept | set(new)


def per_group(holding: Iterable[Wish]) -> Counter[Path]:
    return Counter(path for path, _ in holding)


@given(wanting, rooms, st.integers(0, 10_000))
def test_a_hostile_namespace_never_takes_what_another_one_has(wanted: dict[Path, int], room: int, greed: int) -> None:
    before = granted(wishes(wanted), room)
    after = granted([*wishes(wanted), *wishes({HOSTILE: greed})], room, kept=before)
    assert before <= after
    assert len(after) <= room


@settings(deadline=None)
@given(wanting, st.integers(50, 1_000))
def test_a_hostile_namespace_never_takes_more_than_its_share_while_others_want_theirs(
    wanted: dict[Path, int], room: int
) -> None:
    wanted = {path: count for path, count in wanted.items() if path[0] == "c2" and count}
    held = per_group(granted([*wishes(wanted), *wishes({HOSTILE: 10_000})], room))
    for path, count in wanted.items():
        assert held[path] == count or held[HOSTILE] <= held[path] + 1


@settings(deadline=None)
@given(wanting, st.integers(50, 1_000))
def test_each_peer_has_its_part_however_many_namespaces_a_hostile_one_uses(wanted: dict[Path, int], room: int) -> None:
    wanted = {path: count for path, count in wanted.items() if path[0] != "c2" and count}
    hostile: dict[Path, int] = {("c2", f"ns-{number}"): 100 for number in range(100)}
    held = per_group(granted([*wishes(wanted), *wishes(hostile)], room))
    peers = {path[0] for path in wanted}
    for peer in peers:
        own = {path: count for path, count in wanted.items() if path[0] == peer}
        part = room * 16 // 25 // (len(peers) + 1) - len(own)
        assert sum(held[path] for path in own) >= min(sum(own.values()), part)


def test_whoever_comes_after_a_hostile_namespace_finds_room() -> None:
    before = granted(wishes({HOSTILE: 10_000}), 2_500)
    assert len(before) == 1_600, "four fifths for a peer, and of these for a namespace"
    after = granted([*wishes({HOSTILE: 10_000}), *wishes({("c2", "demo"): 300, ("c3", "demo"): 300})], 2_500, before)
    assert per_group(after)["c3", "demo"] == 300
    assert per_group(after)["c2", "demo"] > 100, "of what its peer may still take"


@given(wanting, rooms, st.randoms())
def test_the_order_of_arrival_does_not_matter(wanted: dict[Path, int], room: int, random: object) -> None:
    ordered = wishes(wanted)
    shuffled = [*ordered]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert granted(ordered, room) == granted(shuffled, room)


@given(wanting, rooms)
def test_a_restart_changes_nothing(wanted: dict[Path, int], room: int) -> None:
    before = granted(wishes(wanted), room)
    assert granted(wishes(wanted), room, kept=before) == before


@given(wanting)
def test_everything_is_granted_while_there_is_plenty(wanted: dict[Path, int]) -> None:
    total = sum(wanted.values())
    assert len(granted(wishes(wanted), total * 25 // 16 + 2)) == total


@settings(deadline=None)
@given(wanting, rooms)
def test_all_holdings_fit_exactly_where_every_wish_is_granted(wanted: dict[Path, int], room: int) -> None:
    everything = Shares(room)
    for path, count in wanted.items():
        everything.hold(path, count)
    assert everything.fits() == (len(granted(wishes(wanted), room)) == sum(wanted.values()))


def test_a_wish_is_charged_to_whichever_of_its_groups_has_room() -> None:
    shares = Shares(10)
    shares.hold(("c2", "demo"), 8)
    both = [("c2", "demo"), ("c3", "demo")]
    assert grant(["db"], shares, holders=lambda _: both, order=str) == ["db"]
    assert shares.used(("c3", "demo")) == 1
    assert grant(["web"], shares, holders=lambda _: both[:1], order=str) == []


def test_what_exists_is_held_even_beyond_the_room_and_nothing_is_granted_then() -> None:
    shares = Shares(4)
    shares.hold(("c2", "demo"), 6)
    assert allot({("c3", "demo"): 5}, shares) == {}
    assert shares.headroom(("c3", "demo")) == 0
    shares.hold(("c2", "demo"), -6)
    assert shares.used() == 0
    assert allot({("c3", "demo"): 5}, shares) == {("c3", "demo"): 3}


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 300), max_size=6), st.integers(0, 255))
def test_without_a_reserve_shares_are_those_of_max_min_fairness(wanted: dict[str, int], room: int) -> None:
    """Against the slow way: one unit to each group in turn until the room is used."""
    expected: Counter[str] = Counter()
    while room > expected.total() and (open_groups := [g for g in sorted(wanted) if expected[g] < wanted[g]]):
        expected[min(open_groups, key=lambda g: expected[g])] += 1
    given_out = allot({(group,): count for group, count in wanted.items()}, Shares(room, reserve=False))
    assert {path[0]: count for path, count in given_out.items() if count} == {g: n for g, n in expected.items() if n}


def test_a_large_room_is_dealt_out_to_within_one_part_of_it() -> None:
    given_out = allot({("aaa",): 1_000_000, ("demo",): 9_000, ("app",): 100}, Shares(20_000))
    assert given_out["app",] == 100
    assert abs(given_out["aaa",] - given_out["demo",]) <= 20_000 // 256 or given_out["demo",] == 9_000
