"""A cluster, a node and a service are drained under load: no call fails, and none reaches what is drained."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from labs.lab_running import PATIENCE, Running, lab_name, until

from isthmus_lab import removal
from isthmus_lab.layout import Lab
from isthmus_lab.own_programs import IN_CONTAINER

pytestmark = [pytest.mark.lab, pytest.mark.slow]
EXAMPLES: Final = Path(__file__).parents[2] / "examples" / "echo"
NAME: Final = "echo.demo.svc.clusterset.local"
SETTLED: Final = 60
"""Calls of each caller that are looked at after a drain is in force."""
Caller = Callable[[], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    """c1 and c2 export demo/echo, with a pod on each of two nodes, and call it from the first, which ``reached`` asks.

    A pod gets the node with the fewest: the caller is placed before the others come.
    """
    lab = Running(Lab(lab_name("w"), 2, 2))
    try:
        lab.cli("up", "--clusters", "2", "--nodes", "2")
        for cluster in ("c1", "c2"):
            lab.kubectl("apply", "-f", str(EXAMPLES / "client.yaml"), cluster=cluster)
        until(lambda: lab.count_ready() == 2, what="both callers run")
        for cluster in ("c1", "c2"):
            lab.kubectl("apply", "-f", str(EXAMPLES / "c1" / "echo.yaml"), cluster=cluster)
            lab.kubectl("apply", "-f", str(EXAMPLES / "export"), cluster=cluster)
        until(lambda: all(reached(lab, cluster) == {"c1": 2, "c2": 2} for cluster in ("c1", "c2")), what="all reached")
        yield lab
    finally:
        removal.remove(lab.lab)


def completed(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


def reached(lab: Running, cluster: str) -> dict[str, int]:
    """Number of backends of each cluster in the plan of the import on the first node of a cluster."""
    command = [sys.executable, "-m", "isthmus", "get", "plans", "-n", "demo", "-o", "json", "--lab", lab.lab.name]
    done = completed([*command, "--cluster", cluster])
    rows = json.loads(done.stdout)["rows"] if done.returncode == 0 else ()
    if not rows:
        return {}
    [plan] = rows
    targets = [target["cluster"] for group in plan["groups"] for target in group["targets"]]
    return {name: targets.count(name) for name in sorted(set(targets))}


def run(lab: Running, *words: str, cluster: str) -> str:
    """A command of `isthmus` for an API server of the lab; what it prints."""
    server = ["--kubeconfig", str(lab.lab.kubeconfig), "--context", cluster]
    done = completed([sys.executable, "-m", "isthmus", *words, *server])
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@contextmanager
def calling(lab: Running) -> Iterator[Caller]:
    """Calls from both clusters all the time; gives what was called so far. None of them may fail, to the end."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as callers:
        files = [Path(folder, cluster) for cluster in ("c1", "c2")]
        for file in files:
            caller = IN_CONTAINER.command("caller.py", NAME, "80", "--count", "100000", "--timeout", "10")
            callers.enter_context(in_pod(lab, file.name, file, *caller, "--pause", "0.01"))

        def made() -> list[dict[str, Any]]:
            found = []
            for file in files:
                lines = file.read_text().split("\n")[:-1]
                found += [json.loads(line) | {"from": file.name} for line in lines if line.startswith("{")]
            return found

        until(lambda: len({each["from"] for each in made()}) == 2, what="calls")
        yield made
        assert [each for each in made() if not each["ok"]] == []


@contextmanager
def in_pod(lab: Running, cluster: str, output: Path, *program: str) -> Iterator[None]:
    """A program that runs in the pod demo/client of a cluster meanwhile; what it prints is in a file."""
    command = [sys.executable, "-m", "isthmus", "lab", "exec", "--lab", lab.lab.name, cluster, "demo/client", "--"]
    with output.open("w") as out:
        process = subprocess.Popen([*command, *program], stdout=out, start_new_session=True)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the program in the pod is of this group too
        process.wait()


def answered(call: dict[str, Any], field: str) -> str:
    return str(call["answer"][field])


def later(made: Caller) -> list[dict[str, Any]]:
    """Wait for calls that began after this, at least ``SETTLED`` of each caller, and return them."""
    before = {cluster: sum(call["from"] == cluster for call in made()) + 1 for cluster in ("c1", "c2")}

    def new() -> list[dict[str, Any]]:
        found = []
        for cluster, count in before.items():
            mine = [call for call in made() if call["from"] == cluster][count:]
            if len(mine) < SETTLED:
                return []
            found += mine
        return found

    return until(new, what="more calls")  # type: ignore[no-any-return]


def all_reach(lab: Running, **wanted: int) -> bool:
    return all(reached(lab, cluster) == wanted for cluster in ("c1", "c2"))


def test_a_cluster_that_drains_itself_is_called_from_nowhere_though_processes_restart_and_back(
    running: Running,
) -> None:
    with calling(running) as made:
        assert {answered(call, "cluster") for call in later(made)} == {"c1", "c2"}
        run(running, "clusters", "drain", "c2", cluster="c2")
        until(lambda: all_reach(running, c1=2), what="no plan has c2")
        before = later(made)[0]["at"]
        for words, shown in (
            (("explain", "demo/echo"), "cluster c2 is drained"),
            (("diagnose", "demo/echo"), "undrain: isthmus clusters undrain c2"),
        ):
            until(lambda w=words, s=shown: s in running.isthmus(*w, cluster="c1"), what=shown)  # type: ignore[misc]
        until(lambda: "drain: cluster c2 is drained" in status(running, "c1"), what="status has it")
        until(lambda: condition(running, "c2", "cluster-c2")["status"] == "True", what="its status")
        for process in ("c2/operator", "c1/agent", "c2/agent"):
            running.cli("kill", process)
            running.cli("start", process)
        until(lambda: all_reach(running, c1=2), what="agents are back")
        later(made)
        assert {answered(call, "cluster") for call in made() if call["at"] >= before} == {"c1"}
        run(running, "clusters", "undrain", "c2", cluster="c2")
        until(lambda: all_reach(running, c1=2, c2=2), what="c2 is back")
        assert {answered(call, "cluster") for call in later(made)} == {"c1", "c2"}


def status(lab: Running, cluster: str) -> str:
    command = [sys.executable, "-m", "isthmus", "status", "--lab", lab.lab.name, "--cluster", cluster]
    return completed(command).stdout


def condition(lab: Running, cluster: str, name: str) -> dict[str, str]:
    found = json.loads(lab.kubectl("-n", "kube-system", "get", "drain", name, "-o", "json", cluster=cluster))
    conditions: list[dict[str, str]] = found.get("status", {}).get("conditions", [{"status": "Unknown"}])
    return conditions[0]


def test_a_node_and_a_service_are_drained_and_called_on_where_that_leaves_nothing(running: Running) -> None:
    with calling(running) as made:
        run(running, "nodes", "drain", "c2-n1", cluster="c2")
        until(lambda: all_reach(running, c1=2, c2=1), what="one backend less")
        assert {answered(call, "node") for call in later(made)} == {"c1-n1", "c1-n2", "c2-n2"}
        run(running, "services", "drain", "demo/echo", cluster="c1")
        until(lambda: all_reach(running, c2=1), what="one backend left")
        assert {answered(call, "node") for call in later(made)} == {"c2-n2"}
        run(running, "services", "drain", "demo/echo", cluster="c2")
        until(lambda: all_reach(running, c1=2, c2=2), what="nothing else is left")
        assert {answered(call, "cluster") for call in later(made)} == {"c1", "c2"}
