"""Endpoint slice records of Cilium 1.20: recordings, ours, hostile ones, followed, copied and published."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peers.clusterset_peers import Peers, announce, canaries, configure, following, service
from peers.mirroring import mirroring

from isthmus import bounds
from isthmus.clusterset.errors import RecordError
from isthmus.clusterset.publishing.publisher import Publisher
from isthmus.clusterset.records import identity, slices
from isthmus.config import ClusterSection, PublishedEndpoints
from isthmus.etcd import Session
from isthmus.model import tables
from isthmus.model.mcs import Record
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Condition, Endpoint, EndpointSet, Port
from isthmus.running import Tasks
from isthmus.statedb import Database

C2, ECHO = ClusterName("c2"), ServiceName("demo/echo")
WHERE = "cilium/state/endpointslices/v1/c2/demo/"
ONLY = "endpointslices-only"
RECORDED: dict[str, bytes] = {
    key: base64.b64decode(value)
    for key, value in json.loads(
        (Path(__file__).parents[1] / "data/cilium/1.20.2-endpointslices.json").read_text()
    ).items()
}
"""Recordings of Cilium's own encoder (tests/cilium_reader)."""
HTTP = Port("http", 8080)


def decode(value: bytes, key: str = "demo/a") -> EndpointSet | None:
    return slices.decode(value, cluster=C2, cluster_id=2, name=slices.parse(key)).row


def written(*addresses: str, name: str = "a", of: str = "echo", **fields: Any) -> bytes:
    """A slice as it may be, whatever its fields are."""
    said: dict[str, Any] = {"cluster": "c2", "clusterID": 2, "namespace": "demo", "name": name, "addressType": "IPv4"}
    said |= {"labels": [slices.message("Pair")(key=slices.OF_SERVICE, value=of).SerializeToString()]}
    said |= {"endpoints": [slices.message("Endpoint")(addresses=[each]).SerializeToString() for each in addresses]}
    said |= {"ports": [slices.message("EndpointPort")(name="http", port=8080).SerializeToString()]}
    return bounds.deflated(slices.message("Slice")(**said | fields).SerializeToString())


def named(hostname: str) -> bytes:
    """An endpoint with a hostname."""
    return bytes(slices.message("Endpoint")(addresses=["10.2.1.1"], hostname=hostname).SerializeToString())


def test_what_cilium_writes_is_read() -> None:
    row = decode(RECORDED["demo/echo-7xk2p"], "demo/echo-7xk2p")
    assert row is not None
    assert (row.service, row.cluster, row.part) == ("demo/echo", "c2", "demo/echo-7xk2p")
    ports = (Port("dns", 53, "UDP"), Port("http", 8080, app_protocol="kubernetes.io/h2c"))
    zones: dict[str, Any] = {"hostname": "echo-0", "node": "n1", "zone": "eu-1", "for_zones": ("eu-1", "eu-2")}
    assert [*row.endpoints] == [
        Endpoint("10.2.1.1", ports, **zones),
        Endpoint("10.2.1.2", ports, Condition.TERMINATING),
        Endpoint("10.2.1.3", ports, Condition.NOT_READY),
        Endpoint("10.2.1.4", ports),
    ]
    second = decode(RECORDED["demo/echo-v6.a"], "demo/echo-v6.a")
    assert second is not None
    assert [*second.endpoints] == [Endpoint("2001:db8::1", (Port("", 8080),))]
    assert decode(RECORDED["demo/nobody"], "demo/nobody") is None


addresses = st.one_of(
    st.integers(1, 4_000).map(lambda n: f"10.2.{n // 250}.{n % 250 + 1}"),
    st.integers(1, 99).map(lambda n: f"fd00::{n}"),
)
ports = st.sets(st.sampled_from([HTTP, Port("", 80), Port("dns", 53, "UDP"), Port("http", 9090)]), max_size=3).map(
    lambda chosen: tuple(sorted(chosen, key=lambda port: (port.name, port.port, port.protocol)))
)
endpoints = st.builds(
    Endpoint, addresses, ports, st.sampled_from(Condition), st.sampled_from(["", "echo-0"]), st.sampled_from(["", "n1"])
)


@settings(max_examples=30)
@given(st.lists(endpoints, max_size=150, unique_by=lambda each: each.address))
def test_what_we_write_reads_as_it_was_without_what_cannot_serve(there: list[Endpoint]) -> None:
    parts = [*slices.encode(ECHO, cluster=C2, cluster_id=2, endpoints=there)]
    rows = [decode(value, name) for name, value in parts]
    read = [endpoint for row in rows if row is not None for endpoint in row.endpoints]
    kept = [each for each in there if each.condition in slices.CONDITIONS]
    assert sorted(read, key=lambda each: each.address) == sorted(kept, key=lambda each: each.address)
    assert all(row is not None and row.service == ECHO for row in rows)
    assert len({name for name, _ in parts}) == len(parts)


def test_a_change_of_one_endpoint_of_many_rewrites_one_record() -> None:
    there = [Endpoint(f"10.2.{n // 250}.{n % 250 + 1}", (HTTP,)) for n in range(900)]
    before, after = (dict(slices.encode(ECHO, cluster=C2, cluster_id=2, endpoints=each)) for each in (there, there[1:]))
    assert len(before) > 8
    assert len([name for name, value in before.items() if after.get(name) != value]) == 1


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "not one whole frame"),
        (b"{}", "no frame of Zstandard"),
        (written("10.2.1.1")[:-3], "not one whole frame"),
        (written("10.2.1.1") * 2, "not one whole frame"),
        (bounds.deflated(b"\xff" * 40), "it is not the message Slice"),
        (bounds.deflated(b"\x0a\x02\xff\xfe"), "UTF-8"),
        (bounds.deflated(bytes(300_000_000 // 64)), "more than"),
        (bytes(slices.LIMIT + 1), "at most"),
        (written("10.2.1.1", cluster="c3"), "speaks for cluster"),
        (written("10.2.1.1", name="b"), "not for its key"),
        (written("10.2.1.1", clusterID=3), "clusterID is 3"),
        (written("10.2.1.1", addressType="FQDN"), "not a type of addresses"),
        (written("fd00::1"), "not of type IPv4"),
        (written("10.2.1.1", "10.2.1.300"), "not an IP address"),
        (written("127.0.0.1"), "cannot be an endpoint's address"),
        (written(""), "not an IP address"),
        (written("10.2.1.1", endpoints=[b""]), "no address"),
        (written(*["10.2.1.1"] * 1_001), "1001 entries"),
        (written("10.2.1.1", ports=[b""] * 101), "101 entries"),
        (written("10.2.1.1", ports=[b"\x18\x80\x80\x04"]), "not a port"),
        (written("10.2.1.1", ports=[b"\x12\x02XX\x18\x01"]), "not a protocol"),
        (written("10.2.1.1", ports=[b"\xff"]), "ports"),
        (written("10.2.1.1", of="not a name"), "not the name of a Service"),
        (written("10.2.1.1", labels=[b"\x0a\xff"]), "labels"),
        (written(endpoints=[named("h" * 254)]), "254"),
        (written(endpoints=[bytes(5_000)]), "endpoints"),
    ],
)  # fmt: skip
def test_an_unusable_record_is_refused_with_the_reason(value: bytes, why: str) -> None:
    with pytest.raises(RecordError, match=why):
        decode(value)


@given(st.binary(max_size=200), st.integers(0, 400), st.sampled_from([*RECORDED.values()]))
def test_whatever_bytes_come_nothing_but_a_refusal_does(noise: bytes, at: int, value: bytes) -> None:
    plain = bounds.inflated(value, most=10_000)
    for each in (noise, bounds.deflated(noise), bounds.deflated(plain[:at] + noise + plain[at + len(noise) :])):
        try:
            decode(each, "demo/echo-7xk2p")
        except RecordError:
            pass


@pytest.mark.parametrize(
    "key", ["demo", "demo/", "/a", "demo/a/b", "demo/A", "demo/a..b", "demo/-a", f"demo/{'a.' * 130}a"]
)
def test_a_key_that_names_no_slice_is_refused(key: str) -> None:
    with pytest.raises(RecordError):
        slices.parse(key)


def test_of_what_is_compressed_no_more_than_the_bound_is_ever_decompressed() -> None:
    assert bounds.inflated(bounds.deflated(bytes(4096)), most=4096) == bytes(4096)
    with pytest.raises(bounds.OutOfBounds, match="more than 4095 bytes"):
        bounds.inflated(bounds.deflated(bytes(4096)), most=4095)


# followed


@pytest.fixture
def peers(peers: Peers) -> Peers:
    peers.add("c2")
    return peers


async def announced(etcd: Session, mode: str) -> None:
    await announce(etcd, "c2", 2, endpointSlicesExportMode=mode)
    await etcd.put("cilium/synced/c2/cilium/state/endpointslices/v1", b"now")


async def test_slices_of_a_peer_that_has_nothing_else_are_followed(etcd: Session, peers: Peers) -> None:
    await etcd.put(f"{WHERE}echo-7xk2p", RECORDED["demo/echo-7xk2p"])
    await etcd.put(f"{WHERE}b", written("10.2.2.1", name="b"))
    await announced(etcd, ONLY)
    async with following(peers) as seen:
        assert not (await seen.state("c2", "ready")).reason
        rows = seen.db.snapshot().by(tables.ENDPOINT_SETS, "service", ECHO)
        assert {row.part for row in rows} == {"demo/echo-7xk2p", "demo/b"}
        await etcd.put(f"{WHERE}b", written("10.2.2.2", name="b", of="other"))
        await seen.until(
            lambda s: [row.part for row in s.by(tables.ENDPOINT_SETS, "service", ECHO)] == ["demo/echo-7xk2p"]
        )
        assert seen.services() == {
            "c2:demo/echo": ["10.2.1.1", "10.2.1.2", "10.2.1.3", "10.2.1.4"],
            "c2:demo/other": ["10.2.2.2"],
        }
        await etcd.delete(f"{WHERE}echo-7xk2p")
        await seen.until(lambda s: seen.services() == {"c2:demo/other": ["10.2.2.2"]})
        await etcd.put(f"{WHERE}b", written("10.2.2.2", name="b", labels=[]))
        await seen.until(lambda s: seen.services() == {})


async def test_a_bad_slice_costs_itself_alone_and_its_last_good_content_stays(etcd: Session, peers: Peers) -> None:
    await etcd.put(f"{WHERE}a", written("10.2.1.1"))
    await etcd.put(f"{WHERE}b", b"\x28\xb5\x2f\xfd bad")
    await announced(etcd, ONLY)
    async with following(peers) as seen:
        assert (await seen.state("c2", "ready")).dropped == 1
        assert seen.services() == {"c2:demo/echo": ["10.2.1.1"]}
        await etcd.put(f"{WHERE}a", written("10.2.1.300"))
        await seen.until(lambda s: seen.cluster("c2").dropped == 2)
        assert seen.services() == {"c2:demo/echo": ["10.2.1.1"]}


async def test_of_a_peer_that_publishes_both_the_service_records_count(etcd: Session, peers: Peers) -> None:
    await etcd.put(f"{WHERE}a", written("10.2.1.1"))
    await service(etcd, "c2", "demo/echo", "10.2.1.2", number=2)
    await announced(etcd, "services-and-endpointslices")
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        assert seen.services() == {"c2:demo/echo": ["10.2.1.2"]}


async def test_a_peer_that_moves_to_slices_and_back_loses_nothing_between(etcd: Session, peers: Peers) -> None:
    await etcd.put(f"{WHERE}a", written("10.2.1.1"))
    await service(etcd, "c2", "demo/echo", "10.2.1.2", number=2)
    await announce(etcd, "c2", 2)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        await configure(etcd, "c2", 2, endpointSlicesExportMode=ONLY)
        await seen.state("c2", "listing")
        assert seen.services() == {"c2:demo/echo": ["10.2.1.2"]}, "its slices are not known to be whole yet"
        await etcd.put("cilium/synced/c2/cilium/state/endpointslices/v1", b"now")
        await seen.until(lambda s: seen.services() == {"c2:demo/echo": ["10.2.1.1"]})
        await configure(etcd, "c2", 2)
        await seen.until(lambda s: seen.services() == {"c2:demo/echo": ["10.2.1.2"]})


async def test_the_last_known_slices_count_after_a_restart(etcd: Session, peers: Peers, tmp_path: Path) -> None:
    await etcd.put(f"{WHERE}a", written("10.2.1.1"))
    await announced(etcd, ONLY)
    async with following(peers, state=tmp_path / "state") as seen:
        await seen.state("c2", "ready")
    await etcd.delete("cilium/synced/c2/cilium/state/endpointslices/v1")
    async with following(peers, state=tmp_path / "state") as seen:
        await seen.until(lambda s: seen.services() == {"c2:demo/echo": ["10.2.1.1"]})
        await etcd.delete(f"{WHERE}a")
        await canaries(etcd, "c2")
        await etcd.put("cilium/synced/c2/cilium/state/endpointslices/v1", b"now")
        await seen.until(lambda s: seen.services() == {})


# copied


async def test_a_mirror_copies_slices_and_service_records_as_the_peer_moves(
    peer_session: Session, own_session: Session, peers: Peers, local: Peers
) -> None:
    local.add("c2")
    await peer_session.put(f"{WHERE}a", written("10.2.1.1"))
    await service(peer_session, "c2", "demo/echo", "10.2.1.2", number=2)
    await announced(peer_session, ONLY)
    async with mirroring(own_session, peers), following(local) as agent:
        await agent.until(lambda s: agent.services() == {"c2:demo/echo": ["10.2.1.1"]})
        await configure(peer_session, "c2", 2)
        await agent.until(lambda s: agent.services() == {"c2:demo/echo": ["10.2.1.2"]})
        left = [kv.key for kv in (await own_session.list("cilium/")).kvs if "endpointslices" in kv.key]
        assert left == []
        await configure(peer_session, "c2", 2, endpointSlicesExportMode=ONLY)
        await agent.until(lambda s: agent.services() == {"c2:demo/echo": ["10.2.1.1"]})
    async with mirroring(own_session, peers), following(local) as agent:
        await agent.until(lambda s: agent.services() == {"c2:demo/echo": ["10.2.1.1"]})


# published


@pytest.mark.parametrize("mode", identity.MODES)
async def test_the_configuration_says_what_is_published_and_nothing_of_another_setting_is_left(
    etcd: Session, mode: PublishedEndpoints
) -> None:
    stale = [f"cilium/state/{kind}/v1/c2/demo/stale" for kind in ("services", "endpointslices")]
    for key in stale:
        await etcd.put(key, b"of an earlier setting")
    db = Database(tables.RECORDS, tables.REFUSALS, tables.DRAINING)
    with db.write() as txn:
        if mode != "endpointslices":
            txn.put(tables.RECORDS, Record("services", ECHO, b"s"))
        if mode != "services":
            txn.put(tables.RECORDS, Record("endpointslices", ServiceName("demo/echo-1"), b"e", ECHO))
    publisher = Publisher(db, etcd, ClusterSection(name="c2", id=2), publish_endpoints=mode)
    async with Tasks() as tasks:
        tasks.start("publisher", publisher.run)
        while not publisher.published:
            await etcd.get("cilium/")
        tasks.cancel()
    kv = await etcd.get("cilium/cluster-config/c2")
    assert kv is not None
    assert identity.decode_config(kv.value).capabilities.endpoint_slices_export_mode == identity.MODES[mode]
    kinds = {each.key.split("/")[2] for each in (await etcd.list("cilium/state/")).kvs}
    assert kinds == ({"services", "endpointslices"} if mode == "both" else {mode})
    assert not {each.key for each in (await etcd.list("cilium/state/")).kvs} & {*stale}
