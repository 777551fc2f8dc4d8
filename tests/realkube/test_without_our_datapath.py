"""The operator alone: imports are resolved by CoreDNS and called through kube-proxy, on a real API server."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from labs.lab_running import Running, lab_name, until
from labs.lab_traces import host_network, traces

from isthmus_lab import removal
from isthmus_lab.layout import Lab
from isthmus_lab.own_programs import IN_CONTAINER

pytestmark = [
    pytest.mark.kube,
    pytest.mark.lab,
    pytest.mark.needs("kube-controller-manager", "kube-proxy", "coredns"),
]
ECHO = Path(__file__).parents[2] / "examples" / "echo"
CLIENT = "demo/client"
HEADLESS: list[dict[str, Any]] = [
    {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "pods", "namespace": "demo"},
        "spec": {"clusterIP": "None", "selector": {"app": "echo"}, "ports": [{"name": "http", "port": 8080}]},
    },
    {
        "apiVersion": "multicluster.x-k8s.io/v1beta1",
        "kind": "ServiceExport",
        "metadata": {"name": "pods", "namespace": "demo"},
    },
]


@pytest.fixture(scope="module")
def joined(own_host: None) -> Iterator[Running]:
    """Two clusters; echo is exported by both, the headless pods by the first."""
    running = Running(Lab(lab_name("p"), 2, 1))
    before = host_network()
    words = ("--clusters", "2", "--apiserver", "real", "--datapath", "kube-proxy", "--from", str(ECHO))
    try:
        running.cli("up", *words)
        for cluster in ("c1", "c2"):
            running.kubectl("apply", "-f", str(ECHO / "export"), cluster=cluster)
        for each in HEADLESS:
            running.kubectl("apply", "-f", "-", stdin=json.dumps(each))
        until(lambda: both_import(running), what="both imports in both clusters")
        for cluster in ("c1", "c2"):
            running.kubectl("-n", "demo", "rollout", "status", "deployment/echo", "--timeout=180s", cluster=cluster)
        yield running
    finally:
        removal.remove(running.lab)
    assert host_network() == before
    assert traces(running.lab) == {name: [] for name in traces(running.lab)}


def both_import(lab: Running) -> bool:
    return all(
        set(lab.kubectl("-n", "demo", "get", "svcim", "-o", "name", cluster=cluster).split())
        == {"serviceimport.multicluster.x-k8s.io/echo", "serviceimport.multicluster.x-k8s.io/pods"}
        for cluster in ("c1", "c2")
    )


def resolved(lab: Running, name: str) -> set[str]:
    said = lab.exec(CLIENT, f"getent ahostsv4 {name}", cluster="c2", code=None)
    return {line.split()[0] for line in said.splitlines()}


def calls(lab: Running, name: str, port: int, count: int) -> list[dict[str, Any]]:
    script = shlex.join(IN_CONTAINER.command("caller.py", name, str(port), "--count", str(count)))
    return [json.loads(line) for line in lab.exec(CLIENT, script, cluster="c2", code=None).splitlines()]


def pods(lab: Running, cluster: str) -> set[str]:
    path = "jsonpath={.items[*].status.podIP}"
    return set(lab.kubectl("-n", "demo", "get", "pods", "-l", "app=echo", "-o", path, cluster=cluster).split())


def test_nothing_of_ours_but_the_operator_runs(joined: Running) -> None:
    programs = joined.status()["programs"]
    names = {each["name"].rpartition("/")[2] for each in programs}
    assert {"operator", "kube-proxy", "clusterdns"} <= names
    assert names & {"agent", "dns", "dns-second"} == set()


def test_an_import_is_resolved_by_coredns_and_called_through_kube_proxy(joined: Running) -> None:
    name = "echo.demo.svc.clusterset.local"
    [address] = json.loads(joined.kubectl("-n", "demo", "get", "svcim", "echo", "-o", "json", cluster="c2"))["spec"][
        "ips"
    ]
    until(lambda: resolved(joined, name) == {address}, what=f"{name} is {address}")
    everybody = pods(joined, "c1") | pods(joined, "c2")

    def reached() -> bool:
        done = calls(joined, name, 80, 40)
        assert [each for each in done if not each["ok"]] == []
        return set(Counter(each["answer"]["address"] for each in done)) == everybody

    until(reached, what="calls reach every pod of both clusters")


def test_a_headless_import_is_resolved_to_the_pods_of_the_other_cluster(joined: Running) -> None:
    name = "pods.demo.svc.clusterset.local"
    until(lambda: resolved(joined, name) == pods(joined, "c1"), what="the addresses of c1's pods")
    done = calls(joined, name, 8080, 5)
    assert {each["ok"] for each in done} == {True}
    assert {each["answer"]["cluster"] for each in done} == {"c1"}


def test_a_call_after_the_export_has_gone_finds_no_name(joined: Running) -> None:
    for cluster in ("c1", "c2"):
        joined.kubectl("-n", "demo", "delete", "svcex", "echo", cluster=cluster)
    until(lambda: resolved(joined, "echo.demo.svc.clusterset.local") == set(), what="the name gone")


def test_it_wants_the_real_server() -> None:
    running = Running(Lab(lab_name("q"), 1, 1))
    said = running.cli("up", "--datapath", "kube-proxy", code=1).stderr
    assert said == "Error: --datapath kube-proxy: wants --apiserver real\n"
