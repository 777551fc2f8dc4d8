"""Members of a Karmada control plane are joined by Works alone, and drained of what Karmada moves away."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from clusters.apiserver_world import ApiServer, serving
from clusters.karmada_control import WORK, ControlPlane, control_plane, until

from isthmus.cli import root
from isthmus.clusterset import pki
from isthmus.clusterset.peers.peer_files import Directory
from isthmus.etcd import Denied
from isthmus.karmada import keyring
from isthmus.kube.objects.core import NAMESPACE, SECRET, SERVICE
from isthmus.kube.objects.karmada import CLUSTER, RESOURCE_BINDING, Workload
from isthmus.model.names import ClusterName
from isthmus.times import timestamp


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with serving(tmp_path_factory.mktemp("karmada") / "server") as server:
        yield server


@pytest.fixture
async def karmada(server: ApiServer, tmp_path: Path) -> AsyncIterator[ControlPlane]:
    async with control_plane(server, tmp_path, "c1", "c2", "a", "a-b") as made:
        yield made


async def joined(karmada: ControlPlane, *names: str, start: bool = False) -> None:
    """Members with what Karmada brought them; ``start``: their etcds run."""
    for name in names:
        await karmada.register(name, region="eu", zones=["eu-1"], provider="acme")
    await karmada.place(names)
    await karmada.settle()
    if start:
        await asyncio.gather(*(karmada.members[name].start() for name in names))


@pytest.mark.slow
async def test_members_read_each_other_as_they_come_and_go_though_the_peer_is_down(karmada: ControlPlane) -> None:
    c1, c2, third = (karmada.members[name] for name in ("c1", "c2", "a"))
    await joined(karmada, "c1", "c2", start=True)
    assert (await c1.reads("c2"), await c2.reads("c1")) == ("", "")
    assert c1.peers().keys() == {"c2"}
    assert c1.settings["ISTHMUS_CLUSTER_REGION"] == "eu"
    assert "provider=acme" in c1.settings["ISTHMUS_CLUSTER_LABELS"]
    # One comes: both get it, it gets both.
    await karmada.register("a")
    await karmada.place(["c1", "c2", "a"])
    await karmada.settle()
    await third.start()
    assert [await c1.reads("a"), await c2.reads("a"), await third.reads("c1"), await third.reads("c2")] == [""] * 4
    assert {member.settings["ISTHMUS_CLUSTER_ID"] for member in (c1, c2, third)} == {"1", "2", "3"}
    # It leaves while c2 is away: c1 knows at once, c2 when it is back; its own keys are taken from it.
    kept = Path(shutil.copytree(third.folder / "isthmus-peers", third.folder / "kept"))
    c2.away = True
    await karmada.client.delete(CLUSTER, "", "a")
    await karmada.place(["c1", "c2"])
    await karmada.settle()
    assert (set(c1.peers()), set(c2.peers())) == ({"c2"}, {"c1", "a"})
    assert not any(third.keys.iterdir())
    async with Directory(str(kept), own=ClusterName("a")).read()[ClusterName("c1")].session() as session:
        with pytest.raises(Denied):
            await session.get("isthmus/trust/v1/c1")
    c2.away = False
    await karmada.settle()
    assert c2.peers().keys() == {"c1"}
    assert (await c1.reads("c2"), await c2.reads("c1")) == ("", "")


async def test_nothing_is_written_where_nothing_changed_and_one_change_costs_what_it_concerns(
    karmada: ControlPlane,
) -> None:
    await joined(karmada, "c1", "c2")
    assert (await karmada.settle()).written == 0
    annotations = {"isthmus.io/pod-ranges": "10.1.0.0/16"}
    await karmada.client.patch(CLUSTER, "", "c1", {"metadata": {"annotations": annotations}})
    assert (await karmada.control.round()).written == 2  # what c1 is, and how c2 reaches it
    await karmada.settle()
    assert karmada.members["c2"].peers()["c1"].pod_ranges == ("10.1.0.0/16",)


async def test_members_called_a_and_a_b_get_their_own_keys(karmada: ControlPlane) -> None:
    await joined(karmada, "a", "a-b", "c1")
    short, long, c1 = (karmada.members[name] for name in ("a", "a-b", "c1"))
    assert (set(c1.peers()), set(short.peers()), set(long.peers())) == ({"a", "a-b"}, {"a-b", "c1"}, {"a", "c1"})
    for peer, member in (("a", short), ("a-b", long)):
        assert Path(c1.peers()[peer].ca_file).read_bytes() == (member.keys / "ca.crt").read_bytes()
        assert c1.peers()[peer].password == (member.keys / "remote-c1.password").read_text()
    assert (short.keys / "ca.crt").read_bytes() != (long.keys / "ca.crt").read_bytes()


async def test_the_key_of_an_authority_stays_on_the_control_plane(karmada: ControlPlane) -> None:
    await joined(karmada, "c1", "c2")
    [kept, _] = await karmada.client.list(SECRET, "karmada-system", label_selector="isthmus.io/member")
    assert "ca.key" in (kept.data or {})
    for member in karmada.members.values():
        for key, manifest in member.objects.items():
            assert "ca.key" not in manifest.get("data", {}), key
    for work in await karmada.client.list(WORK):
        assert "ca.key" not in json.dumps(work.spec)


async def test_a_placement_that_is_gone_takes_nobody_out(karmada: ControlPlane) -> None:
    await joined(karmada, "c1", "c2")
    await karmada.client.delete(RESOURCE_BINDING, "isthmus-system", "isthmus-etcd-peers-service")
    assert (await karmada.settle()).written == 0
    await karmada.place([])
    assert (await karmada.settle()).written == 0
    assert set(karmada.members["c1"].peers()) == {"c2"}


async def test_a_member_without_a_namespace_of_works_costs_no_other_its_own(karmada: ControlPlane) -> None:
    await joined(karmada, "c1", "c2")
    await karmada.client.create(CLUSTER, "", {"metadata": {"name": "c9"}})
    await karmada.place(["c1", "c2", "c9"])
    report = await karmada.settle()
    assert report.problems
    assert all(problem.startswith("c9: ") for problem in report.problems)
    assert set(karmada.members["c1"].peers()) == {"c2"}


@pytest.mark.slow
async def test_what_karmada_moves_away_is_drained_in_the_member_that_it_leaves_and_no_longer_than_its_grace(
    karmada: ControlPlane,
) -> None:
    await joined(karmada, "c1", "c2")
    await karmada.client.create(NAMESPACE, "", DEMO)
    for name, selector in (("shop", {"app": "shop"}), ("other", {"app": "other"}), ("bare", {})):
        spec = {"selector": selector, "ports": [{"port": 80}]}
        await karmada.client.create(SERVICE, "demo", {"metadata": {"name": name}, "spec": spec})
    labels = {"app": "shop", "tier": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "shop", "image": "isthmus/echo"}]}}
    deployment = {"metadata": {"name": "shop"}, "spec": {"selector": {"matchLabels": labels}, "template": template}}
    kind = await karmada.client.kind("apps/v1", "Deployment", Workload)
    await karmada.client.create(kind, "demo", deployment)
    began = datetime.now(UTC) - timedelta(seconds=20)
    task = {
        "fromCluster": "c1",
        "gracePeriodSeconds": 300,
        "creationTimestamp": timestamp(began),
        "reason": "TaintUntolerated",
    }
    resource = {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "demo", "name": "shop"}
    spec = {"resource": resource, "clusters": [{"name": "c2"}], "gracefulEvictionTasks": [task]}
    await karmada.client.apply(RESOURCE_BINDING, "demo", "shop-deployment", {"spec": spec}, field_manager="scheduler")
    report = await karmada.settle()
    assert report.drained == ("c1: Deployment demo/shop",)
    found = {key: each for key, each in karmada.members["c1"].objects.items() if key[0] == "Drain"}
    [(key, drain)] = found.items()
    assert key == ("Drain", "demo", "karmada-service-shop")
    assert drain["spec"]["targetRef"] == {"kind": "Service", "name": "shop"}
    assert drain["spec"]["startTime"] == timestamp(began)
    assert drain["spec"]["endTime"] == timestamp(began + timedelta(seconds=300))
    assert "Drain" not in {each for each, *_ in karmada.members["c2"].objects}
    spec["gracefulEvictionTasks"] = []
    await karmada.client.apply(RESOURCE_BINDING, "demo", "shop-deployment", {"spec": spec}, field_manager="scheduler")
    await karmada.settle()
    assert "Drain" not in {each for each, *_ in karmada.members["c1"].objects}


async def test_the_commands_join_and_report(karmada: ControlPlane, server: ApiServer) -> None:
    await karmada.register("c1", region="eu")
    await karmada.register("c2")
    await karmada.place(["c1"])
    config = str(server.kubeconfig)
    done = await run("status", config)
    assert done.exit_code == 1
    assert "is isthmus karmada join running?" in done.stdout
    definitions = str(DEPLOY / "crds" / "serviceexports.yaml")
    done = await run("join", config, "--once", "--definitions", definitions)
    assert (done.exit_code, done.stdout) == (0, "1 members; 4 objects written or removed\n")
    await karmada.carry_out()
    done = await run("status", config)
    assert done.exit_code == 0, done.output
    assert ("CustomResourceDefinition", "", "serviceexports.multicluster.x-k8s.io") in karmada.members["c1"].objects
    [_, c1, c2] = done.stdout.splitlines()
    assert c1.split()[:3] == ["c1", "1", "joined"]
    assert c2.split()[:3] == ["c2", "-", "out"]
    assert "Karmada does not place Service isthmus-system/isthmus-etcd-peers in it" in c2
    found = json.loads((await run("status", config, "-o", "json")).stdout)
    assert [each["state"] for each in found["members"]] == ["joined", "out"]


async def test_a_member_waits_for_join_while_its_works_are_not_what_they_are_to_be(
    karmada: ControlPlane, server: ApiServer
) -> None:
    """Karmada has carried out what was written before; nothing of it shows that another member has come since."""
    await joined(karmada, "c1", "c2")
    config = str(server.kubeconfig)
    assert [each["state"] for each in await states(config)] == ["joined", "joined"]
    await karmada.client.patch(
        CLUSTER, "", "c1", {"metadata": {"annotations": {"isthmus.io/pod-ranges": "10.1.0.0/16"}}}
    )
    assert [(each["state"], each["reason"]) for each in await states(config)] == [
        ("pending", "Work isthmus-member: not written as it is now to be: is isthmus karmada join running?"),
        ("pending", "Work isthmus-peers: not written as it is now to be: is isthmus karmada join running?"),
    ]
    await karmada.settle()
    assert [each["state"] for each in await states(config)] == ["joined", "joined"]
    await karmada.register("a")
    await karmada.place(["c1", "c2", "a"])
    assert [each["state"] for each in await states(config)] == ["pending"] * 3
    assert (await karmada.control.round()).written, "status writes nothing"
    await karmada.settle()
    assert [each["state"] for each in await states(config)] == ["joined"] * 3


async def test_the_status_of_members_makes_no_keys_and_waits_for_no_renewal(
    karmada: ControlPlane, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await joined(karmada, "c1", "c2")
    config, made = str(server.kubeconfig), []
    monkeypatch.setattr(pki, "LEFT", 1.0)  # all certificates are due
    monkeypatch.setattr(keyring, "ensure", lambda member, *_, **__: made.append(member))
    assert [each["state"] for each in await states(config)] == ["joined", "joined"]
    secret = await karmada.client.get(SECRET, "isthmus-member-c1", "karmada-system")
    await karmada.client.delete(SECRET, "karmada-system", "isthmus-member-c1")
    assert [each["state"] for each in await states(config)] == ["pending", "pending"], "c2 is to have other passwords"
    assert secret.data is not None
    assert made == []


@pytest.mark.parametrize("name", ["root.password", "server.crt", "remote-c2.password", "remote-c3.password"])
def test_keys_of_which_one_is_missing_or_too_many_are_not_complete(name: str) -> None:
    peers = [ClusterName("c2")]
    files = dict(keyring.ensure(ClusterName("c1"), {}, id=1, hosts=["192.0.2.1"], readers=peers).files)
    assert keyring.complete(files, hosts=["192.0.2.1"], readers=peers)
    assert not keyring.complete(files, hosts=["192.0.2.2"], readers=peers)
    if files.pop(name, None) is None:
        files[name] = b"of one that left"
    assert not keyring.complete(files, hosts=["192.0.2.1"], readers=peers)


async def states(config: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((await run("status", config, "-o", "json")).stdout)["members"]
    return found


@pytest.mark.slow
async def test_the_processes_follow_what_changes_and_end_when_they_are_asked_to(
    karmada: ControlPlane, server: ApiServer, tmp_path: Path
) -> None:
    config = str(server.kubeconfig)
    await karmada.register("c1")
    join = await started("join", "--karmada-kubeconfig", config)
    try:
        await karmada.place(["c1"])
        await works(karmada, "c1")
        await karmada.carry_out()
        await karmada.register("c2")
        await karmada.place(["c1", "c2"])
        await works(karmada, "c2")
        await until(partial(told_of, karmada, "c1", "c2"))
    finally:
        assert await ended(join) == 0
    c1 = karmada.members["c1"]
    c1.etcd.start()
    flags = [f"cluster.name={c1.name}", f"cluster.id={c1.settings['ISTHMUS_CLUSTER_ID']}"]
    flags += (
        f"etcd.endpoints={c1.etcd.endpoint}",
        f"etcd.ca_file={c1.keys}/ca.crt",
        f"clusterset.directory={tmp_path}",
    )
    access = await started("access", *(word for flag in flags for word in ("--set", flag)))
    try:
        await until(partial(readable, karmada, "c2", by="c1"))
    finally:
        assert await ended(access) == 0


async def started(*words: str) -> asyncio.subprocess.Process:
    """``isthmus karmada …`` as a process."""
    return await asyncio.create_subprocess_exec(sys.executable, "-m", "isthmus", "karmada", *words)


async def ended(process: asyncio.subprocess.Process) -> int:
    process.terminate()
    return await process.wait()


async def works(karmada: ControlPlane, member: str) -> None:
    async def both() -> bool:
        return len(await karmada.client.list(WORK, f"karmada-es-{member}")) == 2

    await until(both)


async def told_of(karmada: ControlPlane, member: str, peer: str) -> bool:
    """Whether Karmada has brought a member the file of a peer."""
    await karmada.carry_out()
    return peer in karmada.members[member].peers()


async def readable(karmada: ControlPlane, reader: str, *, by: str) -> bool:
    return await karmada.members[reader].reads(by) == ""


DEPLOY = Path(__file__).parents[2] / "deploy"
DEMO = {"metadata": {"name": "demo"}}


async def run(verb: str, config: str, *flags: str) -> Any:
    """A command, beside this loop."""
    words = ["karmada", verb, "--karmada-kubeconfig", config, *flags]
    return await asyncio.to_thread(CliRunner().invoke, root, words)
