"""The consistent-hash table: equal on every node, even, and little moved by a change."""

from __future__ import annotations

from collections import Counter

import pytest

from isthmus.loadbalancer import maglev
from isthmus.model.balancing import Target
from isthmus.model.names import ClusterName


def target(n: int) -> Target:
    return Target(f"10.0.{n // 250}.{n % 250}", 8080, "TCP", ClusterName("c1"))


@pytest.mark.parametrize(
    ("data", "halves"),
    [
        (b"", (0, 0)),
        (b"hello", (0xCBD8A7B341BD9B02, 0x5B1E906A48AE1D19)),
        (b"The quick brown fox jumps over the lazy dog", (0xE34BBC7BBC071B6C, 0x7A433CA9C49A9347)),
    ],
)
def test_the_hash_is_murmur3(data: bytes, halves: tuple[int, int]) -> None:
    assert maglev.murmur3(data, 0) == halves


def test_a_backend_is_called_the_same_on_every_node() -> None:
    assert maglev.key(target(1)) == "[10.0.0.1:8080/TCP,State:active]"
    assert maglev.key(Target("fd00::1", 53, "UDP", ClusterName("c2"))) == "[[fd00::1]:53/UDP,State:active]"


def test_every_backend_has_its_even_share() -> None:
    shares = Counter(maglev.table([target(n) for n in range(10)], size=1021))
    assert sum(shares.values()) == 1021
    assert max(shares.values()) - min(shares.values()) <= 1


def test_the_order_of_the_backends_changes_nothing() -> None:
    targets = [target(n) for n in range(7)]
    there = [targets[n] for n in maglev.table(targets, size=251)]
    back = [targets[::-1][n] for n in maglev.table(targets[::-1], size=251)]
    assert there == back


def test_a_backend_that_goes_moves_few_of_the_others_cells() -> None:
    targets = [target(n) for n in range(20)]
    before = [targets[n] for n in maglev.table(targets, size=1021)]
    after = [targets[n] for n in maglev.table(targets[:-1], size=1021)]
    moved = sum(a != b for a, b in zip(before, after, strict=True) if a != targets[-1])
    assert moved < 1021 * 0.15


def test_shares_follow_weights() -> None:
    targets = [target(1), target(2), target(3)]
    shares = Counter(maglev.table(targets, size=1021, weights=[100, 100, 200]))
    assert shares[2] / 1021 == pytest.approx(0.5, abs=0.01)
    assert shares[0] == pytest.approx(shares[1], abs=2)


def test_nothing_has_no_table() -> None:
    assert not maglev.table([])


def test_one_backend_has_every_cell() -> None:
    assert set(maglev.table([target(1)], size=251)) == {0}
