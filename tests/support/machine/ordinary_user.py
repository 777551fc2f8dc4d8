"""Commands of an ordinary user, run by tests that are root: an id that nobody has, no group, no capability."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

import pytest
from labs import without_user_namespaces
from labs.lab_running import PATIENCE

ROOT: Final = Path(__file__).resolve().parents[3]
FIRST: Final = 200_000
"""User ids from here on are no person's and no daemon's (Debian Policy 9.2.2), nor of /etc/subuid as it comes."""


class OrdinaryUser:
    """One for each process of a test run: what this user has is nobody else's.

    ``namespaces``: whether this user may make user namespaces, as on most machines.
    """

    def __init__(self, *, namespaces: bool = True) -> None:
        self._within: list[str] = []
        self.id = FIRST + os.getpid()
        self.directory = Path(f"/tmp/isthmus-{self.id}")
        """Everything of this user's labs."""
        self.packages = os.pathsep.join([str(ROOT / "src"), str(ROOT / "lab"), sysconfig.get_path("purelib")])
        """Where Python finds ours and what they need."""
        self.python = self._interpreter()
        if not namespaces:
            self._within = [self.python, str(Path(without_user_namespaces.__file__))]
        elif (refused := self.run(["unshare", "-Urnmpf", "true"])).returncode:
            pytest.skip(f"ordinary users have no user namespaces here: {refused.stderr.strip()}")

    def isthmus(self, *words: str, code: int | None = 0, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """``isthmus …``; fails the test where the exit code is another (None: any)."""
        done = self.run([self.python, "-m", "isthmus", *words], stdin=stdin)
        assert code is None or done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def processes(self, *, state: str = "") -> list[str]:
        """All that run, or are in a state, by their command lines; what has ended and waits for its parent is none."""
        found = []
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
                now = fields["State"][0]
                if fields["Uid"].split()[0] == str(self.id) and now != "Z" and now == (state or now):
                    found.append((status.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except (OSError, KeyError):
                continue
        return found

    def run(self, command: list[str], *, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """A command as this user, in the directory of the sources."""
        return subprocess.run(
            [*self._within, *command], user=self.id, group=self.id, extra_groups=[], cwd=ROOT, text=True,
            env=self._environment(), input=stdin, capture_output=True, timeout=PATIENCE, check=False,
        )  # fmt: skip

    def _interpreter(self) -> str:
        """One that this user may start and that has our packages: root's own may lie where nobody else looks."""
        mine = ".".join(map(str, sys.version_info[:2]))
        for name in (sys.executable, f"/usr/bin/python{mine}", shutil.which(f"python{mine}") or "python3"):
            try:
                if self.run([name, "-c", "import isthmus_lab.layout, msgspec, grpc"]).returncode == 0:
                    return name
            except OSError:
                continue
        pytest.skip(f"no Python {mine} here that an ordinary user may start on {ROOT}")

    def _environment(self) -> dict[str, str]:
        return {"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": self.packages, "PYTHONDONTWRITEBYTECODE": "1"}
