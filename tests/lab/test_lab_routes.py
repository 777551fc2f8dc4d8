"""Routes in a lab: kubectl applies an HTTPRoute, pods' calls of the import are split by path, and back when it goes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from lab_running import PATIENCE, Running, lab_name, until

from isthmus_lab import cgroups, images, pod_exec, removal
from isthmus_lab.layout import Lab

pytestmark = [pytest.mark.lab, pytest.mark.needs("envoy")]

EXAMPLES = Path(__file__).parents[2] / "examples" / "echo"
NAME = "echo.demo.svc.clusterset.local"
NODE, POD = "172.30.1.11", "10.1.1.2"
"""The peer that a server sees: c1's node where Envoy called, the client itself where the kernel sent it."""
ROUTE: dict[str, Any] = {
    "apiVersion": "gateway.networking.k8s.io/v1",
    "kind": "HTTPRoute",
    "metadata": {"name": "split", "namespace": "demo"},
    "spec": {
        "parentRefs": [{"group": "multicluster.x-k8s.io", "kind": "ServiceImport", "name": "echo"}],
        "rules": [
            {"backendRefs": [{"group": "multicluster.x-k8s.io", "kind": "ServiceImport", "name": "echo", "port": 80}]},
            {"matches": [{"path": {"value": "/here"}}], "backendRefs": [{"name": "echo", "port": 80}]},
        ],
    },
}


@pytest.fixture(scope="module")
def lab() -> Iterator[Running]:
    running = Running(Lab(lab_name("r"), 2, 1))
    try:
        running.cli("up", "--clusters", "2", "--from", str(EXAMPLES))
        for cluster in ("c1", "c2"):
            running.kubectl("apply", "-f", str(EXAMPLES / "export"), cluster=cluster)
        until(lambda: answers(running, count=8).keys() == {("c1", POD), ("c2", POD)}, what="both clusters answer")
        yield running
    finally:
        removal.remove(running.lab)


@pytest.fixture
def routed(lab: Running) -> Iterator[Running]:
    """The lab while c1 has the route, and its Envoy follows it."""
    lab.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(ROUTE))
    until(lambda: answers(lab, "/here", count=4).keys() == {("c1", NODE)}, what="Envoy answers")
    yield lab
    lab.kubectl("delete", "httproute", "split", "-n", "demo", "--ignore-not-found")


def answers(lab: Running, path: str = "/", *, count: int) -> Counter[tuple[str, str]]:
    """Calls of c1's client one after the other: the clusters that answered, and the peers that the servers saw."""
    call = f"for i in $(seq {count}); do curl -sS --max-time 30 {NAME}{path}; echo; done"
    lines = lab.exec("demo/client", call, code=None).splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return Counter((each["cluster"], each["caller"]) for each in found)


def envoys(lab: Running) -> list[int]:
    """The Envoys of c1's node, without what runs them."""
    [node] = lab.lab.clusters[0].nodes
    pids = (cgroups.root() / lab.lab.prefix / node.envoy_cgroup / "cgroup.procs").read_text().split()
    found = []
    for pid in pids:
        with suppress(FileNotFoundError):  # it has just ended
            if Path(f"/proc/{pid}/exe").readlink().name == "envoy":
                found.append(int(pid))
    return found


def supervisor(lab: Running) -> int:
    """What runs them."""
    [pid] = [each["pid"] for each in lab.status()["programs"] if each["name"] == "c1/n1/envoy"]
    return int(pid)


def state(lab: Running, program: str) -> str:
    return next(str(each["state"]) for each in lab.status()["programs"] if each["name"] == program)


@contextmanager
def called(lab: Running) -> Iterator[dict[str, Any]]:
    """200 calls a second of a path that is routed, while the block runs; afterwards what became of them."""
    words = ["python3", "-I", "-S", str(images.PROGRAMS / "tcp_load.py"), NAME, "80", "--http", "/here"]
    pod = pod_exec.find(lab.lab.clusters[0], "demo/client")
    pipe = subprocess.PIPE
    child = pod_exec.run(pod, [*words, "--rate", "200", "--until-eof"], stdin=pipe, stdout=pipe)
    found: dict[str, Any] = {}
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"answered by c1\n"
        yield found
    finally:
        output, _ = child.communicate(timeout=PATIENCE)
        found.update(json.loads(output.splitlines()[-1]))


def test_calls_are_split_by_path_while_the_route_is_there_and_go_by_the_kernel_afterwards(lab: Running) -> None:
    assert envoys(lab) == [], "a node without routes runs no Envoy"
    lab.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(ROUTE))
    until(lambda: answers(lab, "/here", count=4).keys() == {("c1", NODE)}, what="Envoy answers")
    assert answers(lab, "/here/x", count=12) == {("c1", NODE): 12}
    assert answers(lab, "/elsewhere", count=20).keys() == {("c1", NODE), ("c2", NODE)}
    conditions = "jsonpath={.status.parents[0].conditions[*].status}"
    route = ("get", "httproute", "split", "-n", "demo", "-o", conditions)
    until(lambda: lab.kubectl(*route) == "True True", what="the route's status")
    assert "GET /here" in lab.isthmus("explain", "demo/echo", "--request", "GET /here")
    until(lambda: "(a proxy of this node)" in lab.isthmus("explain", "demo/echo"), what="it is explained")
    lab.kubectl("delete", "httproute", "split", "-n", "demo")
    until(lambda: answers(lab, "/here", count=8).keys() == {("c1", POD), ("c2", POD)}, what="by the kernel again")


@pytest.mark.failover
def test_an_envoy_that_is_killed_costs_calls_that_it_had_and_no_other(routed: Running) -> None:
    """What it refuses goes to the backends of the service by the kernel, which stand behind it in the plan.

    A process that was killed closes its sockets one after the other, in milliseconds, and the kernel accepts
    connections until it has closed the listener: a caller can lose the call that was being answered, and the next one.
    """
    with called(routed) as load:
        [before] = envoys(routed)
        os.kill(before, signal.SIGKILL)
        until(lambda: envoys(routed) not in ([], [before]), what="the next Envoy")
        until(lambda: answers(routed, "/here", count=8).keys() == {("c1", NODE)}, what="it serves")
    assert (load["connects_failed"], load["answers_failed"] <= 2) == (0, True), load


@pytest.mark.failover
def test_no_call_fails_while_envoy_is_replaced_and_its_agent_paused_killed_and_started(routed: Running) -> None:
    with called(routed) as load:
        for fault in (replaced, agent_paused, agent_killed):
            fault(routed)
            until(lambda: len(envoys(routed)) == 1, what="one Envoy is left")
            until(lambda: answers(routed, "/here", count=8).keys() == {("c1", NODE)}, what="Envoy serves")
    assert (load["connects_failed"], load["answers_failed"]) == (0, 0), load


@pytest.mark.failover
def test_without_agent_and_envoy_calls_go_by_the_kernel_and_no_connect_fails(routed: Running) -> None:
    with called(routed) as load:
        routed.cli("kill", "c1/n1/agent")
        routed.cli("kill", "c1/n1/envoy")
        until(lambda: answers(routed, count=8).keys() == {("c1", POD), ("c2", POD)}, what="by the kernel")
        routed.cli("start", "c1/n1/envoy")
        routed.cli("start", "c1/n1/agent")
        until(lambda: answers(routed, "/here", count=8).keys() == {("c1", NODE)}, what="Envoy serves")
    assert (load["connects_failed"], load["answers_failed"] <= 2) == (0, True), load


def replaced(lab: Running) -> None:
    [before] = envoys(lab)
    os.kill(supervisor(lab), signal.SIGHUP)
    until(lambda: before not in envoys(lab), what="the first has ended")


def agent_paused(lab: Running) -> None:
    """The discovery service answers nothing for longer than Envoy's keepalive."""
    lab.cli("pause", "c1/n1/agent")
    time.sleep(12)
    lab.cli("start", "c1/n1/agent")


def agent_killed(lab: Running) -> None:
    lab.cli("kill", "c1/n1/agent")
    time.sleep(2)
    lab.cli("start", "c1/n1/agent")
    until(lambda: state(lab, "c1/n1/agent") == "ready", what="the agent is back")
