"""Groups of processes on kernels that lack what the lab uses where it can."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from isthmus_lab import cgroups, privileges


def test_a_group_is_killed_where_the_kernel_cannot_do_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Linux 5.14 a group has no cgroup.kill, and the kernel refuses to make a file there."""
    monkeypatch.setattr(privileges, "CONFINED", False)
    (tmp_path / "below").mkdir()
    processes = [subprocess.Popen(["sleep", "1000"]) for _ in range(2)]
    try:
        for process, group in zip(processes, (tmp_path, tmp_path / "below"), strict=True):
            (group / "cgroup.procs").write_text(f"{process.pid}\n")
        cgroups.kill(tmp_path)
        assert [process.wait(60) for process in processes] == [-signal.SIGKILL] * 2
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert not (tmp_path / "cgroup.kill").exists()


def test_a_group_that_has_gone_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privileges, "CONFINED", False)
    cgroups.kill(tmp_path / "gone")
