"""Routes in a lab: kubectl applies an HTTPRoute, pods' calls of the import are split by path until it is deleted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from labs.lab_running import PATIENCE, Running, invoked, lab_name, until

from isthmus_lab import pod_exec, removal
from isthmus_lab.layout import Lab
from isthmus_lab.own_programs import IN_CONTAINER

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.needs("envoy")]

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


def supervisor(lab: Running) -> int:
    """Process id of `isthmus envoy` on c1's first node, which runs the Envoys."""
    [pid] = [each["pid"] for each in lab.status()["programs"] if each["name"] == "c1/n1/envoy"]
    return int(pid)


def state(lab: Running, program: str) -> str:
    return next(str(each["state"]) for each in lab.status()["programs"] if each["name"] == program)


@contextmanager
def called(lab: Running, *more: str) -> Iterator[dict[str, Any]]:
    """200 calls a second of a path that is routed, while the block runs; afterwards what became of them.

    ``more``: options of the program that calls.
    """
    words = IN_CONTAINER.command("tcp_load.py", NAME, "80", "--http", "/here")
    pod = pod_exec.find(lab.lab.clusters[0], "demo/client")
    pipe = subprocess.PIPE
    child = pod_exec.run(pod, [*words, "--rate", "200", "--until-eof", *more], stdin=pipe, stdout=pipe)
    found: dict[str, Any] = {}
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"answered by c1\n"
        yield found
    finally:
        output, _ = child.communicate(timeout=PATIENCE)
        found.update(json.loads(output.splitlines()[-1]))


def test_a_tcp_route_is_followed_by_the_kernel_until_it_is_deleted(lab: Running) -> None:
    """Servers see the pod, where Envoy is not on the way."""
    imported = {"group": "multicluster.x-k8s.io", "kind": "ServiceImport", "name": "echo"}
    route = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "TCPRoute",
        "metadata": {"name": "here", "namespace": "demo"},
        "spec": {"parentRefs": [imported], "rules": [{"backendRefs": [{"name": "echo", "port": 80}]}]},
    }
    lab.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(route))
    until(lambda: answers(lab, count=8).keys() == {("c1", POD)}, what="the route's Service alone answers")
    conditions = "{.status.parents[0].conditions[*].type} {.status.parents[0].conditions[*].status}"
    ask = ("get", "tcproute", "here", "-n", "demo", "-o", f"jsonpath={conditions}")
    until(lambda: lab.kubectl(*ask) == "Accepted ResolvedRefs True True", what="its status")
    lab.kubectl("delete", "tcproute", "here", "-n", "demo")
    until(lambda: answers(lab, count=8).keys() == {("c1", POD), ("c2", POD)}, what="both clusters answer again")


def test_calls_are_split_by_path_while_the_route_is_there_and_go_by_the_kernel_afterwards(lab: Running) -> None:
    assert lab.envoys() == [], "a node without routes runs no Envoy"
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


def test_while_an_envoy_hangs_calls_go_to_the_services_own_backends_and_it_is_named(routed: Running) -> None:
    """A stopped process still has its listeners: the kernel accepts calls for it that get no answer."""
    [envoy] = routed.envoys()
    with called(routed, "--timeout", "2") as load:
        os.kill(envoy, signal.SIGSTOP)
        try:
            until(lambda: answers(routed, "/here", count=8).keys() == {("c1", POD), ("c2", POD)}, what="by the kernel")
            for words in (["status"], ["diagnose", "demo/echo"], ["diagnose"]):
                done = invoked([*words, "--lab", routed.lab.name, "--cluster", "c1"])
                assert (done.returncode, "does not answer" in done.stdout) == (1, True), done.stdout
            time.sleep(10)  # calls that would hang
        finally:
            os.kill(envoy, signal.SIGCONT)
        until(lambda: answers(routed, "/here", count=8).keys() == {("c1", NODE)}, what="Envoy serves again")
    assert routed.envoys() == [envoy]
    assert (load["connects_failed"], load["answers_failed"] <= 2) == (0, True), load


TENANT: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "List",
    "items": [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tenant"}},
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "client", "namespace": "tenant"},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "client", "image": "isthmus/client"}],
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "raw", "namespace": "demo"},
            "spec": {
                "selector": {"app": "echo"},
                "ports": [
                    {"name": "tcp", "port": 9000, "targetPort": 8080},
                    {"name": "http", "port": 80, "targetPort": 8080},
                ],
            },
        },
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute",
            "metadata": {"name": "all", "namespace": "tenant"},
            "spec": {
                "parentRefs": [
                    {"group": "", "kind": "Service", "name": "raw", "namespace": "demo"},
                    {"group": "", "kind": "Service", "name": "kubernetes", "namespace": "default"},
                    {"group": "", "kind": "Service", "name": "kube-dns", "namespace": "kube-system"},
                ],
                "rules": [
                    {
                        "matches": [{"path": {"value": "/mine"}}],
                        "backendRefs": [{"name": "raw", "namespace": "demo", "port": 80}],
                    }
                ],
            },
        },
    ],
}
"""Objects that a tenant may write: its own namespace, and a route for Services of others."""


def test_a_route_for_other_namespaces_services_changes_nothing_for_their_own_callers(lab: Running) -> None:
    def status(namespace: str, path: str, port: int = 80) -> str:
        url = f"http://raw.demo.svc.cluster.local:{port}{path}"
        return lab.exec(f"{namespace}/client", f"curl -s -m 30 -o /dev/null -w '%{{http_code}}' {url}", code=None)

    def handshake(namespace: str) -> str:
        """Exit code of curl at the API server, whose certificate it does not trust: 60 if one was presented."""
        code = lab.exec(f"{namespace}/client", "curl -s -m 30 https://10.96.0.1/; echo $?", code=None)
        return code.splitlines()[-1]

    def raw(namespace: str) -> str:
        """The protocol that the server saw of bytes that are no HTTP, at a port that is declared as HTTP."""
        sent = "import socket; s = socket.create_connection(('raw.demo.svc.cluster.local', 80), 30); "
        sent += "s.sendall(b'\\x00\\x01\\r\\n\\r\\n'); print(s.recv(1000).decode())"
        return str(json.loads(lab.exec(f"{namespace}/client", f'python3 -c "{sent}"'))["protocol"])

    lab.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(TENANT))
    until(lambda: status("tenant", "/other") == "404", what="the tenant's calls follow its route")
    assert status("tenant", "/mine") == "200"
    assert [status("demo", path) for path in ("/mine", "/other")] == ["200", "200"]
    assert [status(namespace, "/other", 9000) for namespace in ("tenant", "demo")] == ["200", "200"]
    assert [handshake(namespace) for namespace in ("tenant", "demo")] == ["60", "60"]
    assert [raw(namespace) for namespace in ("tenant", "demo")] == ["TCP", "TCP"]
    reasons = "jsonpath={.status.parents[*].conditions[0].reason}"
    route = ("get", "httproute", "all", "-n", "tenant", "-o", reasons)
    until(lambda: lab.kubectl(*route) == "Accepted NotAllowedByParent NotAllowedByParent", what="the route's status")
    lab.kubectl("delete", "httproute", "all", "-n", "tenant")
    until(lambda: status("tenant", "/other") == "200", what="without the route")


@pytest.mark.failover
def test_an_envoy_that_is_killed_costs_calls_that_it_had_and_no_other(routed: Running) -> None:
    """The kernel moves calls that the Envoy refuses to the service's backends, which follow it in the plan.

    A process that was killed closes its sockets one after the other, in milliseconds, and the kernel accepts
    connections until it has closed the listener: a caller can lose the call that was being answered, and the next one.
    """
    with called(routed) as load:
        [before] = routed.envoys()
        os.kill(before, signal.SIGKILL)
        until(lambda: routed.envoys() not in ([], [before]), what="the next Envoy")
        until(lambda: answers(routed, "/here", count=8).keys() == {("c1", NODE)}, what="it serves")
    assert (load["connects_failed"], load["answers_failed"] <= 2) == (0, True), load


@pytest.mark.failover
def test_no_call_fails_while_envoy_is_replaced_and_its_agent_paused_killed_and_started(routed: Running) -> None:
    with called(routed) as load:
        for fault in (replaced, agent_paused, agent_killed):
            fault(routed)
            until(lambda: len(routed.envoys()) == 1, what="one Envoy is left")
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
    [before] = lab.envoys()
    os.kill(supervisor(lab), signal.SIGHUP)
    until(lambda: before not in lab.envoys(), what="the first has ended")


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
