"""One cluster follows others over real etcds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from peers.clusterset_peers import Peers, announce, canaries, configure, export, following, service
from peers.etcd_server import EtcdServer

from isthmus.etcd import Session
from isthmus.model import tables
from isthmus.model.names import ClusterName


@pytest.fixture
def shared_etcd(each_shared_etcd: EtcdServer) -> EtcdServer:
    """Everything here is asked of every etcd of this machine."""
    return each_shared_etcd


async def test_a_peers_records_become_rows(etcd: Session, peers: Peers) -> None:
    peers.add("c2")
    await service(etcd, "c2", "demo/echo", "10.2.1.1", "10.2.1.2", number=2)
    await export(etcd, "c2", "demo/echo")
    await announce(etcd, "c2", 2)
    async with following(peers) as seen:
        row = await seen.state("c2", "ready")
        assert (row.id, row.synced) == (2, ("services", "serviceexports"))
        assert seen.services() == {"c2:demo/echo": ["10.2.1.1", "10.2.1.2"]}
        assert seen.exports() == ["c2:demo/echo"]
        assert seen.db.snapshot().initialized(tables.EXPORTS, tables.ENDPOINT_SETS)


async def test_the_table_of_clusters_is_whole_with_the_description_of_now_not_with_the_one_that_was_kept(
    etcd: Session, peers: Peers, tmp_path: Path
) -> None:
    key = "isthmus/clusters/v1/c2"
    peers.add("c2")
    await announce(etcd, "c2", 2)
    await etcd.put(key, b"{}")
    async with following(peers, state=tmp_path / "state") as seen:
        await seen.state("c2", "ready")
    await etcd.put(key, b'{"drains": [{"kind": "Cluster", "target": "c2"}]}')
    async with following(peers, state=tmp_path / "state") as seen:
        await seen.until(lambda s: s.initialized(tables.CLUSTERS))
        assert [drain.target for drain in seen.cluster("c2").drains] == ["c2"]


async def test_the_table_of_clusters_does_not_wait_for_a_peer_that_is_away(etcd: Session, peers: Peers) -> None:
    peers.add("c2", endpoint="http://127.0.0.1:1")
    async with following(peers) as seen:
        assert not seen.db.snapshot().initialized(tables.CLUSTERS)
        await seen.until(lambda s: s.initialized(tables.CLUSTERS))


async def test_changes_and_deletions_follow(etcd: Session, peers: Peers) -> None:
    peers.add("c2")
    await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
    await announce(etcd, "c2", 2)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        await service(etcd, "c2", "demo/echo", "10.2.1.9", number=2)
        await seen.until(lambda s: seen.services() == {"c2:demo/echo": ["10.2.1.9"]})
        await etcd.delete("cilium/state/services/v1/c2/demo/echo")
        await seen.until(lambda s: seen.services() == {})


async def test_nothing_is_read_before_the_canary(etcd: Session, peers: Peers) -> None:
    peers.add("c2")
    await configure(etcd, "c2", 2)
    await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
    async with following(peers) as seen:
        await seen.state("c2", "listing")
        assert seen.services() == {}
        assert not seen.db.snapshot().initialized(tables.ENDPOINT_SETS)
        await canaries(etcd, "c2")
        await seen.state("c2", "ready")
        assert seen.services() == {"c2:demo/echo": ["10.2.1.1"]}


async def test_a_peer_without_canaries_is_read_at_once(etcd: Session, peers: Peers) -> None:
    peers.add("c2")
    await configure(etcd, "c2", 2, syncedCanaries=None)
    await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        assert seen.services() == {"c2:demo/echo": ["10.2.1.1"]}


async def test_a_peer_without_support_for_exports_is_ready_without_them(etcd: Session, peers: Peers) -> None:
    peers.add("c2")
    await announce(etcd, "c2", 2, serviceExportsEnabled=None)
    await export(etcd, "c2", "demo/echo")
    async with following(peers) as seen:
        row = await seen.state("c2", "ready")
        assert row.exports_enabled is None
        assert seen.exports() == []


async def test_a_peer_may_only_speak_for_itself(etcd: Session, peers: Peers) -> None:
    peers.add("c2", "c3")
    await service(etcd, "c3", "demo/echo", "10.3.1.1", number=3)
    await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
    await service(etcd, "c2", "demo/stolen", "6.6.6.6", number=3, cluster="c3")
    await service(etcd, "c2", "demo/lent", "6.6.6.6", number=2, cluster="c3")
    await export(etcd, "c2", "demo/stolen", cluster="c3")
    await service(etcd, "c2", "demo/renamed", "6.6.6.6", number=2, name="other")
    await service(etcd, "c2", "demo/number", "6.6.6.6", number=3)
    await announce(etcd, "c2", 2)
    await announce(etcd, "c3", 3)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        await seen.state("c3", "ready")
        assert seen.services() == {"c2:demo/echo": ["10.2.1.1"], "c3:demo/echo": ["10.3.1.1"]}
        await seen.until(lambda s: seen.cluster("c2").dropped == 5)
        assert seen.cluster("c3").dropped == 0
        assert seen.exports() == []


@pytest.mark.parametrize(
    "value",
    [b"", b"{", b"[]", b"null", b'{"cluster": "\xff"}', b"[" * 100_000, b'{"x":' * 100_000, b'"' + b"x" * 1_400_000],
    ids=["empty", "cut", "array", "null", "no utf-8", "deep array", "deep object", "large"],
)
async def test_garbage_is_counted_and_hides_nothing(etcd: Session, peers: Peers, value: bytes) -> None:
    peers.add("c2")
    await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
    await etcd.put("cilium/state/services/v1/c2/demo/bad", value)
    await etcd.put("cilium/state/serviceexports/v1/c2/demo/bad", value)
    await announce(etcd, "c2", 2)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        await seen.until(lambda s: seen.cluster("c2").dropped == 2)
        assert seen.services() == {"c2:demo/echo": ["10.2.1.1"]}


async def test_a_record_that_turns_bad_keeps_its_last_good_value(etcd: Session, peers: Peers) -> None:
    peers.add("c2")
    await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
    await announce(etcd, "c2", 2)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        await service(etcd, "c2", "demo/echo", "not an address", number=2)
        await seen.until(lambda s: seen.cluster("c2").dropped == 1)
        assert seen.services() == {"c2:demo/echo": ["10.2.1.1"]}
        await service(etcd, "c2", "demo/echo", "10.2.1.2", number=2)
        await seen.until(lambda s: seen.cluster("c2").dropped == 0)
        assert seen.services() == {"c2:demo/echo": ["10.2.1.2"]}


async def test_endpoints_that_are_not_shared_are_withdrawn(etcd: Session, peers: Peers) -> None:
    peers.add("c2")
    await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
    await announce(etcd, "c2", 2)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2, shared=False)
        await seen.until(lambda s: seen.services() == {})
        assert seen.cluster("c2").dropped == 0


async def test_a_neighbour_whose_name_begins_alike_is_another_cluster(etcd: Session, peers: Peers) -> None:
    peers.add("c2", "c22")
    await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
    await service(etcd, "c22", "demo/echo", "10.22.1.1", number=22)
    await announce(etcd, "c2", 2)
    await announce(etcd, "c22", 22)
    async with following(peers) as seen:
        assert (await seen.state("c2", "ready")).id == 2
        assert (await seen.state("c22", "ready")).id == 22
        assert seen.services() == {"c2:demo/echo": ["10.2.1.1"], "c22:demo/echo": ["10.22.1.1"]}


async def test_our_own_file_is_ignored_and_a_file_without_endpoints_too(etcd: Session, peers: Peers) -> None:
    peers.add("c1", "c2")
    (peers.folder / "notes").write_text("nothing of interest")
    await announce(etcd, "c2", 2)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        names = {row.name: row.own for row in seen.db.snapshot().all(tables.CLUSTERS)}
        assert names == {"c1": True, "c2": False}


async def test_a_peer_that_joins_and_leaves_brings_and_takes_its_rows(etcd: Session, peers: Peers) -> None:
    peers.add("c2")
    for number in (2, 3):
        await service(etcd, f"c{number}", "demo/echo", f"10.{number}.1.1", number=number)
        await announce(etcd, f"c{number}", number)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        peers.add("c3")
        await seen.state("c3", "ready")
        peers.remove("c2")
        await seen.until(lambda s: s.get(tables.CLUSTERS, ClusterName("c2")) is None)
        assert seen.services() == {"c3:demo/echo": ["10.3.1.1"]}
        assert seen.db.snapshot().initialized(tables.EXPORTS, tables.ENDPOINT_SETS)


@pytest.mark.parametrize(
    ("number", "capabilities", "most", "reason"),
    [
        (0, {}, 255, "want 1 to 255"),
        (256, {}, 255, "want 1 to 255"),
        (1, {}, 255, "is that of cluster c1"),
        (2, {}, 511, "maxConnectedClusters is 255, ours 511"),
    ],
)
async def test_an_impossible_id_is_refused_with_the_reason(
    etcd: Session, peers: Peers, number: int, capabilities: dict[str, Any], most: int, reason: str
) -> None:
    peers.add("c2")
    await service(etcd, "c2", "demo/echo", "10.2.1.1", number=number)
    await announce(etcd, "c2", number, **capabilities)
    async with following(peers, most=most) as seen:
        row = await seen.state("c2", "refused")
        assert reason in row.reason
        assert seen.services() == {}
        assert seen.db.snapshot().initialized(tables.EXPORTS, tables.ENDPOINT_SETS)


async def test_the_second_of_two_with_one_id_waits_until_the_first_has_left(etcd: Session, peers: Peers) -> None:
    peers.add("c2")
    await announce(etcd, "c2", 2)
    await announce(etcd, "c3", 2)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        peers.add("c3")
        assert "is that of cluster c2" in (await seen.state("c3", "refused")).reason
        peers.remove("c2")
        await seen.state("c3", "ready")


async def test_a_peer_whose_id_changes_is_read_from_scratch(etcd: Session, peers: Peers) -> None:
    peers.add("c2")
    await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
    await announce(etcd, "c2", 2)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        await configure(etcd, "c2", 7)
        await seen.until(lambda s: seen.cluster("c2").dropped == 1 and not seen.services())
        await service(etcd, "c2", "demo/echo", "10.2.1.1", number=7)
        await seen.until(lambda s: seen.services() == {"c2:demo/echo": ["10.2.1.1"]})
        assert (await seen.state("c2", "ready")).id == 7


async def test_a_difference_that_may_matter_is_reported(etcd: Session, peers: Peers) -> None:
    peers.add("c2")
    await announce(etcd, "c2", 2, maxConnectedClusters=511)
    async with following(peers) as seen:
        assert (await seen.state("c2", "ready")).reason == "its maxConnectedClusters is 511, ours 255"


async def test_a_mirrors_copy_is_read_where_the_peer_is_cached(etcd: Session, peers: Peers) -> None:
    peers.add("c2")
    await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
    kv = await etcd.get("cilium/state/services/v1/c2/demo/echo")
    assert kv is not None
    await etcd.put("cilium/cache/services/v1/c2/demo/copy", kv.value.replace(b"echo", b"copy"))
    await configure(etcd, "c2", 2, cached=True)
    for kind in ("services", "serviceexports"):
        await etcd.put(f"cilium/synced/c2/cilium/cache/{kind}/v1", b"now")
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        assert seen.services() == {"c2:demo/copy": ["10.2.1.1"]}


async def test_an_agent_reads_no_exports_and_an_operator_no_services(etcd: Session, peers: Peers) -> None:
    peers.add("c2")
    await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
    await export(etcd, "c2", "demo/echo")
    await announce(etcd, "c2", 2)
    async with following(peers, kinds=("services",)) as agent:
        await agent.state("c2", "ready")
        assert agent.exports() == []
    async with following(peers, kinds=("serviceexports",)) as operator:
        await operator.state("c2", "ready")
        assert operator.services() == {}


async def test_a_file_that_cannot_be_used_costs_its_own_cluster_only(etcd: Session, peers: Peers) -> None:
    peers.add("c2")
    (peers.folder / "c3").write_text("endpoints: 7\n")
    (peers.folder / "c4").write_text("endpoints: [\n")
    (peers.folder / "Bad").write_text("endpoints: ['http://127.0.0.1:1']\n")
    (peers.folder / "c5").write_text("endpoints: ['https://127.0.0.1:1']\ntrusted-ca-file: /nowhere/ca.crt\n")
    await announce(etcd, "c2", 2)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        await seen.until(lambda s: seen.cluster("c5").reason)
        assert "want a list of URLs" in seen.cluster("c3").reason
        assert "no YAML" in seen.cluster("c4").reason
        assert "cannot be a cluster's name" in seen.cluster("Bad").reason
        assert "/nowhere/ca.crt" in seen.cluster("c5").reason
        await announce(etcd, "c3", 3)
        peers.add("c3")
        await seen.state("c3", "ready")


async def test_a_file_that_breaks_is_named_while_what_it_was_before_counts(etcd: Session, peers: Peers) -> None:
    peers.add("c2")
    await announce(etcd, "c2", 2)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        (peers.folder / "c2").write_text("endpoints: 7\n")
        await seen.until(lambda s: seen.cluster("c2").file_problem)
        assert seen.cluster("c2").file_problem == f"{peers.folder}/c2: endpoints: want a list of URLs"
        assert seen.cluster("c2").state == "ready"
        peers.add("c2")
        await seen.until(lambda s: not seen.cluster("c2").file_problem)


async def test_a_record_of_the_wrong_namespace_form_is_dropped(etcd: Session, peers: Peers) -> None:
    peers.add("c2")
    for key in ("echo", "a/b/c", "Demo/echo", "demo/", "demo/\udcff", "demo/" + "x" * 64):
        await etcd.put(f"cilium/state/services/v1/c2/{key}", b"{}")
    await announce(etcd, "c2", 2)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        await seen.until(lambda s: seen.cluster("c2").dropped == 6)
