"""A cluster is drained under load: no call fails, and none goes there."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from lab_running import Running, lab_name, until

from isthmus_lab import images, removal
from isthmus_lab.layout import Lab

pytestmark = pytest.mark.lab
EXAMPLES: Final = Path(__file__).parents[2] / "examples" / "echo"
NAME: Final = "echo.demo.svc.clusterset.local"
SETTLED: Final = 60
"""Calls of each caller that are looked at after a drain is in force."""
Caller = Callable[[], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    """c1 and c2 export demo/echo, with a pod on each of two nodes, and call it."""
    lab = Running(Lab(lab_name("w"), 2, 2))
    try:
        lab.cli("up", "--clusters", "2", "--nodes", "2", "--from", str(EXAMPLES))
        lab.kubectl("apply", "-f", str(EXAMPLES / "c1" / "echo.yaml"), cluster="c2")
        for cluster in ("c1", "c2"):
            lab.kubectl("apply", "-f", str(EXAMPLES / "export"), cluster=cluster)
        until(lambda: all(reached(lab, cluster) == {"c1": 2, "c2": 2} for cluster in ("c1", "c2")), what="all reached")
        yield lab
    finally:
        removal.remove(lab.lab)


def reached(lab: Running, cluster: str) -> dict[str, int]:
    """How many backends of each cluster the plan of the import has, as the first node of a cluster has it."""
    command = [sys.executable, "-m", "isthmus", "get", "plans", "-n", "demo", "-o", "json", "--lab", lab.lab.name]
    done = subprocess.run([*command, "--cluster", cluster], capture_output=True, text=True, timeout=60, check=False)
    rows = json.loads(done.stdout)["rows"] if done.returncode == 0 else ()
    if not rows:
        return {}
    [plan] = rows
    targets = [target["cluster"] for group in plan["groups"] for target in group["targets"]]
    return {name: targets.count(name) for name in sorted(set(targets))}


def run(lab: Running, *words: str, cluster: str) -> str:
    """A command of `isthmus` for an API server of the lab; what it prints."""
    server = ["--kubeconfig", str(lab.lab.kubeconfig), "--context", cluster]
    done = subprocess.run(
        [sys.executable, "-m", "isthmus", *words, *server], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@contextmanager
def calling(lab: Running) -> Iterator[Caller]:
    """Calls from both clusters all the time; gives what was called so far. None of them may fail, to the end."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, cluster) for cluster in ("c1", "c2")]
        processes = []
        for file in files:
            caller = ["python3", "-I", "-S", str(images.PROGRAMS / "caller.py"), NAME, "80", "--count", "100000"]
            command = [sys.executable, "-m", "isthmus", "lab", "exec", "--lab", lab.lab.name, file.name, "demo/client"]
            with file.open("w") as out:
                processes.append(subprocess.Popen([*command, "--", *caller, "--pause", "0.01"], stdout=out))

        def made() -> list[dict[str, Any]]:
            found = []
            for file in files:
                lines = file.read_text().split("\n")[:-1]
                found += [json.loads(line) | {"from": file.name} for line in lines if line.startswith("{")]
            return found

        try:
            until(lambda: len({each["from"] for each in made()}) == 2, what="calls")
            yield made
            assert [each for each in made() if not each["ok"]] == []
        finally:
            for process in processes:
                process.terminate()
                process.wait()


def answered(call: dict[str, Any], field: str) -> str:
    return str(call["answer"][field])


def later(made: Caller) -> list[dict[str, Any]]:
    """Calls that were begun after this: so many of each caller."""
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


def test_a_cluster_that_drains_itself_is_called_from_nowhere_and_back(running: Running) -> None:
    with calling(running) as made:
        assert {answered(call, "cluster") for call in later(made)} == {"c1", "c2"}
        run(running, "clusters", "drain", "c2", cluster="c2")
        until(lambda: all_reach(running, c1=2), what="no plan has c2")
        assert {answered(call, "cluster") for call in later(made)} == {"c1"}
        assert "cluster c2 is drained" in running.isthmus("explain", "demo/echo", cluster="c1")
        assert "drain: cluster c2 is drained" in status(running, "c1")
        drained = until(lambda: condition(running, "c2", "cluster-c2")["status"] == "True", what="its status")
        assert drained
        run(running, "clusters", "undrain", "c2", cluster="c2")
        until(lambda: all_reach(running, c1=2, c2=2), what="c2 is back")
        assert {answered(call, "cluster") for call in later(made)} == {"c1", "c2"}


def status(lab: Running, cluster: str) -> str:
    command = [sys.executable, "-m", "isthmus", "status", "--lab", lab.lab.name, "--cluster", cluster]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout


def condition(lab: Running, cluster: str, name: str) -> dict[str, str]:
    found = json.loads(lab.kubectl("-n", "kube-system", "get", "drain", name, "-o", "json", cluster=cluster))
    conditions: list[dict[str, str]] = found.get("status", {}).get("conditions", [{"status": "Unknown"}])
    return conditions[0]
