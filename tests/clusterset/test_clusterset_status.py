"""``isthmus clusters status`` of a follower that really follows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from peers.clusterset_peers import Peers, announce, export, following, service
from peers.etcd_server import EtcdServer, free_ports
from rows.admin_world import serving

from isthmus.cli import root
from isthmus.clusterset.records import keys
from isthmus.etcd import Session
from isthmus.loadbalancer import gateways, own_ranges
from isthmus.model import tables
from isthmus.model.names import ClusterName
from isthmus.model.services import Endpoint, EndpointSet, Port
from isthmus.model.sources import KUBERNETES
from isthmus.processes.start import tables_of
from isthmus.statedb import Database, Derivations


@pytest.fixture
async def etcd(shared_etcd: EtcdServer) -> AsyncIterator[Session]:
    async with Session([shared_etcd.endpoint]) as session:
        await shared_etcd.ready(session)
        await session.delete_prefix("")
        await service(session, "c2", "demo/echo", "10.2.1.1", "10.2.1.2", number=2)
        await export(session, "c2", "demo/echo")
        await announce(session, "c2", 2)
        yield session


async def status(socket: Path, *more: str) -> Result:
    command = ["clusters", "status", "--socket", str(socket), *more]
    return await asyncio.to_thread(CliRunner().invoke, root, command)


async def test_a_peer_that_is_followed_is_listed_with_its_description(
    etcd: Session, peers: Peers, tmp_path: Path
) -> None:
    peers.add("c2")
    async with following(peers) as seen, serving(tmp_path / "operator.sock", db=seen.db):
        await seen.state("c2", "ready")
        result = await status(tmp_path / "operator.sock", "-o", "json", "--wait", "10")
        assert result.exit_code == 0
        [peer] = json.loads(result.stdout)["processes"]["operator"]["clusters"]
        assert peer["ready"]
        assert peer["connected"]
        assert peer["config"]["cluster-id"] == 2
        assert peer["synced"] == {"services": True, "service-exports": True}
        assert (peer["num-shared-services"], peer["num-endpoints"], peer["num-service-exports"]) == (1, 2, 1)
        assert (peer["num-failures"], peer["last-failure"]) == (0, "")


async def test_a_peer_that_is_away_is_listed_with_the_reason_and_sets_the_exit_code(
    etcd: Session, peers: Peers, tmp_path: Path
) -> None:
    peers.add("c2")
    away = f"127.0.0.1:{free_ports(1)[0]}"
    peers.add("c3", endpoint=f"http://{away}")
    async with following(peers) as seen, serving(tmp_path / "operator.sock", db=seen.db):
        await seen.state("c2", "ready")
        await seen.until(lambda s: seen.cluster("c3").failures)
        result = await status(tmp_path / "operator.sock")
        assert result.exit_code == 1
        heading, _, c2, c3 = result.stdout.splitlines()
        assert heading == "operator: 1/2 clusters ready"
        assert c2.split()[:4] == ["c2", "2", "ready", "yes"]
        assert c3.split()[:4] == ["c3", "-", "connecting", "no"]
        assert away in c3
        row = seen.cluster("c3")
        assert row.last_failure
        assert away in row.last_failure_reason


async def test_the_last_failure_of_a_peer_is_still_listed_when_it_is_back(
    etcd: Session, peers: Peers, tmp_path: Path
) -> None:
    peers.add("c2", endpoint=f"http://127.0.0.1:{free_ports(1)[0]}")
    async with following(peers) as seen, serving(tmp_path / "agent.sock", db=seen.db):
        await seen.until(lambda s: seen.cluster("c2").failures)
        assert not seen.cluster("c2").connected
        peers.add("c2")
        await seen.state("c2", "ready")
        result = await status(tmp_path / "agent.sock", "-o", "json")
        [peer] = json.loads(result.stdout)["processes"]["agent"]["clusters"]
        assert (peer["ready"], peer["status"]) == (True, "")
        assert peer["num-failures"]
        assert peer["last-failure-reason"]


async def test_a_peer_without_a_publisher_is_not_ready_and_sets_the_exit_code(
    etcd: Session, peers: Peers, tmp_path: Path
) -> None:
    peers.add("c2")
    await etcd.put(keys.HEARTBEAT, b"now")
    async with following(peers) as seen, serving(tmp_path / "agent.sock", db=seen.db):
        await seen.state("c2", "ready")
        assert (await status(tmp_path / "agent.sock")).exit_code == 0
        await etcd.delete(keys.HEARTBEAT)
        await seen.state("c2", "silent")
        result = await status(tmp_path / "agent.sock")
        assert result.exit_code == 1
        heading, _, c2 = result.stdout.splitlines()
        assert heading == "agent: 0/1 clusters ready"
        assert c2.split()[:4] == ["c2", "2", "silent", "yes"]
        assert "its operator is not there" in c2


async def test_a_refused_record_is_named(etcd: Session, peers: Peers, tmp_path: Path) -> None:
    peers.add("c2")
    await service(etcd, "c2", "kube-system/dns", "10.2.1.1", number=2)
    async with following(peers) as seen, serving(tmp_path / "agent.sock", db=seen.db):
        await seen.until(lambda s: seen.cluster("c2").dropped)
        result = await status(tmp_path / "agent.sock")
        assert result.exit_code == 0, "refusing it costs its other records nothing"
        assert "services kube-system/dns: cluster c2 may not publish in namespace kube-system" in result.stdout


@pytest.mark.parametrize("others", [(), ("192.0.2.1:15443",)])
async def test_a_gateway_at_an_address_of_our_own_is_refused_with_a_reason(
    etcd: Session, peers: Peers, tmp_path: Path, others: tuple[str, ...]
) -> None:
    """Every node would dial it: here c2 names our API server. A peer without another gateway is not ready."""
    peers.add("c2")
    description = {"network": "two", "gateways": ["172.30.1.2:6443", "169.254.169.254:80", *others]}
    await etcd.put(keys.description(ClusterName("c2")), json.dumps(description).encode())
    derived = [own_ranges.derived(ClusterName("c1")), gateways.derived()]
    db = Database(*tables_of(derived, tables.EXPORTS, tables.FAULTS))
    with db.write() as txn:
        end = Endpoint("172.30.1.2", (Port("https", 6443),))
        txn.put(tables.ENDPOINT_SETS, EndpointSet(own_ranges.API_SERVER, ClusterName("c1"), KUBERNETES, "a", (end,)))
    async with following(peers, db=db) as seen, serving(tmp_path / "agent.sock", db=db):
        task = asyncio.create_task(Derivations(db, *derived).run())
        await seen.until(lambda now: now.count(tables.REFUSED_GATEWAYS))
        await seen.state("c2", "ready")
        result = await status(tmp_path / "agent.sock")
        task.cancel()
    assert result.exit_code == (0 if others else 1)
    assert (
        "of its gateways refused: 169.254.169.254:80 (169.254.169.254 is reserved (link-local)), "
        "172.30.1.2:6443 (172.30.1.2 is an address of an API server of this cluster)"
    ) in result.stdout


async def test_a_process_that_is_not_there_is_not_ready(tmp_path: Path) -> None:
    result = await status(tmp_path / "nobody.sock")
    assert result.exit_code == 1
    assert "no process serves" in result.stderr
