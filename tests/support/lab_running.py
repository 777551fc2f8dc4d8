"""A lab under test, driven as people drive it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import programs

from isthmus_lab.layout import Lab


def lab_name(letter: str) -> str:
    """A name for a lab of this process; ``no_leftovers`` of tests/lab recognises those whose process is gone."""
    return f"t{os.getpid()}{letter}"


class Running:
    """A lab of a test."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def cli(self, *words: str, code: int | None = 0, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """``isthmus lab …`` on it; fails the test where the exit code is another (None: any)."""
        verbs = 2 if words[0] == "image" else 1
        command = [sys.executable, "-m", "isthmus", "lab", *words[:verbs], "--lab", self.lab.name, *words[verbs:]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, input=stdin, check=False)
        assert code is None or done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def exec(self, pod: str, script: str, *, cluster: str = "c1", code: int | None = 0) -> str:
        """What a shell script in a pod prints."""
        return self.cli("exec", cluster, pod, "--", "sh", "-c", script, code=code).stdout

    def exec_fails(self, cluster: str, pod: str) -> str:
        """The error of ``lab exec`` where there is nothing to enter: one line."""
        output = self.cli("exec", cluster, pod, "--", "true", code=1).stderr
        assert output.count("\n") == 1, output
        return output

    def isthmus(self, *words: str, cluster: str = "c1") -> str:
        """What a command that looks at one of its clusters prints."""
        command = [sys.executable, "-m", "isthmus", *words, "--lab", self.lab.name, "--cluster", cluster]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def kubectl_command(self, *, cluster: str = "c1") -> list[str]:
        """How kubectl begins for one of its clusters."""
        return [programs.path("kubectl"), "--kubeconfig", str(self.lab.kubeconfig), "--context", cluster]

    def kubectl(self, *words: str, stdin: str | None = None, cluster: str = "c1") -> str:
        """kubectl on one of its clusters."""
        command = [*self.kubectl_command(cluster=cluster), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, input=stdin, check=False)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout


def until(holds: Callable[[], Any], *, seconds: float = 60.0, what: str = "") -> Any:
    """The first true value. The time is no claim: it ends a test that would hang, also on a busy machine."""
    deadline = time.monotonic() + seconds
    while not (value := holds()):
        assert time.monotonic() < deadline, f"not after {seconds:g} s: {what or holds}"
        time.sleep(0.05)
    return value
