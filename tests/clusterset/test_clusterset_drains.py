"""What a peer publishes about its drains: bounded, kept over a restart, and no reason to lose the rest."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.clusterset.peers.cache import Cache
from isthmus.clusterset.records import identity
from isthmus.clusterset.records.identity import ClusterConfig, Description, decode_description
from isthmus.config import ClusterSection
from isthmus.model.drains import Drain
from isthmus.model.names import ClusterName

NOW = datetime(2026, 11, 22, 7, 0, tzinfo=UTC)


def published(*drains: object) -> tuple[Drain, ...]:
    return decode_description(msgspec.json.encode({"region": "r1", "drains": drains}), now=NOW).drains


def test_a_drain_comes_as_it_was_published() -> None:
    drain = Drain(kind="Node", target="n1", reason="Drain a/b", started="2026-11-22T06:00:00Z", ramp=60, deadline=600)
    value = identity.encode(identity.own_description(ClusterSection(name="c2"), version="1", drains=[drain]))
    assert decode_description(value, now=NOW).drains == (drain,)


@pytest.mark.parametrize(
    "drain",
    [
        {"kind": "Node"},
        {"kind": "Node", "target": "n1", "started": "soon"},
        {"kind": "Node", "target": "n1", "ends": "9999999"},
        {"kind": "Node", "target": "n1", "ramp": -1},
        {"kind": "Node", "target": "n1", "deadline": -1},
    ],
)
def test_a_drain_that_cannot_be_followed_goes_and_the_others_stay(drain: dict[str, object]) -> None:
    assert [each.target for each in published(drain, {"kind": "Node", "target": "n2"})] == ["n2"]


def test_numbers_texts_and_how_many_there_are_have_bounds() -> None:
    [drain] = published(
        {"kind": "Node", "target": "n" * 9_000, "reason": "r" * 9_000, "ramp": 2**40, "deadline": 2**40}
    )
    assert (len(drain.target), len(drain.reason), drain.ramp, drain.deadline) == (300, 300, 604_800, 604_800)
    assert len(published(*({"kind": "Node", "target": f"n{n}"} for n in range(1_000)))) == identity.MOST_DRAINS


def test_as_many_drains_as_count_fit_into_a_description() -> None:
    drains = [
        Drain(kind="Node", target="n" * 63 + str(n), reason="r" * 253, started="2026-11-22T06:00:00Z")
        for n in range(500)
    ]
    value = identity.encode(
        identity.own_description(ClusterSection(name="c2", region="r1"), version="1", drains=drains)
    )
    assert decode_description(value, now=NOW).region == "r1"
    assert len(decode_description(value, now=NOW).drains) == identity.MOST_DRAINS


@given(
    st.binary(max_size=200) | st.text(max_size=100).map(lambda text: msgspec.json.encode({"drains": [{"kind": text}]}))
)
def test_no_description_raises(value: bytes) -> None:
    decode_description(value, now=NOW)


def test_what_a_peer_drained_is_known_after_a_restart_while_it_is_away(tmp_path: Path) -> None:
    cache, c2, description = (
        Cache(str(tmp_path)),
        ClusterName("c2"),
        Description(drains=(Drain(kind="Cluster", target="c2"),)),
    )
    cache.save("services", c2, ClusterConfig(2), (), description)
    known = cache.load("services", c2)
    assert known is not None
    assert known.description == description
