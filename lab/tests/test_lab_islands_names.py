"""StatefulSets of islands with overlapping ranges: each pod is called by its own name, from the other island."""

from __future__ import annotations

import json
from collections.abc import Iterator
from ipaddress import IPv4Network, ip_address
from pathlib import Path
from typing import Any

import pytest
from labs.lab_running import Running, invoked, running_islands, until

from isthmus.config import GatewaySection

DB = Path(__file__).parents[2] / "examples" / "headless"
APEX = "db.demo.svc.clusterset.local"
STAND_INS = IPv4Network(GatewaySection().pod_addresses[0])
SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: db, namespace: demo}
spec:
  clusterIP: None
  selector: {app: db}
  ports: [{name: tcp, port: 8080}, {name: udp, port: 53, protocol: UDP, targetPort: 8080}]
"""
DATAGRAM = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(5)
s.sendto(b'x', (sys.argv[1], 8080))
data, peer = s.recvfrom(2000)
print(data.decode() if peer[1] == 8080 else peer)
"""
CALL = "import sys, urllib.request as r; print(r.urlopen(f'http://{sys.argv[1]}:8080', timeout=5).read().decode())"


@pytest.fixture(scope="module")
def islands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Both have a StatefulSet of two pods, and export its headless Service, with a port of TCP and one of UDP."""
    with running_islands("p", 2, DB, "c1", "c2") as running:
        file = tmp_path_factory.mktemp("names") / "service.yaml"
        file.write_text(SERVICE)
        for cluster in ("c1", "c2"):
            running.kubectl("apply", "-f", str(file), cluster=cluster)
        yield running


def answer(islands: Running, name: str, call: str = CALL) -> tuple[str, str]:
    """(cluster, pod) that answers a call of a name from c2; nothing while none does."""
    said = islands.exec("demo/client", f'python3 -c "{call}" {name}', cluster="c2", code=None)
    found: dict[str, Any] = json.loads(said) if said.startswith("{") else {}
    return found.get("cluster", ""), found.get("pod", "")


def addresses(islands: Running, name: str) -> set[str]:
    """Addresses that a name resolves to in c2."""
    return set(islands.exec("demo/client", f"getent ahostsv4 {name} | cut -d' ' -f1", cluster="c2", code=None).split())


def pod_addresses(islands: Running, cluster: str) -> set[str]:
    words = ("-n", "demo", "get", "pods", "-l", "app=db", "-o", "jsonpath={.items[*].status.podIP}")
    return set(islands.kubectl(*words, cluster=cluster).split())


def replace(islands: Running, pod: str) -> None:
    """Delete a pod of c1 and wait for the one in its place.

    kubectl would wait for ever if the pod is replaced between two of its requests (kubernetes/kubernetes#135562).
    """

    def uid() -> str:
        words = ("-n", "demo", "get", "pod", pod, "--ignore-not-found", "-o", "jsonpath={.metadata.uid}")
        return islands.kubectl(*words, cluster="c1")

    before = uid()
    islands.kubectl("-n", "demo", "delete", "pod", pod, "--wait=false", cluster="c1")
    until(lambda: uid() not in ("", before), what=f"another {pod}")


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.needs("envoy")
@pytest.mark.parametrize("pod", ["db-0", "db-1"])
@pytest.mark.parametrize("cluster", ["c1", "c2"])
def test_each_pod_answers_to_its_own_name(islands: Running, cluster: str, pod: str) -> None:
    want = (cluster, pod)
    until(lambda: answer(islands, f"{pod}.{cluster}.{APEX}") == want, what=f"{pod} of {cluster} answers to its name")
    assert [answer(islands, f"{pod}.{cluster}.{APEX}") for _ in range(3)] == [want] * 3


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.needs("envoy")
@pytest.mark.parametrize("pod", ["db-0", "db-1"])
def test_each_pod_of_the_other_island_answers_datagrams_to_its_own_name(islands: Running, pod: str) -> None:
    name = f"{pod}.c1.{APEX}"
    until(lambda: answer(islands, name, DATAGRAM) == ("c1", pod), what=f"{pod} of c1 answers to its name")
    assert [answer(islands, name, DATAGRAM) for _ in range(3)] == [("c1", pod)] * 3


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.needs("envoy")
def test_the_headless_name_gives_every_pod_an_address_of_which_none_is_an_islands(islands: Running) -> None:
    """Both clusters give their pods addresses of one range."""
    until(lambda: len(addresses(islands, APEX)) == 4, what="four addresses")
    own = pod_addresses(islands, "c2")
    others = addresses(islands, APEX) - own
    assert len(others) == 2
    assert all(ip_address(each) in STAND_INS for each in others)
    each = {name: addresses(islands, f"{name}.c1.{APEX}") for name in ("db-0", "db-1")}
    assert set().union(*each.values()) == others
    assert all(len(found) == 1 for found in each.values())


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.needs("envoy")
def test_a_pod_that_replaces_another_answers_to_its_name_at_the_same_address(islands: Running) -> None:
    name = f"db-0.c1.{APEX}"
    until(lambda: answer(islands, name) == ("c1", "db-0"), what="the first")
    before, at = pod_addresses(islands, "c1"), addresses(islands, name)
    replace(islands, "db-0")
    until(lambda: len(pod_addresses(islands, "c1") - before) == 1, what="a pod at another address")
    until(lambda: answer(islands, name) == ("c1", "db-0"), what="the one in its place")
    assert addresses(islands, name) == at


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.needs("envoy")
def test_an_islands_pods_addresses_are_not_in_slices_names_backends_or_explain(islands: Running) -> None:
    """A pod of c1 has an address that no pod of c2 has: it would be seen."""
    replace(islands, "db-1")
    template = "jsonpath={.items[*].status.podIP}"
    taken = set(islands.kubectl("get", "pods", "-A", "-o", template, cluster="c2").split())
    [only] = until(lambda: sorted(pod_addresses(islands, "c1") - taken)[:1], what="an address that c2 has not")
    until(lambda: answer(islands, f"db-1.c1.{APEX}") == ("c1", "db-1"), what="it answers")
    shown = [islands.kubectl("get", "endpointslices", "-A", "-o", "yaml", cluster="c2")]
    for words in (["get", "names", "-n", "demo"], ["get", "backends", "-A"], ["get", "plans", "-A"], ["get", "xds"]):
        shown.append(invoked([*words, "--lab", islands.lab.name, "--cluster", "c2", "-o", "json"]).stdout)
    shown.append(invoked(["explain", "demo/db", "--lab", islands.lab.name, "--cluster", "c2"]).stdout)
    assert "its 2 endpoints have an address on this node" in shown[-1]
    for text in shown:
        assert len(text) > 100
        assert only not in text
        assert only.replace(".", "-") not in text


def verified(islands: Running, seconds: int) -> dict[tuple[str, str], Any]:
    """Result of `isthmus verify` for each pair of clusters."""
    words = ["verify", "--lab", islands.lab.name, "--timeout", str(seconds), "-o", "json"]
    return {(each["from"], each["to"]): each for each in json.loads(invoked(words).stdout)["calls"]}


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.needs("envoy")
def test_verify_has_the_path_of_each_pair_and_the_hop_that_failed(islands: Running) -> None:
    found = verified(islands, 30)
    assert {pair: each["path"] for pair, each in found.items()} == {
        ("c1", "c1"): "local",
        ("c1", "c2"): "gateway",
        ("c2", "c1"): "gateway",
        ("c2", "c2"): "local",
    }
    for each in found.values():
        assert each["checks"] == dict.fromkeys(("name", "tcp", "udp", "headless"), "")
    islands.cli("kill", "c1/n1/gateway-envoy")
    try:
        broken = verified(islands, 10)[("c2", "c1")]
    finally:
        islands.cli("start", "c1/n1/gateway-envoy")
    assert broken["checks"]["tcp"]
    assert [(hop["hop"], hop["object"]) for hop in broken["faults"]] == [("gateway", "gateway 172.30.1.11:15443 of c1")]
