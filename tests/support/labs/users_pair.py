"""A lab of an ordinary user: two clusters, each with two pods of a Service that both export."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Final

from labs.lab_running import assert_story_holds
from labs.lab_traces import host_network
from machine import programs
from machine.ordinary_user import OrdinaryUser

ECHO: Final = Path("examples/echo")
NAME: Final = "pair"
CLUSTER: Final = ("--lab", NAME, "--cluster", "c1")
IMPORT: Final = "echo.demo.svc.clusterset.local"


class UsersPair:
    """The lab, from the start of it."""

    def __init__(self, user: OrdinaryUser) -> None:
        self.user = user
        self.up = user.isthmus("lab", "up", "--lab", NAME, "--clusters", "2", "--from", str(ECHO))
        self.kubeconfig = user.isthmus("lab", "kubeconfig", "--lab", NAME).stdout.strip()
        for cluster in ("c1", "c2"):
            self.kubectl(cluster, "apply", "-f", str(ECHO / "export"))

    def kubectl(self, cluster: str, *words: str, stdin: str | None = None) -> str:
        """What kubectl prints, which runs outside of the lab's namespaces."""
        command = [programs.path("kubectl"), "--kubeconfig", self.kubeconfig, "--context", cluster, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, input=stdin, check=False)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def run(self, *command: str, cluster: str = "c1", code: int | None = 0) -> str:
        """What a command prints in the client's pod."""
        words = ("lab", "exec", "--lab", NAME, cluster, "demo/client", "--", *command)
        return self.user.isthmus(*words, code=code).stdout


def demo_of(user: OrdinaryUser) -> str:
    """The main job as this user: every step holds, and nothing of it is left. What it says on stderr."""
    before = host_network()
    done = user.isthmus("lab", "demo", "--json", code=None)
    assert_story_holds(json.loads(done.stdout), 9, done.stderr)
    assert done.returncode == 0
    assert (user.processes(), user.directory.exists(), host_network()) == ([], False, before)
    return done.stderr
