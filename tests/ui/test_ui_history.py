"""The last hour: counted calls in steps of ten seconds, and changes of state."""

from __future__ import annotations

import tracemalloc

from rows.ui_world import ECHO, counted, process

from isthmus.cli.ui.history import POINTS, STEP, History, changes
from isthmus.cli.ui.services import Level, ServiceView
from isthmus.cli.ui.sources import Process
from isthmus.cli.ui.view import ClusterView, View


def reading(time: float, called: int, failed: int = 0, cluster: str = "c2") -> Process:
    calls = {("demo/echo:80", cluster, "called"): called, ("demo/echo:80", cluster, "failed"): failed}
    return process("c1", counts=counted((time, calls)))


def service(level: Level, *why: str) -> View:
    return View(services={ECHO: ServiceView(name=ECHO, cells={}, level=level, why=why)})


def test_calls_are_counted_from_the_first_reading_on() -> None:
    history = History(100.0)
    for time, called, failed in ((101.0, 1_000, 7), (112.0, 1_050, 7), (119.0, 1_100, 17), (121.0, 1_200, 17)):
        history.count([reading(time, called, failed)])
    found = history.timeline("", "", 135.0)
    assert (found.times, found.calls, found.failed) == ([110, 120], [10.0, 10.0], [1.0, 0.0])


def test_a_selection_has_its_own_calls() -> None:
    history = History(100.0)
    history.count([reading(101.0, 0)])
    history.count([reading(115.0, 50)])
    now = 120.0
    assert history.timeline(ECHO, "", now).calls == history.timeline("", "c2", now).calls == [5.0]
    assert history.timeline("demo/other", "", now).calls == history.timeline(ECHO, "c3", now).calls == [0.0]


def test_what_is_older_than_an_hour_is_forgotten() -> None:
    history, end = History(0.0), POINTS * STEP + 500
    for time in range(0, end, STEP):
        history.count([reading(time + 1.0, time)])
    found = history.timeline("", "", float(end))
    assert len(found.times) <= POINTS
    assert set(found.calls[1:]) == {1.0}


def test_an_hour_of_many_services_takes_the_same_room_as_its_first_minute() -> None:
    history, calls = History(0.0), {(f"demo/s{number}:80", "c1", "called"): 0 for number in range(50)}

    def go_on(first: int, last: int) -> int:
        for step in range(first, last):
            counts = counted((step * STEP + 1.0, dict.fromkeys(calls, step)))
            history.count([process("c1", counts=counts)])
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        minute, hour = go_on(0, 7), go_on(7, POINTS)
    finally:
        tracemalloc.stop()
    assert hour < 1.2 * minute


def test_a_service_that_nobody_calls_for_an_hour_leaves_room_for_another() -> None:
    history = History(0.0)
    for time, service in ((1.0, ""), (11.0, "demo/old:80"), (4_001.0, ""), (4_011.0, "demo/new:80")):
        history.count([process("c1", counts=counted((time, {(service, "c1", "called"): 10})))])
    assert [*history._series] == [("demo/new", "c1")]


def test_calls_of_a_time_without_readings_are_no_peak_when_the_process_answers_again() -> None:
    history = History(100.0)
    for time, called in ((101.0, 0), (111.0, 50), (911.0, 50_000), (921.0, 50_050)):
        history.count([reading(time, called)])
    found = history.timeline("", "", 935.0)
    assert sum(found.calls) == 10.0


def test_a_clock_that_is_set_back_piles_no_calls_up() -> None:
    history = History(0.0)
    for time, called in ((5_001.0, 0), (5_011.0, 50), (1_001.0, 100), (1_011.0, 150), (1_021.0, 200)):
        history.count([reading(time, called)])
    found = history.timeline("", "", 5_035.0)
    assert sum(found.calls) == 0.0
    assert history.timeline("", "", 1_035.0).calls[-2:] == [5.0, 5.0]


def test_an_hour_without_readings_is_shown_as_without_calls_counted() -> None:
    assert History(100.0).timeline("", "", 105.0).times == []


def test_a_change_of_level_is_a_mark_with_its_reason() -> None:
    down, up = service("failing", "no backend in any cluster can be called"), service("ok")
    [mark] = changes(up, down, 5.0)
    assert (mark.time, mark.level, mark.service) == (5.0, "failing", ECHO)
    assert mark.text == "demo/echo is failing: no backend in any cluster can be called"
    assert [each.text for each in changes(down, up, 6.0)] == ["demo/echo is well again"]
    assert list(changes(down, down, 7.0)) == []


def test_at_the_start_what_is_not_well_is_a_mark() -> None:
    clusters = {"c1": ClusterView(name="c1"), "c2": ClusterView(name="c2", level="failing", why=("gone",))}
    assert [each.text for each in changes(View(), View(clusters=clusters), 1.0)] == ["cluster c2 is failing: gone"]
