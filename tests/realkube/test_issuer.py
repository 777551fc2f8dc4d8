"""Clusters whose certificates an issuer of cert-manager signs, as deployed, beside one with an authority of its own."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from clusters.exported_echo import EXPORT, SERVICE, SLICE
from clusters.joined import DEPLOY, SYSTEM, unused
from clusters.linked import Laptop, LinkedCluster, linked
from labs.lab_running import until
from machine import programs

from isthmus.clusterset import certificates, pki

pytestmark = [pytest.mark.kube, pytest.mark.slow, pytest.mark.needs("cert-manager"), pytest.mark.timeout(600)]


def issuer(cluster: LinkedCluster) -> bytes:
    """cert-manager's kinds, an Issuer, and the rights to request; returns the authority."""
    cluster.kubectl("create", "namespace", SYSTEM)
    for path in (programs.BUILT / "cert-manager-crds").glob("cert-manager.io_*.yaml"):
        cluster.kubectl("apply", "--server-side", "-f", str(path))
    for name in ("issuers", "certificaterequests"):
        cluster.kubectl("wait", "--for=condition=Established", f"crd/{name}.cert-manager.io")
    pair = certificates.authority("isthmus c1")
    files = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": pair.certificate}
    secret = {
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "authority"}, "type": "kubernetes.io/tls",
        "data": {name: base64.b64encode(content).decode() for name, content in files.items()},
    }  # fmt: skip
    made = {
        "apiVersion": "cert-manager.io/v1", "kind": "Issuer", "metadata": {"name": "isthmus"},
        "spec": {"ca": {"secretName": "authority"}},
    }  # fmt: skip
    for each in (secret, made):
        cluster.kubectl("-n", SYSTEM, "apply", "-f", "-", stdin=json.dumps(each))
    rights = (DEPLOY / "issuer" / "rbac.yaml").read_text().replace("namespace: kube-system", f"namespace: {SYSTEM}")
    cluster.kubectl("-n", SYSTEM, "apply", "-f", "-", stdin=rights)
    return pair.certificate


def cert_manager(cluster: LinkedCluster) -> subprocess.Popen[bytes]:
    """Its controllers, at work."""
    with (cluster.folder / "cert-manager.log").open("ab") as log:
        command = [programs.path("cert-manager"), cluster.server.section().kubeconfig]
        return subprocess.Popen(command, stdout=log, stderr=log)


World = tuple[LinkedCluster, LinkedCluster, Laptop, bytes]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """c1 with an issuer, whose controllers stopped after its own certificates, and c2 without."""
    folder = tmp_path_factory.mktemp("issuer")
    with linked(folder, Path(programs.path("kube-apiserver"))) as (c1, c2):
        for cluster in (c1, c2):
            asyncio.run(cluster.server.ready())
        authority = issuer(c1)
        c1.settings = ("keys.issuer=isthmus",)
        running = cert_manager(c1)
        try:
            for cluster in (c1, c2):
                cluster.install()
                until(lambda: cluster.get("-n", SYSTEM, "configmap", "isthmus-cluster-info"), what="its own info")  # noqa: B023
            until(lambda: requests(c1) == [], what="no request, once all certificates are in use")
        finally:
            running.terminate()
            running.wait(60)
        yield c1, c2, Laptop(folder, c1, c2), authority


def requests(cluster: LinkedCluster) -> list[str]:
    items: list[dict[str, Any]] = cluster.get("-n", SYSTEM, "certificaterequests").get("items", [])
    return [each["metadata"]["name"] for each in items]


def condition(cluster: LinkedCluster, peer: str, kind: str) -> dict[str, Any]:
    conditions = cluster.link(peer).get("status", {}).get("conditions", ())
    return dict(next((each for each in conditions if each["type"] == kind), {}))


def test_a_peers_request_is_signed_by_the_issuer_and_until_then_its_link_has_the_reason(world: World) -> None:
    c1, c2, laptop, authority = world
    with ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(laptop.isthmus, "connect", "c1", "c2")
        until(lambda: condition(c1, "c2", "Ready").get("reason") == "NotIssued", what="the reason at the link")
        assert condition(c1, "c2", "Accepted")["status"] == "True"
        [name] = requests(c1)
        assert name.startswith("isthmus-c2-")
        running = cert_manager(c1)
        try:
            code, _, errors = connecting.result(300)
            assert code == 0, errors
            until(lambda: requests(c1) == [], what="no request, once the certificate is in use")
        finally:
            running.terminate()
            running.wait(60)
    assert c1.ready("c2")
    assert c2.ready("c1")
    signed = c1.link("c2")["status"]["certificate"].encode()
    assert pki.issued(signed, authority)
    assert c1.secret("isthmus-keys")["ca.crt"] == authority
    for each in (SERVICE, SLICE, EXPORT):
        c1.kubectl("apply", "-f", "-", stdin=json.dumps(each))
    until(c2.imported, what="an endpoint of c1 in c2")


def test_a_request_of_a_peer_for_another_name_never_reaches_the_issuer(world: World) -> None:
    c1, _, _, _ = world
    hostile = certificates.request(certificates.new_key(), "root")
    before = c1.link("c2")
    c1.kubectl("patch", "clusterlink", "c2", "--type=merge", "-p", json.dumps({"spec": {"request": hostile}}))
    try:
        until(lambda: condition(c1, "c2", "Accepted").get("reason") == "InvalidRequest", what="the reason at the link")
        assert "CN=remote-c2 and nothing else" in condition(c1, "c2", "Accepted")["message"]
        assert requests(c1) == []
    finally:
        body = json.dumps({"spec": {"request": before["spec"]["request"]}})
        c1.kubectl("patch", "clusterlink", "c2", "--type=merge", "-p", body)
    until(lambda: condition(c1, "c2", "Accepted").get("status") == "True", what="the link accepted again")


def test_the_keeper_has_the_rights_that_it_uses_and_no_other(world: World) -> None:
    c1, _, _, _ = world
    calls = c1.audited("isthmus-keys")
    assert [each for each in calls if each[3] == 403] == []
    assert unused("isthmus-keys-issuer", calls) == set()
