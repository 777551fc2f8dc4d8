"""The authority of a cluster gives way to another one, in steps that wait for evidence, over every interruption."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from clusters.etcd_rollout import Load, at, deployed, shown
from clusters.keys_world import KeptCluster, kept, until
from clusters.kube_apiserver import KubeApiServer
from cryptography import x509

from isthmus import kube
from isthmus.cli import root
from isthmus.clusterset import PkiError, Reader, certificates, pki
from isthmus.clusterset.keeping import rotation
from isthmus.clusterset.keeping.keeper import Keeper
from isthmus.clusterset.keeping.rotating import AUTHORITY_ROTATION, ETCD, TRUSTED
from isthmus.clusterset.keeping.rotation import Step
from isthmus.clusterset.keeping.vault import Stored
from isthmus.clusterset.pki import Folder
from isthmus.kube.objects.apps import STATEFUL_SET
from isthmus.kube.objects.core import CONFIG_MAP, SECRET
from isthmus.model.names import ClusterName
from isthmus.times import timestamp

NOW = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)
C2 = ClusterName("c2")
SETTLED = 6.0
"""Seconds after which every session has read its renewed files."""


# Decisions.


def folder_of(path: Path) -> Folder:
    folder = Folder(path / "keys")
    folder.ensure("c1", ["127.0.0.1"], days=30)
    return folder


def test_an_authority_with_a_third_of_its_life_left_is_due_without_a_request() -> None:
    begun = NOW - timedelta(days=100)
    old = certificates.authority("c1", days=151, now=begun).certificate
    assert rotation.due(old, "", NOW) == ""
    assert rotation.due(old, "", NOW + timedelta(days=2)).startswith("it ends at ")


def test_a_request_is_for_authorities_made_before_it_and_not_before_its_time() -> None:
    made = certificates.authority("c1", now=NOW).certificate
    later = timestamp(NOW + timedelta(hours=1))
    assert rotation.due(made, timestamp(NOW), NOW) == ""
    assert rotation.due(made, later, NOW) == ""
    assert rotation.due(made, later, NOW + timedelta(hours=2)) == f"requested for {later}"
    with pytest.raises(PkiError, match=r"data\.requested"):
        rotation.due(made, "soon", NOW)


def test_a_peer_confirms_the_bundle_first_and_its_new_certificate_then(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    first = certificates.issue(folder.signer, "remote-c2", days=30).certificate
    before = Reader(certificate=first, holds_bundle=pki.digest(folder.bundle), holds_certificate=pki.digest(first))
    folder.begin_rotation("c1")
    assert rotation.step(folder) is Step.TRUSTING
    assert "c2 has not confirmed the new authority" in rotation.unconfirmed(Step.TRUSTING, folder, {C2: before}, ())[0]
    trusting = Reader(certificate=first, holds_bundle=pki.digest(folder.bundle), holds_certificate=pki.digest(first))
    assert rotation.unconfirmed(Step.TRUSTING, folder, {C2: trusting}, ()) == []
    folder.switch()
    assert rotation.step(folder) is Step.SIGNING
    assert pki.digest(folder.bundle) == trusting.holds_bundle, "another order is the same bundle"
    assert "its new certificate" in rotation.unconfirmed(Step.SIGNING, folder, {C2: trusting}, ())[0]
    second = certificates.issue(folder.signer, "remote-c2", days=30).certificate
    signed = Reader(certificate=second, holds_bundle=trusting.holds_bundle, holds_certificate=pki.digest(second))
    assert rotation.unconfirmed(Step.SIGNING, folder, {C2: signed}, ()) == []
    assert rotation.unconfirmed(Step.SIGNING, folder, {C2: signed}, [ClusterName("c3")]) == [
        "c3 joined by hand: run isthmus clusters refresh there"
    ]


def test_peers_hold_a_step_up_for_the_configured_time_or_for_ever() -> None:
    assert not rotation.overdue(NOW, 60, NOW + timedelta(seconds=59))
    assert rotation.overdue(NOW, 60, NOW + timedelta(seconds=60))
    assert not rotation.overdue(NOW, 0, NOW + timedelta(days=999))


def test_progress_that_cannot_be_read_begins_now(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    for content in (b"", b"{}", b'{"began": "x", "step_began": "y"}'):
        folder.save(rotation.FILE, content)
        assert rotation.progress(folder, timestamp(NOW)) == rotation.Progress(timestamp(NOW), timestamp(NOW))


# A cluster: its API server, its etcd, and what a kubelet and the controller of StatefulSets would do.


@pytest.fixture
async def cluster(kube_apiserver: KubeApiServer, tmp_path: Path) -> AsyncIterator[KeptCluster]:
    async with kept(kube_apiserver, tmp_path) as made:
        yield made


async def request(cluster: KeptCluster, when: datetime | None = None) -> None:
    """What ``isthmus clusters rotate-ca --context`` writes."""
    body = {"data": {"requested": timestamp(when or datetime.now(UTC) + timedelta(seconds=1))}}
    await cluster.admin.apply(CONFIG_MAP, cluster.namespace, AUTHORITY_ROTATION, body, field_manager="isthmus-cli")


async def secret(cluster: KeptCluster, name: str = "isthmus-keys") -> Mapping[str, bytes]:
    found: Mapping[str, bytes] = await until(lambda: cluster.secret(name), name)
    return found


def signed_by(files: Mapping[str, bytes], name: str, authority: bytes) -> bool:
    return pki.issued(files[f"{name}.crt"], authority)


@pytest.mark.kube
@pytest.mark.slow
async def test_a_requested_rotation_ends_with_one_new_authority_and_no_handshake_fails(
    cluster: KeptCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    async with cluster.running(cluster.keeper(rotation_pause=SETTLED)) as keeper:
        await keeper.loaded.wait()
        first = await secret(cluster)
        async with deployed(cluster) as nodes:
            load = Load(cluster)
            await until(lambda: asyncio.sleep(0, keeper.outcome.startswith("the etcd has")), "the users")
            loading = asyncio.create_task(load.run())
            await request(cluster)
            await at(cluster, Step.TRUSTING)
            trusting = await secret(cluster)
            assert trusting["ca.key"] == first["ca.key"], "the old authority signs on"
            await at(cluster, Step.SIGNING)
            signing = await secret(cluster)
            assert signing["ca.key"] == trusting["next.key"]
            assert len(x509.load_pem_x509_certificates(signing["ca.crt"])) == 2
            await at(cluster, Step.STEADY)
            await asyncio.sleep(SETTLED)
            loading.cancel()
        last = await secret(cluster)
        assert x509.load_pem_x509_certificates(last["ca.crt"]) == [x509.load_pem_x509_certificate(trusting["next.crt"])]
        for name in ("server", "operator", "mirror", "local", "admin", "peer", "node", "gateway"):
            assert signed_by(last, name, last["ca.crt"])
        assert rotation.FILE not in last
        assert nodes.restarts == 2, "for the bundle of two, and for the bundle without the old one"
        assert load.refused == []
        assert load.done > 50
        assert "Handshake failed" not in capfd.readouterr().err, "of no client in this process, as gRPC logs it"
        await until(lambda: asyncio.sleep(0, keeper.problems() == []), "no problem")
        assert await keeper.look() == [], "and the request is carried out once"


@pytest.mark.kube
@pytest.mark.slow
@pytest.mark.parametrize("point", ["the Secret is written", "roles have theirs", "the etcd restarts"])
@pytest.mark.parametrize("step", [*Step])
async def test_a_process_that_ends_in_any_step_leaves_one_that_the_next_process_finishes(
    cluster: KeptCluster, step: Step, point: str
) -> None:
    """It ends as soon as it is to do the first thing of a step: before this point of its pass."""
    first = cluster.keeper("first", rotation_pause=0.2)
    running = asyncio.create_task(first.run())
    await first.loaded.wait()
    old = first.home.folder.bundle

    async def rotated() -> bool:
        files = await secret(cluster)
        return old not in files["ca.crt"] and "next.key" not in files

    async with deployed(cluster):
        await request(cluster)
        await reached(first, step, point)
        running.cancel()
        await asyncio.wait([running])
        async with cluster.running(cluster.keeper("second", rotation_pause=0.2)) as second:
            await until(rotated, "another authority, alone")
            await at(cluster, Step.STEADY)
            await until(lambda: asyncio.sleep(0, second.outcome.startswith("the etcd has")), "the users")
            files = await secret(cluster)

            async def restarted() -> bool:
                etcd = await cluster.admin.get(STATEFUL_SET, ETCD, cluster.namespace)
                return (etcd.spec.template.metadata.annotations or {}).get(TRUSTED) == pki.digest(files["ca.crt"])

            await until(restarted, "an etcd with the last bundle")
            assert len(x509.load_pem_x509_certificates(files["ca.crt"])) == 1
            assert files["ca.crt"] == second.home.folder.bundle
            assert "next.key" not in files


async def reached(keeper: Keeper, step: Step, point: str) -> None:
    """Stop a keeper's pass before a point, when its folder has come to a step of the rotation."""
    stopped, begun = asyncio.Event(), False

    async def stop_here() -> None:
        nonlocal begun
        now = rotation.step(keeper.home.folder)
        begun = begun or now is not Step.STEADY
        if begun and now is step:
            stopped.set()
            await asyncio.Event().wait()

    save, share, settle = keeper._save, keeper._vault.share, keeper.rotation.settle

    async def stopped_save(stored: Stored | None) -> None:
        await stop_here()
        await save(stored)

    async def stopped_share(files: Mapping[str, bytes]) -> list[str]:
        await stop_here()
        return await share(files)

    async def stopped_settle() -> None:
        await stop_here()
        await settle()

    match point:
        case "the Secret is written":
            keeper._save = stopped_save  # type: ignore[method-assign]
        case "roles have theirs":
            keeper._vault.share = stopped_share  # type: ignore[method-assign]
        case _:
            keeper.rotation.settle = stopped_settle  # type: ignore[method-assign]
    await until(lambda: asyncio.sleep(0, stopped.is_set()), f"step {step}, before {point}")


@pytest.mark.kube
async def test_an_authority_about_to_end_is_replaced_without_a_request(cluster: KeptCluster) -> None:
    hand = cluster.home("hand").folder
    old = certificates.authority("c1", days=30, now=datetime.now(UTC) - timedelta(days=25))
    hand.path.mkdir(parents=True)
    hand.save("ca.crt", old.certificate)
    hand.save("ca.key", old.key)
    hand.ensure("c1", ["127.0.0.1"], days=30, domain="clusterset.local")
    data = {"type": "Opaque", "stringData": {name: text.decode() for name, text in hand.contents().items()}}
    await cluster.admin.apply(SECRET, cluster.namespace, "isthmus-keys", data, field_manager="kubectl")
    keeper = cluster.keeper()
    assert any("it ends at" in each for each in await keeper.look())
    assert (await shown(cluster))["step"] == Step.TRUSTING
    assert (await secret(cluster))["ca.key"] == old.key


@pytest.mark.kube
async def test_a_step_waits_for_the_own_etcd_and_displays_that_it_does(cluster: KeptCluster) -> None:
    async with cluster.running(cluster.keeper(rotation_pause=0.0, rotation_wait=0.1)) as keeper:
        await keeper.loaded.wait()
        async with deployed(cluster) as nodes:
            nodes.restarting.clear()
            await request(cluster)
            await at(cluster, Step.TRUSTING)
            await asyncio.sleep(1.5)  # longer than peers could hold it up
            state = await shown(cluster)
            assert (state["step"], state["waitsFor"]) == (
                Step.TRUSTING,
                "StatefulSet isthmus-etcd is restarting its pods",
            )
            assert "StatefulSet isthmus-etcd is restarting its pods" in keeper.rotation.sentence()
            nodes.restarting.set()
            await at(cluster, Step.STEADY)


@pytest.mark.kube
async def test_a_peer_that_never_confirms_holds_a_step_up_no_longer_than_configured(cluster: KeptCluster) -> None:
    async with cluster.running(cluster.keeper(rotation_pause=0.0, rotation_wait=4.0)) as keeper:
        await keeper.loaded.wait()
        keeper.rotation.readers = {C2: Reader()}
        async with deployed(cluster):
            await request(cluster)
            await at(cluster, Step.TRUSTING)

            async def named() -> bool:
                return "c2 has not confirmed the new authority" in (await shown(cluster))["waitsFor"]

            await until(named, "the peer named")
            await at(cluster, Step.STEADY)


@pytest.mark.kube
async def test_a_request_that_is_no_time_costs_no_renewal(cluster: KeptCluster) -> None:
    body = {"data": {"requested": "now, please"}}
    await cluster.admin.apply(CONFIG_MAP, cluster.namespace, AUTHORITY_ROTATION, body, field_manager="kubectl")
    keeper = cluster.keeper()
    assert "server" in await keeper.look()
    await keeper.look()
    assert "data.requested" in " ".join(keeper.problems())
    assert await secret(cluster, "isthmus-etcd-server")


@pytest.mark.kube
async def test_without_rights_to_rotate_keys_are_kept_all_the_same(cluster: KeptCluster) -> None:
    keeper = Keeper(cluster.client, cluster.home(), cluster.keeper()._section, namespace=cluster.namespace)

    async def forbidden() -> dict[str, str]:
        raise kube.Forbidden("no right to configmaps")

    keeper.rotation._data = forbidden  # type: ignore[method-assign]
    await keeper.look()
    await keeper.look()
    assert "the authority is not rotated" in " ".join(keeper.problems())
    assert await secret(cluster, "isthmus-etcd-server")


async def command(cluster: KeptCluster, *words: str) -> Result:
    access = ["--kubeconfig", str(cluster.server.section("admin").kubeconfig), "-n", cluster.namespace]
    return await asyncio.to_thread(CliRunner().invoke, root, ["clusters", "rotate-ca", *words, *access])


@pytest.mark.kube
async def test_the_command_requests_a_rotation_that_the_keeper_begins_and_a_dry_run_requests_none(
    cluster: KeptCluster,
) -> None:
    without = await command(cluster)
    assert without.exit_code == 1
    assert "the keys do not live in this cluster" in without.output
    keeper = cluster.keeper()
    await keeper.look()
    dry = await command(cluster, "--dry-run")
    assert (dry.exit_code, "would be replaced" in dry.output) == (0, True)
    assert "authority isthmus clusterset c1, made" in dry.output
    assert "requested" not in await shown(cluster)
    await asyncio.sleep(1.1)  # times are of whole seconds
    assert (await command(cluster)).exit_code == 0
    await keeper.look()
    assert (await shown(cluster))["step"] == Step.TRUSTING
    again = await command(cluster)
    assert "a rotation is under way; none is requested" in again.output
    assert "trusting: the new authority is trusted beside the old one" in again.output


@pytest.mark.kube
async def test_a_step_by_hand_takes_no_context_and_says_why(cluster: KeptCluster) -> None:
    refused = await command(cluster, "begin")
    assert refused.exit_code == 1
    assert "with STEP the keys are in a folder: give --config" in refused.output
