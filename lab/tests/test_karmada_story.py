"""The story of members of Karmada, as a user runs it, with Karmada's own programs: ``make test-karmada``."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from labs.lab_running import assert_story_holds, invoked, lab_name
from labs.lab_traces import traces

from isthmus.admin.query import QueryError
from isthmus.kube import KubeError
from isthmus.reflector import Transient
from isthmus_lab.demo import endpoints, karmada
from isthmus_lab.demo.stage import Stage, StepFailed
from isthmus_lab.karmada.plane import NoKarmada
from isthmus_lab.layout import Lab
from isthmus_lab.realapi import binaries

LAB = Lab(lab_name("q"), 3)
COMMAND = [sys.executable, "-m", "isthmus", "lab", "demo", "--story", "karmada", "--json", "--lab", LAB.name]


@pytest.mark.lab
@pytest.mark.karmada_programs
@pytest.mark.failover
@pytest.mark.timeout(900)
def test_every_step_of_the_story_of_karmada_holds_and_nothing_is_left_of_it() -> None:
    done = subprocess.run(COMMAND, capture_output=True, text=True, check=False, timeout=800)
    assert_story_holds(json.loads(done.stdout), 10, done.stderr)
    assert done.returncode == 0
    assert traces(LAB) == {name: [] for name in traces(LAB)}


@pytest.mark.lab
def test_without_karmadas_programs_the_story_is_one_line_and_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "find", lambda program: None)
    done = invoked(COMMAND[3:])
    [step] = json.loads(done.stdout)["steps"]
    assert (done.returncode, step["ok"]) == (1, False)
    programs = "karmada-controller-manager, karmada-scheduler, karmada-webhook, kube-apiserver, kube-controller-manager"
    assert step["detail"] == f"no {programs}, kubectl here: make karmada-tools builds them (needs Go)"
    assert traces(LAB) == {name: [] for name in traces(LAB)}


async def test_what_ends_the_looks_of_the_storys_measure_is_raised_and_is_no_bound_of_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def provided(_: Stage) -> set[str]:
        raise OSError("no API server")

    async def never() -> set[str]:
        raise AssertionError("asked for")

    monkeypatch.setattr(endpoints, "provided", provided)
    with pytest.raises(OSError, match="no API server"):
        async with endpoints.following(Stage(LAB, {}), exported=never):
            await asyncio.sleep(0)


@pytest.mark.looptime
async def test_a_look_at_the_pods_that_is_refused_is_none_and_the_next_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: Iterator[set[str] | Exception] = iter([KubeError("429"), {"10.1.1.1"}, Transient("reset"), {"10.1.1.2"}])

    async def provided(_: Stage) -> set[str]:
        found = next(looks, {"10.1.1.2"})
        if isinstance(found, Exception):
            raise found
        return found

    async def planned() -> set[str]:
        return {"10.1.1.2"}

    monkeypatch.setattr(endpoints, "provided", provided)
    async with endpoints.following(Stage(LAB, {}), exported=planned) as behind:
        await asyncio.sleep(1)
    assert behind.changes == 1


@pytest.mark.looptime
@pytest.mark.parametrize("refusal", [KubeError("busy"), Transient("busy"), NoKarmada("busy"), QueryError("busy")])
async def test_a_wait_goes_on_after_a_look_that_is_refused(refusal: Exception) -> None:
    looks: Iterator[Exception | bool] = iter([refusal, True])

    async def seen() -> bool:
        if isinstance(found := next(looks), Exception):
            raise found
        return found

    assert await Stage(LAB, {}).until("seen", seen) > 0


@pytest.mark.looptime
async def test_a_wait_that_ends_says_how_the_last_look_was_refused() -> None:
    async def seen() -> bool:
        raise KubeError("get pods: 503 of c1")

    with pytest.raises(StepFailed, match="waited 0 s, and still not: seen: get pods: 503 of c1"):
        await Stage(LAB, {}).until("seen", seen, seconds=0.0)


@pytest.mark.looptime
async def test_the_storys_clock_stands_still_where_the_machine_does() -> None:
    times = iter([10.0, 10.02, 13.02, *[13.12] * 100])
    async with endpoints.ticking(lambda: next(times)) as clock:
        assert clock() == 0
        await asyncio.sleep(1)
        assert clock() == pytest.approx(0.02 + endpoints.STILL + 0.1)


@pytest.mark.parametrize(
    ("native", "looks", "changes", "why"),
    [
        (2.3, [0.05] * 9, 3, ""),
        (6.0, [*[0.05] * 9, 3.0], 3, "the bound is 5.40 s, where a look at the pods took 0.05 s"),
        (0.0, [0.05] * 9, 0, "no change of the pods was seen, so none was followed"),
    ],
)
def test_the_storys_bound_is_not_moved_by_one_long_look_nor_kept_where_nothing_changed(
    native: float, looks: list[float], changes: int, why: str
) -> None:
    behind = endpoints.Behind({"exported": 0.1, "native": native}, looks, changes)
    assert karmada.too_late(behind) == why
