"""What a command starts ends with it: also daemons, also when the command is interrupted, late, or loses its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from labs.lab_running import until

CONTAINED = Path(__file__).resolve().parents[2] / "tools" / "contained.py"
DAEMON = "setsid sh -c 'echo $$ > {pid}; exec sleep 1000' & while ! [ -s {pid} ]; do :; done; "
"""Leaves its session; and its parent, a shell in the background, ends at once."""


class Daemon:
    """A process that a contained command leaves behind."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "pid"
        self.script = DAEMON.format(pid=self._file)

    @property
    def started(self) -> bool:
        return self._file.exists() and self._file.read_text() != ""

    @property
    def runs(self) -> bool:
        try:
            return " Z " not in Path(f"/proc/{int(self._file.read_text())}/stat").read_text()
        except FileNotFoundError:
            return False


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path)
    yield daemon
    if daemon.runs:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def contained(script: str, *options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(CONTAINED), *options, "sh", "-c", script])


@pytest.mark.parametrize(
    ("end", "options", "code"), [("exit 7", (), 7), ("kill -9 $$", (), 137), ("sleep 1000", ("--seconds", "1"), 124)]
)
def test_daemons_end_with_the_command_whose_exit_code_is_given(
    daemon: Daemon, end: str, options: tuple[str, ...], code: int
) -> None:
    with contained(daemon.script + end, *options) as command:
        assert command.wait(60) == code
    assert (daemon.started, daemon.runs) == (True, False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_daemons_end_when_the_command_is_interrupted(daemon: Daemon, number: int) -> None:
    with contained(daemon.script + "sleep 1000") as command:
        until(lambda: daemon.started)
        command.send_signal(number)
        assert command.wait(60) == 128 + number
    assert not daemon.runs


def test_daemons_end_when_the_parent_is_killed(daemon: Daemon) -> None:
    words = [sys.executable, str(CONTAINED), "sh", "-c", daemon.script + "sleep 1000"]
    parent = subprocess.Popen([sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])", *words])
    until(lambda: daemon.started)
    parent.kill()
    parent.wait(60)
    until(lambda: not daemon.runs)


def test_a_command_does_not_start_whose_parent_ended_before_it_looked(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as parent:
        pass
    started = tmp_path / "started"
    with contained(f"touch {started}; sleep 1000", "--parent", str(parent.pid)) as command:
        assert command.wait(60) == 128 + signal.SIGTERM
    assert not started.exists()
