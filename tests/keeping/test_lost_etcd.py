"""An etcd is a cache: what it lost is made again, and no peer and no import notices."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from clusters.kept_export import admit, export, import_addresses, peer_file
from clusters.keys_world import KeptCluster, kept, until
from clusters.kube_apiserver import KubeApiServer
from peers.clusterset_peers import Following, Peers, following

from isthmus.clusterset.joining.rights import remote_user
from isthmus.clusterset.keeping.rotation import Reader
from isthmus.config import ClusterSection
from isthmus.etcd import access
from isthmus.kube.objects.core import NAMESPACE
from isthmus.kube.objects.mcs import SERVICE_EXPORT
from isthmus.model.names import ClusterName
from isthmus.reflector import Transient

pytestmark = pytest.mark.kube

COMPLETE = 30.0
"""Seconds within which an etcd that lost its data is complete again (issue 34)."""


@pytest.fixture
async def cluster(kube_apiserver: KubeApiServer, tmp_path: Path) -> AsyncIterator[KeptCluster]:
    """A cluster whose process ``isthmus keys`` runs, with its etcd and its operator, and a peer's user c9."""
    async with kept(kube_apiserver, tmp_path) as made:
        await made.define()
        made.start("keys")
        await made.mount("isthmus-etcd-server", "isthmus-etcd-operator")
        made.etcd.start()
        await admit(made)
        yield made


async def test_an_etcd_that_lost_its_data_is_complete_again_and_no_peer_and_no_import_notices(
    cluster: KeptCluster, tmp_path: Path
) -> None:
    operator = cluster.start("operator")
    made = await cluster.admin.create(NAMESPACE, "", {"metadata": {"generateName": "isthmus-test-lost-"}})
    namespace = made.metadata.name
    await export(cluster, namespace, "10.1.1.5")
    before = await until(lambda: import_addresses(cluster, namespace), "the import's address")
    peers = Peers(tmp_path / "peers-of-c9", "")
    await peer_file(cluster, peers)
    async with following(peers, own=ClusterSection(name="c9", id=9)) as seen:
        await seen.until(lambda _: seen.addresses("c1"))
        await seen.state("c1", "ready")
        for _ in range(2):
            watching = asyncio.create_task(watched(seen, f"c1:{namespace}/echo"))
            cluster.etcd.stop()
            cluster.etcd.wipe()
            began = time.monotonic()
            cluster.etcd.start()
            async with asyncio.timeout(COMPLETE):
                await seen.until(lambda _: seen.cluster("c1").state != "ready")
                await seen.state("c1", "ready")
                await until(lambda: asyncio.to_thread(lambda: operator.ready), "a ready operator")
            print(f"complete again after {time.monotonic() - began:.1f} s")
            watching.cancel()
            await asyncio.wait([watching])
            assert watching.cancelled(), "the peer always had the service's endpoints"
            assert await import_addresses(cluster, namespace) == before
    await cluster.admin.delete(SERVICE_EXPORT, namespace, "echo")  # nothing empties the namespace here
    await cluster.admin.delete(NAMESPACE, "", namespace)


async def test_a_peer_s_user_that_was_removed_while_its_link_exists_is_made_again(cluster: KeptCluster) -> None:
    """A link that is removed and made again within a second: the keeper sees no change of the links."""
    cluster.processes[0].kill()  # the keeper that runs here takes its place
    keeper, user = cluster.keeper(), remote_user(ClusterName("c8"))
    keeper.rotation.readers = {ClusterName("c8"): Reader(certificate=b"signed")}
    async with cluster.running(keeper):
        await keeper.loaded.wait()
        async with keeper.home.session() as root:

            async def admitted() -> bool:
                try:
                    return user in await access.users(root)
                except Transient:  # its authentication is off at first
                    return False

            await until(admitted, "the peer's user")
            await access.drop_user(root, user)
            await until(admitted, "the peer's user again")


async def watched(seen: Following, export: str) -> None:
    """Fail as soon as a peer has another export or endpoint of the cluster, or none; never return otherwise."""
    while True:
        assert (seen.exports(), seen.addresses("c1")) == ([export], {"10.1.1.5"})
        await asyncio.sleep(0.01)
