"""Groups of processes by cgroup namespaces: who is in one, and that a signal reaches all or is an error."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.host_user import VARIABLE
from isthmus_lab import cgroups, privileges

pytestmark = pytest.mark.lab


def _confine(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process takes itself for one in an ordinary user's namespaces."""
    monkeypatch.setattr(privileges, "CONFINED", True)
    monkeypatch.setenv(VARIABLE, "1000")


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    _confine(monkeypatch)
    yield tmp_path / "group"
    cgroups.end(tmp_path / "group")


@pytest.fixture
def member(group: Path) -> Iterator[subprocess.Popen[bytes]]:
    cgroups.make(group)
    with subprocess.Popen(["sleep", "60"], preexec_fn=lambda: cgroups.enter(group)) as started:
        yield started
        started.kill()


@pytest.mark.parametrize("target", ["/proc/self/ns/cgroup", "/nowhere"])
def test_a_link_is_no_mark_of_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """A dangling link would look like the namespace of a process that has ended.

    Looked at and never killed: if this fails, the members are all processes of the machine.
    """
    _confine(monkeypatch)
    (tmp_path / cgroups.MARK).symlink_to(target)
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert cgroups.processes(tmp_path) == []


def test_those_that_enter_a_group_are_in_it_and_end_with_it(group: Path, member: subprocess.Popen[bytes]) -> None:
    assert cgroups.processes(group) == [member.pid]
    cgroups.kill(group)
    assert member.wait() == -signal.SIGKILL


def test_a_group_that_starts_processes_faster_than_they_are_found_is_an_error(
    group: Path, member: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "PASSES", 1)  # one look finds the process, and none has found that there is no other
    with pytest.raises(cgroups.StillForking):
        cgroups.freeze(group, frozen=True)
