"""Two pods of one node call the same import; one makes its own connects fail, in a loop. The other does not notice."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from labs.lab_running import Running, lab_name, until

from isthmus_lab import pod_exec, removal
from isthmus_lab.images import IDLE
from isthmus_lab.layout import Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow]

HERE = Path(__file__).parent
SUPPORT = HERE.parents[1] / "tests" / "support"
ODD = [sys.executable, "-I", "-S", str(SUPPORT / "datapath_worlds" / "odd_caller.py")]


@pytest.fixture(scope="module")
def lab() -> Iterator[Running]:
    running = Running(Lab(lab_name("o"), 2, 1))
    try:
        server = ("--image", f"failover/server={sys.executable} -I -S {SUPPORT / 'labs' / 'failover_serve.py'}")
        idle = ("--image", f"callers/idle={shlex.join(['/bin/sh', '-c', IDLE, *ODD])}")
        running.cli("up", "--clusters", "2", "--nodes", "1", f"--from={HERE / 'manifests' / 'callers'}", *server, *idle)
        until(lambda: running.count_ready() == 6, what="callers and servers")
        until(lambda: len(backends(running)) == 4, what="four backends")
        yield running
    finally:
        removal.remove(running.lab)


def rows(lab: Running, table: str) -> list[dict[str, Any]]:
    """Rows of c1's agent."""
    found: list[dict[str, Any]] = json.loads(lab.isthmus("get", table, "-A", "-o", "json"))["rows"]
    return found


def backends(lab: Running) -> list[dict[str, Any]]:
    return [row for row in rows(lab, "backends") if row["import_of"] == "demo/echo"]


def address(lab: Running) -> str:
    [found] = json.loads(lab.kubectl("-n", "demo", "get", "serviceimport", "echo", "-o", "json"))["spec"]["ips"]
    return str(found)


def calls(lab: Running, count: int) -> dict[str, int]:
    """Number of calls of the normal pod that each server answered."""
    found: dict[str, int] = json.loads(lab.exec("demo/normal", shlex.join([*ODD, address(lab), "80", str(count)])))
    return found


def is_even(found: dict[str, int]) -> bool:
    """A call to each of four servers in a quarter of the cases, none in vain."""
    total = sum(found.values())
    return len(found) == 4 and all(abs(each - total / 4) < total / 8 for each in found.values())


@contextmanager
def hostile(lab: Running, option: str) -> Iterator[None]:
    """A pod that calls in a loop: with packets of one hop, or so that answers of more than none are dropped."""
    cluster = lab.lab.cluster("c1")
    assert cluster is not None
    found, null = pod_exec.find(cluster, "shop/hostile"), subprocess.DEVNULL
    child = pod_exec.run(found, [*ODD, address(lab), "80", "0", option], stdin=null, stdout=null, stderr=null)
    try:
        yield
    finally:
        child.kill()
        child.wait(60)


def events(lab: Running, namespace: str, reason: str) -> list[dict[str, Any]]:
    found = json.loads(lab.kubectl("-n", namespace, "get", "events", "-o", "json"))["items"]
    return [each for each in found if each["reason"] == reason]


def takes_no_backend(lab: Running) -> None:
    split = calls(lab, 400)
    assert is_even(split), split
    assert rows(lab, "failures") == []
    assert events(lab, "demo", "BackendsEjected") == []


def test_a_pod_whose_connects_fail_by_its_own_doing_takes_no_backend_from_another_and_is_named(lab: Running) -> None:
    with hostile(lab, "ttl"):
        found = until(
            lambda: [row for row in rows(lab, "caller_failures") if row["verdict"] == "answers"], what="a row"
        )
        assert {row["pod"] for row in found} == {"shop/hostile"}
        takes_no_backend(lab)
        [event] = until(partial(events, lab, "shop", "ConnectsFail"), what="its Event")[:1]
        assert event["involvedObject"]["name"] == "hostile"
        assert "demo/echo" in event["message"]


def test_a_pod_that_drops_all_answers_takes_no_backend_from_another(lab: Running) -> None:
    """No row names it for long: the kernel sees the backends answer."""
    with hostile(lab, "least_ttl"):
        for _ in range(3):
            takes_no_backend(lab)


def test_a_dead_backend_that_one_pod_alone_meets_is_ejected_for_all_since_the_agent_cannot_connect_either(
    lab: Running,
) -> None:
    server = json.loads(lab.kubectl("-n", "demo", "get", "pods", "-l", "app=echo", "-o", "json", cluster="c2"))[
        "items"
    ][0]
    name, found = server["metadata"]["name"], server["status"]["podIP"]

    def confirmed() -> list[Any]:
        assert "ConnectionRefusedError" not in calls(lab, 20)
        return [row for row in rows(lab, "failures") if row["confirmed"] and row["key"]["address"] == found]

    lab.exec(f"demo/{name}", "kill -USR1 1", cluster="c2")  # it flaps: its port is closed half of the time
    [row] = until(confirmed, what="the agent has found it dead")[:1]
    lab.exec(f"demo/{name}", "kill -USR2 1", cluster="c2")
    assert "the agent cannot connect either" in row["error"]
    until(lambda: not rows(lab, "failures"), what="the agent connects again")
    until(lambda: is_even(calls(lab, 400)), what="so do callers")
