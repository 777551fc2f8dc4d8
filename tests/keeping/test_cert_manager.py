"""Keys that cert-manager makes: Secrets of its shape, mounted as docs/clusterset.md has it; it does not run here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from clusters.keys_world import KeptCluster, kept, until
from clusters.kube_apiserver import KubeApiServer

from isthmus.clusterset import certificates, joining, pki
from isthmus.clusterset.certificates import Pair
from isthmus.kube.objects.core import SECRET

pytestmark = pytest.mark.kube
PAGE = Path(__file__).resolve().parents[2] / "docs" / "clusterset.md"


@pytest.fixture
async def cluster(kube_apiserver: KubeApiServer, tmp_path: Path) -> AsyncIterator[KeptCluster]:
    async with kept(kube_apiserver, tmp_path) as made:
        yield made


def volumes() -> list[dict[str, Any]]:
    """Volumes of the page's patch."""
    text = PAGE.read_text().partition("### cert-manager")[2].partition("```yaml\n")[2].partition("```")[0]
    found: list[dict[str, Any]] = yaml.safe_load(text)
    return found


def sources(volume: dict[str, Any]) -> Iterator[tuple[str, list[dict[str, str]]]]:
    if "secret" in volume:
        yield volume["secret"]["secretName"], volume["secret"]["items"]
    for each in volume.get("projected", {}).get("sources", ()):
        yield each["secret"]["name"], each["secret"]["items"]


async def mount(cluster: KeptCluster, volume: dict[str, Any], name: str) -> None:
    """Write a volume's files, as a kubelet does."""
    folder = cluster.mounts / name
    folder.mkdir(parents=True, exist_ok=True)
    for secret, items in sources(volume):
        content = await cluster.secret(secret)
        assert content is not None
        for item in items:
            pki.save(folder / item["path"], content[item["key"]])


async def issued(cluster: KeptCluster, name: str, authority: Pair, pair: Pair) -> None:
    """What cert-manager writes for a Certificate."""
    files = {"ca.crt": authority.certificate, "tls.crt": pair.certificate, "tls.key": pair.key}
    data = {"type": "kubernetes.io/tls", "stringData": {file: text.decode() for file, text in files.items()}}
    await cluster.admin.apply(SECRET, cluster.namespace, name, data, field_manager="cert-manager")


@pytest.mark.slow
async def test_an_operator_publishes_with_keys_that_cert_manager_made_and_renewed(cluster: KeptCluster) -> None:
    await cluster.define()
    home = cluster.home("hand")
    home.folder.ensure("c1", ["127.0.0.1", "localhost"], days=30)
    authority = home.folder.signer
    hosts = ["127.0.0.1", "localhost", "etcd.c1.clusterset.local"]
    await issued(cluster, "isthmus-etcd-server", authority, certificates.issue(authority, "c1", hosts=hosts))
    await issued(cluster, "isthmus-etcd-operator", authority, certificates.issue(authority, "operator"))
    data = {"stringData": {"operator.password": home.folder.password("operator")}}
    await cluster.admin.apply(SECRET, cluster.namespace, "isthmus-etcd-passwords", data, field_manager="kubectl")
    etcd, operator = volumes()
    await mount(cluster, etcd, "isthmus-etcd-server")
    await mount(cluster, operator, "isthmus-etcd-operator")
    cluster.etcd.start()
    async with home.session(user="") as anybody:
        await cluster.etcd.ready(anybody)
    await joining.guard(home)
    process = cluster.start("operator")
    await until(lambda: asyncio.to_thread(lambda: process.ready), "a ready operator")
    await issued(cluster, "isthmus-etcd-server", authority, certificates.issue(authority, "c1", hosts=hosts))
    await issued(cluster, "isthmus-etcd-operator", authority, certificates.issue(authority, "operator"))
    await mount(cluster, etcd, "isthmus-etcd-server")
    await mount(cluster, operator, "isthmus-etcd-operator")
    cluster.etcd.stop()  # so that every connection is made anew
    cluster.etcd.start()
    await until(lambda: asyncio.to_thread(lambda: "cannot publish" not in process.asked("readyz")[1]), "it publishes")
    await until(lambda: asyncio.to_thread(lambda: process.ready), "a ready operator")
