"""A cluster's pairs of keys by day: both sides use the next one from the same moment, and no call is refused."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.identity import keys, pairs, schedule
from isthmus.identity.epoch_keys import EpochKeys
from isthmus.identity.schedule import LEAD, Schedule
from isthmus.model.names import ClusterName

C1, C2 = ClusterName("c1"), ClusterName("c2")
IDS = {C1: 1, C2: 2}
DAY, MINUTE = 86_400, 60
MIDNIGHT = 1_795_737_600.0
"""00:00 UTC."""
QUARTER = 90.0 * DAY


class Cluster:
    """A cluster's keys, those that it last read of its peer, and the file that its nodes have."""

    def __init__(self, own: ClusterName, peer: ClusterName, now: float) -> None:
        self.own, self.peer = own, peer
        self.private = schedule.new(now)
        self.read: Schedule | None = None
        self.nodes = EpochKeys()

    def keep(self, now: float, *, begins: bool = False) -> None:
        """Renew the own pair, as ``isthmus keys`` does every 10 s."""
        self.private = schedule.decode(schedule.encode(self.private.settled(now)))
        if begins:
            self.private = self.private.begun(now)

    def look(self, other: Cluster, now: float) -> None:
        """Read the peer's keys, as ``isthmus keys`` does every 30 s."""
        self.read = other.private.public()
        pair = pairs.pair(self.private, self.read, own=self.own, peer=self.peer, now=now)
        self.nodes.update({str(self.peer): pairs.encode(pair)})


class Call(NamedTuple):
    number: int
    key: bytes | None


def sent(cluster: Cluster, now: float) -> Call:
    current = cluster.nodes.current(now, IDS)
    number = keys.number_of(current.epoch)
    return Call(number, current.sign.get((IDS[cluster.peer], number)))


def is_verified(cluster: Cluster, call: Call, now: float) -> bool:
    """True if the kernel has the key of a call and its epoch is the present one, the one before or the one after."""
    current = cluster.nodes.current(now, IDS)
    valid = {keys.number_of(current.epoch + each) for each in (-1, 0, 1)}
    return (
        call.key is not None
        and call.number in valid
        and current.verify.get((IDS[cluster.peer], call.number)) == call.key
    )


@settings(max_examples=4, deadline=None)
@given(
    begins=st.lists(st.integers(0, DAY - 1), min_size=2, max_size=2),
    late=st.integers(0, 2 * DAY - 1),
    skew=st.floats(-60, 60),
)
def test_no_call_is_refused_while_both_clusters_replace_their_pairs(begins: list[int], late: int, skew: float) -> None:
    """Each publishes at some time of a day, and the other one cannot read it for up to two days after that."""
    one, other = Cluster(C1, C2, MIDNIGHT), Cluster(C2, C1, MIDNIGHT)
    one.look(other, MIDNIGHT)
    other.look(one, MIDNIGHT)
    for each, begin in zip((one, other), begins, strict=True):
        each.keep(MIDNIGHT + begin, begins=True)
    before = [each.private.key for each in (one, other)]
    moments = [MIDNIGHT + max(begins) + late]
    for day in range(3, 6):
        moments += [MIDNIGHT + day * DAY + each * MINUTE for each in range(-3, 4)]
    refused = []
    for now in sorted(moments):
        for each, peer in ((one, other), (other, one)):
            each.keep(now)
            each.look(peer, now)
            for caller, called in ((each, peer), (peer, each)):  # the peer's nodes have what was before
                if not is_verified(called, sent(caller, now + skew), now):
                    refused.append((caller.own, now - MIDNIGHT))
    assert refused == []
    assert not {each.private.key for each in (one, other)} & {*before}, "both have been replaced"


def test_a_next_pair_is_used_three_days_later_and_the_one_before_is_kept_for_a_day_more() -> None:
    first = schedule.new(MIDNIGHT)
    then = first.begun(MIDNIGHT + 5)
    today = keys.day_of(keys.epoch_at(MIDNIGHT))
    assert then.day == today + LEAD
    assert [then.on(today + each) == then.next for each in range(5)] == [False, False, False, True, True]
    assert then.settled(MIDNIGHT + LEAD * DAY + DAY - 1) == then
    after = then.settled(MIDNIGHT + LEAD * DAY + DAY)
    assert (after.key, after.next) == (then.next, b"")
    assert then.public().on(today + LEAD) == after.public().key


def test_a_pair_is_replaced_once_for_a_request_and_after_its_period() -> None:
    first = schedule.new(MIDNIGHT)
    due = {"requested": 0.0, "every": QUARTER, "now": MIDNIGHT + 10}
    assert not first.due(**due)
    assert first.due(**due | {"now": MIDNIGHT + QUARTER})
    assert not first.due(**due | {"now": MIDNIGHT + QUARTER, "every": 0.0})
    assert not first.due(**due | {"requested": MIDNIGHT + 20}), "a request that has not come"
    assert first.due(**due | {"requested": MIDNIGHT + 5})
    then = first.begun(MIDNIGHT + 10)
    assert not then.due(**due | {"requested": MIDNIGHT + 5})
    assert not then.settled(MIDNIGHT + 5 * DAY).due(**due | {"requested": MIDNIGHT + 5, "now": MIDNIGHT + 5 * DAY})


def test_a_request_replaces_what_was_made_while_the_clock_was_years_ahead() -> None:
    ahead = MIDNIGHT + 5_000 * DAY
    for wrong in (schedule.new(MIDNIGHT).begun(ahead), schedule.new(ahead)):
        requested = {"requested": MIDNIGHT + 20, "every": QUARTER, "now": MIDNIGHT + 30}
        assert wrong.due(**requested)
        then = wrong.begun(MIDNIGHT + 30)
        assert not then.too_far(MIDNIGHT + 30)
        assert not then.due(**requested), "once"


def test_a_clock_that_is_behind_replaces_nothing() -> None:
    pair = schedule.new(MIDNIGHT).begun(MIDNIGHT + 10)
    behind = {"requested": MIDNIGHT + 5, "every": QUARTER, "now": MIDNIGHT - 2_000 * DAY}
    assert not pair.due(**behind)
    assert not schedule.new(MIDNIGHT).due(**behind)
    assert pair.settled(MIDNIGHT - 2_000 * DAY) == pair


def test_a_file_of_one_key_in_base64_is_a_pair_of_unknown_age() -> None:
    assert schedule.decode(b"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=") == Schedule(key=bytes([1]) * 32)


@settings(max_examples=20, deadline=None)
@given(content=st.one_of(st.binary(max_size=60), st.binary(max_size=60).map(lambda tail: b'{"key":"' + tail)))
def test_what_is_no_key_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="it is no X25519 key in base64"):
        schedule.decode(content)


def test_no_key_is_in_what_is_displayed() -> None:
    then = schedule.new(MIDNIGHT).begun(MIDNIGHT)
    assert not any(repr(key)[2:-1] in f"{then!r} {then}" for key in (then.key, then.next))
