"""An administrator takes a peer's records out in one command: in every process, at once, until it is undone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from clusters.apiserver_world import serving
from peers.clusterset_peers import OWN, QUICK, Following, Peers, announce, export, service

from isthmus import kube
from isthmus.cli import root
from isthmus.clusterset.peers.follower import Follower
from isthmus.config import ClustersetSection, KubernetesSection
from isthmus.etcd import Session
from isthmus.model import tables
from isthmus.model.names import ClusterName
from isthmus.sources import kubernetes
from isthmus.statedb import Database

AGENT, OPERATOR = ("services",), ("serviceexports", "services")
NAMESPACE = "kube-system"


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    """Of an API server of this test alone."""
    with serving(tmp_path / "kubernetes") as server:
        yield server.kubeconfig


@pytest.fixture
async def peers(peers: Peers, etcd: Session) -> Peers:
    peers.add("c2", "c3")
    for number in (2, 3):
        await service(etcd, f"c{number}", "demo/echo", f"10.{number}.1.1", number=number)
        await export(etcd, f"c{number}", "demo/echo")
        await announce(etcd, f"c{number}", number)
    return peers


@asynccontextmanager
async def process(kubeconfig: Path, peers: Peers, kinds: Any, state: Path) -> AsyncIterator[Following]:
    """What agent and operator have in common: peers followed, and the own API server."""
    db = Database(tables.CLUSTERS, tables.EXPORTS, tables.ENDPOINT_SETS, tables.PEER_POLICIES)
    section = ClustersetSection(directory=str(peers.folder), state=str(state))
    async with await kube.connect(KubernetesSection(kubeconfig=str(kubeconfig))) as client:
        own = ClusterName(OWN.name)
        reflectors = kubernetes.reflectors(db, client, tables=["peer_policies"], cluster=own, namespace=NAMESPACE)
        follower = Follower(db, cluster=OWN, section=section, kinds=kinds, timings=QUICK)
        parts = [follower.run(), *(each.run() for each in reflectors)]
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            yield Following(db, follower)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def command(kubeconfig: Path, *arguments: str) -> Result:
    """``isthmus clusters …`` as an administrator types it."""
    command = ["clusters", *arguments, "--kubeconfig", str(kubeconfig), "-n", NAMESPACE]
    return await asyncio.to_thread(CliRunner().invoke, root, command)


async def test_a_peer_that_is_distrusted_is_out_everywhere_at_once_and_stays_so_until_that_is_undone(
    kubeconfig: Path, peers: Peers, tmp_path: Path
) -> None:
    agent, operator = tmp_path / "agent", tmp_path / "operator"
    async with (
        process(kubeconfig, peers, AGENT, agent) as one,
        process(kubeconfig, peers, OPERATOR, operator) as other,
    ):
        for seen in (one, other):
            await seen.state("c2", "ready")
            await seen.state("c3", "ready")
        done = await command(kubeconfig, "distrust", "c2")
        assert done.exit_code == 0, done.output
        for seen in (one, other):
            row = await seen.state("c2", "distrusted")
            assert row.reason == "none of its records counts, until: isthmus clusters trust c2"
            assert seen.services() == {"c3:demo/echo": ["10.3.1.1"]}
            assert seen.cluster("c3").state == "ready"
        assert other.exports() == ["c3:demo/echo"]
    assert not list(agent.rglob("c2.json")), "nothing of it is kept on disk either"
    async with process(kubeconfig, peers, OPERATOR, operator) as restarted:
        changes = restarted.db.changes(tables.ENDPOINT_SETS)
        await restarted.state("c2", "distrusted")
        await restarted.state("c3", "ready")
        assert restarted.db.snapshot().initialized(tables.ENDPOINT_SETS, tables.EXPORTS), "no table waits for it"
        assert {key[1] for key, _, _ in changes.next()[1]} == {"c3"}, "its records never counted"
        done = await command(kubeconfig, "trust", "c2")
        assert done.exit_code == 0, done.output
        await restarted.state("c2", "ready")
        assert set(restarted.services()) == {"c2:demo/echo", "c3:demo/echo"}


async def test_a_peer_may_be_distrusted_before_it_is_known(kubeconfig: Path, peers: Peers, tmp_path: Path) -> None:
    peers.remove("c2")
    assert (await command(kubeconfig, "distrust", "c2")).exit_code == 0
    async with process(kubeconfig, peers, AGENT, tmp_path / "state") as seen:
        await seen.state("c3", "ready")
        peers.add("c2")
        await seen.state("c2", "distrusted")
        assert set(seen.services()) == {"c3:demo/echo"}


async def test_what_cannot_be_decided_is_one_line(kubeconfig: Path, tmp_path: Path) -> None:
    wrong = await command(kubeconfig, "distrust", "No Cluster")
    assert (wrong.exit_code, wrong.output.strip()) == (1, "Error: 'No Cluster' cannot be a cluster's name")
    nobody = ["clusters", "distrust", "c2", "--kubeconfig", str(tmp_path / "nowhere")]
    wrong = await asyncio.to_thread(CliRunner().invoke, root, nobody)
    assert wrong.exit_code == 1
    assert len(wrong.output.strip().splitlines()) == 1
