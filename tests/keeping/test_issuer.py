"""Certificates by an issuer: cert-manager's own controllers, on a real API server with the deployed rights."""

from __future__ import annotations

import asyncio
import base64
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from clusters.etcd_rollout import Load, at, deployed
from clusters.keys_world import CRD, KeptCluster, kept, until
from clusters.kube_apiserver import KubeApiServer
from clusters.rights import KINDS, user
from machine import programs

from isthmus import kube
from isthmus.clusterset import certificates, pki
from isthmus.clusterset.keeping.issuing import LABEL
from isthmus.clusterset.keeping.keeper import Keeper
from isthmus.clusterset.keeping.rotation import Step
from isthmus.kube.objects.cert_manager import CERTIFICATE_REQUEST
from isthmus.kube.objects.core import SECRET
from isthmus.kube.objects.meta import Meta, Wire

pytestmark = [pytest.mark.kube, pytest.mark.slow, pytest.mark.needs("cert-manager")]
RBAC = Path(__file__).resolve().parents[2] / "deploy" / "issuer" / "rbac.yaml"
REQUESTS = "certificaterequests.cert-manager.io"


class Object(Wire, frozen=True):
    """An issuer, of which nothing is read."""

    metadata: Meta


ISSUER = kube.Kind("cert-manager.io", "v1", "issuers", "Issuer", Object)


@pytest.fixture
async def cluster(kube_apiserver: KubeApiServer, tmp_path: Path) -> AsyncIterator[KeptCluster]:
    async with kept(kube_apiserver, tmp_path) as made:
        for body in yaml.safe_load_all(RBAC.read_text()):
            subjects = {"subjects": [user("keys")]} if body["kind"] == "RoleBinding" else {}
            name = body["metadata"]["name"]
            whole = {**body, "metadata": {"name": name, "namespace": made.namespace}, **subjects}
            await made.admin.apply(KINDS[body["kind"]], made.namespace, name, whole, field_manager="test")
        yield made


async def define(cluster: KeptCluster) -> None:
    """cert-manager's kinds."""
    for path in sorted((programs.BUILT / "cert-manager-crds").glob("cert-manager.io_*.yaml")):
        body: dict[str, Any] = yaml.safe_load(path.read_text())
        await cluster.admin.apply(CRD, "", body["metadata"]["name"], body, field_manager="test")

    async def served() -> bool:
        return all([await cluster.admin.serves(kind) for kind in (ISSUER, CERTIFICATE_REQUEST)])

    await until(served, "the kinds of cert-manager")


async def authority(cluster: KeptCluster) -> bytes:
    """An Issuer with another authority; returns its certificate."""
    pair = certificates.authority("issuer")
    files = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": pair.certificate}
    data = {name: base64.b64encode(content).decode() for name, content in files.items()}
    secret = {"type": "kubernetes.io/tls", "data": data}
    await cluster.admin.apply(SECRET, cluster.namespace, "authority", secret, field_manager="test")
    spec = {"spec": {"ca": {"secretName": "authority"}}}
    await cluster.admin.apply(ISSUER, cluster.namespace, "ca", spec, field_manager="test")
    return pair.certificate


@contextmanager
def cert_manager(cluster: KeptCluster) -> Iterator[None]:
    """Its controllers, at work."""
    with (cluster.folder / "cert-manager.log").open("ab") as log:
        command = [programs.path("cert-manager"), cluster.server.section().kubeconfig]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


@asynccontextmanager
async def issued(cluster: KeptCluster, **section: Any) -> AsyncIterator[tuple[Keeper, bytes]]:
    """A keeper whose certificates are all there, and the authority; cert-manager has stopped."""
    await define(cluster)
    authorities = await authority(cluster)
    async with cluster.running(cluster.keeper(issuer="ca", **section)) as keeper:
        with cert_manager(cluster):
            await until(lambda: asyncio.sleep(0, keeper.loaded.is_set()), "the certificates")

            async def deleted() -> bool:
                return await requests(cluster) == []

            await until(deleted, "no request, once all are used")
        yield keeper, authorities


async def requests(cluster: KeptCluster) -> list[str]:
    listed = await cluster.admin.list(CERTIFICATE_REQUEST, cluster.namespace, label_selector=LABEL)
    return [each.metadata.name for each in listed]


async def files(cluster: KeptCluster) -> dict[str, bytes]:
    return await cluster.secret("isthmus-keys") or {}


async def drop(cluster: KeptCluster, file: str) -> None:
    """Take a file out of the Secret of keys, as docs/clusterset.md has it."""
    await cluster.admin.patch(SECRET, cluster.namespace, "isthmus-keys", {"data": {file: None}})


async def noticed(cluster: KeptCluster) -> bool:
    """True once an answer was by another authority; else one more is asked for, since the issuer follows its Secret
    with a delay."""
    kept = await files(cluster)
    if len(pki.split(kept["ca.crt"])) > 1:
        return True
    if "peer.crt" in kept:
        await drop(cluster, "peer.crt")
    return False


async def problem(keeper: Keeper, words: str) -> str:
    async def displayed() -> str:
        return next((each for each in keeper.problems() if words in each), "")

    found: str = await until(displayed, f"a problem with: {words}")
    return found


async def test_without_cert_manager_the_reason_is_displayed_and_a_cluster_begins_once_it_is_there(
    cluster: KeptCluster,
) -> None:
    await cluster.admin.delete(CRD, "", REQUESTS)

    async def gone() -> bool:
        return not await cluster.admin.serves(CERTIFICATE_REQUEST)

    await until(gone, "no such kind")
    async with cluster.running(cluster.keeper(issuer="ca")) as keeper:
        await problem(keeper, "cert-manager is not installed")
        await define(cluster)
        with cert_manager(cluster):
            await problem(keeper, "not found")  # the Issuer
            await authority(cluster)
            await until(lambda: asyncio.sleep(0, keeper.loaded.is_set()), "the certificates")


async def test_an_issuer_signs_every_certificate_and_its_key_is_nowhere(cluster: KeptCluster) -> None:
    async with issued(cluster) as (keeper, authorities):
        kept = await files(cluster)
        assert kept["ca.crt"] == authorities
        assert "ca.key" not in kept
        for name in ("server", "operator", "mirror", "local", "admin", "peer", "node", "gateway"):
            assert pki.issued(kept[f"{name}.crt"], authorities)
            assert f"{name}.request.key" not in kept
        assert pki.covers(kept["server.crt"], ["isthmus-etcd", "127.0.0.1", "etcd.c1.clusterset.local"])
        assert pki.covers(kept["gateway.crt"], ["spiffe://c1.clusterset.local/gateway"])
        await cluster.mount("isthmus-etcd-server", "isthmus-etcd-operator")
        cluster.etcd.start()
        await until(lambda: asyncio.sleep(0, keeper.outcome.startswith("the etcd has")), "the users")
        assert keeper.problems() == []


async def test_a_denied_request_is_a_problem_and_the_certificate_before_stays(cluster: KeptCluster) -> None:
    async with issued(cluster) as (keeper, authorities):
        before = await files(cluster)
        await drop(cluster, "peer.crt")
        [name] = await until(lambda: requests(cluster), "a request")
        condition = {"type": "Denied", "status": "True", "reason": "Policy", "message": "not on my watch"}
        body = {"status": {"conditions": [condition]}}
        await cluster.admin.patch(CERTIFICATE_REQUEST, cluster.namespace, name, body, subresource="status")
        sentence = await problem(keeper, "not on my watch")
        assert f"CertificateRequest {name}: Denied" in sentence
        assert keeper.loaded.is_set()
        kept = await files(cluster)
        assert {file: kept[file] for file in before if not file.startswith("peer")} == {
            file: content for file, content in before.items() if not file.startswith("peer")
        }
        await cluster.admin.delete(CERTIFICATE_REQUEST, cluster.namespace, name)
        with cert_manager(cluster):

            async def signed() -> bool:
                return pki.issued((await files(cluster)).get("peer.crt", b""), authorities)

            await until(signed, "a certificate after another request")


async def test_garbage_in_an_answer_is_a_problem_and_replaces_nothing(cluster: KeptCluster) -> None:
    async with issued(cluster) as (keeper, authorities):
        await drop(cluster, "peer.crt")
        [name] = await until(lambda: requests(cluster), "a request")
        other = certificates.issue(certificates.authority("issuer"), "peer", days=30).certificate
        condition = {"type": "Ready", "status": "True", "reason": "Issued", "message": ""}
        texts = {"certificate": base64.b64encode(other).decode(), "ca": base64.b64encode(b"x" * 9_000).decode()}
        body = {"status": {"conditions": [condition], **texts}}
        await cluster.admin.patch(CERTIFICATE_REQUEST, cluster.namespace, name, body, subresource="status")
        await problem(keeper, "its answer cannot be used: status.ca")
        assert (await files(cluster))["ca.crt"] == authorities


async def test_an_issuer_with_another_authority_is_followed_by_two_bundles_and_no_handshake_fails(
    cluster: KeptCluster,
) -> None:
    async with issued(cluster, rotation_pause=6.0) as (keeper, old), deployed(cluster) as nodes:
        load = Load(cluster)
        await until(lambda: asyncio.sleep(0, keeper.outcome.startswith("the etcd has")), "the users")
        loading = asyncio.create_task(load.run())
        with cert_manager(cluster):
            new = await authority(cluster)
            await until(lambda: noticed(cluster), "the other authority")
            await at(cluster, Step.TRUSTING)
            trusting = await files(cluster)
            assert pki.split(trusting["ca.crt"]) == [old, new]
            assert pki.issued(trusting["server.crt"], old), "what is served is of the authority that all trust"
            await at(cluster, Step.SIGNING)
            await at(cluster, Step.STEADY)

            async def complete() -> bool:
                kept = await files(cluster)
                return pki.split(kept["ca.crt"]) == [new] and all(
                    pki.issued(kept[f"{name}.crt"], new) for name in ("server", "operator", "node", "gateway", "peer")
                )

            await until(complete, "one authority, by which all is signed")
            await until(lambda: asyncio.sleep(0, nodes.restarts == 2), "the etcd without the old authority")
        loading.cancel()
        assert load.refused == []
        assert load.done > 50
        assert not [file for file in await files(cluster) if file.startswith("next")]


async def test_an_issuer_takes_over_from_an_own_authority(cluster: KeptCluster) -> None:
    await define(cluster)
    new = await authority(cluster)
    async with cluster.running(cluster.keeper()) as keeper:
        await keeper.loaded.wait()
    own = (await files(cluster))["ca.crt"]
    section = {"issuer": "ca", "rotation_pause": 0.2}
    async with cluster.running(cluster.keeper("second", **section)) as keeper, deployed(cluster):
        await keeper.loaded.wait()
        assert (await files(cluster))["ca.crt"] == own, "which signs until a certificate is due"
        with cert_manager(cluster):
            await until(lambda: noticed(cluster), "the other authority")
            await at(cluster, Step.SIGNING)
            await at(cluster, Step.STEADY)
            kept = await files(cluster)
            assert kept["ca.crt"] == new
            assert "ca.key" not in kept
