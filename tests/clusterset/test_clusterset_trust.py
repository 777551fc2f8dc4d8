"""What a peer may claim and publish, and that refusing it costs no other cluster anything."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import structs
from peers.clusterset_peers import QUICK, Peers, announce, configure, export, following, service
from peers.joining_world import clusters

from isthmus.clusterset import joining
from isthmus.clusterset.errors import JoinError
from isthmus.clusterset.joining.tokens import Entry
from isthmus.clusterset.peers.peer_files import Directory
from isthmus.clusterset.records.admission import Pace
from isthmus.clusterset.records.identity import Ids
from isthmus.etcd import Session
from isthmus.model.names import ClusterName

C1, C2, C3, C4 = (ClusterName(f"c{n}") for n in range(1, 5))


def declare(peers: Peers, name: str, **options: Any) -> None:
    """A peer's file with options of ours."""
    (peers.folder / name).write_text(yaml.safe_dump({"endpoints": [peers.endpoint]} | options))


# Identity.


async def test_a_peer_that_presents_anothers_id_is_refused_and_the_other_never(etcd: Session, peers: Peers) -> None:
    declare(peers, "c3", **{"cluster-id": 3})
    await announce(etcd, "c3", 2)
    await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
    await announce(etcd, "c2", 2)
    async with following(peers) as seen:
        row = await seen.state("c3", "refused")
        assert row.reason == "its cluster id is 2, but it joined with 3: only a cluster that joins anew may change it"
        declare(peers, "c2", **{"cluster-id": 2})
        await seen.state("c2", "ready")
        assert seen.services() == {"c2:demo/echo": ["10.2.1.1"]}
        await configure(etcd, "c3", 3)
        await seen.state("c3", "ready")
        assert seen.cluster("c2").state == "ready"


async def test_an_id_that_was_pinned_is_its_clusters_though_another_presented_it_first(
    etcd: Session, peers: Peers
) -> None:
    peers.add("c3")
    await service(etcd, "c3", "demo/echo", "10.3.1.1", number=2)
    await announce(etcd, "c3", 2)
    await announce(etcd, "c2", 2)
    async with following(peers) as seen:
        await seen.state("c3", "ready")
        declare(peers, "c2", **{"cluster-id": 2})
        await seen.state("c2", "ready")
        row = await seen.state("c3", "refused")
        assert row.reason == "its cluster id 2 is that of cluster c2"
        assert seen.services() == {}


async def test_a_refused_peer_is_checked_again_when_the_id_is_free(etcd: Session, peers: Peers) -> None:
    peers.add("c2")
    await announce(etcd, "c2", 2)
    await announce(etcd, "c3", 2)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        peers.add("c3")
        await seen.state("c3", "refused")
        await configure(etcd, "c2", 7)  # it stays, under another id
        await seen.state("c3", "ready")
        assert (await seen.state("c2", "ready")).id == 7


async def test_of_two_peers_without_a_pin_the_first_keeps_the_id_over_a_restart_and_the_other_gets_it_by_a_pin(
    etcd: Session, peers: Peers, tmp_path: Path
) -> None:
    peers.add("c3")
    await service(etcd, "c3", "demo/echo", "10.3.1.1", number=2)
    await announce(etcd, "c2", 2)
    await announce(etcd, "c3", 2)
    state = tmp_path / "state"
    timings = structs.replace(QUICK, save_after=0.01)
    async with following(peers, state=state, timings=timings) as seen:
        await seen.state("c3", "ready")
        await seen.until_true((state / "services" / "c3.json").exists)
        peers.add("c2")
        assert (await seen.state("c2", "refused")).reason == "its cluster id 2 is that of cluster c3"
    async with following(peers, state=state) as seen:  # c2 comes before c3 by its name
        await seen.state("c2", "refused")
        await seen.state("c3", "ready")
        assert seen.services() == {"c3:demo/echo": ["10.3.1.1"]}
        declare(peers, "c2", **{"cluster-id": 2})
        await seen.state("c2", "ready")
        await seen.state("c3", "refused")


def test_ids_go_to_the_pinned_cluster_then_to_the_earlier_holder() -> None:
    ids = Ids(C1, 1)
    ids.pin({C2: 2})
    assert ids.reserve(C3, 2) == "its cluster id 2 is that of cluster c2"
    assert ids.reserve(C2, 9).startswith("its cluster id is 9, but it joined with 2")
    assert ids.reserve(C2, 2) == ""
    assert ids.reserve(C3, 1) == "its cluster id 1 is that of cluster c1"
    assert (ids.reserve(C3, 3), ids.reserve(C4, 3)) == ("", "its cluster id 3 is that of cluster c3")
    before = ids.given_up
    assert ids.reserve(C3, 4) == ""
    assert ids.given_up > before
    assert ids.reserve(C4, 3) == ""
    ids.pin({C2: 2, C3: 3})
    assert ids.reserve(C3, 3) == ""
    assert ids.reserve(C4, 3) == "its cluster id 3 is that of cluster c3"


@pytest.mark.parametrize("agent_first", [True, False])
async def test_agent_and_operator_agree_on_an_id_in_any_order_of_arrival(
    etcd: Session, peers: Peers, agent_first: bool
) -> None:
    await announce(etcd, "c2", 2)
    await announce(etcd, "c3", 2)
    first, second = ("c2", "c3") if agent_first else ("c3", "c2")
    declare(peers, first, **{"cluster-id": int(first[1])})
    async with following(peers) as seen:
        await seen.until(lambda s: seen.cluster(first).state in ("ready", "refused"))
        declare(peers, second, **{"cluster-id": int(second[1])})
        await seen.state("c2", "ready")
        await seen.state("c3", "refused")


async def test_joining_pins_name_and_id_and_refuses_an_id_that_another_joined_with(tmp_path: Path) -> None:
    async with clusters(tmp_path) as (c1, c2):
        async with joining.invitation(c1.home, lifetime=60) as invitation:
            await asyncio.gather(invitation.accepted(), joining.join(c2.home, invitation.word, patience=90))
        assert Directory(str(c2.home.directory), own=C2).read()[C1].id == 1
        assert Directory(str(c1.home.directory), own=C1).read()[C2].id == 2
        entry = c2.home.entry(())
        thief = Entry(
            cluster=C3, id=2, endpoints=entry.endpoints, ca=entry.ca, certificate=entry.certificate, key=entry.key
        )
        with pytest.raises(JoinError, match="cluster c3 has the id 2, with which cluster c2 joined"):
            joining.check(c1.home, thief)
        assert await joining.refresh(c2.home) == []
        await (await c1.command("rotate-ca", "begin")).communicate()
        assert await joining.refresh(c2.home) == ["c1"]
        assert Directory(str(c2.home.directory), own=C2).read()[C1].id == 1, "a new authority keeps the pin"


# Records.


@pytest.mark.parametrize("kind", ["services", "serviceexports"])
async def test_a_peer_may_not_publish_in_namespaces_that_run_the_cluster(
    etcd: Session, peers: Peers, kind: str
) -> None:
    peers.add("c2")
    for name in ("demo/echo", "kube-system/kube-dns", "isthmus-system/x", "kube-public/x"):
        await service(etcd, "c2", name, "10.2.1.1", number=2)
        await export(etcd, "c2", name)
    await announce(etcd, "c2", 2)
    async with following(peers, kinds=(kind,)) as seen:
        row = await seen.state("c2", "ready")
        assert seen.services() in ({}, {"c2:demo/echo": ["10.2.1.1"]})
        assert seen.exports() in ([], ["c2:demo/echo"])
        await seen.until(lambda s: seen.cluster("c2").dropped == 3)
        row = seen.cluster("c2")
        assert row.dropped_example.endswith("isthmus-system/x: cluster c2 may not publish in namespace isthmus-system")


async def test_a_peers_file_names_the_namespaces_that_it_may_publish_in(etcd: Session, peers: Peers) -> None:
    declare(peers, "c2", namespaces=["demo", "team-*", "kube-system"])
    for name in ("demo/echo", "team-a/echo", "other/echo", "kube-system/dns"):
        await service(etcd, "c2", name, "10.2.1.1", number=2)
    await announce(etcd, "c2", 2)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        assert set(seen.services()) == {"c2:demo/echo", "c2:team-a/echo", "c2:kube-system/dns"}
        declare(peers, "c2", namespaces=["other"])
        await seen.until(lambda s: set(seen.services()) == {"c2:other/echo"})


async def test_a_peer_brings_so_many_imports_and_no_more_and_others_all_theirs(etcd: Session, peers: Peers) -> None:
    peers.add("c2", "c3")
    for n in range(12):
        await export(etcd, "c2", f"demo/e{n:02}")
    await export(etcd, "c3", "demo/x")
    await announce(etcd, "c2", 2)
    await announce(etcd, "c3", 3)
    async with following(peers, max_imports=10) as seen:
        await seen.state("c2", "ready")
        await seen.state("c3", "ready")
        await seen.until(lambda s: seen.cluster("c2").dropped == 4)
        assert len(seen.exports()) == 9, "one namespace alone has four fifths of the 10"
        assert "c3:demo/x" in seen.exports()
        share = "namespace demo has its share of the 10 exports of a cluster (clusterset.max_imports)"
        assert seen.cluster("c2").dropped_example == f"serviceexports demo/e08: {share}"


RESERVED = ("127.0.0.1", "169.254.169.254", "0.0.0.0", "224.0.0.251", "255.255.255.255", "fe80::1", "::1", "ff02::fb")


@pytest.mark.parametrize("address", [*RESERVED, "::ffff:127.0.0.1", "::ffff:255.255.255.255"])
async def test_a_peer_names_no_reserved_address(etcd: Session, peers: Peers, address: str) -> None:
    peers.add("c2")
    await service(etcd, "c2", "demo/echo", "10.2.1.1", address, number=2)
    await announce(etcd, "c2", 2)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        await seen.until(lambda s: seen.cluster("c2").dropped == 1)
        assert seen.services() == {}


async def test_a_peer_names_addresses_of_the_pod_ranges_that_it_declared_and_no_others(
    etcd: Session, peers: Peers
) -> None:
    declare(peers, "c2", **{"pod-ranges": ["10.2.0.0/16", "fd00:2::/48"]})
    await service(etcd, "c2", "demo/echo", "10.2.1.1", "fd00:2::5", number=2)
    await service(etcd, "c2", "demo/steal", "10.3.1.1", number=2)
    await announce(etcd, "c2", 2)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        await seen.until(lambda s: seen.cluster("c2").dropped == 1)
        assert set(seen.services()) == {"c2:demo/echo"}
        assert "10.3.1.1 is in none of the pod ranges that c2 declared" in seen.cluster("c2").dropped_example


@pytest.mark.slow
async def test_a_peer_that_writes_as_fast_as_it_can_is_read_at_a_rate_and_ends_up_right(
    etcd: Session, peers: Peers
) -> None:
    peers.add("c2", "c3")
    await announce(etcd, "c2", 2)
    await announce(etcd, "c3", 3)
    async with following(peers, peer_rate=5.0) as seen:
        await seen.state("c2", "ready")
        await seen.state("c3", "ready")
        for turn in range(12):  # 120 writes, of which 50 are taken at once, and the others in 14 s
            records = (service(etcd, "c2", f"demo/s{n}", f"10.2.{turn}.{n}", number=2) for n in range(10))
            await asyncio.gather(*records)
        await service(etcd, "c3", "demo/x", "10.3.1.1", number=3)
        await seen.until(lambda s: seen.addresses("c3") == {"10.3.1.1"})
        await asyncio.sleep(1)  # in which all of c2's would have come
        assert "10.2.11.9" not in seen.addresses("c2"), "c3 does not wait for c2"
        await seen.until(lambda s: seen.addresses("c2") == {f"10.2.11.{n}" for n in range(10)})


@pytest.mark.looptime
async def test_a_peer_passes_ten_seconds_of_its_rate_at_once_and_its_rate_from_then_on() -> None:
    loop = asyncio.get_running_loop()
    pace, began = Pace(100.0), loop.time()
    await pace.take(1000)
    assert loop.time() == began
    for _ in range(5):
        await pace.take(100)
    assert loop.time() - began == pytest.approx(5.0)
    await asyncio.sleep(60)
    await pace.take(1000)
    assert loop.time() - began == pytest.approx(65.0)
    await asyncio.sleep(3600)
    await pace.take(2000)
    assert loop.time() - began == pytest.approx(65.0 + 3600 + 10.0), "an idle hour adds no more than the burst"


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ({"cluster-id": "two"}, "cluster-id: want a number of 1 to 511"),
        ({"cluster-id": 512}, "cluster-id: want a number of 1 to 511"),
        ({"cluster-id": True}, "cluster-id: want a number of 1 to 511"),
        ({"namespaces": "demo"}, "namespaces: want a list of namespaces"),
        ({"namespaces": [1]}, "namespaces: want a list of namespaces"),
        ({"pod-ranges": ["10.2.0.0"]}, "pod-ranges: '10.2.0.0' is no range"),
        ({"pod-ranges": ["10.2.0.1/16"]}, "pod-ranges: '10.2.0.1/16' is no range"),
    ],
)
def test_a_bad_option_is_named_with_file_and_field(tmp_path: Path, option: dict[str, Any], why: str) -> None:
    (tmp_path / "c2").write_text(yaml.safe_dump({"endpoints": ["http://x:1"]} | option))
    problem = Directory(str(tmp_path), own=C1).read()[C2].problem
    assert problem.startswith(f"{tmp_path / 'c2'}: {why}")
