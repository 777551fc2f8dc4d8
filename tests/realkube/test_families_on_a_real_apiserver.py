"""IPv6 and dual stack on real API servers: the story with our datapath; kube-proxy and CoreDNS with the operator."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from labs.lab_running import Running, lab_name, until
from labs.lab_traces import host_network, traces

from isthmus_lab import removal
from isthmus_lab.layout import Lab

pytestmark = [
    pytest.mark.kube,
    pytest.mark.lab,
    pytest.mark.needs("kube-controller-manager", "kube-proxy", "coredns"),
]
ECHO = Path(__file__).parents[2] / "examples" / "echo"
CLIENT = "demo/client"
PLAIN, IMPORT = "echo.demo.svc.cluster.local", "echo.demo.svc.clusterset.local"


def test_the_story_holds_in_both_families() -> None:
    running = Running(Lab(lab_name("u"), 3))
    try:
        done = running.cli("demo", "--json", "--apiserver", "real", "--ip-families", "IPv6,IPv4", f"--from={ECHO}")
    finally:
        if removal.exists(running.lab):
            removal.remove(running.lab)
    said = json.loads(done.stdout)
    [sixty] = [step["detail"] for step in said["steps"] if step["name"].startswith("sixty calls")]
    assert "they saw fd00:10:3:1::2 and 10.3.1.2; the kernel counted 60" in sixty


@pytest.fixture(scope="module")
def mixed(own_host: None) -> Iterator[Running]:
    """c1 has IPv4, c2 both; kube-proxy and CoreDNS; c1 exports echo."""
    running = Running(Lab(lab_name("v"), 2, families=(("IPv4",), ("IPv6", "IPv4"))))
    before = host_network()
    families = ("--ip-families", "IPv6,IPv4", "--ip-families", "c1=IPv4")
    words = ("--clusters", "2", "--apiserver", "real", "--datapath", "kube-proxy", *families, "--from", str(ECHO))
    try:
        running.cli("up", *words)
        running.kubectl("apply", "-f", str(ECHO / "export"))
        for cluster in ("c1", "c2"):
            running.kubectl("-n", "demo", "rollout", "status", "deployment/echo", "--timeout=180s", cluster=cluster)
        yield running
    finally:
        removal.remove(running.lab)
    assert host_network() == before
    assert traces(running.lab) == {name: [] for name in traces(running.lab)}


def imported(lab: Running, cluster: str, families: list[str]) -> None:
    """Wait until a cluster's import has addresses of these families."""

    def so() -> bool:
        said = lab.kubectl("-n", "demo", "get", "svcim", "-o", "json", cluster=cluster)
        ips = [ip for each in json.loads(said)["items"] for ip in each["spec"].get("ips", ())]
        return [f"IPv{ipaddress.ip_address(ip).version}" for ip in ips] == families

    until(so, what=f"{families} in {cluster}")


def called(lab: Running, name: str, *families: int, cluster: str = "c2") -> list[dict[str, Any]]:
    """Who answers in each family, once somebody does."""
    script = "".join(f"until curl -s{family} -m1 {name}; do sleep 0.2; done; " for family in families)
    return [json.loads(line) for line in lab.exec(CLIENT, script, cluster=cluster).splitlines()]


def test_a_plain_service_is_called_through_kube_proxy_in_both_families(mixed: Running) -> None:
    said = called(mixed, PLAIN, 4, 6)
    assert [(each["cluster"], each["caller"]) for each in said] == [("c2", "10.2.1.2"), ("c2", "fd00:10:2:1::2")]


def test_what_a_cluster_of_ipv4_exports_is_called_in_ipv4_from_one_of_both(mixed: Running) -> None:
    imported(mixed, "c2", ["IPv4"])
    assert [each["cluster"] for each in called(mixed, IMPORT, 4)] == ["c1"]
    services = json.loads(mixed.kubectl("-n", "demo", "get", "services", "-o", "json", cluster="c2"))["items"]
    [spec] = [each["spec"] for each in services if each["metadata"]["name"].startswith("derived-")]
    assert (spec["ipFamilies"], spec["ipFamilyPolicy"], len(spec["clusterIPs"])) == (["IPv4"], "SingleStack", 1)


def test_once_only_a_cluster_of_both_exports_it_is_called_in_both(mixed: Running) -> None:
    mixed.kubectl("apply", "-f", str(ECHO / "export"), cluster="c2")
    mixed.kubectl("-n", "demo", "delete", "svcex", "echo")
    imported(mixed, "c2", ["IPv6", "IPv4"])
    assert [each["caller"] for each in called(mixed, IMPORT, 4, 6)] == ["10.2.1.2", "fd00:10:2:1::2"]
    imported(mixed, "c1", ["IPv4"])
    until(lambda: called(mixed, IMPORT, 4, cluster="c1")[0]["cluster"] == "c2", what="c1 is answered by c2")
