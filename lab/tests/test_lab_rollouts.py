"""A canary over two clusters by Argo Rollouts: what its plugin writes to a route, and where calls go by it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from labs.lab_running import PATIENCE, Running, lab_name, until
from labs.rollouts_plugin import LABEL, Plugin, Route

from isthmus_lab import pod_exec, removal
from isthmus_lab.demo.calls import Load, aelsewhere
from isthmus_lab.layout import Lab
from isthmus_lab.own_programs import IN_CONTAINER

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.needs("envoy", "kubectl")]

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
NAME: Final = "echo.demo.svc.clusterset.local"
CALLS: Final = 2_000
ELSEWHERE: Final = 0.01
"""Share of calls that may miss Envoy: a connect unanswered for 200 ms moves to the import's own backends."""
BY_CLUSTER: Final = """
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: clusters, namespace: demo}
spec:
  parentRefs: [{group: multicluster.x-k8s.io, kind: ServiceImport, name: echo}]
  rules:
    - backendRefs:
        - {group: isthmus.io, kind: Cluster, name: c2}
        - {group: isthmus.io, kind: Cluster, name: c1}
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Running]:
    """Clusters c1, where the Rollout is, and c2, which has the stable version. Both export echo."""
    running = Running(Lab(lab_name("c"), 2, 1))
    try:
        running.cli("up", "--clusters", "2", "--from", str(EXAMPLES / "echo"))
        for cluster in ("c1", "c2"):
            running.kubectl("apply", "-f", str(EXAMPLES / "echo" / "export"), cluster=cluster)
        yield running
    finally:
        removal.remove(running.lab)


@pytest.fixture
def rollout(lab: Running) -> Iterator[Plugin]:
    """The objects of the example, and the plugin of the Rollout that names them."""
    lab.kubectl("apply", "-f", str(EXAMPLES / "rollout" / "c2.yaml"), cluster="c2")
    lab.kubectl("apply", "-f", str(EXAMPLES / "rollout" / "c1.yaml"))
    yield Plugin(lab, "rollout", stable="echo-stable", canary="echo-canary", header_route="canary-header")
    lab.kubectl("delete", "httproute", "rollout", "-n", "demo")


@pytest.fixture
def clusters(lab: Running) -> Iterator[Plugin]:
    """A route whose backends are the clusters themselves, by names that a Rollout's Services can have as well."""
    lab.kubectl("apply", "-f", "-", stdin=BY_CLUSTER)
    yield Plugin(lab, "clusters", stable="c2", canary="c1")
    lab.kubectl("delete", "httproute", "clusters", "-n", "demo")


def load(lab: Running, calls: int) -> Load:
    """Calls of the import from c1, a connection each, all of which are answered."""
    words = (NAME, "80", "--http", "/", "--calls", str(calls), "--timeout", "30")
    pod = pod_exec.find(lab.lab.clusters[0], "demo/client")
    pipe = subprocess.PIPE
    child = pod_exec.run(pod, IN_CONTAINER.command("tcp_load.py", *words), stdin=pipe, stdout=pipe)
    output, _ = child.communicate(timeout=PATIENCE)
    result = msgspec.json.decode(output.splitlines()[-1], type=Load)
    assert (result.connects_failed, result.answers_failed) == (0, 0), result.first_failure
    return result


def shares(weight: int) -> dict[str, float]:
    return {name: part / 100 for name, part in (("c1", weight), ("c2", 100 - weight)) if part}


def assert_shared_out(lab: Running, weight: int) -> None:
    """Each cluster has its part of the calls, to what chance explains."""
    wanted = shares(weight)
    until(lambda: about(load(lab, 100), wanted), what=f"calls follow the weight {weight}")
    result = load(lab, CALLS)
    assert not (wrong := aelsewhere(result, wanted, elsewhere=ELSEWHERE)), f"{result}: {wrong}"


def about(result: Load, wanted: Mapping[str, float]) -> bool:
    return all(abs(result.by.get(name, 0) / result.calls - part) < 0.2 for name, part in wanted.items())


def conditions(route: Route) -> dict[str, str]:
    """Of the only parent in the status, if it is about this generation."""
    [parent] = route["status"]["parents"]
    assert {each["observedGeneration"] for each in parent["conditions"]} == {route["metadata"]["generation"]}
    return {each["type"]: each["status"] for each in parent["conditions"]}


def settled(plugin: Plugin) -> Route:
    """The route once its status is about its present generation."""
    accepted = {"Accepted": "True", "ResolvedRefs": "True"}
    found: Route = until(lambda: route if conditions(route := plugin.read()) == accepted else None, what="its status")
    return found


def without_status(route: Route) -> dict[str, Any]:
    """All that the plugin writes or reads again."""
    metadata = {
        key: value for key, value in route["metadata"].items() if key not in ("resourceVersion", "managedFields")
    }
    return {"metadata": metadata, "spec": route["spec"]}


@pytest.mark.parametrize("backends", ["rollout", "clusters"])
def test_calls_are_shared_out_by_the_weights_that_the_plugin_writes(
    backends: str, lab: Running, request: pytest.FixtureRequest
) -> None:
    """5, 50, the abort, 100, and the weight 0 of a Rollout that is fully promoted; backends are of any kind."""
    plugin: Plugin = request.getfixturevalue(backends)
    settled(plugin)
    for weight in (5, 50, 0, 100, 0):
        written = plugin.set_weight(weight)
        found = settled(plugin)
        assert without_status(found) == without_status(written)
        labels = {LABEL: "in-progress"} if weight else {}
        assert found["metadata"].get("labels", {}) == labels, "the plugin's own mark"
        assert_shared_out(lab, weight)


def test_the_plugin_and_the_operator_disturb_each_other_by_one_conflict_at_most(rollout: Plugin) -> None:
    """The operator writes the status once for a generation; the plugin repeats each weight in every reconciliation."""
    settled(rollout)
    written = rollout.set_weight(20)
    found = settled(rollout)
    rollout.set_weight(30, read=written)
    assert rollout.conflicts == 1, "the route had got its status since the plugin had read it"
    found = settled(rollout)
    for _ in range(3):
        again = rollout.set_weight(30)
        assert again["metadata"]["resourceVersion"] == found["metadata"]["resourceVersion"], "nobody wrote to it"
    assert (again["status"], rollout.conflicts) == (found["status"], 1)


def test_requests_with_the_header_of_a_managed_route_get_the_canary_until_it_is_removed(
    lab: Running, rollout: Plugin
) -> None:
    def answers() -> set[str]:
        script = f"for i in $(seq 20); do curl -sS --max-time 30 -H 'x-canary: yes' {NAME}; echo; done"
        return {json.loads(line)["cluster"] for line in lab.exec("demo/client", script).splitlines() if line}

    rollout.set_header_route("x-canary", "yes")
    rollout.set_weight(0)
    names = [rule.get("name") for rule in settled(rollout)["spec"]["rules"]]
    assert names == [None, "canary-header"]
    until(lambda: answers() == {"c1"}, what="by the header")
    assert_shared_out(lab, 0)
    rollout.remove_managed_routes()
    settled(rollout)
    until(lambda: answers() == {"c2"}, what="without the rule")


def test_a_weight_that_is_written_by_its_names_leaves_other_rules_as_they_are(rollout: Plugin) -> None:
    """Rules of one backend that is the canary count as the plugin's own; others keep what they have."""
    path = [{"path": {"type": "PathPrefix", "value": "/v2"}}]
    backend = {"group": "isthmus.io", "kind": "Cluster", "name": "c2", "weight": 7}
    rules = [*rollout.read()["spec"]["rules"], {"matches": path, "backendRefs": [backend]}]
    rollout.lab.kubectl(
        "patch", "httproute", "rollout", "-n", "demo", "--type=merge", "-p", json.dumps({"spec": {"rules": rules}})
    )
    rollout.set_weight(50)
    found = settled(rollout)["spec"]["rules"]
    assert [[each["weight"] for each in rule["backendRefs"]] for rule in found] == [[50, 50], [7]]
