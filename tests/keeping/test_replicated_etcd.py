"""A cluster with three etcds: any of them is killed or loses its data, or all lose it, and nobody notices."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from clusters.kept_export import PASSWORD, admit, endpoints, export, import_addresses, peer_file
from clusters.keys_world import KeptCluster, kept, until
from clusters.kube_apiserver import KubeApiServer
from clusters.operator_process import OperatorProcess
from peers.clusterset_peers import Following, Peers, following
from peers.etcd_server import EtcdServer

from isthmus.clusterset.joining.rights import remote_user
from isthmus.clusterset.links.plan import Kept, Outcome
from isthmus.clusterset.publishing.targets import KINDS
from isthmus.clusterset.records import keys
from isthmus.config import ClusterSection, Config
from isthmus.etcd import Credentials, EtcdError, Session, Tls, access, binary
from isthmus.kube.objects.core import NAMESPACE
from isthmus.kube.objects.mcs import SERVICE_EXPORT
from isthmus.model.names import ClusterName
from isthmus.model.tables import LINKS
from isthmus.processes.links import Links
from isthmus.reflector import Expired, Transient
from isthmus.statedb import Database

pytestmark = [pytest.mark.kube, pytest.mark.slow]

HANG = 120.0
"""Seconds that end a test that hangs; how long it takes is printed."""
C1 = ClusterName("c1")
FIRST, SECOND = "10.1.1.5", "10.1.1.6"


@pytest.fixture
async def cluster(kube_apiserver: KubeApiServer, tmp_path: Path) -> AsyncIterator[KeptCluster]:
    """A cluster with three etcds, ``isthmus keys`` and an operator, and a peer's user c9."""
    async with kept(kube_apiserver, tmp_path, etcds=3) as made:
        await made.define()
        made.start("keys")
        await made.mount("isthmus-etcd-server", "isthmus-etcd-operator")
        for etcd in made.etcds:
            etcd.start()
        await admit(made)
        yield made


async def content(etcd: EtcdServer, peers: Peers) -> dict[str, bytes]:
    """Records, by key, that the peer reads in one etcd; none before its canaries are there, or if it may not read."""
    tls = Tls(*(str(peers.folder / file) for file in ("c1.ca.crt", "c1.crt", "c1.key")))
    peer = Credentials("remote-c9", PASSWORD)
    try:
        async with Session([etcd.endpoint], tls=tls, credentials=peer, timeout=2.0) as session:
            for kind in KINDS:
                if await session.get(keys.canary(kind, C1)) is None:
                    return {}
            return {kv.key: kv.value for kind in KINDS for kv in (await session.list(keys.prefix(kind, C1))).kvs}
    except (Transient, Expired, EtcdError):
        return {}


async def complete(
    etcds: Iterable[EtcdServer], peers: Peers, records: dict[str, bytes], operator: OperatorProcess
) -> None:
    """Wait until each etcd has all records, canaries, and the peer's user, and the operator writes to all etcds."""
    for etcd in etcds:

        async def same(etcd: EtcdServer = etcd) -> bool:
            return await content(etcd, peers) == records

        await until(same, f"{etcd.endpoint} complete")

    async def written() -> bool:
        status = await asyncio.to_thread(operator.status)
        return status is not None and not status["warnings"] and not status["problems"]

    await until(written, "an operator that writes to each")


class Noticed(Exception):  # noqa: N818
    """A peer lacked the service, or an endpoint of it, for a moment."""


@asynccontextmanager
async def unnoticed(seen: Following, export: str, *addresses: str) -> AsyncIterator[None]:
    """Fail if a peer has another export or other endpoints of the cluster for a moment."""
    misses: list[object] = []

    async def watch() -> None:
        while True:
            state = seen.exports(), seen.addresses("c1")
            if state != ([export], {*addresses}):
                misses.append(state)
            await asyncio.sleep(0.01)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])
    assert not misses


def restart(etcds: Iterable[EtcdServer], *, wipe: bool) -> None:
    for etcd in (each := [*etcds]):
        etcd.stop()
    for etcd in each:
        if wipe:
            etcd.wipe()
        etcd.start()


async def test_any_of_three_etcds_is_killed_or_wiped_or_all_are_wiped_and_no_peer_and_no_import_notices(
    cluster: KeptCluster, tmp_path: Path
) -> None:
    operator = cluster.start("operator")
    made = await cluster.admin.create(NAMESPACE, "", {"metadata": {"generateName": "isthmus-test-three-"}})
    namespace = made.metadata.name
    name = f"c1:{namespace}/echo"
    await export(cluster, namespace, FIRST)
    before = await until(lambda: import_addresses(cluster, namespace), "the import's address")
    peers = Peers(tmp_path / "peers-of-c9", "")
    await peer_file(cluster, peers)
    records = await until(lambda: content(cluster.etcd, peers), "records in the first etcd")
    async with following(peers, own=ClusterSection(name="c9", id=9)) as seen, asyncio.timeout(10 * HANG):
        await seen.until(lambda _: seen.addresses("c1"))
        await seen.state("c1", "ready")
        await complete(cluster.etcds, peers, records, operator)
        for wipe in (False, True):
            for etcd in cluster.etcds:
                async with unnoticed(seen, name, FIRST):
                    began = time.monotonic()
                    restart([etcd], wipe=wipe)
                    await complete([etcd], peers, records, operator)
                print(f"one of three {'wiped' if wipe else 'killed'}: complete after {time.monotonic() - began:.1f} s")
        async with unnoticed(seen, name, FIRST):
            began = time.monotonic()
            restart(cluster.etcds, wipe=True)
            await complete(cluster.etcds, peers, records, operator)
            await seen.state("c1", "ready")
        print(f"all three wiped: complete after {time.monotonic() - began:.1f} s")
        assert await import_addresses(cluster, namespace) == before
        assert operator.ready
    await cluster.admin.delete(SERVICE_EXPORT, namespace, "echo")  # nothing empties the namespace here
    await cluster.admin.delete(NAMESPACE, "", namespace)


async def test_what_changes_while_two_of_three_etcds_are_down_reaches_peers_and_is_in_them_later(
    cluster: KeptCluster, tmp_path: Path
) -> None:
    operator = cluster.start("operator")
    made = await cluster.admin.create(NAMESPACE, "", {"metadata": {"generateName": "isthmus-test-two-"}})
    namespace = made.metadata.name
    await export(cluster, namespace, FIRST)
    peers = Peers(tmp_path / "peers-of-c9", "")
    await peer_file(cluster, peers)
    first = await until(lambda: content(cluster.etcd, peers), "records in the first etcd")
    await complete(cluster.etcds, peers, first, operator)
    async with following(peers, own=ClusterSection(name="c9", id=9)) as seen, asyncio.timeout(4 * HANG):
        await seen.until(lambda _: seen.addresses("c1") == {FIRST})
        for down in (cluster.etcds[:2], cluster.etcds[1:]):
            [up] = [each for each in cluster.etcds if each not in down]
            for etcd in down:
                etcd.stop()
            await endpoints(cluster, namespace, FIRST, SECOND)
            await seen.until(lambda _: seen.addresses("c1") == {FIRST, SECOND})
            code, reason = await asyncio.to_thread(operator.asked, "readyz")
            assert code == 200, reason
            await endpoints(cluster, namespace, FIRST)
            await seen.until(lambda _: seen.addresses("c1") == {FIRST})
            status = await asyncio.to_thread(operator.status)
            assert status is not None
            assert len([each for each in status["warnings"] if "does not have everything, others do" in each]) == 2
            assert not status["problems"]
            for etcd in down:
                etcd.start()
            await complete(cluster.etcds, peers, await content(up, peers), operator)
    await cluster.admin.delete(SERVICE_EXPORT, namespace, "echo")  # nothing empties the namespace here
    await cluster.admin.delete(NAMESPACE, "", namespace)


async def test_an_etcd_started_for_another_pod_is_another_store_though_all_else_is_the_same(tmp_path: Path) -> None:
    ids = []
    server = EtcdServer(binary.find(), tmp_path / "etcd")
    for token in ("one", "one", "two"):
        server.flags = (f"--initial-cluster-token={token}",)
        server.start()
        async with Session([server.endpoint]) as session:
            await server.ready(session)
            ids.append((await session.status()).cluster_id)
        server.stop()
        server.wipe()
    assert ids[0] == ids[1] != ids[2]
    manifests = yaml.safe_load_all((Path(__file__).resolve().parents[2] / "deploy/etcd/etcd.yaml").read_text())
    [etcd] = [each for each in manifests if each["kind"] == "StatefulSet"]
    command = etcd["spec"]["template"]["spec"]["containers"][0]["command"]
    assert "--initial-cluster-token=$(POD_UID)" in command


async def test_a_link_that_is_removed_while_an_etcd_is_away_leaves_no_user_in_it(cluster: KeptCluster) -> None:
    cluster.processes[0].kill()  # the keeper that runs here takes its place
    keeper = cluster.keeper()
    config = Config(cluster=ClusterSection(name="c1", id=1), etcd=cluster.etcd_section())
    served = Links(cluster.client, Database(LINKS), keeper, config)
    peer, user = ClusterName("c8"), remote_user(ClusterName("c8"))

    async def holds(number: int) -> tuple[bool, bool]:
        """Whether an etcd has the peer's user, and its certificate."""
        store = keeper.home.stores()[number]
        async with store.session() as root:
            return user in await access.users(root), await root.get(keys.certificate(C1, peer)) is not None

    signed = {peer: Outcome(kept=Kept(key=b""), certificate="signed")}
    async with cluster.running(keeper):
        await keeper.loaded.wait()

        async def admitted() -> bool:
            try:
                await served._admit(signed, {}, [])
                return [await holds(number) for number in range(3)] == [(True, True)] * 3
            except (Transient, EtcdError):
                return False

        await until(admitted, "the peer's user in each etcd")
    cluster.etcds[2].stop()
    with pytest.raises(Transient):
        await served._admit({}, {}, [peer])
    assert [await holds(number) for number in range(2)] == [(False, False)] * 2
    cluster.etcds[2].start()

    async def expelled() -> bool:
        try:
            await served._admit({}, {}, [peer])
        except (Transient, EtcdError):
            return False
        return True

    await until(expelled, "the peer's rights taken away in each")
    assert [await holds(number) for number in range(3)] == [(False, False)] * 3
