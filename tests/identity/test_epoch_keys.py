"""Keys of the present epochs, from the files of two clusters' Secrets."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.identity import keys, pairs
from isthmus.identity.epoch_keys import EpochKeys, KeySet
from isthmus.identity.schedule import Schedule
from isthmus.model.names import ClusterName

C1, C2, C3 = ClusterName("c1"), ClusterName("c2"), ClusterName("c3")
IDS = {C1: 1, C2: 2, C3: 3}
PRIVATE = {name: bytes([number]) * 32 for name, number in IDS.items()}
NOON = 1_795_780_800.0
DAY = 86_400
NOW = st.floats(DAY, 4e9)


def file(own: ClusterName, peer: ClusterName, now: float = NOON) -> bytes:
    private, public = Schedule(key=PRIVATE[own]), Schedule(key=PRIVATE[peer]).public()
    return pairs.encode(pairs.pair(private, public, own=own, peer=peer, now=now))


def with_secrets(send: dict[str, str]) -> bytes:
    return json.dumps({**json.loads(file(C1, C2)), "send": send}).encode()


def epoch_keys(own: ClusterName, *peers: ClusterName, now: float = NOON) -> EpochKeys:
    made = EpochKeys()
    made.update({str(peer): file(own, peer, now) for peer in peers})
    return made


def at(made: EpochKeys, now: float) -> KeySet:
    return made.current(now, IDS)


def signed(current: KeySet, cluster: int) -> tuple[int, bytes]:
    """Number and key of the present epoch, for calls to a cluster."""
    number = keys.number_of(current.epoch)
    return number, current.sign[cluster, number]


@given(now=NOW, skew=st.floats(-60, 60))
def test_what_one_cluster_signs_the_other_verifies_with_clocks_a_minute_apart(now: float, skew: float) -> None:
    number, key = signed(at(epoch_keys(C1, C2, now=now), now), 2)
    assert at(epoch_keys(C2, C1, now=now), now + skew).verify[1, number] == key


@given(now=NOW, written=st.floats(0, 2 * DAY))
def test_secrets_serve_for_two_days_after_they_were_written(now: float, written: float) -> None:
    sender, receiver = epoch_keys(C1, C2, now=now), epoch_keys(C2, C1, now=now)
    number, key = signed(at(sender, now + written), 2)
    assert at(receiver, now + written).verify[1, number] == key
    assert sender.problems(now + written) == []


@given(now=NOW)
def test_no_key_is_shared_with_a_third_cluster_or_with_the_other_direction(now: float) -> None:
    known = [at(epoch_keys(own, *(IDS.keys() - {own}), now=now), now) for own in IDS]
    signing = [key for each in known for key in each.sign.values()]
    assert len(set(signing)) == len(signing) == 6 * len(keys.kept_epochs(now))
    _, to_c2 = signed(known[0], 2)
    assert to_c2 not in {*known[0].verify.values(), *known[2].verify.values()}


def test_keys_are_due_again_when_the_epoch_ends_and_not_before() -> None:
    made = epoch_keys(C1, C2)
    current = at(made, NOON + 5)
    assert current.until == NOON + 60
    assert at(made, current.until - 0.001) == current
    after = at(made, current.until)
    assert after.sign != current.sign
    assert len(current.verify.items() & after.verify.items()) == len(current.verify) - 1


def test_a_peer_without_an_id_or_a_file_has_no_keys() -> None:
    current = epoch_keys(C1, C2).current(NOON, {C3: 3})
    assert (current.sign, current.verify) == ({}, {})


def test_secrets_that_have_ended_give_no_keys_and_are_one_problem() -> None:
    made = epoch_keys(C1, C2, C3)
    late = at(made, NOON + 4 * DAY)
    assert (late.sign, late.verify) == ({}, {})
    assert made.problems(NOON + 4 * DAY) == [
        "keys of signatures of c2, c3 have ended: isthmus keys has not written those of today"
    ]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (file(C1, C2)[:-40], "it is no JSON of a pair's secrets, or is cut off"),
        (b"", "it is no JSON of a pair's secrets, or is cut off"),
        (b"\xff", "it is no JSON of a pair's secrets, or is cut off"),
        (b'{"own_key": 5}', "it is no JSON of a pair's secrets, or is cut off"),
        (b" " * 20_000, "it is larger than 16384 bytes"),
        (with_secrets({"1": "AAAA"}), "a secret has another length than 32 bytes"),
        (with_secrets({str(day): "" for day in range(17)}), "it has more than 16 days"),
    ],
)  # fmt: skip
def test_a_file_that_is_cut_off_or_is_none_is_one_problem_and_keeps_its_last_keys_and_those_of_others(
    content: bytes, why: str
) -> None:
    made = epoch_keys(C1, C2, C3)
    before = at(made, NOON)
    made.update({"c2": content, "c3": file(C1, C3)})
    assert at(made, NOON) == before
    [problem] = made.problems(NOON)
    assert problem.startswith(f"keys of signatures of c2 are not read anew: {why}")
    made.update({"c2": file(C1, C2), "c3": file(C1, C3)})
    assert made.problems(NOON) == []


def test_a_file_that_cannot_be_read_keeps_its_last_keys_and_one_that_is_gone_does_not() -> None:
    made = epoch_keys(C1, C2, C3)
    before = at(made, NOON)
    made.update({}, {"c2": "it cannot be read: Permission denied"})
    assert signed(at(made, NOON), 2) == signed(before, 2)
    assert {cluster for cluster, _ in at(made, NOON).sign} == {2}
    assert made.problems(NOON) == ["keys of signatures of c2 are not read anew: it cannot be read: Permission denied"]


@given(content=st.binary(max_size=300))
def test_no_file_fails_whatever_is_in_it(content: bytes) -> None:
    made = EpochKeys()
    made.update({"c2": content})
    assert len(made.problems(NOON)) == 1


def test_no_secret_and_no_key_is_in_what_is_displayed() -> None:
    made = epoch_keys(C1, C2)
    pair, current = pairs.decode(file(C1, C2)), at(made, NOON)
    shown = f"{made!r} {pair!r} {pair} {current!r} {current}"
    for secret in (*pair.send.values(), *pair.receive.values(), *current.verify.values(), *current.sign.values()):
        assert repr(secret)[2:-1] not in shown
    assert shown.startswith("<EpochKeys of c2> <Pair send [")
