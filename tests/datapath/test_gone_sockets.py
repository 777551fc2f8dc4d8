"""Sockets whose backend has gone are destroyed in every pod, and no other: on a real kernel."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from datapath_worlds.bpf_world import (
    BACKEND6,
    BACKENDS,
    CLUSTER_DNS,
    CLUSTER_DNS6,
    NO_SOCKET,
    SERVERS_DNS,
    Caller,
    World,
    group,
    no_place_is_free,
    plan,
    programmed,
    target,
)
from labs.lab_running import until

from isthmus.config import DnsSection
from isthmus.datapath import Datapath
from isthmus.datapath.alive import Alive
from isthmus.datapath.core.shapes import COOKIE
from isthmus.datapath.services.codecs import ORIG_DST
from isthmus.model import tables
from isthmus.model.balancing import Backend, BackendKey, Ejection, Frontend, FrontendKey, Plan, PlanKey, Target
from isthmus.model.names import ServiceName
from isthmus.model.services import Protocol
from isthmus.statedb import Database

pytestmark = pytest.mark.bpf

TABLES = (tables.BACKENDS, tables.FRONTENDS, tables.PLANS)
VIP, OTHER, VIP6 = "10.96.7.7", "10.96.7.8", "fd00:96::7"
FIRST, SECOND = BACKENDS[:2]


@pytest.fixture
def caller(world: World, datapath: Datapath) -> Iterator[Caller]:
    rows = []
    for protocol in ("TCP", "UDP"):
        of: Protocol = protocol
        rows += [
            plan("first", VIP, group(FIRST, protocol=of), protocol=of),
            plan("second", OTHER, group(SECOND, protocol=of), protocol=of),
            plan("six", VIP6, group(BACKEND6, protocol=of), protocol=of),
        ]
    programmed(datapath.target(), *rows)
    made = world.call_from(world.cgroup)
    yield made
    made.close()


def gone(*endpoints: str, protocol: Protocol = "UDP") -> set[Target]:
    return {target(endpoint, protocol=protocol) for endpoint in endpoints}


def alive(caller: Caller, *names: str) -> dict[str, bool]:
    return {name: "answer" in caller.calls("ping", "", 0, name=name)[0] for name in names}


def test_udp_sockets_of_a_backend_that_went_are_destroyed_and_no_others(datapath: Datapath, caller: Caller) -> None:
    destroyer = datapath.gone_sockets(Database(*TABLES))
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
    db = Database(*TABLES)
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
    destroyer = datapath.gone_sockets(Database(*TABLES), tcp=True)
    with world.on_link(datapath):
        caller = world.call_from(world.cgroup)
        assert caller.calls("hold", VIP, 80, local=0) == [{"answer": answers}]
        assert destroyer.destroy(gone(refuses, protocol="TCP")) == 0
        assert caller.calls("echo", VIP, 80, text="here") == [{"answer": "here"}]
        assert destroyer.destroy(gone(answers, protocol="TCP")) == 1
        assert caller.calls("echo", VIP, 80, text="gone") == [{"error": "ECONNABORTED"}]


@pytest.fixture(params=["a place", "no place"])
def kept(request: pytest.FixtureRequest, datapath: Datapath) -> Iterator[str]:
    """Where sockets of this test keep what they called."""
    with nullcontext() if request.param == "a place" else no_place_is_free(datapath):
        yield request.param


def service(db: Database, name: str, vip: str, *endpoints: str, protocol: Protocol = "UDP") -> None:
    """A service at an address, with backends and no others, and a plan without any."""
    key, planned = FrontendKey(vip, 80, protocol), PlanKey(ServiceName(f"demo/{name}"), 80, protocol, "IPv4")
    with db.write() as txn:
        txn.put(tables.FRONTENDS, Frontend(key=key, service=planned.service, port_name="", plan=planned))
        txn.put(tables.PLANS, Plan(key=planned, frontends=(key,), groups=()))
        for to in (target(endpoint, protocol=protocol) for endpoint in endpoints):
            backend = BackendKey(planned.service, to.cluster, to.address, to.port, to.protocol)
            txn.put(tables.BACKENDS, Backend(key=backend, port_names=("",)))


def test_a_socket_that_called_a_pod_by_its_own_address_stays_when_the_pod_leaves_a_service(
    datapath: Datapath, caller: Caller, kept: str
) -> None:
    host, port = FIRST.split(":")
    for called, at, name in ((VIP, 80, "service"), (host, int(port), "v4"), (f"::ffff:{host}", int(port), "mapped")):
        caller.calls("keep", called, at, name=name)
    assert datapath.gone_sockets(Database(*TABLES)).destroy(gone(FIRST)) == 1
    assert alive(caller, "service", "v4", "mapped") == {"service": False, "v4": True, "mapped": True}


def test_a_tcp_connection_to_a_pods_own_address_stays_too(world: World, datapath: Datapath, caller: Caller) -> None:
    world.address("add", "10.8.1.3")
    world.serve("10.8.1.3:8080")
    programmed(datapath.target(), plan("first", VIP, group("10.8.1.3:8080")))
    caller.calls("hold", VIP, 80, local=0)
    caller.calls("hold", "10.8.1.3", 8080, local=0)
    wanted = gone("10.8.1.3:8080", protocol="TCP")
    assert datapath.gone_sockets(Database(*TABLES), tcp=True).destroy(wanted) == 1
    assert caller.calls("echo", VIP, 80, text="gone") == [{"error": "ECONNABORTED"}]
    assert caller.calls("echo", "10.8.1.3", 8080, text="here") == [{"answer": "here"}]


def test_a_socket_is_destroyed_where_the_service_that_it_called_has_lost_the_backend_and_another_has_it(
    datapath: Datapath, caller: Caller, kept: str
) -> None:
    shared = group(FIRST, protocol="UDP")
    programmed(datapath.target(), *(plan(n, vip, shared, protocol="UDP") for n, vip in (("blue", VIP), ("all", OTHER))))
    db = Database(*TABLES)
    service(db, "blue", VIP, SECOND)
    service(db, "all", OTHER, FIRST, SECOND)
    for called, name in ((VIP, "blue"), (OTHER, "all")):
        caller.calls("keep", called, 80, name=name)
    assert datapath.gone_sockets(db).destroy(gone(FIRST)) == 1
    assert alive(caller, "blue", "all") == {"blue": False, "all": True}


def test_a_socket_that_connects_after_it_has_sent_to_another_service_goes_with_the_backend_it_is_connected_to(
    datapath: Datapath, caller: Caller, kept: str
) -> None:
    """One socket: the other service was asked first."""
    caller.udp(OTHER, name="both")
    caller.udp(VIP, connected=True, name="both")
    assert caller.calls("peer", VIP, 80, name="both") == [{"peer": f"{VIP}:80"}]
    destroyer = datapath.gone_sockets(Database(*TABLES))
    assert destroyer.destroy(gone(SECOND)) == 0
    assert destroyer.destroy(gone(FIRST)) == 1
    assert alive(caller, "both") == {"both": False}


def test_what_a_connected_socket_without_a_place_called_is_forgotten_when_it_is_closed(
    datapath: Datapath, caller: Caller
) -> None:
    with no_place_is_free(datapath):
        caller.calls("keep", VIP, 80, name="one")
        assert len(list(datapath.maps.items("udp_connects"))) == 1
        caller.calls("close", VIP, 80, name="one")
        until(lambda: not list(datapath.maps.items("udp_connects")), what="it is forgotten")


def test_a_socket_whose_call_found_no_room_is_destroyed_when_no_service_has_its_backend(
    datapath: Datapath, caller: Caller
) -> None:
    """One pod can fill the map with its sockets. Those of others must not send to a later owner of the address."""
    others = [(COOKIE.pack(NO_SOCKET + n), bytes(ORIG_DST.size)) for n in range(16_384)]
    with no_place_is_free(datapath):
        assert datapath.maps.put("udp_connects", others) == {}
        caller.calls("keep", VIP, 80, name="unknown")
        assert datapath.maps.drop("udp_connects", [key for key, _ in others]) == {}
        caller.calls("keep", OTHER, 80, name="another")
    db = Database(*TABLES)
    service(db, "blue", VIP, FIRST)
    destroyer = datapath.gone_sockets(db)
    assert destroyer.destroy(gone(FIRST)) == 0, "a service has it"
    assert datapath.gone_sockets(Database(*TABLES)).destroy(gone(FIRST)) == 1
    assert alive(caller, "unknown", "another") == {"unknown": False, "another": True}


async def test_udp_sockets_of_the_name_server_are_destroyed_once_when_its_last_process_has_gone(
    world: World, datapath: Datapath, caller: Caller
) -> None:
    alive_now, second = await Alive.open(world.pin), await Alive.open(world.pin, instance="second")
    alive_now.renew(60)
    second.renew(60)
    for host, name in ((CLUSTER_DNS, "v4"), (f"::ffff:{CLUSTER_DNS}", "mapped"), (CLUSTER_DNS6, "v6")):
        caller.calls("keep", host, 53, name=name)
    caller.calls("keep", VIP, 80, name="other")
    destroyer = datapath.gone_sockets(Database(*TABLES))
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
    db = Database(*TABLES)
    service(db, "first", VIP, FIRST)
    service(db, "second", OTHER, SECOND)
    rows = list(db.snapshot().all(tables.BACKENDS))
    destroyer = datapath.gone_sockets(db)
    caller.calls("keep", VIP, 80, name="first")
    caller.calls("keep", OTHER, 80, name="second")
    running = asyncio.create_task(destroyer.run())
    await asyncio.sleep(0)
    with db.write() as txn:
        for row in rows:
            txn.delete(tables.BACKENDS, row.key)
    await asyncio.sleep(0)
    service(db, "second", OTHER, SECOND)
    await asyncio.to_thread(until, lambda: bool(destroyer.destroyed), what="the sockets are destroyed")
    running.cancel()
    assert alive(caller, "first", "second") == {"first": False, "second": True}
