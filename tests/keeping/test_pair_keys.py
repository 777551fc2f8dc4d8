"""Secrets of signatures of two clusters, on a real kube-apiserver that enforces the deployed rights, and real etcds."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from clusters.keys_world import QUICK, KeptCluster, kept
from clusters.kube_apiserver import KubeApiServer
from msgspec import structs
from peers.etcd_server import EtcdServer

from isthmus.clusterset import AUTHORITY_ROTATION, Keeper, PkiError
from isthmus.clusterset.records import identity
from isthmus.clusterset.records import keys as etcd_keys
from isthmus.config import ClusterSection, Config, EtcdSection, IdentitySection, KeysSection, KubernetesSection
from isthmus.etcd import Session, binary
from isthmus.identity import keys, pairs
from isthmus.identity.epoch_keys import KeySet
from isthmus.kube.objects.core import CONFIG_MAP, SECRET
from isthmus.model.names import ClusterName
from isthmus.processes import pair_keys
from isthmus.processes.pair_keys import NodeKeys, OwnPair, PairKeys
from isthmus.sources import secret_files

pytestmark = pytest.mark.kube

NOON, DAY = 1_795_780_800.0, 86_400.0
IDS = {ClusterName("c1"): 1, ClusterName("c2"): 2}


class Signing:
    """One cluster: its API server, its keeper of keys, and an etcd in which it publishes."""

    def __init__(self, name: str, kept: KeptCluster, etcd: EtcdServer) -> None:
        self.name = name
        self.kept = kept
        self.etcd = etcd
        self.now = NOON
        mount = kept.mounts / "isthmus-etcd-operator"
        self.config = Config(
            cluster=ClusterSection(name=name, id=IDS[ClusterName(name)]),
            kubernetes=KubernetesSection(namespace=kept.namespace),
            etcd=EtcdSection(endpoints=(etcd.endpoint,), ca_file=str(mount / "ca.crt")),
            identity=IdentitySection(enabled=True, directory=str(kept.folder / "pairs-of-node")),
        )
        home = kept.home(name)
        self.own_pair = OwnPair(every=90 * DAY, now=lambda: self.now)
        self.keeper = Keeper(
            kept.client, home, KeysSection(), namespace=kept.namespace, also=self.own_pair.ensure, timings=QUICK
        )
        self.pairs = self.process()

    def process(self) -> PairKeys:
        """The part of a process that has just started."""
        return PairKeys(self.kept.client, self.keeper, self.config, now=lambda: self.now)

    async def join(self, *peers: Signing) -> None:
        """Write the files of its peers, as links and joins do."""
        files = {each.name: f"endpoints: ['{each.etcd.endpoint}']\n".encode() for each in peers}
        data = {name: base64.b64encode(content).decode() for name, content in files.items()}
        body = {"type": "Opaque", "data": data}
        await self.kept.admin.apply(SECRET, self.kept.namespace, "isthmus-peers", body, field_manager="test")

    async def publish(self, **signing: Any) -> None:
        """Publish the description as the operator does, with the Secret that is mounted for it."""
        await self.kept.mount("isthmus-etcd-operator")
        field = structs.replace(pair_keys.published(self.config), **signing)
        described = identity.own_description(self.config.cluster, version="1", signing=field)
        async with Session([self.etcd.endpoint]) as session:
            await session.put(etcd_keys.description(ClusterName(self.name)), identity.encode(described))

    async def secret(self) -> dict[str, bytes]:
        return await self.kept.secret("isthmus-pair-keys") or {}

    async def version(self) -> str:
        secret = await self.kept.admin.get(SECRET, "isthmus-pair-keys", self.kept.namespace)
        return secret.metadata.resource_version

    async def node(self) -> KeySet:
        """Keys of one of its nodes, which has the files of the Secret."""
        secret_files.write(Path(self.config.identity.directory), await self.secret())
        return NodeKeys(self.config, now=lambda: self.now).look(IDS)


@pytest.fixture
async def clusters(kube_apiserver: KubeApiServer, tmp_path: Path) -> AsyncIterator[tuple[Signing, Signing]]:
    async with AsyncExitStack() as stack:
        made = []
        for name in IDS:
            etcd = EtcdServer(binary.find(), tmp_path / f"etcd-of-{name}")
            etcd.start()
            stack.callback(etcd.stop)
            async with Session([etcd.endpoint]) as session:
                await etcd.ready(session)
            cluster = await stack.enter_async_context(kept(kube_apiserver, tmp_path / name))
            made.append(Signing(name, cluster, etcd))
        first, second = made
        for one, other in ((first, second), (second, first)):
            await one.keeper.look()
            await one.publish()
            await one.join(other)
        yield first, second


def signed(current: KeySet, cluster: int) -> tuple[int, bytes]:
    """Number and key of the present epoch, for calls to a cluster."""
    number = keys.number_of(current.epoch)
    return number, current.sign[cluster, number]


async def test_two_clusters_derive_equal_keys_from_their_secrets_and_share_no_private_key(
    clusters: tuple[Signing, Signing],
) -> None:
    first, second = clusters
    for each in clusters:
        await each.pairs.look()
    ours, theirs = await first.node(), await second.node()
    number, key = signed(ours, 2)
    assert theirs.verify[1, number] == key
    number, key = signed(theirs, 1)
    assert ours.verify[2, number] == key
    assert signed(ours, 2) != signed(theirs, 1)
    private = [await each.kept.secret("isthmus-keys") or {} for each in clusters]
    assert private[0]["signing.key"] != private[1]["signing.key"]
    for each, own in zip(clusters, private, strict=True):
        for name in ("isthmus-pair-keys", "isthmus-etcd-operator"):
            secret = await each.kept.secret(name) or {}
            assert "signing.key" not in secret
            assert not any(own["signing.key"] in content for content in secret.values())


async def test_the_secret_is_written_when_a_day_or_a_peers_key_changes_and_not_else(
    clusters: tuple[Signing, Signing],
) -> None:
    first, second = clusters
    await first.pairs.look()
    before, version = await first.secret(), await first.version()
    first.now += 60
    await first.pairs.look()
    await first.process().look()
    assert await first.version() == version
    first.now += DAY
    await first.pairs.look()
    tomorrow = await first.secret()
    assert days(tomorrow["c2"])[:3] == days(before["c2"])[1:], "what was derived before stays"
    (second.keeper.home.folder.path / "signing.key").unlink()
    await second.keeper.look()
    await second.publish()
    await first.pairs.look()
    assert not {*days((await first.secret())["c2"])} & {*days(tomorrow["c2"])}


def days(file: bytes) -> list[str]:
    """Secrets of calls to the peer, in the order of their days."""
    send = json.loads(file)["send"]
    return [send[day] for day in sorted(send, key=int)]


async def test_a_peer_whose_etcd_is_away_keeps_its_key_and_gets_the_days_that_come(
    clusters: tuple[Signing, Signing],
) -> None:
    first, second = clusters
    for each in clusters:
        await each.pairs.look()
    second.etcd.stop()
    first.now = second.now = NOON + 30 * DAY
    await first.process().look()
    await second.process().look()
    number, key = signed(await first.node(), 2)
    assert (await second.node()).verify[1, number] == key


async def test_a_peer_whose_etcd_lost_its_data_keeps_its_key_until_it_publishes_again(
    clusters: tuple[Signing, Signing],
) -> None:
    first, second = clusters
    await first.pairs.look()
    before = await first.secret()
    async with Session([second.etcd.endpoint]) as session:
        await session.delete(etcd_keys.description(ClusterName("c2")))
    await first.pairs.look()
    assert await first.secret() == before != {}


async def test_a_key_in_the_secret_that_can_be_none_costs_its_peer_alone(clusters: tuple[Signing, Signing]) -> None:
    first, second = clusters
    await first.pairs.look()
    second.etcd.stop()
    pair = structs.replace(pairs.decode((await first.secret())["c2"]), peer_key=bytes(32))
    data = {"data": {"c2": base64.b64encode(pairs.encode(pair)).decode()}}
    await first.kept.admin.patch(SECRET, first.kept.namespace, "isthmus-pair-keys", data)
    await first.process().look()
    assert await first.secret() == {}


@pytest.mark.parametrize("how", ["it publishes no key", "it publishes a point of low order", "it is joined no more"])
async def test_a_peer_without_a_key_has_no_secrets(clusters: tuple[Signing, Signing], how: str) -> None:
    first, second = clusters
    await first.pairs.look()
    assert (await first.secret()).keys() == {"c2"}
    match how:
        case "it publishes no key":
            await second.publish(key="")
        case "it publishes a point of low order":
            await second.publish(key=base64.b64encode(bytes(32)).decode())
        case _:
            await first.join()
    await first.pairs.look()
    assert await first.secret() == {}


async def test_a_private_key_that_is_taken_out_of_the_secret_of_keys_is_replaced_by_another_one(
    clusters: tuple[Signing, Signing],
) -> None:
    first, second = clusters
    await first.pairs.look()
    before = [await first.kept.secret(name) or {} for name in ("isthmus-keys", "isthmus-etcd-operator")]
    patch = {"data": {"signing.key": None}}
    await first.kept.admin.patch(SECRET, first.kept.namespace, "isthmus-keys", patch)
    assert await first.keeper.look() == ["signing.key", "signing.pub", "isthmus-etcd-operator"]
    after = [await first.kept.secret(name) or {} for name in ("isthmus-keys", "isthmus-etcd-operator")]
    assert {name for name in before[0] if after[0][name] != before[0][name]} == {"signing.key", "signing.pub"}
    assert after[1]["signing.pub"] == after[0]["signing.pub"]
    await first.publish()
    for each in clusters:
        await each.pairs.look()
    number, key = signed(await first.node(), 2)
    assert (await second.node()).verify[1, number] == key


async def test_another_pair_that_is_requested_is_used_by_both_clusters_from_the_same_midnight(
    clusters: tuple[Signing, Signing],
) -> None:
    first, second = clusters
    body = {"data": {"signing": f"{datetime.fromtimestamp(NOON + 60, UTC):%Y-%m-%dT%H:%M:%SZ}"}}
    await first.kept.admin.apply(CONFIG_MAP, first.kept.namespace, AUTHORITY_ROTATION, body, field_manager="kubectl")
    assert await first.keeper.look() == [], "its time has not come"
    await second.pairs.look()
    changes = []
    for hours in range(1, 97):
        first.now = second.now = NOON + 3600 * hours + 100
        for each in clusters:
            if files := await each.keeper.look():
                changes.append((each.name, hours, files))
                await each.publish()
        await first.pairs.look()
        number, key = signed(await first.node(), 2)
        assert (await second.node()).verify[1, number] == key, "the peer has not read it anew yet"
        await second.pairs.look()
        assert (await second.node()).verify[1, number] == key
    files = ["signing.key", "signing.pub", "isthmus-etcd-operator"]
    assert changes == [("c1", 1, files), ("c1", 84, files)], "made at once, used after 60 hours, and alone a day later"
    assert first.own_pair.sentence() == "one pair"


async def test_a_request_without_a_time_is_one_problem_and_rotates_nothing(clusters: tuple[Signing, Signing]) -> None:
    first, _ = clusters
    body = {"data": {"signing": "soon"}}
    await first.kept.admin.apply(CONFIG_MAP, first.kept.namespace, AUTHORITY_ROTATION, body, field_manager="kubectl")
    assert await first.keeper.look() == []
    assert "isthmus-authority-rotation, data.signing: " in first.own_pair.problem


async def test_a_private_key_that_is_none_is_one_problem_and_holds_up_no_other_key(
    clusters: tuple[Signing, Signing],
) -> None:
    first, _ = clusters
    await first.pairs.look()
    before = await first.secret()
    first.keeper.home.folder.save("signing.key", b"bm9uZQ==")
    await first.keeper.look()
    with pytest.raises(PkiError, match=r"signing\.key: it is no X25519 key in base64"):
        await first.pairs.look()
    assert await first.secret() == before
