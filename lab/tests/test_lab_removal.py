"""A lab that cannot be removed: the mount or the process that keeps it is named, and nothing mounted is deleted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from isthmus_lab import removal

pytestmark = pytest.mark.needs("unshare")

REMOVE = """
import sys
from pathlib import Path
from isthmus_lab import removal

lab = Path(sys.argv[1])
try:
    removal._unmount(lab)
    removal._delete(lab)
except removal.StillThere as why:
    print(why)
"""


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    (tmp_path / "lab" / "c1").mkdir(parents=True)
    return tmp_path / "lab"


def inside(lab: Path, mounts: str, *within: str) -> str:
    """Remove a lab in a mount namespace of its own, after some mounts, and return what is printed."""
    remove = (*within, sys.executable, "-c", REMOVE, str(lab))
    script = f'set -e; lab=$1; shift; {mounts}; "$@"; find "$lab" -name kept'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", str(lab), *remove],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(os.getuid() != 0, reason="mounts, which is for root")
def test_a_mount_that_stays_is_named_and_its_files_are_not_deleted(lab: Path) -> None:
    data = lab / "c1" / "data"
    mounts = f"mkdir {data}; mount -t tmpfs tmpfs {data}; touch {data}/kept"
    printed = inside(lab, mounts, "unshare", "-Urm")  # in which a mount from outside is locked

    assert printed.splitlines() == [f"{data} stays mounted: Invalid argument", f"{data}/kept"]


@pytest.mark.skipif(os.getuid() != 0, reason="mounts, which is for root")
def test_a_read_only_file_system_is_named_by_where_it_is_mounted(lab: Path) -> None:
    printed = inside(lab, f"mount --bind {lab.parent} {lab.parent}; mount -o remount,bind,ro {lab.parent}")
    assert printed.strip().endswith(f": Read-only file system, in the file system mounted at {lab.parent}")


def test_a_process_that_uses_the_directory_is_named(lab: Path) -> None:
    with subprocess.Popen(["sleep", "60"], cwd=lab / "c1") as user:
        found = removal._users(lab)
        user.kill()
    assert found == f"; used by {user.pid} (sleep)"


def test_a_lab_that_nothing_keeps_is_removed_and_one_that_is_not_there_is_no_error(lab: Path) -> None:
    removal._delete(lab)
    assert not lab.exists()
    removal._delete(lab)
