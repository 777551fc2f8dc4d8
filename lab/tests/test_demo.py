"""The main job, end to end, as a user runs it; and that the host does not notice."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from labs.host_packets import Watched
from labs.lab_running import PATIENCE, assert_story_holds, lab_name
from labs.lab_traces import host_network, traces

from isthmus_lab import removal
from isthmus_lab.layout import Lab

pytestmark = pytest.mark.lab
LAB = Lab(lab_name("y"))
COMMAND = [sys.executable, "-m", "isthmus", "lab", "demo", "--json", "--lab", LAB.name]


class Report(NamedTuple):
    """The demo's report, and what was seen from outside."""

    code: int
    outcome: dict[str, Any]
    stderr: str
    watched: Watched
    network_before: dict[str, str]


@pytest.fixture(scope="module", autouse=True)
def nothing_left() -> Iterator[None]:
    """A story that is ended here, since it takes too long, takes no lab down: later tests would meet it."""
    yield
    removal.remove(LAB)


@pytest.fixture(scope="module")
def report(own_host: None) -> Report:
    before = host_network()
    with Watched() as watched:
        done = subprocess.run(COMMAND, capture_output=True, text=True, check=False, timeout=PATIENCE)
    return Report(done.returncode, json.loads(done.stdout), done.stderr, watched, before)


def test_every_step_holds_and_json_is_all_that_stands_on_stdout(report: Report) -> None:
    assert_story_holds(report.outcome, 9, report.stderr)
    assert report.code == 0


def test_no_packet_of_the_lab_appears_on_the_hosts_own_interfaces(report: Report) -> None:
    assert report.watched.found == []
    assert report.watched.seen > 0, "the API servers' loopback listeners were used, so something must have been seen"


def test_the_host_and_its_network_are_as_before(report: Report) -> None:
    assert host_network() == report.network_before
    assert traces(LAB) == {name: [] for name in traces(LAB)}


def test_the_watch_for_packets_would_notice_one() -> None:
    with Watched() as watched, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind(("127.0.0.1", 0))
        watched._judge("eth0", bytes([10, 1, 1, 2, 172, 30, 1, 2]))
        watched._judge("eth0", socket.inet_pton(socket.AF_INET6, "fd00:10:1:1::2") + bytes(16))
    assert watched.found == ["eth0: 10.1.1.2 → 172.30.1.2", "eth0: fd00:10:1:1::2 → ::"]


def test_without_its_manifests_the_story_is_one_line_and_exit_code_1() -> None:
    done = subprocess.run([*COMMAND, "--from", "/nowhere"], capture_output=True, text=True, check=False, timeout=100)

    assert done.returncode == 1
    assert json.loads(done.stdout)["steps"][0]["detail"] == "/nowhere: is no directory"
    assert "Traceback" not in done.stderr
