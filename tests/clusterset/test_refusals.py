"""What a cluster publishes about records of a peer that it does not take, and what it reads of such from a peer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peers.clusterset_peers import Following, Peers, announce, export, following, service

from isthmus.clusterset.errors import RecordError, Refusal
from isthmus.clusterset.peers import connection
from isthmus.clusterset.records import keys, refusals
from isthmus.clusterset.records.refusals import RefusedRecords
from isthmus.etcd import Session
from isthmus.model import tables
from isthmus.model.mcs import RefusedRecord
from isthmus.model.names import ClusterName, ServiceName

C2, C3 = ClusterName("c2"), ClusterName("c3")
QUOTA = Refusal("QuotaExceeded", "no room")


def refused(name: str, **fields: Any) -> RefusedRecord:
    given: dict[str, Any] = {"kind": "serviceexports", "reason": "QuotaExceeded", "message": "no room", **fields}
    return RefusedRecord(cluster=C2, name=ServiceName(name), **given)


def test_a_peer_reads_what_was_published_about_its_records() -> None:
    rows = [
        refused("demo/db"),
        refused("demo/derived-x", kind="services", reason="AddressNotAllowed", message="10.9.9.9"),
    ]
    read = refusals.decode(refusals.encode(rows), cluster=C3)
    assert {(row.cluster, row.kind, row.name, row.reason, row.message) for row in read} == {
        (C3, "serviceexports", "demo/db", "QuotaExceeded", "no room"),
        (C3, "services", "demo/derived-x", "AddressNotAllowed", "10.9.9.9"),
    }


def test_a_peers_refusals_are_bounded_and_one_printable_line_each() -> None:
    message = "\x1b[31mread this\n" + "x" * 10_000
    entries = [
        {"kind": "serviceexports", "name": f"demo/s{n}", "reason": "Owned!", "message": message} for n in range(900)
    ]
    entries += [
        {"kind": "nodes", "name": "demo/x"},
        {"kind": "services", "name": "../../x"},
        {"kind": "services", "name": ""},
    ]
    value = json.dumps({"refused": [dict(each, message=message[:40]) for each in entries], "more": 1}).encode()
    read = refusals.decode(value, cluster=C3)
    assert len(read) == refusals.MAX_NAMED
    assert {row.reason for row in read} == {"Invalid"}
    assert all(row.message.isprintable() and len(row.message) <= refusals.MAX_MESSAGE for row in read)
    with pytest.raises(RecordError):
        refusals.decode(json.dumps({"refused": [{"kind": "", "name": ""}] * 1_001}).encode(), cluster=C3)
    with pytest.raises(RecordError):
        refusals.decode(b'{"refused": [' + b" " * refusals.LIMIT + b"]}", cluster=C3)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_garbage_in_a_peers_refusals_is_an_error_of_the_record(value: bytes) -> None:
    try:
        refusals.decode(value, cluster=C3)
    except RecordError:
        pass


def test_refused_records_of_a_hostile_namespace_hide_none_of_another() -> None:
    records = RefusedRecords()
    for number in range(30_000):
        records.add(f"aaa/s{number}", QUOTA)
    records.add("demo/db", QUOTA)
    assert len(records) == refusals.MAX_COUNTED + 1
    assert "demo/db" in records.named
    assert len(records.named) <= refusals.MAX_NAMED
    records.discard("demo/db")
    assert "demo/db" not in records.named
    records.clear()
    assert (len(records), dict(records.named), records.example) == (0, {}, "")


def rows_of(seen: Following, table: Any) -> set[tuple[str, ...]]:
    return {(row.cluster, row.kind, row.name, row.reason) for row in seen.db.snapshot().all(table)}


async def test_refused_records_are_rows_with_the_reason_until_they_are_taken_or_the_peer_leaves(
    etcd: Session, peers: Peers
) -> None:
    peers.add("c2")
    await export(etcd, "c2", "kube-system/dns")
    await service(etcd, "c2", "demo/db", "169.254.169.254", number=2)
    await service(etcd, "c2", "demo/web", "10.2.1.1", number=7)
    await announce(etcd, "c2", 2)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        expected = {
            ("c2", "serviceexports", "kube-system/dns", "NamespaceNotAllowed"),
            ("c2", "services", "demo/db", "AddressNotAllowed"),
            ("c2", "services", "demo/web", "Invalid"),
        }
        await seen.until(lambda s: rows_of(seen, tables.REFUSED_RECORDS) == expected)
        assert seen.db.snapshot().initialized(tables.REFUSED_RECORDS)
        await service(etcd, "c2", "demo/db", "10.2.1.2", number=2)
        await etcd.delete("cilium/state/services/v1/c2/demo/web")
        await seen.until(lambda s: len(rows_of(seen, tables.REFUSED_RECORDS)) == 1)
        peers.remove("c2")
        await seen.until(lambda s: not rows_of(seen, tables.REFUSED_RECORDS))


async def test_what_a_peer_publishes_about_our_records_is_rows_until_it_takes_them_or_leaves(
    etcd: Session, peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "REFUSALS_RATE", 100.0)
    peers.add("c2", "c3")
    key = keys.refusals(C2, ClusterName("c1"))
    await etcd.put(key, refusals.encode([refused("demo/db")]))
    await announce(etcd, "c2", 2)
    await announce(etcd, "c3", 3)
    async with following(peers) as seen:
        await seen.until(
            lambda s: rows_of(seen, tables.PEER_REFUSALS) == {("c2", "serviceexports", "demo/db", "QuotaExceeded")}
        )
        await etcd.put(key, b"{}")
        await etcd.put(key, refusals.encode([refused("demo/web")]))
        await seen.until(lambda s: {row[2] for row in rows_of(seen, tables.PEER_REFUSALS)} == {"demo/web"})
        await etcd.delete(key)
        await seen.until(lambda s: not rows_of(seen, tables.PEER_REFUSALS))
        await etcd.put(key, refusals.encode([refused("demo/db")]))
        await seen.until(lambda s: rows_of(seen, tables.PEER_REFUSALS))
        peers.remove("c2")
        await seen.until(lambda s: not rows_of(seen, tables.PEER_REFUSALS))


async def test_the_table_of_refused_records_waits_for_no_kind_that_a_peer_does_not_publish(
    etcd: Session, peers: Peers
) -> None:
    peers.add("c2")
    await announce(etcd, "c2", 2, serviceExportsEnabled=None)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        await seen.until(lambda s: s.initialized(tables.REFUSED_RECORDS))


async def test_the_table_of_refused_records_waits_for_no_peer_that_is_away(peers: Peers) -> None:
    peers.add("c2", endpoint="http://127.0.0.1:9")
    async with following(peers) as seen:
        await seen.until(lambda s: s.initialized(tables.REFUSED_RECORDS))
