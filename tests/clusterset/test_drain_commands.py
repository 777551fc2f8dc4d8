"""A drain from the command to the peers: API server, operator's tables, etcd, the other cluster's tables, and back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result
from clusters import chaos_clusters
from clusters.apiserver_world import serving
from peers.clusterset_peers import Peers

from isthmus import kube
from isthmus.cli import root
from isthmus.clusterset import Follower
from isthmus.clusterset.publishing.publisher import Publisher
from isthmus.config import ClusterSection, ClustersetSection, KubernetesSection
from isthmus.desired import ApiTarget
from isthmus.etcd import Session
from isthmus.installation import SYSTEM
from isthmus.kube.objects import core
from isthmus.kube.objects.core import NODE, SERVICE
from isthmus.kube.objects.drains import DRAIN
from isthmus.loadbalancer import drain_objects
from isthmus.model import tables
from isthmus.model.mcs import RecordKind
from isthmus.model.names import ClusterName
from isthmus.processes.draining import DrainClock, report
from isthmus.sources import kubernetes
from isthmus.statedb import Backoff, Database, Reconciler

NAMESPACE = "kube-system"
KINDS: tuple[RecordKind, ...] = ("services",)
C1, C2 = ClusterName("c1"), ClusterName("c2")
TABLES = (
    tables.CLUSTERS, tables.DRAINS, tables.DRAINING, tables.DRAIN_OBJECTS, tables.DRAIN_OBJECTS_STATUS, tables.OBSERVED,
    tables.NODES, tables.ENDPOINT_SETS, tables.EXPORTS, tables.SERVICES, tables.IMPORTS, tables.RECORDS, tables.PROBES,
    tables.OWN_RANGES, tables.PEER_POLICIES, tables.REFUSALS,
)  # fmt: skip


EXISTING: tuple[tuple[kube.Kind[Any], str, str, dict[str, Any]], ...] = (
    (NODE, "", "n1", {}),
    (SERVICE, "default", "echo", {"ports": [{"port": 80}]}),
)
"""What can be drained."""


class Server(NamedTuple):
    kubeconfig: Path
    client: kube.Client

    async def command(self, *words: str) -> Result:
        """``isthmus …`` as an administrator types it, without an error."""
        done = await self.fails(*words)
        assert done.exit_code == 0, done.output
        return done

    async def fails(self, *words: str) -> Result:
        return await asyncio.to_thread(invoked, self.kubeconfig, *words)

    async def condition(self, name: str, *, namespace: str = NAMESPACE) -> tuple[str, str]:
        found = (await self.client.get(DRAIN, name, namespace)).status
        for condition in (found.conditions if found is not None else None) or ():
            if condition.type == "Drained":
                return condition.status, condition.reason
        return "", ""


def invoked(kubeconfig: Path, *words: str) -> Result:
    return CliRunner().invoke(root, [*words, "--kubeconfig", str(kubeconfig), "-n", NAMESPACE])


@contextmanager
def served(folder: Path) -> Iterator[Path]:
    """How an API server of the lab is reached."""
    with serving(folder / "kubernetes") as server:
        yield server.kubeconfig


@asynccontextmanager
async def defined(kubeconfig: Path) -> AsyncIterator[Server]:
    async with await kube.connect(KubernetesSection(kubeconfig=str(kubeconfig))) as client:
        await chaos_clusters.defined(client)
        for kind, namespace, name, spec in EXISTING:
            meta = {"name": name, **({"namespace": namespace} if namespace else {})}
            body = {"apiVersion": "v1", "kind": kind.kind, "metadata": meta, "spec": spec}
            await client.apply(kind, namespace, name, body, field_manager="test")
        yield Server(kubeconfig, client)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    with served(tmp_path) as kubeconfig:
        async with defined(kubeconfig) as server:
            yield server


@pytest.fixture(scope="module")
def undrained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One in which nothing is drained."""

    async def define(kubeconfig: Path) -> None:
        async with defined(kubeconfig):
            pass

    with served(tmp_path_factory.mktemp("undrained")) as kubeconfig:
        asyncio.run(define(kubeconfig))
        yield kubeconfig


@asynccontextmanager
async def drained_cluster(server: Server, etcd: Session) -> AsyncIterator[Database]:
    """What the operator of c2 runs of it."""
    db = Database(*TABLES)
    read = ["drains", "nodes", "observed"]
    reflectors = kubernetes.reflectors(db, server.client, tables=read, cluster=C2, namespace=NAMESPACE)
    clock = DrainClock(db, C2, cordoned=False)
    publisher = Publisher(db, etcd, ClusterSection(name="c2", id=2))
    status = Reconciler(
        db,
        tables.DRAIN_OBJECTS,
        ApiTarget(server.client, drain_objects.KINDS),
        status=tables.DRAIN_OBJECTS_STATUS,
        backoff=Backoff(0.1, 1.0),
    )
    parts = [clock.run(), publisher.run(), report(db, C2), status.run(), *(each.run() for each in reflectors)]
    async with running(*parts):
        yield db


@asynccontextmanager
async def peer(peers: Peers) -> AsyncIterator[Database]:
    """What an agent of c1 runs of it: no API server, so its own drains are complete."""
    db = Database(*TABLES)
    section = ClustersetSection(directory=str(peers.folder))
    follower = Follower(db, cluster=ClusterSection(name="c1", id=1), section=section, kinds=KINDS)
    async with running(follower.run(), DrainClock(db, C1, cordoned=False).run()):
        yield db


@asynccontextmanager
async def running(*parts: object) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(part) for part in parts]  # type: ignore[call-overload]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks), [task.exception() for task in tasks if not task.cancelled()]


async def drained(db: Database, *wanted: tuple[str, str]) -> None:
    async with asyncio.timeout(60):
        await db.until(lambda now: {(r.drain.kind, r.drain.target) for r in now.all(tables.DRAINING)} == {*wanted})


async def test_the_command_that_undoes_a_drain_is_printed_with_the_same_options(server: Server) -> None:
    done = await server.command("clusters", "drain", "c2")
    undo = done.stderr.splitlines()[-1].partition("undo: isthmus ")[2]
    assert undo == f"clusters undrain c2 --kubeconfig {server.kubeconfig} --namespace {NAMESPACE}"


async def test_without_an_option_an_object_goes_where_isthmus_runs(server: Server) -> None:
    """That is the namespace of ``deploy/`` where it exists, else the default, as in a lab."""

    async def places() -> set[str]:
        command = ["clusters", "drain", "c2", "--kubeconfig", str(server.kubeconfig)]
        done = await asyncio.to_thread(CliRunner().invoke, root, command)
        assert done.exit_code == 0, done.output
        return {each.metadata.namespace for each in await server.client.list(DRAIN)}

    assert await places() == {NAMESPACE}
    await server.client.apply(core.NAMESPACE, "", SYSTEM, {"metadata": {"name": SYSTEM}}, field_manager="test")
    assert await places() == {NAMESPACE, SYSTEM}


async def settles(server: Server, name: str, *wanted: str, namespace: str = NAMESPACE) -> None:
    async with asyncio.timeout(60):
        while await server.condition(name, namespace=namespace) != wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_one_command_drains_a_cluster_for_its_peers_until_another_undoes_it(
    server: Server, etcd: Session, peers: Peers
) -> None:
    peers.add("c2")
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(drained_cluster(server, etcd))
        other = await stack.enter_async_context(peer(peers))
        await server.command("clusters", "drain", "c2", "--ramp", "1m", "--for", "10m")
        for db in (own, other):
            await drained(db, ("Cluster", "c2"))
            [row] = db.snapshot().all(tables.DRAINING)
            assert (row.by, row.drain.ramp, row.drain.deadline, row.left > 0) == ("c2", 60, 600, True)
        await settles(server, "cluster-c2", "False", "Ramping")
        await server.command("clusters", "drain", "c2")
        await settles(server, "cluster-c2", "True", "Drained")
        async with asyncio.timeout(60):
            await other.until(lambda now: [row.left for row in now.all(tables.DRAINING)] == [0])
        await server.command("nodes", "drain", "n1", "--existing", "close")
        await drained(other, ("Cluster", "c2"), ("Node", "n1"))
        await server.command("clusters", "undrain", "c2")
        await server.command("nodes", "undrain", "n1")
        for db in (own, other):
            await drained(db)


async def test_calls_come_back_over_a_ramp_and_the_next_drain_does_not_end_with_it(
    server: Server, etcd: Session, peers: Peers
) -> None:
    peers.add("c2")
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(drained_cluster(server, etcd))
        other = await stack.enter_async_context(peer(peers))
        await server.command("clusters", "drain", "c2", "--for", "10m")
        await drained(other, ("Cluster", "c2"))
        await server.command("clusters", "undrain", "c2", "--ramp", "10m")
        for db in (own, other):
            async with asyncio.timeout(60):
                await db.until(lambda now: [row.drain.end_ramp for row in now.all(tables.DRAINING)] == [600])
            [row] = db.snapshot().all(tables.DRAINING)
            assert (row.left > 0, row.drain.deadline, row.closing) == (True, 600, False)
        await settles(server, "cluster-c2", "False", "Ramping")
        await server.command("clusters", "drain", "c2")
        await settles(server, "cluster-c2", "True", "Drained")
        await server.command("clusters", "undrain", "c2", "--ramp", "1s")
        for db in (own, other):
            await drained(db)
        await settles(server, "cluster-c2", "False", "Ended")


async def test_a_drain_outlives_the_operator_and_another_cluster_is_drained_here_alone(
    server: Server, etcd: Session, peers: Peers
) -> None:
    peers.add("c2")
    await server.command("services", "drain", "default/echo")
    await server.command("clusters", "drain", "c9")
    async with peer(peers) as other:
        for _ in range(2):
            async with drained_cluster(server, etcd) as own:
                await drained(own, ("Service", "default/echo"), ("Cluster", "c9"))
                await drained(other, ("Service", "default/echo"))
            await drained(other, ("Service", "default/echo"))


async def test_a_tenant_drains_no_cluster(server: Server, etcd: Session) -> None:
    body = {"metadata": {"name": "mine"}, "spec": {"targetRef": {"kind": "Cluster", "name": "c2"}}}
    await server.client.create(DRAIN, "default", body)
    async with drained_cluster(server, etcd) as own:
        await settles(server, "mine", "False", "Invalid", namespace="default")
        assert own.snapshot().count(tables.DRAINING) == 0


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["nodes", "drain", "n11"], 1, "there is no node n11 in this cluster: kubectl get nodes"),
        (
            ["services", "drain", "demo/echo"],
            1,
            "there is no service echo in this cluster: kubectl get services -n demo",
        ),
        (["clusters", "drain", "No Cluster"], 1, "'No Cluster' cannot be a cluster's name"),
        (["clusters", "undrain", "c2"], 1, "cluster c2 is not drained by a command here: kubectl get drains -A"),
        (
            ["nodes", "undrain", "n1", "--ramp", "1m"],
            1,
            "node n1 is not drained by a command here: kubectl get drains -A",
        ),
        (["services", "drain", "echo"], 2, "'echo': want NAMESPACE/NAME"),
        (["clusters", "drain", "c2", "--context", "nowhere"], 1, "nowhere"),
        (["--context", "nowhere", "clusters", "drain", "c2"], 1, "nowhere"),
        (["nodes", "drain", "n1", "--for", "soon"], 2, "'soon' is not a duration such as 1h30m"),
        (["nodes", "drain", "n1", "--for", "5s", "--ramp", "1m"], 2, "--for is less than --ramp"),
        (["nodes", "drain", "n1", "--for", "5s", "--existing", "close"], 2, "it excludes --existing close"),
    ],
)
def test_what_cannot_be_done_is_one_line(undrained: Path, words: list[str], code: int, error: str) -> None:
    done = invoked(undrained, *words)
    assert done.exit_code == code
    assert error in done.output.splitlines()[-1]
