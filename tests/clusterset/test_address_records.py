"""Addresses of callers as records in Cilium's layout: published, copied, followed, and refused one by one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peers.clusterset_peers import Following, Peers, announce, following
from peers.mirroring import mirroring

from isthmus.clusterset.errors import RecordError
from isthmus.clusterset.records import addresses, keys
from isthmus.etcd import Session
from isthmus.mcs.records import derived
from isthmus.model import tables
from isthmus.model.identities import CallerAddress, Identity
from isthmus.model.mcs import Record
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Pod
from isthmus.statedb import Database, Derivations

C1, C2 = ClusterName("c1"), ClusterName("c2")
FRONT = 2 << 16 | 300
IPV4, IPV6 = "10.2.0.7", "fd00:2::7"


def record(address: str, number: int = FRONT) -> bytes:
    return addresses.encode(address, number, namespace="demo", pod="front-0", service_account="front")


def decode(value: bytes, address: str = IPV4) -> CallerAddress | None:
    return addresses.decode(value, cluster=C2, cluster_id=2, address=address, most=255)


def changed(**fields: Any) -> bytes:
    return json.dumps(json.loads(record(IPV4)) | fields).encode()


# values


def test_a_record_has_ciliums_fields_in_its_order_and_no_host_for_a_tunnel() -> None:
    assert record(IPV4).decode() == (
        '{"IP":"10.2.0.7","Mask":null,"HostIP":"","ID":131372,"Key":0,"Metadata":"",'
        '"K8sNamespace":"demo","K8sPodName":"front-0","K8sServiceAccount":"front"}'
    )


@pytest.mark.parametrize("address", [IPV4, IPV6])
def test_what_is_written_is_read(address: str) -> None:
    assert decode(record(address), address) == CallerAddress(C2, address, FRONT)


def test_of_ciliums_own_records_the_number_is_read_and_every_other_field_ignored() -> None:
    ports = [{"Name": "web", "Port": 80, "Protocol": "TCP"}]
    assert decode(changed(HostIP="192.168.0.1", Key=7, Metadata="x", NamedPorts=ports)) is not None


@pytest.mark.parametrize("number", [0, 1, 6, 255])
def test_an_address_of_a_reserved_number_is_no_row(number: int) -> None:
    assert decode(changed(ID=number)) is None


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"\xff\x00",
        b"{" * 2000,
        changed(IP="10.2.0.8"),  # of another key
        changed(Mask="////AA=="),
        changed(ID=3 << 16 | 300),  # another cluster's
        changed(ID=2 << 16),  # Cilium's reserved ones of the cluster's range
        changed(ID=-1),
        changed(ID=2**70),
        changed(ID="131372"),
        changed(Metadata="x" * addresses.LIMIT),
    ],
)
def test_a_hostile_value_is_refused_with_its_reason(value: bytes) -> None:
    with pytest.raises(RecordError) as refused:
        decode(value)
    assert str(refused.value)


@pytest.mark.parametrize(
    "key", ["", "10.2.0.0/24", "10.2.0.07", "FD00::1", "::ffff:10.2.0.7", "127.0.0.1", "169.254.169.254", "x", "../a"]
)
def test_a_key_that_is_no_address_of_a_pod_is_refused(key: str) -> None:
    with pytest.raises(RecordError):
        addresses.parse(key)


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_refuse_or_result_in_a_row(value: bytes) -> None:
    try:
        row = decode(value)
    except RecordError:
        return
    assert row is None or row.cluster == C2


def test_keys_are_ciliums_in_the_own_etcd_and_in_copies() -> None:
    assert keys.record("ip", C2, ServiceName(IPV6)) == "cilium/state/ip/v1/default/fd00:2::7"
    assert keys.copy("ip", C2, ServiceName(IPV4)) == "cilium/cache/ip/v1/c2/10.2.0.7"
    assert keys.canary("ip", C2) == "cilium/synced/c2/cilium/state/ip/v1"


# published


class Own:
    """The rows of the own cluster's pods and numbers, and the records that follow from them."""

    def __init__(self) -> None:
        self.db = Database(
            tables.RECORDS, tables.OWN_EXPORTS, tables.SERVICES, tables.NAMESPACES, tables.MERGED, tables.ENDPOINT_SETS,
            tables.IDENTITIES, tables.PODS, tables.FAULTS,
        )  # fmt: skip
        self.derivations = Derivations(self.db, derived(C1, 1, with_identities=True))
        self.put(tables.IDENTITIES, identity("front", 65_836))

    def put(self, table: Any, *rows: Any) -> None:
        with self.db.write() as txn:
            for row in rows:
                txn.put(table, row)
        self.derivations.step()

    def addresses(self) -> dict[str, int]:
        rows: list[Record] = [row for row in self.db.snapshot().all(tables.RECORDS) if row.kind == "ip"]
        return {row.name: json.loads(row.value)["ID"] for row in rows}


def identity(account: str, number: int) -> Identity:
    return Identity(cluster=C1, number=number, namespace="demo", service_account=account)


def pod(name: str, *at: str, account: str = "front", **more: Any) -> Pod:
    return Pod(name=f"demo/{name}", uid=name, addresses=at, service_account=account, **more)


def test_each_address_of_a_pod_whose_account_has_a_number_is_a_record() -> None:
    own = Own()
    own.put(tables.PODS, pod("front-0", IPV4, IPV6), pod("other", "10.2.0.9", account="other"))
    assert own.addresses() == {IPV4: 65_836, IPV6: 65_836}
    own.put(tables.IDENTITIES, identity("other", 65_900))
    assert own.addresses() == {IPV4: 65_836, IPV6: 65_836, "10.2.0.9": 65_900}
    own.put(tables.PODS, pod("front-0", IPV6), pod("other", "10.2.0.9", account="other", phase="Succeeded"))
    assert own.addresses() == {IPV6: 65_836}


def test_an_address_of_the_hosts_network_is_no_record() -> None:
    own = Own()
    own.put(tables.PODS, pod("agent", "192.168.0.1", host_network=True))
    assert own.addresses() == {}


def test_an_address_that_pods_of_two_accounts_have_is_nobodys_until_one_of_them_ends() -> None:
    own = Own()
    own.put(tables.IDENTITIES, identity("other", 65_900))
    own.put(tables.PODS, pod("old", IPV4), pod("new", IPV4, account="other"))
    assert own.addresses() == {}
    own.put(tables.PODS, pod("old", IPV4, phase="Failed"))
    assert own.addresses() == {IPV4: 65_900}


# followed


class Seen(Following):
    def known(self) -> dict[str, int]:
        return {row.address: row.number for row in self.db.snapshot().all(tables.CALLER_ADDRESSES)}


@asynccontextmanager
async def seeing(peers: Peers, **more: Any) -> AsyncIterator[Seen]:
    db = Database(
        tables.CLUSTERS, tables.EXPORTS, tables.ENDPOINT_SETS, tables.FAULTS, tables.REFUSED_RECORDS,
        tables.CALLER_ADDRESSES,
    )  # fmt: skip
    async with following(peers, kinds=("services", "ip"), db=db, **more) as found:
        yield Seen(found.db, found._follower)


async def published(etcd: Session, **numbers: int) -> None:
    for address, number in numbers.items():
        await etcd.put(f"cilium/state/ip/v1/default/{address}", record(address, number))
    await announce(etcd, "c2", 2)
    await etcd.put(keys.canary("ip", C2), b"2026-11-21T00:00:00Z")


async def test_a_peers_addresses_become_rows_change_and_go(etcd: Session, peers: Peers) -> None:
    peers.add("c2")
    await published(etcd, **{IPV4: FRONT, IPV6: FRONT})
    async with seeing(peers) as seen:
        await seen.until(lambda s: seen.known() == {IPV4: FRONT, IPV6: FRONT})
        await etcd.put(f"cilium/state/ip/v1/default/{IPV4}", record(IPV4, FRONT + 1))
        await etcd.delete(f"cilium/state/ip/v1/default/{IPV6}")
        await seen.until(lambda s: seen.known() == {IPV4: FRONT + 1})
        peers.remove("c2")
        await seen.until(lambda s: seen.known() == {})


async def test_a_hostile_address_costs_itself_and_nothing_else(etcd: Session, peers: Peers) -> None:
    peers.add("c2")
    with (peers.folder / "c2").open("a") as file:
        file.write("pod-ranges: [10.2.0.0/16]\n")
    await etcd.put("cilium/state/ip/v1/default/10.2.0.8", b"\xff")
    await etcd.put("cilium/state/ip/v1/default/../../etc", record(IPV4))
    await published(etcd, **{IPV4: FRONT, "10.1.0.1": FRONT, "10.2.0.9": 65_836})
    async with seeing(peers) as seen:
        await seen.until(lambda s: seen.known() and seen.cluster("c2").dropped == 4)
        assert seen.known() == {IPV4: FRONT}, "not one of another cluster's pods, nor with a number of ours"
        await seen.until(lambda s: seen.cluster("c2").state == "ready")


async def test_a_peer_has_no_more_addresses_than_its_quota(etcd: Session, peers: Peers) -> None:
    peers.add("c2")
    await published(etcd, **{f"10.2.1.{last}": FRONT for last in range(10)})
    async with seeing(peers, max_caller_addresses=4) as seen:
        await seen.until(lambda s: seen.cluster("c2").dropped == 6)
        assert len(seen.known()) == 4
        assert "clusterset.max_caller_addresses" in seen.cluster("c2").dropped_example


async def test_addresses_are_known_after_a_restart_without_the_peer(
    etcd: Session, peers: Peers, tmp_path: Path
) -> None:
    peers.add("c2")
    await published(etcd, **{IPV4: FRONT})
    async with seeing(peers, state=tmp_path / "state") as seen:
        await seen.until(lambda s: seen.known())
    peers.add("c2", endpoint="http://127.0.0.1:1")
    async with seeing(peers, state=tmp_path / "state") as seen:
        await seen.until(lambda s: seen.known() == {IPV4: FRONT})


async def test_a_mirror_copies_addresses_in_the_shape_of_ciliums_mirror(
    peer_session: Session, own_session: Session, peers: Peers, local: Peers
) -> None:
    peers.add("c2")
    local.add("c2")
    await published(peer_session, **{IPV4: FRONT})
    async with mirroring(own_session, peers, identities=True), seeing(local) as agent:
        await agent.until(lambda s: agent.known() == {IPV4: FRONT})
        copy = await own_session.get("cilium/cache/ip/v1/c2/10.2.0.7")
        assert copy is not None
        assert copy.value == record(IPV4)
        peers.remove("c2")
        await agent.until(lambda s: agent.known() == {})
        assert await own_session.get("cilium/cache/ip/v1/c2/10.2.0.7") is None
