"""A connected UDP socket goes on with another backend when its service has lost the one that it had."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Set
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
from datapath_worlds.bpf_world import (
    BACKEND6,
    BACKENDS,
    Caller,
    World,
    group,
    no_place_is_free,
    plan,
    processes,
    programmed,
    target,
)
from labs.lab_running import until

from isthmus.datapath import Datapath, view
from isthmus.datapath.core.maps import KernelMaps
from isthmus.datapath.core.namespaces import inside
from isthmus.datapath.failures import datagrams, sockets
from isthmus.model import tables
from isthmus.model.balancing import Backend, BackendKey, Frontend, Group, Plan, Target
from isthmus.netlink import sock_diag
from isthmus.statedb import Database

pytestmark = pytest.mark.bpf

TABLES = (tables.BACKENDS, tables.FRONTENDS, tables.PLANS)
VIP, OTHER, VIP6 = "10.96.13.1", "10.96.13.2", "fd00:96::13"
FIRST, SECOND, THIRD = BACKENDS[:3]
SILENT, SILENT6 = "10.8.0.99:8080", "[fd00:8::1]:9"
"""Nobody listens there: the node answers by ICMP."""


@pytest.fixture(params=["a place", "no place"])
def kept(request: pytest.FixtureRequest, rescuing: Datapath) -> Iterator[str]:
    """Where sockets of this test keep what they called."""
    with nullcontext() if request.param == "a place" else no_place_is_free(rescuing):
        yield request.param


@pytest.fixture
def caller(world: World, rescuing: Datapath) -> Iterator[Caller]:
    made = world.call_from(world.cgroup)
    yield made
    made.close()


class Services:
    """The rows of services, and maps that are made from them."""

    def __init__(self, world: World, datapath: Datapath) -> None:
        self._node = processes(world.server)[0]
        self._target = datapath.target()
        self._plans: dict[str, Plan] = {}
        self.db = Database(*TABLES)
        self.sockets = datapath.gone_sockets(self.db)

    def have(self, vip: str, *endpoints: str, affinity: int = 0) -> None:
        """A service at an address with these backends and no others."""
        groups: tuple[Group, ...] = (group(*endpoints, protocol="UDP"),) if endpoints else ()
        row = self._plans[vip] = plan(f"s-{vip}", vip, *groups, protocol="UDP", affinity=affinity)
        programmed(self._target, *self._plans.values())
        with self.db.write() as txn:
            txn.put(tables.PLANS, row)
            [key] = row.frontends
            txn.put(tables.FRONTENDS, Frontend(key=key, service=row.key.service, port_name="", plan=row.key))
            for backend in [*self.db.snapshot().by(tables.BACKENDS, "service", row.key.service)]:
                txn.delete(tables.BACKENDS, backend.key)
            for to in (target(endpoint, protocol="UDP") for endpoint in endpoints):
                backend_key = BackendKey(row.key.service, to.cluster, to.address, to.port, to.protocol)
                txn.put(tables.BACKENDS, Backend(key=backend_key, port_names=("",)))

    def lost(self, *endpoints: str) -> int:
        """Move or destroy the sockets of deleted backends, on the node; how many were destroyed."""
        targets = {target(endpoint, protocol="UDP") for endpoint in endpoints}
        return inside(self._node, lambda: self.sockets.destroy(targets | self.sockets._waiting))


@pytest.fixture
def services(world: World, rescuing: Datapath) -> Services:
    return Services(world, rescuing)


def ping(caller: Caller, name: str) -> str:
    """Who answers a socket that is kept, or the error."""
    answer = caller.calls("ping", "", 0, name=name)[0]
    return answer["answer"].split()[0] if "answer" in answer else answer["error"]


@pytest.mark.parametrize(
    ("called", "vip", "old", "new"),
    [(VIP, VIP, FIRST, SECOND), (f"::ffff:{VIP}", VIP, FIRST, SECOND), (VIP6, VIP6, BACKEND6, "[fd00:8::2]:8080")],
    ids=["IPv4", "mapped", "IPv6"],
)
def test_a_socket_for_life_is_answered_by_the_backend_that_replaces_its_own(
    world: World, caller: Caller, services: Services, kept: str, called: str, vip: str, old: str, new: str
) -> None:
    if ":" in vip and kept == "a place":
        world.address("add", "fd00:8::2")
        world.echo(new)
    services.have(vip, old)
    caller.calls("keep", called, 80, name="one")
    assert ping(caller, "one") == old
    services.have(vip, new)
    assert services.lost(old) == 0
    assert [ping(caller, "one") for _ in range(3)] == [new] * 3
    assert caller.calls("peer", "", 0, name="one")[0]["peer"] == f"{called}:80"


def test_it_is_moved_as_often_as_its_backend_is_replaced_and_forgotten_when_it_is_closed(
    rescuing: Datapath, caller: Caller, services: Services
) -> None:
    services.have(VIP, FIRST)
    caller.calls("keep", VIP, 80, name="one")
    for old, new in ((FIRST, SECOND), (SECOND, THIRD), (THIRD, FIRST)):
        services.have(VIP, new)
        assert services.lost(old) == 0
        assert ping(caller, "one") == new
        [row] = view.rows(rescuing.maps, "udp_flows")
        assert (row["called"], row["moved_to"]) == (FIRST, new)
        assert len(list(rescuing.maps.items("udp_flows"))) == 2
    datagrams.prune(rescuing.maps)
    assert ping(caller, "one") == FIRST, "it is open"
    caller.calls("close", "", 0, name="one")
    datagrams.prune(rescuing.maps)
    assert list(rescuing.maps.items("udp_flows")) == []
    assert [value for _, value in rescuing.maps.items("udp_gate")] == [bytes(4)]


def test_the_gate_stays_open_for_a_socket_that_is_moved_while_the_last_that_was_closed_is_forgotten(
    rescuing: Datapath, caller: Caller, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drains move sockets in another thread."""
    services.have(VIP, FIRST)
    for name in ("one", "two"):
        caller.calls("keep", VIP, 80, name=name)
        if name == "one":
            services.have(VIP, SECOND)
            services.lost(FIRST)
            services.have(VIP, FIRST)
    caller.calls("close", "", 0, name="one")
    services.have(VIP, SECOND)
    drop = KernelMaps.drop

    def moved_meanwhile(maps: KernelMaps, name: str, keys: list[bytes]) -> object:
        dropped = drop(maps, name, keys)
        monkeypatch.undo()
        services.lost(FIRST)
        return dropped

    monkeypatch.setattr(KernelMaps, "drop", moved_meanwhile)
    datagrams.prune(rescuing.maps)
    assert ping(caller, "two") == SECOND


def test_its_datagrams_wait_for_the_service_to_have_a_backend_again_and_go_to_no_other_pod(
    caller: Caller, services: Services
) -> None:
    """A rollout of one replica by Recreate. The old backend's address answers here, as another pod's would."""
    services.have(VIP, FIRST)
    caller.calls("keep", VIP, 80, name="one")
    services.have(VIP)
    assert services.lost(FIRST) == 0
    caller.calls("send", "", 0, name="one")
    services.have(VIP, SECOND)
    assert services.lost() == 0
    assert ping(caller, "one") == SECOND, "the first datagram was not answered"


def test_datagrams_that_wait_go_on_when_the_backend_that_had_gone_is_back(
    rescuing: Datapath, caller: Caller, services: Services, kept: str
) -> None:
    """A pod in its node's network, or with an address of its own, comes back under the same one."""
    services.have(VIP, FIRST)
    caller.calls("keep", VIP, 80, name="one")
    services.have(VIP)
    assert services.lost(FIRST) == 0
    services.have(VIP, FIRST)
    assert services.lost() == 0
    assert ping(caller, "one") == FIRST
    assert list(rescuing.maps.items("udp_flows")) == []
    assert not services.sockets._waiting


def test_datagrams_of_a_socket_that_was_moved_before_wait_too_until_there_is_a_backend(
    caller: Caller, services: Services
) -> None:
    services.have(VIP, FIRST)
    caller.calls("keep", VIP, 80, name="one")
    services.have(VIP, SECOND)
    assert services.lost(FIRST) == 0
    services.have(VIP)
    assert services.lost(SECOND) == 0
    assert services.lost() == 0, "a look while there is still none"
    services.have(VIP, THIRD)
    assert services.lost() == 0
    assert ping(caller, "one") == THIRD


async def test_while_no_row_changes_pods_are_not_looked_at_for_a_socket_that_waits(
    caller: Caller, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service without backends for good, and one client of it: every other pod would pay for the looks."""
    services.have(VIP, FIRST)
    caller.calls("keep", VIP, 80, name="one")
    services.have(VIP)
    assert services.lost(FIRST) == 0
    looks, turns, prune, destroy = list[int](), list[int](), datagrams.prune, services.sockets.destroy
    monkeypatch.setattr(sockets, "AGAIN", 0.02)
    monkeypatch.setattr(sockets, "PRUNE", 0.02)

    def turn(maps: KernelMaps) -> None:
        turns.append(1)
        prune(maps)

    def look(targets: Set[Target]) -> int:
        looks.append(1)
        return inside(services._node, partial(destroy, targets))

    monkeypatch.setattr(datagrams, "prune", turn)
    monkeypatch.setattr(services.sockets, "destroy", look)
    running = asyncio.create_task(services.sockets.run())
    await asyncio.to_thread(until, lambda: len(turns) > 10, what="ten turns")
    assert len(looks) == 1, "what an earlier process left"
    services.have(VIP, SECOND)
    await asyncio.to_thread(until, lambda: services.sockets.moved == 1, what="it is moved")
    running.cancel()
    assert ping(caller, "one") == SECOND


def test_the_kernel_lists_the_sockets_of_a_pod_as_often_for_thirty_that_are_moved_as_for_one(
    caller: Caller, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pods are looked at one after the other: with a list for each socket, all would wait for that with the most."""
    lists: list[int] = []
    dump = sock_diag._dump

    def counted(protocol: int, states: int, **options: Any) -> Iterator[sock_diag.Socket]:
        lists.append(protocol)
        return dump(protocol, states, **options)

    monkeypatch.setattr(sock_diag, "_dump", counted)
    numbers = []
    for count in (1, 30):
        services.have(VIP, FIRST)
        for n in range(count):
            caller.calls("keep", VIP, 80, name=f"{count}-{n}")
        services.have(VIP, SECOND)
        before, moved = len(lists), services.sockets.moved
        assert services.lost(FIRST) == 0
        assert services.sockets.moved == moved + count
        numbers.append(len(lists) - before)
    assert numbers[0] == numbers[1]


def test_a_socket_whose_service_was_deleted_is_destroyed(caller: Caller, services: Services) -> None:
    services.have(VIP, FIRST)
    caller.calls("keep", VIP, 80, name="one")
    services.db = Database(*TABLES)
    services.sockets._db = services.db
    assert services.lost(FIRST) == 1


def test_a_socket_of_a_service_with_affinity_is_destroyed_since_the_kernel_knows_where_its_client_goes(
    caller: Caller, services: Services
) -> None:
    services.have(VIP, FIRST, affinity=60)
    caller.calls("keep", VIP, 80, name="one")
    services.have(VIP, SECOND, affinity=60)
    assert services.lost(FIRST) == 1
    assert ping(caller, "one") == "EDESTADDRREQ"


def test_two_sockets_of_one_port_are_told_apart_after_one_was_moved_to_the_others_backend(
    caller: Caller, services: Services
) -> None:
    services.have(VIP, FIRST)
    services.have(OTHER, SECOND)
    for vip in (VIP, OTHER):
        caller.calls("keep", vip, 80, name=vip, local=40100)
    services.have(VIP, SECOND)
    assert services.lost(FIRST) == 0
    for _ in range(3):
        assert [ping(caller, vip) for vip in (VIP, OTHER)] == [SECOND] * 2


def test_another_socket_with_the_tuple_of_one_that_was_moved_is_left_alone(caller: Caller, services: Services) -> None:
    services.have(VIP, FIRST)
    caller.calls("keep", VIP, 80, name="one", local=40101)
    services.have(VIP, SECOND)
    services.lost(FIRST)
    caller.calls("close", "", 0, name="one")
    host, port = FIRST.split(":")
    caller.calls("keep", host, int(port), name="direct", local=40101)
    assert ping(caller, "direct") == FIRST


@pytest.mark.parametrize(("vip", "old", "new"), [(VIP, FIRST, SILENT), (VIP6, BACKEND6, SILENT6)], ids=["IPv4", "IPv6"])
def test_an_icmp_error_about_a_moved_datagram_reaches_the_application(
    caller: Caller, services: Services, vip: str, old: str, new: str
) -> None:
    services.have(vip, old)
    caller.calls("keep", vip, 80, name="one")
    services.have(vip, new)
    assert services.lost(old) == 0
    assert ping(caller, "one") == "ECONNREFUSED"
