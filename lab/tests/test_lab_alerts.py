"""The deployed alerts on a real Prometheus that scrapes a lab: they fire for what fails and clear once it is mended."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from labs.dashboards import FILES, expressions
from labs.failover_lab import NAME, lab_of, settled
from labs.lab_running import Running, until
from labs.scraping import Prometheus, prometheus

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.needs("prometheus")]


CALLS: Final = f"""
import select, socket
while not select.select([0], [], [], 0.01)[0]:
    try:
        socket.create_connection(("{NAME}", 80), 0.9).close()
    except OSError:
        pass
"""
"""Up to a hundred calls a second until the standard input ends, whatever becomes of them."""


@contextmanager
def calling(lab: Running) -> Iterator[None]:
    """Calls from c1's client."""
    inside = [sys.executable, "-I", "-S", "-c", CALLS]
    command = [
        sys.executable,
        "-m",
        "isthmus",
        "lab",
        "exec",
        "--lab",
        lab.lab.name,
        "c1",
        "demo/client",
        "--",
        *inside,
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        yield
    finally:
        process.communicate(timeout=60)


@pytest.fixture(scope="module")
def lab() -> Iterator[Running]:
    with lab_of("a") as running:
        until(lambda: settled(running), what="three backends of both families")
        yield running


@pytest.fixture(scope="module")
def seen(lab: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with prometheus(lab.lab, tmp_path_factory.mktemp("prometheus")) as running:
        targets = 2 * (1 + 2 * 3)
        until(lambda: len(running.query("up == 1")) == targets, what="all processes are scraped")
        yield running


def quiet(seen: Prometheus) -> bool:
    return not seen.firing()


def fires(seen: Prometheus, name: str) -> dict[str, Any]:
    """The alert, once it fires."""
    found: list[dict[str, Any]] = until(lambda: seen.firing().get(name), what=f"{name} fires")
    return found[0]


def test_a_healthy_clusterset_that_is_called_has_no_alert(lab: Running, seen: Prometheus) -> None:
    with calling(lab):
        until(lambda: seen.query("sum(rate(isthmus_agent_calls_total[5s])) > 5"), what="calls are counted")
        time.sleep(35)  # longer than the longest duration of a rule, here
        assert seen.firing() == {}
        empty = {title for file in FILES for title, each in expressions(file) if not seen.query(each)}
    assert empty <= WITHOUT, "panels of the dashboards without a line"


WITHOUT: Final = {
    "First certificate to end",
    "Connections refused by gateways",
    "Share of calls that fail, by service",
    "Ejected backends",
    "Ejections",
    "Questions without a reply",
    "Tasks that fail",
    "Payload by cluster",
}
"""Panels of what a healthy lab without gateways and certificates has not."""


def test_a_cluster_that_is_away_fires_alerts_with_its_name_and_the_command_that_finds_why(
    lab: Running, seen: Prometheus
) -> None:
    """Its records are not received, and its backends, which the client's calls meet, do not answer them."""
    until(lambda: quiet(seen), what="no alert before")
    with calling(lab):
        lab.cli("cut", "c1", "c2")
        try:
            away = fires(seen, "IsthmusPeerAway")
            assert {away["labels"]["target_cluster"], away["labels"]["cluster"]} == {"c1", "c2"}
            assert away["annotations"]["diagnose"] == "isthmus diagnose"
            failing = fires(seen, "IsthmusCallersFail")
            assert failing["labels"]["instance"] == "c1-n1"
            assert failing["annotations"]["diagnose"] == "isthmus get caller_failures -A"
        finally:
            lab.cli("heal")
        until(lambda: quiet(seen), what="all alerts clear")


def test_calls_that_fail_fire_an_alert_until_a_backend_answers(lab: Running, seen: Prometheus) -> None:
    until(lambda: quiet(seen), what="no alert before")
    names = lab.kubectl("-n", "demo", "get", "pods", "-l", "app=echo", "-o", "name").split()
    pods = [f"c1/pod/demo/{name.removeprefix('pod/')}" for name in names]
    with calling(lab):
        lab.cli("cut", "--loud", "c1", "c2")
        try:
            for pod in pods:
                lab.cli("pause", pod)
            failing = fires(seen, "IsthmusCallsFail")
            assert failing["labels"]["service"].startswith("demo/echo")
            assert failing["annotations"]["diagnose"] == "isthmus diagnose demo/echo"
        finally:
            for pod in pods:
                lab.cli("start", pod)
            lab.cli("heal")
        until(lambda: quiet(seen), what="all alerts clear")


@pytest.mark.parametrize(
    ("process", "alert"),
    [("c1/operator", "IsthmusNoLeader"), ("c1/etcd", "IsthmusPublishFails"), ("c1/apiserver", "IsthmusSourceAway")],
)
def test_a_process_that_is_killed_fires_its_alert_until_it_is_started(
    lab: Running, seen: Prometheus, process: str, alert: str
) -> None:
    until(lambda: quiet(seen), what="no alert before")
    lab.cli("kill", process)
    try:
        fires(seen, alert)
    finally:
        lab.cli("start", process)
    until(lambda: quiet(seen), what="all alerts clear")
