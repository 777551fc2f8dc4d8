"""A member of Karmada: calls of a native Service's name go through the kernel to every provider, dead ones included.

What Karmada's controllers write is applied by hand, as recorded of 1.18 (``tests/data/karmada``): the Service that a
MultiClusterService claims, and the provider's slices, which stay when the provider dies.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from labs.lab_running import Running, invoked, lab_name, until

from isthmus_lab import removal
from isthmus_lab.layout import Lab
from isthmus_lab.own_programs import IN_CONTAINER

pytestmark = [pytest.mark.lab, pytest.mark.slow]
EXAMPLES = Path(__file__).parents[2] / "examples" / "echo"
NAME = "echo.demo.svc.cluster.local"
CALLS = 60
CLAIM = ("multiclusterservice.karmada.io/name=echo", "multiclusterservice.karmada.io/namespace=demo")


@pytest.fixture(scope="module")
def lab() -> Iterator[Running]:
    """c1 and c2 are providers of demo/echo, c2 is its consumer. Nothing is exported."""
    running = Running(Lab(lab_name("k"), 2, 1))
    try:
        running.cli("up", "--clusters", "2", "--nodes", "1", "--from", str(EXAMPLES))
        running.kubectl("apply", "-f", str(EXAMPLES / "c1" / "echo.yaml"), cluster="c2")
        until(lambda: running.count_ready() == 6, what="two servers and a client in each cluster")
        slices = own_slices(running, "c1")
        running.kubectl("-n", "demo", "annotate", "service", "echo", *CLAIM, cluster="c2")
        for each in slices:
            running.kubectl("apply", "-f", "-", stdin=json.dumps(dispatched(each, of="c1")), cluster="c2")
        until(lambda: reached(running) == {"c1": 2, "c2": 2}, what="all four are in the plan")
        yield running
    finally:
        removal.remove(running.lab)


def own_slices(lab: Running, cluster: str) -> list[dict[str, Any]]:
    def whole() -> list[dict[str, Any]]:
        selector = "kubernetes.io/service-name=echo"
        text = lab.kubectl("-n", "demo", "get", "endpointslices", "-l", selector, "-o", "json", cluster=cluster)
        items: list[dict[str, Any]] = json.loads(text)["items"]
        ready = [each["conditions"]["ready"] for item in items for each in item["endpoints"]]
        return items if ready == [True, True] else []  # and none that is on its way out

    return until(whole, what=f"two ready endpoints in {cluster}")  # type: ignore[no-any-return]


def dispatched(found: dict[str, Any], *, of: str) -> dict[str, Any]:
    """A provider's slice as Karmada writes it in a consumer: node, zone and pod are kept verbatim."""
    metadata = {
        "name": f"{of}-{found['metadata']['name']}",
        "namespace": "demo",
        "labels": {
            "kubernetes.io/service-name": "echo",
            "karmada.io/managed": "true",
            "endpointslice.kubernetes.io/managed-by": "endpointslice-dispatch-controller.karmada.io",
        },
        "annotations": {
            "endpointslice.karmada.io/provision-cluster": of,
            "work.karmada.io/namespace": "karmada-es-c2",
        },
    }
    return {
        **{key: found[key] for key in ("apiVersion", "kind", "addressType", "endpoints", "ports")},
        "metadata": metadata,
    }


def plan(lab: Running) -> dict[str, Any]:
    found = json.loads(lab.isthmus("get", "plans", "-n", "demo", "-o", "json", cluster="c2"))["rows"]
    return dict(found[0]) if found else {}


def reached(lab: Running) -> dict[str, int]:
    """Number of backends of each cluster in c2's plan of the Service."""
    targets = [target["cluster"] for group in plan(lab).get("groups", ()) for target in group["targets"]]
    return {name: targets.count(name) for name in sorted(set(targets))}


def explained(lab: Running) -> str:
    return lab.isthmus("explain", "demo/echo", cluster="c2")


def call(lab: Running, count: int = CALLS) -> list[dict[str, Any]]:
    """Calls of the native name from c2's client; none of them may fail."""
    words = (NAME, "80", "--count", str(count), "--pause", "0.01", "--timeout", "10")
    script = shlex.join(IN_CONTAINER.command("caller.py", *words))
    made = [json.loads(line) for line in lab.exec("demo/client", script, cluster="c2", code=None).splitlines()]
    assert len(made) == count
    assert [each for each in made if not each["ok"]] == []
    return made


def run(lab: Running, *words: str) -> None:
    """A command of `isthmus` for c2's API server."""
    done = invoked([*words, "--kubeconfig", str(lab.lab.kubeconfig), "--context", "c2"])
    assert done.returncode == 0, done.stderr


def passed_over(lab: Running) -> int:
    """Calls that were to go to an ejected backend, and went to another one at once."""
    rows = json.loads(lab.isthmus("bpf", "maps", "counters", "-o", "json", cluster="c2"))["counters"]
    return sum(row["calls"] for row in rows if row["verdict"] == "ejected")


def answered(made: list[dict[str, Any]]) -> set[str]:
    return {each["answer"]["cluster"] for each in made}


def test_calls_of_the_native_name_reach_every_provider_by_the_kernels_path(lab: Running) -> None:
    made = call(lab)
    assert answered(made) == {"c1", "c2"}
    service = json.loads(lab.kubectl("-n", "demo", "get", "service", "echo", "-o", "json", cluster="c2"))
    assert {each["dialled"] for each in made} == {service["spec"]["clusterIP"]}
    frontends = json.loads(lab.isthmus("bpf", "maps", "frontends", "-o", "json", cluster="c2"))["frontends"]
    assert service["spec"]["clusterIP"] in str(frontends)
    text = explained(lab)
    assert "shares: c1 50%, c2 50%" in text
    assert "c1: 2 endpoints are as Karmada wrote them" in text
    backends = json.loads(lab.isthmus("get", "backends", "-n", "demo", "-o", "json", cluster="c2"))["rows"]
    assert {(row["key"]["cluster"], row["source"]) for row in backends} == {("c1", "karmada"), ("c2", "kubernetes")}


def test_nothing_is_written_beside_the_service_and_nothing_of_karmadas_published(lab: Running) -> None:
    slices = json.loads(lab.kubectl("-n", "demo", "get", "endpointslices", "-o", "json", cluster="c2"))["items"]
    managers = {each["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] for each in slices}
    assert managers == {"endpointslice-controller.k8s.io", "endpointslice-dispatch-controller.karmada.io"}
    assert json.loads(lab.isthmus("get", "endpoint_sets", "-n", "demo", "-o", "json", cluster="c1"))["rows"]
    imports = json.loads(lab.isthmus("get", "backends", "-n", "demo", "-o", "json", cluster="c1"))["rows"]
    assert {row["key"]["cluster"] for row in imports} <= {"c1"}


def test_a_policy_of_the_service_and_a_drain_of_the_provider_steer_its_native_name(lab: Running) -> None:
    policy = {
        "apiVersion": "isthmus.io/v1alpha1",
        "kind": "TrafficPolicy",
        "metadata": {"name": "echo", "namespace": "demo"},
        "spec": {
            "targetRef": {"kind": "Service", "name": "echo"},
            "tiers": [{"clusters": [{"name": "c1"}]}, {"clusters": [{"name": "c2"}]}],
        },
    }
    lab.kubectl("apply", "-f", "-", stdin=json.dumps(policy), cluster="c2")
    until(lambda: len(plan(lab)["groups"]) == 2, what="two tiers")
    assert answered(call(lab)) == {"c1"}
    run(lab, "clusters", "drain", "c1")
    until(lambda: reached(lab) == {"c2": 2}, what="c1 is drained")
    assert answered(call(lab)) == {"c2"}
    run(lab, "clusters", "undrain", "c1")
    until(lambda: reached(lab) == {"c1": 2, "c2": 2}, what="c1 is back")
    lab.kubectl("-n", "demo", "delete", "trafficpolicy", "echo", cluster="c2")
    until(lambda: len(plan(lab)["groups"]) == 1, what="no tiers")
    assert answered(call(lab)) == {"c1", "c2"}


def test_the_native_name_follows_a_provider_before_karmada_has_brought_its_slices(lab: Running) -> None:
    """c1 publishes endpoints of a Service that Karmada claims, too."""
    lab.kubectl("-n", "demo", "annotate", "service", "echo", *CLAIM, cluster="c1")
    lab.kubectl("-n", "demo", "scale", "deployment", "echo", "--replicas=3", cluster="c1")
    until(lambda: reached(lab) == {"c1": 3, "c2": 2}, what="the third pod is in the plan")
    assert "c1: 2 endpoints of karmada are shadowed by clusterset" in explained(lab)
    made = call(lab)
    assert answered(made) == {"c1", "c2"}
    assert len({each["answer"]["pod"] for each in made}) == 5
    for key in CLAIM:
        lab.kubectl("-n", "demo", "annotate", "service", "echo", f"{key.partition('=')[0]}-", cluster="c1")
    lab.kubectl("-n", "demo", "scale", "deployment", "echo", "--replicas=2", cluster="c1")
    for each in own_slices(lab, "c1"):
        lab.kubectl("apply", "-f", "-", stdin=json.dumps(dispatched(each, of="c1")), cluster="c2")
    as_written = "c1: 2 endpoints are as Karmada wrote them"
    until(lambda: as_written in explained(lab), what="c1's record is gone, and what Karmada wrote counts again")
    assert reached(lab) == {"c1": 2, "c2": 2}


def test_a_dead_provider_whose_slices_stay_costs_no_failed_call_and_comes_back_by_trial(lab: Running) -> None:
    before = passed_over(lab)
    lab.cli("kill", "c1/node/1")
    made = call(lab, 3 * CALLS)
    assert answered(made[-CALLS:]) == {"c2"}
    assert passed_over(lab) > before
    lab.cli("start", "c1/node/1")
    for each in own_slices(lab, "c1"):
        lab.kubectl("apply", "-f", "-", stdin=json.dumps(dispatched(each, of="c1")), cluster="c2")
    until(lambda: answered(call(lab)) == {"c1", "c2"}, what="c1 answers again")
