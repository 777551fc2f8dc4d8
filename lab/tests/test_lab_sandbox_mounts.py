"""Containers see file systems that are mounted below the host's root, and cannot change them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine.ordinary_user import OrdinaryUser

pytestmark = pytest.mark.lab

MOUNTS = """
set -e
mount -t tmpfs -o mode=0755 tmpfs /srv
mkdir '/srv/mounted below'
mount -t tmpfs -o mode=1777 tmpfs '/srv/mounted below'
echo old > '/srv/mounted below/file'
chmod 666 '/srv/mounted below/file'
"""
CONTAINER = textwrap.dedent("""
    import sys
    from pathlib import Path
    from isthmus_lab.node.sandbox import Sandbox

    Sandbox(Path(sys.argv[1]), "container", files=(("/etc/mine", "mine"),)).enter()
    file = Path("/srv/mounted below/file")
    print(file.read_text().strip(), Path("/etc/mine").read_text())
    for change in (lambda: file.write_text("new"), file.unlink, file.with_name("made").touch):
        try:
            change()
            print("changed")
        except OSError as why:
            print(why.strerror)
""")
SEEN = ["old mine", *["Read-only file system"] * 3, "old", "file"]


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory that any user may mount on."""
    path = Path(f"/tmp/isthmus-test-{OrdinaryUser().id}")
    path.mkdir()
    path.chmod(0o777)
    yield path
    path.rmdir()


def seen(*command: str) -> list[str]:
    """Start a container by the command beside such mounts; return what it prints, then what the mounts contain."""
    after = "cat '/srv/mounted below/file'; ls '/srv/mounted below'"
    script = f'{MOUNTS}"$@"; {after}'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", *command], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_containers_of_root_see_what_is_mounted_below_the_root_and_do_not_change_it(scratch: Path) -> None:
    assert seen("unshare", "-pf", sys.executable, "-c", CONTAINER, str(scratch)) == SEEN


def test_containers_of_others_change_nothing_that_is_mounted_below_a_directory(scratch: Path) -> None:
    user = OrdinaryUser()
    ids = [f"--re{kind}={user.id}" for kind in ("uid", "gid")]
    own = ["unshare", "-Urnmpf", "--mount-proc", "env", f"_ISTHMUS_HOST_USER={user.id}", f"PYTHONPATH={user.packages}"]
    assert seen("setpriv", *ids, "--clear-groups", *own, user.python, "-c", CONTAINER, str(scratch)) == SEEN
