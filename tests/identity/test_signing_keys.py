"""Keys of signatures: both clusters of a pair derive the same, and nobody else."""

from __future__ import annotations

import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.identity import keys

PRIVATE = st.binary(min_size=32, max_size=32)
NAME = st.from_regex(r"[a-z]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
DAY = st.integers(0, 50_000)
NOW = st.floats(0, 4e9)
LOW_ORDER = [
    bytes(32),
    (1).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    (2**255 - 20).to_bytes(32, "little"),
    (2**255 - 19).to_bytes(32, "little"),
    (2**255 - 18).to_bytes(32, "little"),
]
"""Points of low order: with each of them the shared secret is zero, whatever the private key."""


@given(ours=PRIVATE, theirs=PRIVATE, sender=NAME, receiver=NAME, day=DAY)
def test_both_clusters_of_a_pair_derive_the_same_secret(
    ours: bytes, theirs: bytes, sender: str, receiver: str, day: int
) -> None:
    one = keys.day_secret(keys.shared_secret(ours, keys.public_key(theirs)), sender=sender, receiver=receiver, day=day)
    other = keys.day_secret(
        keys.shared_secret(theirs, keys.public_key(ours)), sender=sender, receiver=receiver, day=day
    )
    assert one == other
    assert len(one) == keys.DAY_SECRET_BYTES


@given(ours=PRIVATE, theirs=PRIVATE, third=PRIVATE, day=DAY)
def test_a_third_cluster_derives_another_secret_whichever_name_it_uses(
    ours: bytes, theirs: bytes, third: bytes, day: int
) -> None:
    publics = {keys.public_key(each) for each in (ours, theirs, third)}
    if len(publics) < 3:
        return
    secret = keys.day_secret(keys.shared_secret(ours, keys.public_key(theirs)), sender="c1", receiver="c2", day=day)
    for peer in (ours, theirs):
        assert (
            keys.day_secret(keys.shared_secret(third, keys.public_key(peer)), sender="c1", receiver="c2", day=day)
            != secret
        )


@given(ours=PRIVATE, theirs=PRIVATE, sender=NAME, receiver=NAME, day=DAY, other_day=DAY)
def test_secrets_of_the_two_directions_and_of_two_days_differ(
    ours: bytes, theirs: bytes, sender: str, receiver: str, day: int, other_day: int
) -> None:
    public = keys.public_key(theirs)
    secret = keys.day_secret(keys.shared_secret(ours, public), sender=sender, receiver=receiver, day=day)
    back = keys.day_secret(keys.shared_secret(ours, public), sender=receiver, receiver=sender, day=day)
    later = keys.day_secret(keys.shared_secret(ours, public), sender=sender, receiver=receiver, day=other_day)
    assert (secret == back) == (sender == receiver)
    assert (secret == later) == (day == other_day)


@given(secret=st.binary(min_size=32, max_size=32), epoch=st.integers(0, 10**8), other=st.integers(0, 10**8))
def test_keys_of_two_epochs_differ(secret: bytes, epoch: int, other: int) -> None:
    assert (keys.epoch_key(secret, epoch) == keys.epoch_key(secret, other)) == (epoch == other)
    assert len(keys.epoch_key(secret, epoch)) == keys.EPOCH_KEY_BYTES


@given(now=NOW, skew=st.floats(-60, 60))
def test_a_receiver_whose_clock_is_a_minute_off_has_the_senders_key(now: float, skew: float) -> None:
    assert keys.epoch_at(max(0, now + skew)) in keys.kept_epochs(now)


@given(now=NOW, minutes=st.integers(0, 60))
def test_without_its_agent_a_node_has_the_keys_of_an_hour(now: float, minutes: int) -> None:
    assert keys.epoch_at(now + minutes * 60) in keys.kept_epochs(now)


@given(now=NOW)
def test_keys_that_are_kept_have_numbers_of_their_own_and_are_of_days_that_are_kept(now: float) -> None:
    epochs = keys.kept_epochs(now)
    assert len({keys.number_of(epoch) for epoch in epochs}) == len(epochs)
    assert {keys.day_of(epoch) for epoch in epochs} <= set(keys.kept_days(now))


@given(now=NOW, hours=st.floats(0, 47.9))
def test_secrets_that_are_kept_suffice_for_two_days_without_new_ones(now: float, hours: float) -> None:
    later = now + hours * 3600
    assert keys.day_of(keys.epoch_at(later)) in keys.kept_days(now)


@pytest.mark.parametrize("point", LOW_ORDER, ids=lambda point: point.hex()[:8])
def test_a_point_of_low_order_is_no_public_key(point: bytes) -> None:
    with pytest.raises(ValueError):
        keys.shared_secret(keys.new_private_key(), point)


def test_secrets_are_hkdf_sha256_of_the_shared_secret() -> None:
    """The pair and its shared secret are those of RFC 7748, section 6.1; HKDF is written as RFC 5869 has it."""

    def hkdf(secret: bytes, info: bytes) -> bytes:
        extracted = hmac.digest(bytes(32), secret, "sha256")
        return hmac.digest(extracted, info + b"\x01", "sha256")

    private = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    public = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
    shared = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    day = keys.day_secret(keys.shared_secret(private, public), sender="c1", receiver="c2", day=20_000)
    assert day == hkdf(shared, b"isthmus/pair/c1/c2/20000")
    assert keys.epoch_key(day, 28_800_001) == hkdf(day, b"isthmus/epoch/28800001")[:16]
