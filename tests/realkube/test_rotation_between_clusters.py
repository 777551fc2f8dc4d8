"""Two clusters rotate their authorities at once, as deployed: records arrive all the while, and nobody is cut off."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from clusters.joined import SYSTEM
from clusters.linked import Laptop, LinkedCluster, linked
from cryptography import x509
from labs.lab_running import until
from machine import programs

pytestmark = [pytest.mark.kube, pytest.mark.slow, pytest.mark.timeout(900)]

TRUSTED = "isthmus.io/trusted-authorities"
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "echo", "namespace": "demo"},
    "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080}]},
}
EXPORT = {
    "apiVersion": "multicluster.x-k8s.io/v1beta1",
    "kind": "ServiceExport",
    "metadata": {"name": "echo", "namespace": "demo"},
}
PAUSE = 8.0
"""Seconds; above the interval in which a session reads its files again."""


def endpoints(address: str) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "echo-1", "namespace": "demo", "labels": {"kubernetes.io/service-name": "echo"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    }


class Node(threading.Thread):
    """What a node and the controller of StatefulSets do for a cluster's etcd and its operator."""

    def __init__(self, cluster: LinkedCluster) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._ended = threading.Event()
        self.restarts = 0
        self._current = ""

    def run(self) -> None:
        while not self._ended.wait(0.5):
            with suppress(AssertionError):  # an API server that is slow to answer
                self._pass()

    def _pass(self) -> None:
        self._cluster.mount("isthmus-etcd-server")
        self._cluster.mount("isthmus-etcd-operator")
        etcd = self._cluster.get("-n", SYSTEM, "statefulset", "isthmus-etcd")
        wanted = (etcd["spec"]["template"]["metadata"].get("annotations") or {}).get(TRUSTED, "")
        if wanted != self._current:
            self._cluster.etcd.stop()
            self._cluster.etcd.wipe()
            self._cluster.mount("isthmus-etcd-server")
            self._cluster.etcd.start()
            self.restarts, self._current = self.restarts + 1, wanted
        status = {"observedGeneration": etcd["metadata"]["generation"], "replicas": 1}
        status |= {"readyReplicas": 1, "updatedReplicas": 1}
        if any(etcd.get("status", {}).get(field) != value for field, value in status.items()):
            patch = json.dumps({"status": status})
            words = ("patch", "statefulset", "isthmus-etcd", "--subresource=status", "--type=merge", "-p", patch)
            self._cluster.kubectl("-n", SYSTEM, *words)

    def end(self) -> None:
        self._ended.set()
        self.join(60)


World = tuple[LinkedCluster, LinkedCluster, Laptop, dict[str, Node]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("rotating")
    with linked(folder, Path(programs.path("kube-apiserver"))) as (c1, c2):
        nodes = {each.name: Node(each) for each in (c1, c2)}
        for cluster in (c1, c2):
            asyncio.run(cluster.server.ready())
            cluster.settings = (f"keys.rotation_pause={PAUSE}", "keys.rotation_wait=600")
            cluster.install()
            until(lambda: cluster.get("-n", SYSTEM, "configmap", "isthmus-cluster-info"), what="the cluster's own info")  # noqa: B023
            nodes[cluster.name].start()
        laptop = Laptop(folder, c1, c2)
        code, _, errors = laptop.isthmus("connect", "c1", "c2")
        assert code == 0, errors
        for each in (SERVICE, endpoints("10.1.1.5"), EXPORT):
            c1.kubectl("apply", "-f", "-", stdin=json.dumps(each))
        until(lambda: c2.imported() == ["10.1.1.5"], what="the endpoint of c1 in c2")
        try:
            yield c1, c2, laptop, nodes
        finally:
            for node in nodes.values():
                node.end()


def state(cluster: LinkedCluster) -> dict[str, str]:
    data: dict[str, str] = cluster.get("-n", SYSTEM, "configmap", "isthmus-authority-rotation").get("data", {})
    return data


def authorities(content: bytes) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(content)


def rotated(cluster: LinkedCluster, before: str) -> bool:
    now = state(cluster)
    return now["step"] == "steady" and now["authority"] != before


def end_keeper(cluster: LinkedCluster) -> None:
    cluster.processes.remove(cluster.keeper)
    cluster.keeper.terminate()
    cluster.keeper.wait(60)


def test_both_clusters_rotate_at_once_and_no_record_is_withdrawn_or_late(world: World) -> None:
    c1, c2, laptop, nodes = world
    before = {each.name: state(each)["authority"] for each in (c1, c2)}
    code, output, errors = laptop.isthmus("clusters", "rotate-ca", "--context", "c1", "--dry-run")
    assert code == 0, errors
    assert f"authority {before['c1']}" in output
    assert state(c1)["step"] == "steady"
    for each in (c1, c2):
        code, _, errors = laptop.isthmus("clusters", "rotate-ca", "--context", each.name)
        assert code == 0, errors
    gaps: list[list[str]] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.3):
            if len(found := c2.imported()) != 1:
                gaps.append(found)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    for each in (c1, c2):
        until(lambda: rotated(each, before[each.name]), seconds=600, what=f"another authority of {each.name}")  # noqa: B023
    ended.set()
    watching.join(30)
    assert gaps == []
    for own, peer in ((c1, c2), (c2, c1)):
        [authority] = authorities(own.secret("isthmus-keys")["ca.crt"])
        until(lambda: authorities(peer.secret("isthmus-peers")[f"{own.name}.ca.crt"]) == [authority], what="its bundle")  # noqa: B023
        [certificate] = authorities(peer.secret("isthmus-peers")[f"{own.name}.crt"])
        certificate.verify_directly_issued_by(authority)
        until(lambda: own.ready(peer.name), what="a link that is ready")  # noqa: B023
        assert nodes[own.name].restarts == 2
    c1.kubectl("apply", "-f", "-", stdin=json.dumps(endpoints("10.1.1.6")))
    until(lambda: c2.imported() == ["10.1.1.6"], what="a change of c1 in c2, by the new authorities")
    for each in (c1, c2):
        assert "Handshake failed" not in (each.folder / "operator.log").read_text()
        assert "Handshake failed" not in (each.folder / "keys.log").read_text()
        assert [call for call in each.audited("isthmus-keys") if call[3] == 403] == []
        assert ("apps", "statefulsets", "patch", 200) in each.audited("isthmus-keys")
    asked = {call[:3] for call in c1.audited("connector") if call[1] == "configmaps"}
    assert ("", "configmaps", "patch") in asked, "by the Role isthmus-rotate"


def test_a_peer_that_was_away_is_told_how_to_be_connected_again(world: World) -> None:
    c1, c2, laptop, _ = world
    before = state(c1)["authority"]
    end_keeper(c2)
    code, _, errors = laptop.isthmus("clusters", "rotate-ca", "--context", "c1")
    assert code == 0, errors
    until(lambda: "c2 has not confirmed the new authority" in state(c1).get("waitsFor", ""), what="c2 waited for")
    end_keeper(c1)
    c1.settings = (f"keys.rotation_pause={PAUSE}", "keys.rotation_wait=1")
    c1.run_keys()
    until(lambda: rotated(c1, before), seconds=400, what="an authority without c2")
    c2.run_keys()

    def ready() -> dict[str, Any]:
        [found] = [each for each in c2.link("c1")["status"]["conditions"] if each["type"] == "Ready"]
        return dict(found)

    until(lambda: ready()["reason"] == "Untrusted", seconds=400, what="the reason at the link")
    assert "isthmus connect" in ready()["message"]
    log = c2.folder / "keys.log"
    until(
        lambda: "Handshake failed" in log.read_text(), what="a failed handshake in the log, as the other test reads it"
    )
    assert c2.imported() == ["10.1.1.6"], "what was known of it stays meanwhile"
    code, _, errors = laptop.isthmus("connect", "c1", "c2")
    assert code == 0, errors
    until(lambda: c2.ready("c1") and c1.ready("c2"), what="both links ready")
    c1.kubectl("apply", "-f", "-", stdin=json.dumps(endpoints("10.1.1.7")))
    until(lambda: c2.imported() == ["10.1.1.7"], what="a change of c1 in c2")
