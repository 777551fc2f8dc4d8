"""Keys, lists and transactions against every etcd of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from peers.etcd_server import EtcdServer, free_ports

from isthmus.etcd import (
    Compare,
    Delete,
    EtcdError,
    Get,
    Limits,
    Put,
    RangeResult,
    Session,
    Tls,
    TooLarge,
    binary,
    transport,
)
from isthmus.etcd.values import end_of
from isthmus.reflector import Expired, Transient


async def test_a_key_reads_as_it_was_written(store: Session) -> None:
    revision = await store.put("a/b", b"\x00value")
    kv = await store.get("a/b")
    assert kv is not None
    assert (kv.key, kv.value, kv.mod_revision, kv.version, kv.lease) == ("a/b", b"\x00value", revision, 1, 0)
    assert await store.get("a/missing") is None


async def test_deleting_says_whether_there_was_something(store: Session) -> None:
    await store.put("a", b"")
    assert await store.delete("a")
    assert not await store.delete("a")


async def test_a_list_in_pages_is_of_one_revision_and_stays_within_its_prefix(store: Session) -> None:
    for n in range(25):
        await store.put(f"c1/{n:02}", b"x")
    last = await store.put("c11/0", b"neighbour")
    kvs, revision, *_ = await store.list("c1/", page=10)
    assert [kv.key for kv in kvs] == [f"c1/{n:02}" for n in range(25)]
    assert revision == last


async def test_writes_between_two_pages_are_not_in_the_list(store: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(4):
        first = await store.put(f"p/{n}", b"old")
    read = store._range

    async def interrupted(*arguments: Any) -> RangeResult:
        got = await read(*arguments)
        await store.put("p/3", b"new")
        await store.put("p/4", b"new")
        await store.delete("p/2")
        return got

    monkeypatch.setattr(store, "_range", interrupted)
    listing = await store.list("p/", page=2)
    assert [(kv.key, kv.value) for kv in listing.kvs] == [(f"p/{n}", b"old") for n in range(4)]
    assert listing.revision == first


@pytest.mark.parametrize("page", [1, 2, 1000])
async def test_a_list_within_its_limits_is_read_and_one_beyond_is_refused(store: Session, page: int) -> None:
    for n in range(3):
        await store.put(f"p/{n}", b"12345")
    assert len((await store.list("p/", page=page, limits=Limits(keys=3, size=15))).kvs) == 3
    with pytest.raises(TooLarge, match=r"^p/: 3 keys: more than 2 are not read"):
        await store.list("p/", page=page, limits=Limits(keys=2))
    with pytest.raises(TooLarge, match=r"^p/: more than 14 bytes are not read"):
        await store.list("p/", page=page, limits=Limits(size=14))


async def test_the_empty_prefix_lists_everything(store: Session) -> None:
    await store.put("a", b"1")
    await store.put("\U0010ffff", b"2")
    assert len((await store.list("")).kvs) == 2
    assert await store.delete_prefix("") == 2


async def test_a_range_says_whether_there_is_more(store: Session) -> None:
    for key in "abc":
        await store.put(key, b"")
    got = await store.range("a", "c", 1)
    assert ([kv.key for kv in got.kvs], got.more, got.count) == (["a"], True, 2)


async def test_a_range_of_an_older_revision_reads_the_past_until_it_is_compacted(store: Session) -> None:
    old = await store.put("k", b"old")
    new = await store.put("k", b"new")
    assert (await store.range("k", "l", 0, old)).kvs[0].value == b"old"
    await store.compact(new)
    with pytest.raises(Expired):
        await store.range("k", "l", 0, old)


async def test_a_transaction_creates_once(store: Session) -> None:
    absent = [Compare("lock", "version", "==", 0)]
    first = await store.txn(absent, [Put("lock", b"me")], [Get("lock")])
    second = await store.txn(absent, [Put("lock", b"you")], [Get("lock")])
    assert first.succeeded
    assert not second.succeeded
    assert second.responses[0][0].value == b"me"


async def test_a_transaction_compares_revisions_and_gives_what_it_deleted(store: Session) -> None:
    revision = await store.put("k", b"v")
    stale = await store.txn([Compare("k", "mod_revision", "==", revision - 1)], [Delete("k")])
    assert not stale.succeeded
    fresh = await store.txn([Compare("k", "mod_revision", "==", revision)], [Delete("k")])
    assert fresh.responses[0][0].value == b"v"
    assert await store.get("k") is None


async def test_a_key_that_is_no_utf8_survives_the_round_trip(store: Session) -> None:
    await store.put("a/\udcff", b"v")
    [kv] = (await store.list("a/")).kvs
    assert kv.key == "a/\udcff"
    assert await store.delete(kv.key)


async def test_a_value_over_the_servers_limit_is_refused_for_good(store: Session) -> None:
    with pytest.raises(EtcdError, match="larger than max"):
        await store.put("big", b"x" * 3_000_000)


async def test_values_larger_than_a_message_together_are_listed(store: Session) -> None:
    for n in range(70):
        await store.put(f"big/{n}", b"x" * 1_000_000)
    assert len((await store.list("big/")).kvs) == 70


async def test_a_dead_endpoint_is_left_for_the_next(each_shared_etcd: EtcdServer) -> None:
    dead = f"http://127.0.0.1:{free_ports(1)[0]}"
    async with Session([dead, each_shared_etcd.endpoint]) as session:
        with pytest.raises(Transient, match=dead):
            await session.get("a")
        assert await session.get("a") is None


async def test_an_endpoint_nobody_listens_on_is_named(each_shared_etcd: EtcdServer) -> None:
    async with Session([f"http://127.0.0.1:{free_ports(1)[0]}"]) as session:
        with pytest.raises(Transient, match=r"127\.0\.0\.1"):
            await session.status()


@pytest.mark.parametrize("endpoint", ["ftp://x", "http://", "http://host:port"])
async def test_an_endpoint_that_makes_no_sense_is_refused(endpoint: str) -> None:
    with pytest.raises(EtcdError, match="want http://host:port"):
        async with Session([endpoint]):
            pass


@pytest.mark.parametrize(
    ("endpoint", "target"),
    [
        ("etcd.demo", ("", "etcd.demo:2379")),
        ("etcd.demo:79", ("", "etcd.demo:79")),
        ("https://etcd.demo", ("https", "etcd.demo:2379")),
        ("http://[fd00::1]:79", ("http", "[fd00::1]:79")),
    ],
)
def test_an_endpoint_has_a_scheme_and_a_port_or_their_defaults(endpoint: str, target: tuple[str, str]) -> None:
    assert transport._target(endpoint) == target


async def test_a_missing_certificate_is_named() -> None:
    with pytest.raises(EtcdError, match=r"/nowhere/ca\.crt"):
        async with Session(["https://127.0.0.1"], tls=Tls("/nowhere/ca.crt")):
            pass


def test_the_end_of_a_prefix_is_the_next_key_outside_it() -> None:
    assert end_of("a/") == b"a0"
    assert end_of("") == b"\0"


def test_an_etcd_is_found_and_its_absence_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    assert binary.find().exists()
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(binary, "in_package", lambda: None)
    with pytest.raises(EtcdError, match="install"):
        binary.find()


def test_the_etcd_of_the_package_is_a_program() -> None:
    found = binary.in_package()
    assert found is None or (found.stat().st_mode & 0o111 and isinstance(found, Path))
