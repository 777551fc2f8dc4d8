"""Sockets whose backend has gone are destroyed in every pod, and no other: on a real kernel."""

from __future__ import annotations

import asyncio

import pytest
from bpf_world import (
    BACKEND6,
    BACKENDS,
    CLUSTER_DNS,
    CLUSTER_DNS6,
    SERVERS_DNS,
    Caller,
    World,
    group,
    plan,
    programmed,
    target,
)
from lab_running import until

from isthmus.config import DnsSection
from isthmus.datapath import Datapath
from isthmus.datapath.alive import Alive
from isthmus.model import tables
from isthmus.model.balancing import Backend, BackendKey, Ejection, Target
from isthmus.model.names import ServiceName
from isthmus.model.services import Protocol
from isthmus.statedb import Database

pytestmark = pytest.mark.bpf

VIP, OTHER, VIP6 = "10.96.7.7", "10.96.7.8", "fd00:96::7"
FIRST, SECOND = BACKENDS[:2]


@pytest.fixture
def caller(world: World, datapath: Datapath) -> Caller:
    rows = []
    for protocol in ("TCP", "UDP"):
        of: Protocol = protocol
        rows += [
            plan("first", VIP, group(FIRST, protocol=of), protocol=of),
            plan("second", OTHER, group(SECOND, protocol=of), protocol=of),
            plan("six", VIP6, group(BACKEND6, protocol=of), protocol=of),
        ]
    programmed(datapath.target(), *rows)
    return world.call_from(world.cgroup)


def gone(*endpoints: str, protocol: Protocol = "UDP") -> set[Target]:
    return {target(endpoint, protocol=protocol) for endpoint in endpoints}


def alive(caller: Caller, *names: str) -> dict[str, bool]:
    return {name: "answer" in caller.calls("ping", "", 0, name=name)[0] for name in names}


def test_udp_sockets_of_a_backend_that_went_are_destroyed_and_no_others(datapath: Datapath, caller: Caller) -> None:
    destroyer = datapath.gone_sockets(Database(tables.BACKENDS))
    for host, name in ((VIP, "v4"), (f"::ffff:{VIP}", "mapped"), (VIP6, "v6"), (OTHER, "other")):
        caller.calls("keep", host, 80, name=name)
    caller.udp(VIP, name="unconnected")
    assert alive(caller, "v4", "mapped", "v6", "other") == dict.fromkeys(("v4", "mapped", "v6", "other"), True)
    assert destroyer.destroy(gone(FIRST)) == 2
    assert alive(caller, "v4", "mapped", "v6", "other") == {"v4": False, "mapped": False, "v6": True, "other": True}
    assert destroyer.destroy(gone(BACKEND6)) == 1
    assert alive(caller, "v6", "other") == {"v6": False, "other": True}
    assert caller.udp(VIP, name="unconnected")["answer"].startswith(FIRST), "it has no peer to lose"


def test_tcp_sockets_are_destroyed_only_where_that_is_wanted(world: World, datapath: Datapath, caller: Caller) -> None:
    world.address("add", "10.8.1.1")
    world.serve("10.8.1.1:8080")
    programmed(datapath.target(), plan("first", VIP, group("10.8.1.1:8080")))
    caller.calls("hold", VIP, 80, local=0)
    db = Database(tables.BACKENDS)
    wanted = gone("10.8.1.1:8080", protocol="TCP")
    assert datapath.gone_sockets(db).destroy(wanted) == 0
    assert caller.calls("echo", VIP, 80, text="here") == [{"answer": "here"}]
    assert datapath.gone_sockets(db, tcp=True).destroy(wanted) == 1
    assert caller.calls("echo", VIP, 80, text="gone") == [{"error": "ECONNABORTED"}]


def test_a_moved_connection_goes_with_the_backend_that_answered_it(world: World, datapath: Datapath) -> None:
    world.address("add", "10.8.1.2")
    world.serve("10.8.1.2:8080")
    refuses, answers = "10.8.0.99:8080", "10.8.1.2:8080"
    rows = (group(refuses), group(answers, tier=1))
    programmed(datapath.target(), plan("moved", VIP, *rows, ejection=Ejection(after=0)))
    destroyer = datapath.gone_sockets(Database(tables.BACKENDS), tcp=True)
    with world.on_link(datapath):
        caller = world.call_from(world.cgroup)
        assert caller.calls("hold", VIP, 80, local=0) == [{"answer": answers}]
        assert destroyer.destroy(gone(refuses, protocol="TCP")) == 0
        assert caller.calls("echo", VIP, 80, text="here") == [{"answer": "here"}]
        assert destroyer.destroy(gone(answers, protocol="TCP")) == 1
        assert caller.calls("echo", VIP, 80, text="gone") == [{"error": "ECONNABORTED"}]


async def test_udp_sockets_of_the_name_server_are_destroyed_once_when_its_last_process_has_gone(
    world: World, datapath: Datapath, caller: Caller
) -> None:
    alive_now, second = await Alive.open(world.pin), await Alive.open(world.pin, instance="second")
    alive_now.renew(60)
    second.renew(60)
    for host, name in ((CLUSTER_DNS, "v4"), (f"::ffff:{CLUSTER_DNS}", "mapped"), (CLUSTER_DNS6, "v6")):
        caller.calls("keep", host, 53, name=name)
    caller.calls("keep", VIP, 80, name="other")
    destroyer = datapath.gone_sockets(Database(tables.BACKENDS))
    watching = datapath.gone_server(destroyer, DnsSection(listen=SERVERS_DNS))
    alive_now.withdraw()
    assert watching.look() == 0, "the second answers in its place"
    second.renew(-0.001)
    assert [watching.look(), watching.look()] == [3, 0]
    names = ("v4", "mapped", "v6", "other")
    assert alive(caller, *names) == dict.fromkeys(names[:3], False) | {"other": True}
    alive_now.renew(60)
    assert watching.look() == 0
    for each in (alive_now, second):
        each.close()


async def test_it_follows_the_rows_and_waits_for_those_that_come_back(datapath: Datapath, caller: Caller) -> None:
    db = Database(tables.BACKENDS)
    destroyer = datapath.gone_sockets(db)

    def row(endpoint: str) -> Backend:
        of = target(endpoint, protocol="UDP")
        key = BackendKey(ServiceName("demo/echo"), of.cluster, of.address, of.port, of.protocol)
        return Backend(key=key, port_names=("",))

    with db.write() as txn:
        for endpoint in (FIRST, SECOND):
            txn.put(tables.BACKENDS, row(endpoint))
    caller.calls("keep", VIP, 80, name="first")
    caller.calls("keep", OTHER, 80, name="second")
    running = asyncio.create_task(destroyer.run())
    await asyncio.sleep(0)
    with db.write() as txn:
        for endpoint in (FIRST, SECOND):
            txn.delete(tables.BACKENDS, row(endpoint).key)
    await asyncio.sleep(0)
    with db.write() as txn:
        txn.put(tables.BACKENDS, row(SECOND))
    await asyncio.to_thread(until, lambda: bool(destroyer.destroyed), what="the sockets are destroyed")
    running.cancel()
    assert alive(caller, "first", "second") == {"first": False, "second": True}
