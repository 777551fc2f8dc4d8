"""Consistent hashing and affinity over two islands, from two nodes: each caller has the island that any node would say.

Two nodes of real agents, kernels' maps and Envoys; the islands' ranges of pods are the same as the callers'.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from labs.lab_running import Running, invoked, lab_name, until

from isthmus.datapath.core import shapes
from isthmus.datapath.services import codecs, rings
from isthmus.loadbalancer import maglev
from isthmus.model.balancing import Target
from isthmus.model.names import ClusterName
from isthmus_lab import removal
from isthmus_lab.layout import Lab, Node
from isthmus_lab.supervisor.configs import socket_of

ECHO = Path(__file__).parents[2] / "examples" / "echo"
NAME = "echo.demo.svc.clusterset.local"
CALLERS = 4
"""On each node."""
CALLS = 20

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.needs("envoy")]


@pytest.fixture(scope="module")
def islands() -> Iterator[Running]:
    """c1 and c2 export echo; c3 has two nodes with callers, and a policy that hashes them."""
    running = Running(Lab(lab_name("h"), 3, 2, ("island",)))
    try:
        running.cli("up", "--clusters", "3", "--nodes", "2", "--network", "island", "--from", str(ECHO))
        for cluster in ("c1", "c2"):
            running.kubectl("apply", "-f", str(ECHO / "export"), cluster=cluster)
        put_callers(running, range(CALLERS))
        put_policy(running, loadBalancing="ConsistentHash")
        yield running
    finally:
        removal.remove(running.lab)


def put_callers(running: Running, numbers: Iterable[int]) -> None:
    """On each node."""
    pods = [caller(node, number) for node in (1, 2) for number in numbers]
    body = {"apiVersion": "v1", "kind": "List", "items": pods}
    running.kubectl("apply", "-f", "-", stdin=json.dumps(body), cluster="c3")


def caller(node: int, number: int) -> dict[str, Any]:
    container = {"name": "client", "image": "isthmus/client"}
    spec = {"nodeName": f"c3-n{node}", "terminationGracePeriodSeconds": 1, "containers": [container]}
    metadata = {"name": f"caller-{node}-{number}", "namespace": "demo"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def put_policy(running: Running, **fields: str) -> None:
    spec = {"targetRef": {"kind": "ServiceImport", "name": "echo"}, **fields}
    metadata = {"name": "echo", "namespace": "demo"}
    body = {"apiVersion": "isthmus.io/v1alpha1", "kind": "TrafficPolicy", "metadata": metadata, "spec": spec}
    running.kubectl("apply", "-f", "-", stdin=json.dumps(body), cluster="c3")


def callers(islands: Running) -> dict[str, str]:
    """Address by name, once all have one."""
    words = ("-n", "demo", "get", "pods", "-o", "json")
    items = json.loads(islands.kubectl(*words, cluster="c3"))["items"]
    names = {each["metadata"]["name"]: each["status"].get("podIP", "") for each in items}
    found = {name: ip for name, ip in names.items() if name.startswith("caller")}
    assert all(found.values())
    return found


def targets(node: Node) -> list[Target]:
    """Targets in a node's plan of echo."""
    done = invoked(["get", "plans", "-n", "demo", "-o", "json", "--socket", str(socket_of(node, "agent"))])
    [plan] = [each for each in json.loads(done.stdout)["rows"] if each["groups"]]
    found = [each for group in plan["groups"] for each in group["targets"]]
    assert plan["consistent"]
    return sorted(Target(each["address"], each["port"], "TCP", ClusterName(each["cluster"])) for each in found)


def answers(islands: Running, pod: str, calls: int) -> list[tuple[str, str]]:
    """(island, pod) that answers each of a caller's calls."""
    each = f"for i in $(seq {calls}); do curl -sm30 http://{NAME}; echo; done"
    output = islands.exec(f"demo/{pod}", each, cluster="c3").splitlines()
    found = [json.loads(line) for line in output if line.startswith("{")]
    return [(answer["cluster"], answer["pod"]) for answer in found]


def called(islands: Running, pod: str, calls: int) -> list[str]:
    return [island for island, _ in answers(islands, pod, calls)]


def test_each_caller_has_the_island_that_every_node_would_say(islands: Running) -> None:
    nodes = islands.lab.clusters[2].nodes
    until(lambda: [{each.cluster for each in targets(node)} for node in nodes] == [{"c1", "c2"}] * 2, what="both")
    [one, two] = [targets(node) for node in nodes]
    assert one == two, "on both nodes Envoy listens at one address and port for an island"
    ring = maglev.table(one, size=codecs.RING_CELLS)
    wanted: dict[str, str] = {}
    for more in range(CALLERS, 4 * CALLERS):
        found = until(lambda: callers(islands), what="the callers run")
        wanted = {pod: one[ring[rings.cell(shapes.address(ip))]].cluster for pod, ip in found.items()}
        if len({*wanted.values()}) == 2:
            break
        put_callers(islands, [more])  # their addresses decide, and may all be of one island
    assert {*wanted.values()} == {"c1", "c2"}, "both are called"
    for pod, island in wanted.items():
        until(lambda pod=pod, island=island: called(islands, pod, 1) == [island], what=f"{pod} calls {island}")  # type: ignore[misc]
        assert called(islands, pod, CALLS) == [island] * CALLS


def test_with_affinity_a_caller_stays_with_the_island_and_pod_it_has(islands: Running) -> None:
    for cluster in ("c1", "c2"):
        body = json.dumps({"spec": {"sessionAffinity": "ClientIP"}})
        islands.kubectl("-n", "demo", "patch", "service", "echo", "--type=merge", "-p", body, cluster=cluster)
    put_policy(islands, sessionAffinity="ClientIP")
    for pod in until(lambda: callers(islands), what="the callers run"):
        until(lambda pod=pod: len({*answers(islands, pod, CALLS)}) == 1, what=f"{pod} has one pod")  # type: ignore[misc]
        [first] = answers(islands, pod, 1)
        assert answers(islands, pod, CALLS) == [first] * CALLS
