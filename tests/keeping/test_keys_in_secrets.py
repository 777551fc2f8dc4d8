"""The keys of a cluster in Secrets, on a real kube-apiserver that enforces the deployed rights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from clusters.keys_world import KeptCluster, kept, until
from clusters.kube_apiserver import KubeApiServer
from cryptography import x509

from isthmus import kube
from isthmus.clusterset import PkiError
from isthmus.clusterset.keeping.shares import SHARES
from isthmus.clusterset.pki import covers
from isthmus.kube.objects.core import SECRET, SERVICE

pytestmark = pytest.mark.kube


@pytest.fixture
async def cluster(kube_apiserver: KubeApiServer, tmp_path: Path) -> AsyncIterator[KeptCluster]:
    async with kept(kube_apiserver, tmp_path) as made:
        yield made


async def test_a_new_cluster_has_an_authority_and_each_role_its_own_keys(cluster: KeptCluster) -> None:
    keeper = cluster.keeper()
    await keeper.look()
    stored = await cluster.secret("isthmus-keys")
    assert stored is not None
    assert stored == keeper.home.folder.contents()
    assert {"ca.crt", "ca.key", "root.password", "peer.crt", "admin.key"} <= stored.keys()
    for name, files in SHARES.items():
        assert await cluster.secret(name) == {file: stored[file] for file in files}
        assert not {"ca.key", "root.password"} & {*files}
    assert await keeper.look() == [], "and a second look changes nothing"


async def test_a_process_that_starts_anew_goes_on_with_the_same_keys(cluster: KeptCluster) -> None:
    await cluster.keeper("first").look()
    before = await cluster.secret("isthmus-keys")
    assert await cluster.keeper("second").look() == []
    assert await cluster.secret("isthmus-keys") == before


async def test_of_two_processes_that_begin_at_once_one_makes_the_authority(cluster: KeptCluster) -> None:
    keepers = [cluster.keeper(str(number)) for number in range(4)]
    results = await asyncio.gather(*(each.look() for each in keepers), return_exceptions=True)
    assert sum(not isinstance(each, Exception) for each in results) == 1
    for keeper, result in zip(keepers, results, strict=True):
        assert isinstance(result, kube.Conflict | list)
        await keeper.look()
    assert len({each.home.folder.read("ca.crt") for each in keepers}) == 1


async def test_no_second_authority_is_made_where_a_role_has_keys(cluster: KeptCluster) -> None:
    body = {"data": {}, "type": "Opaque"}
    await cluster.admin.apply(SECRET, cluster.namespace, "isthmus-etcd-server", body, field_manager="kubectl")
    with pytest.raises(PkiError, match="isthmus-keys does not exist, but isthmus-etcd-server do: no second authority"):
        await cluster.keeper().look()
    assert await cluster.secret("isthmus-keys") is None
    async with cluster.running(cluster.keeper()) as keeper:

        async def shown() -> bool:
            return "no second authority" in " ".join(keeper.problems())

        await until(shown, "the problem shown")
        assert not keeper.loaded.is_set()


async def test_keys_made_by_hand_are_adopted(cluster: KeptCluster) -> None:
    by_hand = cluster.home("hand")
    by_hand.folder.ensure("c1", ["127.0.0.1"], days=365)
    data = {"type": "Opaque", "stringData": {name: text.decode() for name, text in by_hand.folder.contents().items()}}
    await cluster.admin.apply(SECRET, cluster.namespace, "isthmus-keys", data, field_manager="kubectl")
    keeper = cluster.keeper()
    await keeper.look()
    assert keeper.home.folder.read("ca.key") == by_hand.folder.read("ca.key")
    assert keeper.home.folder.read("root.password") == by_hand.folder.read("root.password")
    assert await cluster.secret("isthmus-gateway"), "and what the folder lacked was made"


async def test_a_secret_of_keys_that_is_deleted_is_written_again(cluster: KeptCluster) -> None:
    async with cluster.running(cluster.keeper()) as keeper:
        await keeper.loaded.wait()
        before = await cluster.secret("isthmus-keys")
        await cluster.admin.delete(SECRET, cluster.namespace, "isthmus-keys")
        await until(lambda: cluster.secret("isthmus-keys"), "the Secret again")
        assert await cluster.secret("isthmus-keys") == before


@pytest.mark.parametrize("files", [("ca.key",), ("ca.crt", "ca.key")])
async def test_an_authority_taken_out_of_the_secret_of_keys_is_put_back_and_never_replaced(
    cluster: KeptCluster, files: tuple[str, ...]
) -> None:
    keeper = cluster.keeper()
    await keeper.look()
    before = await cluster.secret("isthmus-keys")
    body = {"data": dict.fromkeys(files)}
    await cluster.admin.patch(SECRET, cluster.namespace, "isthmus-keys", body)
    with pytest.raises(PkiError, match=r"isthmus-keys lacks ca.crt or ca.key, but .* no second authority"):
        await cluster.keeper("later").look()
    keeper.loaded.set()
    await keeper.look()
    assert await cluster.secret("isthmus-keys") == before


async def test_a_role_s_secret_that_is_changed_or_deleted_is_written_again(cluster: KeptCluster) -> None:
    async with cluster.running(cluster.keeper()) as keeper:
        await keeper.loaded.wait()
        before = await cluster.secret("isthmus-etcd-mirror")
        await cluster.admin.delete(SECRET, cluster.namespace, "isthmus-etcd-mirror")
        await until(lambda: cluster.secret("isthmus-etcd-mirror"), "the Secret again")
        assert await cluster.secret("isthmus-etcd-mirror") == before


async def test_the_address_that_a_load_balancer_gives_is_in_the_certificate(cluster: KeptCluster) -> None:
    async with cluster.running(cluster.keeper(hosts=("node.example",))) as keeper:
        await keeper.loaded.wait()
        spec = {"type": "LoadBalancer", "ports": [{"port": 2379}], "selector": {"app": "etcd"}}
        made = await cluster.admin.create(
            SERVICE, cluster.namespace, {"metadata": {"name": "isthmus-etcd-peers"}, "spec": spec}
        )
        status = {"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}, {"hostname": "etcd.c1.example"}]}}}
        await cluster.admin.patch(SERVICE, cluster.namespace, "isthmus-etcd-peers", status, subresource="status")
        wanted = (
            f"isthmus-etcd.{cluster.namespace}.svc",
            made.spec.cluster_ip,
            "203.0.113.7",
            "etcd.c1.example",
            "node.example",
            "etcd.c1.clusterset.local",
        )

        async def covered() -> bool:
            content = await cluster.secret("isthmus-etcd-server")
            return content is not None and covers(content["server.crt"], wanted)

        await until(covered, "the server's certificate for its addresses")
        content = await cluster.secret("isthmus-etcd-server")
        assert content is not None
        authority = x509.load_pem_x509_certificate(content["ca.crt"])
        x509.load_pem_x509_certificate(content["server.crt"]).verify_directly_issued_by(authority)


async def test_only_the_named_secrets_may_be_made(cluster: KeptCluster) -> None:
    for name in ("other", "isthmus-etcd-admin"):
        with pytest.raises(kube.Forbidden):
            await cluster.client.apply(SECRET, cluster.namespace, name, {"data": {}}, field_manager="isthmus-keys")
        with pytest.raises(kube.Forbidden):
            await cluster.client.create(SECRET, cluster.namespace, {"metadata": {"name": name}})
        with pytest.raises(kube.Forbidden):
            await cluster.client.get(SECRET, name, cluster.namespace)
