"""A record whose decoding raises what nobody expected costs itself: others follow, and its last good value stays."""

from __future__ import annotations

from typing import Any

import pytest
from peers.clusterset_peers import Following, Peers, announce, configure, following, service

from isthmus.clusterset.records import endpoints, identity, keys
from isthmus.etcd import Session
from isthmus.model import tables
from isthmus.model.names import ClusterName


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The addresses for whose records decoding raises, and descriptions of that region."""
    found: set[str] = set()
    decode, description = endpoints.decode, identity.decode_description

    def raising(value: bytes, **fields: Any) -> Any:
        if any(each.encode() in value for each in found):
            raise KeyError("a bug")
        return decode(value, **fields)

    def raising_description(value: bytes, **fields: Any) -> Any:
        if any(each.encode() in value for each in found):
            raise KeyError("a bug")
        return description(value, **fields)

    monkeypatch.setattr(endpoints, "decode", raising)
    monkeypatch.setattr(identity, "decode_description", raising_description)
    return found


def faults(seen: Following) -> set[tuple[str, str, str, str]]:
    return {(row.part, row.kind, row.name, row.error) for row in seen.db.snapshot().all(tables.FAULTS)}


ECHO = ("endpoint_sets", "records of c2", "demo/echo", "KeyError: 'a bug'")


async def test_a_record_that_raises_keeps_its_last_good_value_through_lists_and_is_a_fault(
    etcd: Session, peers: Peers, broken: set[str]
) -> None:
    peers.add("c2")
    await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
    await service(etcd, "c2", "demo/web", "10.2.1.2", number=2)
    await announce(etcd, "c2", 2)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        broken.add("10.2.1.66")
        await service(etcd, "c2", "demo/echo", "10.2.1.66", number=2)
        await service(etcd, "c2", "demo/web", "10.2.1.3", number=2)
        await seen.until(lambda s: faults(seen) == {ECHO} and seen.cluster("c2").dropped == 1)
        await seen.until(lambda s: seen.services()["c2:demo/web"] == ["10.2.1.3"])
        assert seen.services()["c2:demo/echo"] == ["10.2.1.1"]
        # Another configuration: every record is listed again, by another sink.
        await configure(etcd, "c2", 2, serviceExportsEnabled=None)
        await service(etcd, "c2", "demo/web", "10.2.1.4", number=2)
        await seen.until(lambda s: seen.services()["c2:demo/web"] == ["10.2.1.4"])
        assert seen.services()["c2:demo/echo"] == ["10.2.1.1"]
        assert faults(seen) == {ECHO}
        broken.clear()
        await service(etcd, "c2", "demo/echo", "10.2.1.67", number=2)
        await seen.until(lambda s: not faults(seen))
        assert seen.services()["c2:demo/echo"] == ["10.2.1.67"]


async def test_a_record_that_raises_is_withdrawn_where_its_peer_may_publish_its_addresses_no_longer(
    etcd: Session, peers: Peers, broken: set[str]
) -> None:
    peers.add("c2")
    await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
    await service(etcd, "c2", "demo/web", "10.2.9.1", number=2)
    await announce(etcd, "c2", 2)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        broken.add("10.2.1.66")
        await service(etcd, "c2", "demo/echo", "10.2.1.66", number=2)
        await seen.until(lambda s: faults(seen) == {ECHO})
        (peers.folder / "c2").write_text(f"endpoints: ['{peers.endpoint}']\npod-ranges: [10.2.9.0/24]\n")
        await seen.until(lambda s: seen.services() == {"c2:demo/web": ["10.2.9.1"]})


@pytest.mark.parametrize("leaves", [False, True])
async def test_the_fault_of_a_record_goes_with_the_record_and_with_its_peer(
    etcd: Session, peers: Peers, broken: set[str], leaves: bool
) -> None:
    peers.add("c2")
    broken.add("10.2.1.66")
    await service(etcd, "c2", "demo/echo", "10.2.1.66", number=2)
    await announce(etcd, "c2", 2)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        await seen.until(lambda s: faults(seen) == {ECHO})
        if leaves:
            peers.remove("c2")
        else:
            await etcd.delete("cilium/state/services/v1/c2/demo/echo")
        await seen.until(lambda s: not faults(seen))
        assert seen.services() == {}


async def test_a_description_that_raises_costs_no_record_and_what_it_was_before_counts(
    etcd: Session, peers: Peers, broken: set[str]
) -> None:
    peers.add("c2")
    await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
    await announce(etcd, "c2", 2)
    await etcd.put(keys.description(ClusterName("c2")), b'{"region": "west"}')
    async with following(peers) as seen:
        await seen.until(lambda s: (row := s.get(tables.CLUSTERS, ClusterName("c2"))) and row.region == "west")
        broken.add("nowhere")
        await etcd.put(keys.description(ClusterName("c2")), b'{"region": "nowhere"}')
        await seen.until(lambda s: faults(seen))
        assert faults(seen) == {("clusters", "published by c2", "description", "KeyError: 'a bug'")}
        await service(etcd, "c2", "demo/echo", "10.2.1.9", number=2)
        await seen.until(lambda s: seen.services() == {"c2:demo/echo": ["10.2.1.9"]})
        assert seen.cluster("c2").region == "west"
        await etcd.put(keys.description(ClusterName("c2")), b'{"region": "east"}')
        await seen.until(lambda s: not faults(seen) and seen.cluster("c2").region == "east")
