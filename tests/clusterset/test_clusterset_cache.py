"""The last known state of peers on disk: a process that restarts while a peer is away loses nothing."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from clusterset_peers import Peers, announce, export, following, service
from etcd_server import free_ports

from isthmus.clusterset.cache import VERSION, Cache
from isthmus.clusterset.identity import ClusterConfig
from isthmus.clusterset.timings import FollowerTimings
from isthmus.etcd import Session
from isthmus.model import tables
from isthmus.model.chunked import Chunked
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Endpoint, EndpointSet

C2 = ClusterName("c2")
QUICK = FollowerTimings(look_every=0.05, save_after=0.01, touch_every=0.05)


async def remember(etcd: Session, peers: Peers, state: Path) -> None:
    """A process has known c2 and ended; c2 is out of reach since."""
    peers.add("c2")
    await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
    await export(etcd, "c2", "demo/echo")
    await announce(etcd, "c2", 2)
    async with following(peers, state=state, timings=QUICK) as seen:
        await seen.state("c2", "ready")
    peers.add("c2", endpoint=f"http://127.0.0.1:{free_ports(1)[0]}")


async def test_a_restart_while_the_peer_is_away_loses_nothing(etcd: Session, peers: Peers, tmp_path: Path) -> None:
    await remember(etcd, peers, tmp_path / "state")
    async with following(peers, state=tmp_path / "state", timings=QUICK) as seen:
        row = await seen.state("c2", "stale")
        assert row.id == 2
        assert seen.services() == {"c2:demo/echo": ["10.2.1.1"]}
        assert seen.exports() == ["c2:demo/echo"]
        await seen.until(lambda s: s.initialized(tables.EXPORTS, tables.ENDPOINT_SETS))
        assert seen.services() == {"c2:demo/echo": ["10.2.1.1"]}


async def test_when_the_peer_is_back_what_it_withdrew_meanwhile_goes(
    etcd: Session, peers: Peers, tmp_path: Path
) -> None:
    await remember(etcd, peers, tmp_path / "state")
    await etcd.delete("cilium/state/services/v1/c2/demo/echo")
    await service(etcd, "c2", "demo/new", "10.2.1.2", number=2)
    async with following(peers, state=tmp_path / "state", timings=QUICK) as seen:
        await seen.state("c2", "stale")
        peers.add("c2")
        await seen.state("c2", "ready")
        assert seen.services() == {"c2:demo/new": ["10.2.1.2"]}


async def test_the_lifetime_counts_from_when_the_peer_was_last_reached(
    etcd: Session, peers: Peers, tmp_path: Path
) -> None:
    await remember(etcd, peers, tmp_path / "state")
    for file in (tmp_path / "state").rglob("*.json"):
        os.utime(file, (time.time() - 599.5,) * 2)
    async with following(peers, state=tmp_path / "state", lifetime=600, timings=QUICK) as seen:
        await seen.state("c2", "stale")
        await seen.until(lambda s: seen.services() == {})
        assert seen.exports() == ["c2:demo/echo"]


async def test_a_peer_that_is_connected_stays_fresh_on_disk(etcd: Session, peers: Peers, tmp_path: Path) -> None:
    peers.add("c2")
    await announce(etcd, "c2", 2)
    cache = Cache(str(tmp_path / "state"))
    async with following(peers, state=tmp_path / "state", timings=QUICK) as seen:
        await seen.state("c2", "ready")
        file = tmp_path / "state" / "services" / "c2.json"
        await seen.until_true(file.exists)
        os.utime(file, (1, 1))
        await seen.until_true(lambda: (known := cache.load("services", C2)) is not None and known.age < 10)


async def test_a_peer_that_leaves_is_forgotten(etcd: Session, peers: Peers, tmp_path: Path) -> None:
    peers.add("c2")
    await announce(etcd, "c2", 2)
    async with following(peers, state=tmp_path / "state", timings=QUICK) as seen:
        await seen.state("c2", "ready")
        await seen.until_true((tmp_path / "state" / "services" / "c2.json").exists)
        peers.remove("c2")
        await seen.until(lambda s: s.get(tables.CLUSTERS, C2) is None)
    assert list((tmp_path / "state").rglob("*.json")) == []


def test_a_large_set_of_endpoints_is_kept_as_a_small_one_is(tmp_path: Path) -> None:
    cache, many = Cache(str(tmp_path)), [Endpoint(f"10.1.1.{n}", ()) for n in range(2)]
    rows = [
        EndpointSet(ServiceName(f"demo/{name}"), C2, "clusterset", "record", endpoints)
        for name, endpoints in (("small", tuple(many)), ("large", Chunked([(many[0],), (many[1],)])))
    ]
    cache.save("services", C2, ClusterConfig(id=2), rows)
    known = cache.load("services", C2)
    assert known is not None
    assert list(known.rows) == rows


def test_what_is_saved_is_for_our_eyes_only(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path / "state"))
    row = EndpointSet(service=ServiceName("demo/echo"), cluster=C2, source="clusterset", part="record")
    cache.save("services", C2, ClusterConfig(2), [row])
    file = tmp_path / "state" / "services" / "c2.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    known = cache.load("services", C2)
    assert known is not None
    assert (known.config, list(known.rows)) == (ClusterConfig(2), [row])


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"version": 99}', '{"version":1,"cluster":"c3","config":{},"rows":[]}']
)
def test_a_file_that_cannot_be_used_is_as_good_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "services").mkdir()
    (tmp_path / "services" / "c2.json").write_text(content)
    assert Cache(str(tmp_path)).load("services", C2) is None


def test_a_file_of_another_version_is_not_used(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path))
    cache.save("services", C2, ClusterConfig(2), [])
    assert cache.load("services", C2) is not None
    file = tmp_path / "services" / "c2.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": VERSION + 1}))
    assert cache.load("services", C2) is None


@pytest.mark.parametrize("mixed", [False, True])
def test_a_file_with_rows_of_another_cluster_is_not_used(tmp_path: Path, mixed: bool) -> None:
    def row(cluster: ClusterName) -> EndpointSet:
        return EndpointSet(service=ServiceName("demo/echo"), cluster=cluster, source="clusterset", part="record")

    cache = Cache(str(tmp_path))
    cache.save("services", C2, ClusterConfig(2), [*([row(C2)] if mixed else []), row(ClusterName("c3"))])
    assert cache.load("services", C2) is None


def test_a_disk_that_fails_costs_the_cache_only(tmp_path: Path) -> None:
    (tmp_path / "services").write_text("in the way")
    cache = Cache(str(tmp_path))
    cache.save("services", C2, ClusterConfig(2), [])
    cache.touch("services", C2)
    cache.forget("services", C2)
    assert cache.load("services", C2) is None
