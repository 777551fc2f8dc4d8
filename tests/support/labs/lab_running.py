"""A lab under test, driven as people drive it.

A command runs in this process where it can: to start Python costs more than the command, and polling would keep a core
from the lab that is waited for. ``lab up`` and ``lab exec`` have processes of their own, as has every command in the
tests of the command line (tests/cli) and in those of a lab's end (test_lab_cleanup).
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from click.testing import CliRunner
from machine import programs

from isthmus.cli import root
from isthmus_lab import cgroups, lab_status, pod_exec, removal
from isthmus_lab.layout import Lab
from isthmus_lab.pod_exec import NoSuchPod

PATIENCE: Final = 240.0
"""Seconds after which a command that hangs is ended; pytest would end its test after 300."""


def lab_name(letter: str) -> str:
    """A name for a lab of this process; ``no_leftovers`` of lab/tests recognises those whose process is gone."""
    return f"t{os.getpid()}{letter}"


def assert_story_holds(outcome: dict[str, Any], steps: int, said: str) -> None:
    """Each of so many steps held. A failure begins with what did not: CI prints first lines of failures at its end."""
    broken = "; ".join(f"{step['name']}: {step['detail']}" for step in outcome["steps"] if not step["ok"])
    assert not broken, f"{' '.join(broken.split())}\n{said}"
    assert (outcome["ok"], len(outcome["steps"])) == (True, steps), said


class Running:
    """A lab of a test."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def cli(self, *words: str, code: int | None = 0, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """``isthmus lab …`` on it; fails the test where the exit code is another (None: any)."""
        verbs = 2 if words[0] == "image" else 1
        command = ["lab", *words[:verbs], "--lab", self.lab.name, *words[verbs:]]
        done = (in_own_process if words[0] in ("up", "exec", "demo") else invoked)(command, stdin=stdin)
        assert code is None or done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def status(self) -> dict[str, Any]:
        """What ``lab status -o json`` has."""
        return asyncio.run(lab_status.status(self.lab))

    def count_ready(self) -> int:
        """How many pods of one container run and are ready."""
        return [pod["state"] for pod in self.status()["pods"]].count("Running 1/1")

    def exec(self, pod: str, script: str, *, cluster: str = "c1", code: int | None = 0) -> str:
        """What a shell script in a pod prints, run as ``lab exec`` runs it."""
        where = self.lab.cluster(cluster)
        assert where is not None, cluster
        found, pipe = pod_exec.find(where, pod), subprocess.PIPE
        child = pod_exec.run(found, ["sh", "-c", script], stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
        stdout, stderr = (output.decode() for output in child.communicate(timeout=PATIENCE))
        assert code is None or child.returncode == code, f"{script}: {child.returncode}\n{stdout}{stderr}"
        return stdout

    def exec_fails(self, cluster: str, pod: str) -> str:
        """The error of ``lab exec`` where there is nothing to enter: one line."""
        output = self.cli("exec", cluster, pod, "--", "true", code=1).stderr
        assert output.count("\n") == 1, output
        return output

    def isthmus(self, *words: str, cluster: str = "c1") -> str:
        """What a command that looks at one of its clusters prints."""
        done = invoked([*words, "--lab", self.lab.name, "--cluster", cluster])
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def envoys(self, cluster: str = "c1") -> list[int]:
        """The Envoys of a cluster's first node, without what runs them."""
        where = self.lab.cluster(cluster)
        assert where is not None, cluster
        procs = cgroups.root() / self.lab.prefix / where.nodes[0].envoy_cgroup / "cgroup.procs"
        found = []
        for pid in procs.read_text().split():
            with suppress(FileNotFoundError):  # it has just ended
                if Path(f"/proc/{pid}/exe").readlink().name == "envoy":
                    found.append(int(pid))
        return found

    def kubectl_command(self, *, cluster: str = "c1") -> list[str]:
        """How kubectl begins for one of its clusters."""
        return [programs.path("kubectl"), "--kubeconfig", str(self.lab.kubeconfig), "--context", cluster]

    def kubectl(self, *words: str, stdin: str | None = None, cluster: str = "c1") -> str:
        """kubectl on one of its clusters."""
        command = [*self.kubectl_command(cluster=cluster), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, input=stdin, check=False)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout


@contextmanager
def running_islands(letter: str, count: int, folder: Path, *exporters: str) -> Iterator[Running]:
    """A lab of so many islands with an example's objects, which some of them export."""
    running = Running(Lab(lab_name(letter), count, 1, ("island",)))
    try:
        running.cli("up", "--clusters", str(count), "--network", "island", "--from", str(folder))
        for cluster in exporters:
            running.kubectl("apply", "-f", str(folder / "export"), cluster=cluster)
        yield running
    finally:
        removal.remove(running.lab)


def in_own_process(command: list[str], *, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """``isthmus …`` as a shell runs it."""
    python = [sys.executable, "-m", "isthmus"]
    return subprocess.run(
        [*python, *command], capture_output=True, text=True, timeout=PATIENCE, input=stdin, check=False
    )


def invoked(command: list[str], *, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """``isthmus …`` in this process; what it does not catch itself fails the test."""
    done = CliRunner(catch_exceptions=False).invoke(root, command, input=stdin, prog_name="isthmus")
    return subprocess.CompletedProcess(command, done.exit_code, done.stdout, done.stderr)


def until(holds: Callable[[], Any], *, seconds: float = 120.0, what: str = "") -> Any:
    """The first true value. The time is no claim: it ends a test that would hang, also on a busy machine.

    What is not there yet may show as a command that fails, as output that is no JSON or as a key that is missing.
    """
    deadline = time.monotonic() + seconds
    while True:
        began, why = time.monotonic(), None
        try:
            if value := holds():
                return value
        except (AssertionError, LookupError, ValueError, NoSuchPod) as not_yet:
            why = not_yet
        ended = time.monotonic()
        if ended >= deadline:
            raise AssertionError(f"not after {seconds:g} s: {what or holds}" + (f": {why!r}" if why else "")) from why
        time.sleep(max(0.05, ended - began))  # what is waited for gets half of the processor at least
