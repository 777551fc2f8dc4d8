"""The last known state of peers on disk: a process that restarts while a peer is away loses nothing."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine.full_disk import SmallDisk
from msgspec.structs import replace
from peers.clusterset_peers import Peers, announce, configure, export, following, service
from peers.etcd_server import free_ports

from isthmus import statefile
from isthmus.clusterset.peers import sinks
from isthmus.clusterset.peers.cache import VERSION, Cache, Memory
from isthmus.clusterset.peers.timings import FollowerTimings
from isthmus.clusterset.records.admission import Admission
from isthmus.clusterset.records.forms import ROWS, Forms, admitted
from isthmus.clusterset.records.identity import ClusterConfig, Description
from isthmus.etcd import Session
from isthmus.model import tables
from isthmus.model.chunked import Chunked
from isthmus.model.drains import Drain
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Endpoint, EndpointSet, Export, Port
from isthmus.statedb import Database

C2 = ClusterName("c2")
QUICK = FollowerTimings(look_every=0.05, save_after=0.01, touch_every=0.05)
HURRIED = FollowerTimings(look_every=0.05, restore_after=0.0)
"""What was kept is taken in before a peer can have answered."""
FORMS: Forms = {"serviceexports": ROWS["serviceexports"], "services": ROWS["services"]}


async def remember(etcd: Session, peers: Peers, state: Path) -> None:
    """A process has known c2 and ended; c2 is out of reach since."""
    peers.add("c2")
    await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
    await export(etcd, "c2", "demo/echo")
    await announce(etcd, "c2", 2)
    async with following(peers, state=state, timings=QUICK) as seen:
        await seen.state("c2", "ready")
    peers.add("c2", endpoint=f"http://127.0.0.1:{free_ports(1)[0]}")


def test_what_was_written_by_a_clock_that_was_ahead_is_new(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path))
    assert cache.save("serviceexports", C2, ClusterConfig(2), [])
    [file] = (tmp_path / "serviceexports").iterdir()
    os.utime(file, (time.time() + 3600, time.time() + 3600))
    known = cache.load("serviceexports", C2)
    assert known is not None
    assert known.age == 0


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


async def test_old_records_of_callers_let_no_endpoint_lapse(etcd: Session, peers: Peers, tmp_path: Path) -> None:
    """They are of the time before identities were disabled."""
    await remember(etcd, peers, tmp_path / "state")
    cache = Cache(str(tmp_path / "state"))
    known = cache.load("services", C2)
    assert known is not None
    assert cache.save("ip", C2, known.config, [])
    os.utime(tmp_path / "state" / "ip" / "c2.json", (time.time() - 7200,) * 2)
    db = Database(tables.CLUSTERS, tables.EXPORTS, tables.ENDPOINT_SETS, tables.CALLER_ADDRESSES, tables.FAULTS)
    kinds = ("serviceexports", "services", "ip")
    async with following(peers, state=tmp_path / "state", kinds=kinds, lifetime=600, timings=QUICK, db=db) as seen:
        row = await seen.state("c2", "stale")
        assert "7200" not in row.reason
        assert seen.services() == {"c2:demo/echo": ["10.2.1.1"]}


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


@pytest.mark.looptime
async def test_changes_of_one_kind_do_not_keep_the_files_of_others_from_being_confirmed(tmp_path: Path) -> None:
    """Endpoints change every few seconds: exports that never do were as old as the process after its restart."""
    cache, old = Cache(str(tmp_path)), time.time() - 7200
    assert cache.save("serviceexports", C2, ClusterConfig(2), [])
    os.utime(tmp_path / "serviceexports" / "c2.json", (old, old))
    memory = Memory(Database(tables.EXPORTS, tables.ENDPOINT_SETS), cache, C2, forms=FORMS, timings=FollowerTimings())
    saving = asyncio.create_task(memory.run(fresh=lambda: True))
    for _ in range(30):
        memory.note(ClusterConfig(2), "services", None)
        await asyncio.sleep(5)
    saving.cancel()
    known = cache.load("serviceexports", C2)
    assert known is not None
    assert known.age < 3600


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


def instead(path: Path, make: Callable[[], None]) -> None:
    path.unlink()
    make()


BROKEN: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "a flipped bit": lambda path: path.write_bytes(path.read_bytes()[:-2] + b"|}"),
    "of the version before this one, which had no checksum": lambda path: path.write_text(
        '{"version":1,"cluster":"c2","config":{"id":2},"rows":[]}'
    ),
    "of a later version": lambda path: statefile.write(path, b"{}", version=VERSION + 1),
    "no JSON": lambda path: statefile.write(path, b"\xff{", version=VERSION),
    "nested too deep": lambda path: statefile.write(path, b"[" * 100_000, version=VERSION),
    "of another shape": lambda path: statefile.write(path, b"[]", version=VERSION),
    "another cluster's": lambda path: statefile.write(path, b'{"cluster":"c3","config":{},"rows":[]}', version=VERSION),
    "a number of 4,400 digits": lambda path: statefile.write(
        path, b'{"cluster":"c2","config":{"id":' + b"9" * 4_400 + b'},"rows":[]}', version=VERSION
    ),
    "a directory": lambda path: instead(path, path.mkdir),
    "a FIFO": lambda path: instead(path, lambda: os.mkfifo(path)),
    "a link to itself": lambda path: instead(path, lambda: path.symlink_to(path)),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_file_that_cannot_be_used_is_set_aside_and_reported_and_as_good_as_none(tmp_path: Path, broken: str) -> None:
    cache, file = Cache(str(tmp_path)), tmp_path / "services" / "c2.json"
    cache.save("services", C2, ClusterConfig(2), [])
    BROKEN[broken](file)
    assert cache.load("services", C2) is None
    [problem] = cache.problems()
    assert f"last known state of cluster c2, {file}, is not used: " in problem
    assert [each.name for each in file.parent.iterdir()] == ["c2.json.unusable-1"]
    assert cache.load("services", C2) is None
    cache.save("services", C2, ClusterConfig(2), [])
    assert cache.problems() == ()
    assert cache.load("services", C2) is not None


@pytest.mark.parametrize("broken", BROKEN)
async def test_a_process_starts_with_any_file_and_follows_the_peer(
    etcd: Session, peers: Peers, tmp_path: Path, broken: str
) -> None:
    await remember(etcd, peers, tmp_path / "state")
    for file in (tmp_path / "state").rglob("*.json"):
        BROKEN[broken](file)
    peers.add("c2")
    async with following(peers, state=tmp_path / "state", timings=QUICK) as seen:
        assert len(seen.problems()) == 2
        await seen.state("c2", "ready")
        assert seen.services() == {"c2:demo/echo": ["10.2.1.1"]}
        await seen.until_true(lambda: not seen.problems())


@given(data=st.data())
def test_a_file_that_was_changed_is_never_loaded_as_another_state(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("state")
    cache, file = Cache(str(folder)), folder / "services" / "c2.json"
    row = EndpointSet(service=ServiceName("demo/echo"), cluster=C2, source="clusterset", part="record")
    cache.save("services", C2, ClusterConfig(2), [row])
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 20))] = data.draw(st.binary(max_size=20))
    file.write_bytes(content)
    known = cache.load("services", C2)
    assert known is None or (list(known.rows), known.config) == ([row], ClusterConfig(2))


async def test_what_the_peer_publishes_now_counts_before_what_was_kept_of_it(
    etcd: Session, peers: Peers, tmp_path: Path
) -> None:
    await remember(etcd, peers, tmp_path / "state")
    peers.add("c2")
    await service(etcd, "c2", "demo/echo", "10.2.1.9", number=2)
    patient = FollowerTimings(look_every=0.05, restore_after=3600.0)
    seen_addresses = set()
    async with following(peers, state=tmp_path / "state", timings=patient) as seen:
        changes = seen.db.changes(tables.ENDPOINT_SETS)
        await seen.state("c2", "ready")
        while changes.ready:
            seen_addresses |= {
                each.address for _, _, row in changes.next()[1] for each in (row.endpoints if row else ())
            }
    assert seen_addresses == {"10.2.1.9"}


async def test_a_peer_that_does_not_answer_at_all_is_as_it_was_after_a_moment(
    etcd: Session, peers: Peers, tmp_path: Path
) -> None:
    await remember(etcd, peers, tmp_path / "state")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        peers.add("c2", endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}")
        hurried = FollowerTimings(look_every=0.05, restore_after=0.05)
        async with following(peers, state=tmp_path / "state", timings=hurried) as seen:
            await seen.until(lambda s: seen.services() == {"c2:demo/echo": ["10.2.1.1"]})
            assert not seen.cluster("c2").failures


async def test_a_peer_whose_configuration_comes_late_and_is_the_restored_one_is_followed(
    etcd: Session, peers: Peers, tmp_path: Path
) -> None:
    await remember(etcd, peers, tmp_path / "state")
    await etcd.delete("cilium/cluster-config/c2")
    peers.add("c2")
    hurried = FollowerTimings(look_every=0.05, restore_after=0.05)
    async with following(peers, state=tmp_path / "state", timings=hurried) as seen:
        await seen.until(lambda s: seen.services() == {"c2:demo/echo": ["10.2.1.1"]})
        await service(etcd, "c2", "demo/echo", "10.2.1.9", number=2)
        await configure(etcd, "c2", 2)
        await seen.state("c2", "ready")
        assert seen.services() == {"c2:demo/echo": ["10.2.1.9"]}


async def test_a_state_that_cannot_be_taken_in_costs_itself(
    etcd: Session, peers: Peers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await remember(etcd, peers, tmp_path / "state")
    peers.add("c2")

    def fail(row: object, admission: object) -> bool:
        raise OverflowError("date value out of range")

    monkeypatch.setattr(sinks, "admitted", fail)
    async with following(peers, state=tmp_path / "state", timings=HURRIED) as seen:
        await seen.state("c2", "ready")
        assert seen.services() == {"c2:demo/echo": ["10.2.1.1"]}


async def test_a_full_disk_is_a_problem_until_the_state_is_kept_again(
    etcd: Session, peers: Peers, small_disk: SmallDisk
) -> None:
    peers.add("c2")
    await announce(etcd, "c2", 2)
    async with following(peers, state=small_disk.path, timings=QUICK) as seen:
        await seen.state("c2", "ready")
        await seen.until_true((small_disk.path / "services" / "c2.json").exists)
        small_disk.fill()
        await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
        await seen.until_true(seen.problems)
        assert "the last known state of cluster c2 cannot be kept: " in seen.problems()[0]
        assert "No space left on device" in seen.problems()[0]
        small_disk.free()
        await seen.until_true(lambda: not seen.problems())
    known = Cache(str(small_disk.path)).load("services", C2)
    assert known is not None
    assert [row.service for row in known.rows] == ["demo/echo"]


async def test_a_state_that_could_not_be_kept_does_not_confirm_the_one_before_it(
    etcd: Session, peers: Peers, small_disk: SmallDisk
) -> None:
    peers.add("c2")
    await announce(etcd, "c2", 2)
    files = [small_disk.path / kind / "c2.json" for kind in ("services", "serviceexports")]
    async with following(peers, state=small_disk.path, timings=QUICK) as seen:
        await seen.state("c2", "ready")
        await seen.until_true(lambda: all(file.exists() for file in files))
        small_disk.fill()
        await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
        await seen.until_true(seen.problems)
        for file in files:
            os.utime(file, (1, 1))
        await seen.until_true(lambda: files[1].stat().st_mtime > 1)
        assert files[0].stat().st_mtime == 1


def test_of_a_file_with_values_out_of_bounds_the_others_are_used(tmp_path: Path) -> None:
    drains = (
        Drain(kind="Cluster", target="c2", started="0999-01-01T00:00:00Z"),
        Drain(kind="Node", target="n1", started="2026-01-01T00:00:00Z", deadline=10**30),
    )
    cache = Cache(str(tmp_path))
    cache.save("services", C2, ClusterConfig(2), [], Description(network="n" * 1000, drains=drains))
    found = cache.load("services", C2)
    assert found is not None
    assert [(each.target, each.deadline) for each in found.description.drains] == [("n1", 604_800)]
    assert len(found.description.network) == 300


@pytest.mark.parametrize(
    "endpoint",
    [
        Endpoint("fe80::1%eth0", ()),
        Endpoint("127.0.0.1", ()),
        Endpoint("10.2.1.1", (Port("http", 10**30),)),
        Endpoint("nowhere", ()),
    ],
)
def test_rows_of_the_cache_are_judged_as_records_are(endpoint: Endpoint) -> None:
    admission = Admission(cluster=C2)
    good = EndpointSet(ServiceName("demo/echo"), C2, "clusterset", "record", (Endpoint("10.2.1.1", ()),))
    assert admitted(good, admission)
    assert not admitted(replace(good, endpoints=(endpoint,)), admission)
    export = Export(cluster=C2, name=ServiceName("demo/echo"), created="2026-01-01T00:00:00Z")
    assert admitted(export, admission)
    assert not admitted(replace(export, created="0999-01-01T00:00:00Z"), admission)


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
