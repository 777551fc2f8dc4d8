"""When which backend is probed, played in virtual time."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from isthmus.config import HealthSection
from isthmus.health.schedule import FIRST_WITHIN, JITTER, Schedule, spacing
from isthmus.model.balancing import BackendKey, Probe
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.policies import Check, HealthCheck

WALL = 1_700_000_000.0


def key(number: int) -> BackendKey:
    return BackendKey(ServiceName("demo/echo"), ClusterName("c2"), f"10.2.{number >> 8}.{number & 255}", 80, "TCP")


def schedule(count: int, *, node: str = "n1", nodes: int = 1, check: HealthCheck | None = None, **section: Any) -> Any:
    made = Schedule(HealthSection(**section), node=node, random=Random(1))
    made.nodes = nodes
    for n in range(count):
        made.put(Check(key(n), check or HealthCheck(interval=5.0)), 0.0)
    return made


def played(made: Schedule, seconds: float, *, room: int = 1_000) -> list[tuple[float, BackendKey]]:
    """(moment, backend) of each probe; all pass, at once."""
    found = []
    for step in range(int(seconds * 100)):
        now = step / 100
        for backend, turn, _ in list(made.due(now, room=room)):
            found.append((now, backend))
            made.done(backend, turn, "", now=now, wall=WALL)
    return found


def test_every_backend_is_probed_soon_and_then_at_its_interval() -> None:
    moments = defaultdict(list)
    for now, backend in played(schedule(20), 60):
        moments[backend].append(now)
    assert len(moments) == 20
    assert max(each[0] for each in moments.values()) <= FIRST_WITHIN + 0.3
    gaps = [b - a for each in moments.values() for a, b in pairwise(each)]
    assert min(gaps) >= 5 * (1 - JITTER) - 0.02
    assert max(gaps) <= 5 * (1 + JITTER) + 0.3


def test_probes_are_spread_and_do_not_come_in_step() -> None:
    late = [int(now * 2) for now, _ in played(schedule(100), 120) if now > 60]
    assert max(Counter(late).values()) < 30, "a hundred backends, ten a half-second on average"


def test_nodes_begin_at_moments_of_their_own() -> None:
    firsts = {next(now for now, _ in played(schedule(1, node=f"n{n}"), 2)) for n in range(20)}
    assert len(firsts) > 10


def test_a_nodes_probes_are_bounded_and_every_backend_has_its_turn() -> None:
    found = played(schedule(3_000, rate=100.0), 120)
    seconds = Counter(int(now) for now, _ in found)
    assert max(seconds.values()) <= 100 * 1.15, "the rate, and one burst"
    turns = Counter(backend for _, backend in found)
    assert len(turns) == 3_000
    assert max(turns.values()) - min(turns.values()) <= 2


def test_more_nodes_probe_each_backend_less_often() -> None:
    assert spacing(HealthCheck(interval=5.0), HealthSection(), backends=1, nodes=1) == 5.0
    assert spacing(HealthCheck(interval=5.0), HealthSection(backend_rate=2.0), backends=1, nodes=1_000) == 500.0
    assert len(played(schedule(1, nodes=1_000, backend_rate=2.0), 400)) == 1


def test_no_more_start_than_there_is_room_for() -> None:
    made = schedule(50, rate=10_000.0)
    assert len(list(made.due(10.0, room=7))) == 7
    assert len(list(made.due(10.0, room=0))) == 0
    assert len(list(made.due(10.0, room=100))) == 43, "none twice while it is in flight"


def results(made: Schedule, *found: str) -> list[Probe]:
    """The rows that results of the one backend give."""
    rows, now = [], 10.0
    for why in found:
        now += 100
        [(backend, turn, _)] = made.due(now, room=1)
        if row := made.done(backend, turn, why, now=now, wall=WALL):
            rows.append(row)
    return rows


def test_a_namespace_whose_probes_take_an_hour_leaves_room_for_those_of_others() -> None:
    made = schedule(0, rate=1_000.0)
    slow = HealthCheck(type="HTTP", interval=3_600.0, timeout=3_600.0)
    for n in range(1_000):
        made.put(Check(replace(key(n), service=ServiceName("hostile/echo")), slow), 0.0)
    held, room, probed = Counter[str](), 256, 0
    for step in range(6_000):
        now = step / 100
        if step == 1_000:
            for n in range(20):
                made.put(Check(key(n), HealthCheck(interval=5.0)), now)
        for backend, turn, _ in made.due(now, room=room, held=held):
            if backend.service.startswith("demo/"):
                made.done(backend, turn, "", now=now, wall=WALL)
                probed += 1
                continue
            held["hostile"] += 1
            room -= 1
    assert held["hostile"] == 128
    assert probed >= 20 * 9, "every five seconds for fifty"


def test_only_a_verdict_that_changes_is_a_row_with_its_reason() -> None:
    made = schedule(1)
    assert results(made, "", "", "refused", "refused", "HTTP status 500", "refused", "", "") == [
        Probe(key(0), True, "", WALL),
        Probe(key(0), False, "HTTP status 500", WALL),
        Probe(key(0), True, "", WALL),
    ]


def test_a_check_that_changes_keeps_the_verdict_and_ignores_the_probe_in_flight() -> None:
    made = schedule(1, check=HealthCheck(unhealthy_after=1))
    assert results(made, "refused") == [Probe(key(0), False, "refused", WALL)]
    [(backend, turn, _)] = made.due(500.0, room=1)
    made.put(Check(key(0), HealthCheck(type="HTTP", healthy_after=1)), 500.0)
    assert made.done(backend, turn, "", now=500.5, wall=WALL) is None
    assert made.dead == 1
    [(backend, turn, check)] = made.due(502.0, room=1)
    assert (check.type, made.done(backend, turn, "", now=502.0, wall=WALL)) == ("HTTP", Probe(key(0), True, "", WALL))


def test_what_is_removed_is_probed_no_more_and_its_late_result_means_nothing() -> None:
    made = schedule(1)
    [(backend, turn, _)] = made.due(10.0, room=1)
    made.remove(backend)
    assert made.done(backend, turn, "", now=11.0, wall=WALL) is None
    assert (len(made), list(made.due(1e6, room=1)), made.wake_at()) == (0, [], None)


@pytest.mark.parametrize("count", [1, 500])
def test_the_heap_does_not_grow_with_checks_that_come_and_go(count: int) -> None:
    made = schedule(0)
    for turn in range(count):
        made.put(Check(key(1), HealthCheck()), float(turn))
        list(made.due(turn + 2.0, room=0))
    assert next(iter(made.due(1e6, room=10)))[0] == key(1)
    assert made.wake_at() is None
