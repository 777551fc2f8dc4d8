"""A version with another layout of the maps starts beside the old one and takes over; callers see nothing of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from answers.names_node import within
from datapath_worlds.bpf_world import BACKENDS, CLUSTER_DNS, SERVER_DNS, World, done, group, plan, programmed
from datapath_worlds.failing_backends import GOOD, REFUSES

from isthmus.config import Config, DatapathSection
from isthmus.datapath import Datapath, remove, view
from isthmus.datapath.alive import Alive
from isthmus.datapath.core import attach, libbpf, manifest
from isthmus.datapath.core.tc import PodLinks
from isthmus.datapath.datapath import open_maps
from isthmus.model import tables
from isthmus.model.balancing import Ejection
from isthmus.processes import programming
from isthmus.statedb import Database

pytestmark = [pytest.mark.bpf, pytest.mark.own_datapath]

VIP = "10.96.7.7"
TCP = plan("echo", VIP, group(*BACKENDS[:2]))
UDP = plan("echo", VIP, group(*BACKENDS[:2], protocol="UDP"), protocol="UDP")
NEXT = manifest.LAYOUT + 1


@pytest.fixture
def newer(world: World, datapath: Datapath, monkeypatch: pytest.MonkeyPatch) -> Iterator[Datapath]:
    """What the next version opens while this one's plans are in the kernel."""
    programmed(datapath.target(), TCP, UDP)
    datapath.close()
    monkeypatch.setattr(manifest, "LAYOUT", NEXT)
    opened = world.open()
    yield opened
    opened.close()


def pins(world: World) -> list[str]:
    return sorted(path.name for path in Path(world.pin).iterdir())


def test_the_old_maps_answer_until_the_new_ones_are_full(world: World, newer: Datapath) -> None:
    assert newer.waiting
    assert world.caller.tcp(VIP)["peer"] == f"{VIP}:80"
    done(newer.target().update([plan("echo", VIP, group(BACKENDS[4]))]))
    assert world.caller.tcp(VIP)["answer"].split()[0] in BACKENDS[:2]
    newer.take_over()
    assert world.caller.tcp(VIP)["answer"].split()[0] == BACKENDS[4]


def test_nothing_of_the_old_version_is_left(world: World, newer: Datapath) -> None:
    assert pins(world) == sorted(["links", f"v{manifest.LAYOUT - 1}-1024", f"v{manifest.LAYOUT}-1024"])
    programmed(newer.target(), TCP, UDP)
    newer.take_over()
    assert not newer.waiting
    assert pins(world) == ["links", f"v{manifest.LAYOUT}-1024"]
    remove(world.pin)
    assert not Path(world.pin).exists()


async def test_no_call_fails_while_one_version_takes_over_from_another(world: World, newer: Datapath) -> None:
    calling = asyncio.create_task(asyncio.to_thread(world.caller.calls, "tcp", VIP, 80, times=600))
    programmed(newer.target(), TCP, UDP)
    await asyncio.to_thread(newer.take_over)
    answers = await calling
    assert {each.get("error") or each["peer"] for each in answers} == {f"{VIP}:80"}
    assert newer.counters()


@pytest.mark.slow
def test_programs_that_read_what_a_socket_called_are_replaced_before_those_that_write_it(
    newer: Datapath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a call of the new version, between two steps, is read by a program of the old one."""
    replaced, update = list[str](), libbpf.update_link

    def noted(pin: Path, program: int) -> None:
        replaced.append(pin.name)
        update(pin, program)

    monkeypatch.setattr(libbpf, "update_link", noted)
    programmed(newer.target(), TCP, UDP)
    newer.take_over()
    write = {"connect4", "connect6", "sendmsg4", "sendmsg6"}
    read = {"connects", "sock_release", "recvmsg4", "recvmsg6", "getpeername4", "getpeername6"}
    assert (set(replaced[: len(read)]), set(replaced[len(read) :])) == (read, write)


@pytest.mark.slow
def test_sockets_that_called_before_see_replies_from_whom_they_called(world: World, newer: Datapath) -> None:
    world.caller.calls("ask", VIP, 80, name="kept")
    programmed(newer.target(), TCP, UDP)
    newer.take_over()
    assert world.caller.calls("hear", VIP, 80, name="kept")[0]["from"] == f"{VIP}:80"


@pytest.mark.slow
def test_connections_of_the_old_version_count_nothing_by_its_numbers(
    world: World, datapath: Datapath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their sockets keep the numbers of a cluster and a backend that stand for others in the new maps."""
    refuses = "10.8.1.200:8080"
    programmed(datapath.target(), plan("echo", VIP, group(BACKENDS[0], cluster="old")))
    world.caller.calls("keep", VIP, 80, name="kept", kind="tcp")
    datapath.close()
    monkeypatch.setattr(manifest, "LAYOUT", NEXT)
    newer = world.open()
    programmed(newer.target(), plan("echo", VIP, group(refuses, cluster="new")))
    newer.take_over()
    world.caller.calls("end", VIP, 80, name="kept")
    assert newer.traffic() == {}
    newer.close()


def test_an_agent_that_starts_again_follows_the_connections_of_before(world: World, datapath: Datapath) -> None:
    programmed(datapath.target(), plan("echo", VIP, group(BACKENDS[0])))
    world.caller.calls("keep", VIP, 80, name="kept", kind="tcp")
    datapath.close()
    again = world.open()
    world.caller.calls("end", VIP, 80, name="kept")
    assert again.traffic()["c1"][1] > 0, "the echo's line"
    again.close()


async def test_the_name_server_of_the_old_version_goes_on_being_asked(
    world: World, datapath: Datapath, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive = await Alive.open(world.pin)
    alive.renew(60)
    datapath.close()
    monkeypatch.setattr(manifest, "LAYOUT", NEXT)
    newer = world.open()
    newer.take_over()
    assert world.caller.udp(CLUSTER_DNS, 53)["answer"].startswith(SERVER_DNS)
    alive.withdraw()
    assert world.caller.udp(CLUSTER_DNS, 53)["answer"].startswith(CLUSTER_DNS)
    alive.close()
    newer.close()


async def test_an_agent_takes_over_with_its_plans_written_and_opens_the_gates_before_its_programs_are_on_interfaces(
    served: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another order calls are not ours for a while, or packets of connections that were moved before go to the first
    choice, which answers RST."""
    row = plan("echo", VIP, group(REFUSES), group(GOOD[0], tier=1), ejection=Ejection(after=0))
    caller, seen, looked = served.call_from(served.cgroup), list[str](), asyncio.Event()
    take_over, look = Datapath.take_over, PodLinks.look

    def taking_over(datapath: Datapath) -> None:
        seen.append(f"take over, {len(view.rows(datapath.maps, 'frontends'))} frontends")
        take_over(datapath)

    def looking(interfaces: PodLinks) -> None:
        maps = open_maps(served.pin)
        settled = list(maps.items("gates")) == list(maps.items("settled"))
        maps.close()
        seen.append(f"look, gates {'closed' if settled else 'open'}")
        look(interfaces)
        looked.set()

    older = served.open()
    try:
        with within(served.server):
            links = older.pod_links()
            links.look()
            programmed(older.target(), row)
            assert caller.calls("hold", VIP, 80, local=30140) == [{"answer": GOOD[0]}]
            links.close()
            older.close()
            monkeypatch.setattr(manifest, "LAYOUT", NEXT)
            monkeypatch.setattr(Datapath, "take_over", taking_over)
            monkeypatch.setattr(PodLinks, "look", looking)
            db = Database(
                *programming.TABLES,
                tables.PLANS,
                tables.BACKENDS,
                tables.FRONTENDS,
                tables.DRAINING,
                tables.IGNORED_PODS,
            )
            with db.write() as txn:
                txn.put(tables.PLANS, row)
            section = DatapathSection(cgroup=str(served.cgroup), pin=served.pin, max_entries=1024)
            program = programming.Programming(db, Config(datapath=section, dns=served.dns))
            running = asyncio.create_task(program.run())
            await asyncio.wait_for(looked.wait(), 60)
            assert seen == ["take over, 1 frontends", "look, gates open"]
            assert caller.calls("echo", VIP, 80, text="bytes") == [{"answer": "bytes"}]
            assert caller.calls("drop", VIP, 80) == [{}]
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
    finally:
        with within(served.server):
            remove(served.pin)


@pytest.mark.slow
def test_a_version_that_dies_before_it_took_over_does_so_when_it_is_back(world: World, newer: Datapath) -> None:
    programmed(newer.target(), TCP)
    newer.close()
    restarted = world.open()
    assert (restarted.waiting, restarted.restored) == (True, True)
    programmed(restarted.target(), TCP, UDP)
    restarted.take_over()
    assert world.caller.udp(VIP)["from"] == f"{VIP}:80"
    restarted.close()


def test_what_has_another_shape_there_is_made_anew(
    world: World, datapath: Datapath, monkeypatch: pytest.MonkeyPatch
) -> None:
    datapath.close()
    monkeypatch.setattr(manifest, "LAYOUT", NEXT)
    monkeypatch.setattr(attach, "pinned_info", lambda path: (4, 4, 1))
    newer = world.open()
    assert numbers(world, "alive", NEXT) != numbers(world, "alive", NEXT - 1)
    newer.close()


def numbers(world: World, name: str, layout: int) -> int:
    """What is pinned under a name in the bpffs."""
    return (Path(world.pin) / f"v{layout}-1024" / name).stat().st_ino


@pytest.mark.slow
def test_going_back_to_the_old_version_is_the_same(world: World, newer: Datapath) -> None:
    programmed(newer.target(), TCP)
    newer.take_over()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest, "LAYOUT", NEXT - 1)
        previous = world.open()
        assert previous.waiting
        programmed(previous.target(), TCP, UDP)
        previous.take_over()
        assert world.caller.udp(VIP)["from"] == f"{VIP}:80"
        previous.close()


@pytest.mark.parametrize("entries", [2048, 512])
@pytest.mark.slow
async def test_another_size_of_the_maps_takes_over_as_another_layout_does(
    world: World, datapath: Datapath, entries: int
) -> None:
    programmed(datapath.target(), TCP, UDP)
    datapath.close()
    calling = asyncio.create_task(asyncio.to_thread(world.caller.calls, "tcp", VIP, 80, times=300))
    resized = world.open(max_entries=entries)
    assert resized.waiting
    done(resized.target().update([TCP, UDP]))
    await asyncio.to_thread(resized.take_over)
    answers = await calling
    sizes = {name: libbpf.map_info(resized.maps.fd(name))[2] for name in ("frontends", "slots", "affinity", "callers")}
    resized.close()
    assert [result for result in answers if "error" in result] == []
    assert sizes == {"frontends": entries, "slots": 4 * entries, "affinity": entries, "callers": entries}
    assert pins(world) == ["links", f"v{manifest.LAYOUT}-{entries}"]
