"""Connections to what is drained are closed at its deadline, and no others: by service, on a real kernel."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from datapath_worlds.bpf_world import BACKENDS, Caller, World, group, plan, programmed, target

from isthmus.datapath import Datapath
from isthmus.datapath.core import shapes
from isthmus.datapath.core.maps import KernelMaps
from isthmus.datapath.failures.drained import Call, to_close
from isthmus.model import tables
from isthmus.model.balancing import Backend, BackendKey, Frontend, FrontendKey, Group, Plan, PlanKey, Target
from isthmus.model.drains import Drain, Draining
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Protocol
from isthmus.statedb import Database

VIP, OTHER = "10.96.7.7", "10.96.7.8"
FIRST, SECOND = BACKENDS[:2]
ECHO = ServiceName("demo/echo")
TABLES = (tables.BACKENDS, tables.DRAINING, tables.FRONTENDS, tables.PLANS)


def call(host: str, endpoint: str, *, protocol: Protocol) -> Call:
    return (shapes.address(host), shapes.port(80)), target(endpoint, protocol=protocol)


def alive(caller: Caller, *names: str) -> list[str]:
    return [name for name in names if "answer" in caller.calls("ping", "", 0, name=name)[0]]


@pytest.mark.bpf
def test_udp_sockets_of_the_backend_are_closed_and_no_others(world: World, datapath: Datapath) -> None:
    rows = (("a", VIP, FIRST), ("b", OTHER, SECOND))
    programmed(
        datapath.target(), *(plan(name, vip, group(to, protocol="UDP"), protocol="UDP") for name, vip, to in rows)
    )
    caller = world.call_from(world.cgroup)
    for name, called in (("a", VIP), ("b", OTHER), ("mapped", f"::ffff:{VIP}")):
        caller.calls("keep", called, 80, name=name)
    closer = datapath.drained_sockets(Database(*TABLES))
    assert alive(caller, "a", "b", "mapped") == ["a", "b", "mapped"]
    assert closer.destroy({call(VIP, FIRST, protocol="UDP")}) == 2
    assert alive(caller, "a", "b", "mapped") == ["b"]


@pytest.mark.bpf
def test_tcp_connections_that_called_the_service_are_closed_and_those_of_another_service_are_not(
    world: World, datapath: Datapath
) -> None:
    world.address("add", "10.8.1.1")
    world.serve("10.8.1.1:8080")
    programmed(datapath.target(), plan("a", VIP, group("10.8.1.1:8080")))
    caller = world.call_from(world.cgroup)
    caller.calls("hold", VIP, 80, local=0)
    closer = datapath.drained_sockets(Database(*TABLES))
    assert closer.destroy({call(OTHER, "10.8.1.1:8080", protocol="TCP")}) == 0
    assert caller.calls("echo", VIP, 80, text="here") == [{"answer": "here"}]
    assert closer.destroy({call(VIP, "10.8.1.1:8080", protocol="TCP")}) == 1
    assert caller.calls("echo", VIP, 80, text="gone") == [{"error": "ECONNABORTED"}]


@pytest.mark.bpf
def test_a_udp_socket_of_another_service_with_the_same_backend_is_not_closed(world: World, datapath: Datapath) -> None:
    shared = group(FIRST, protocol="UDP")
    programmed(datapath.target(), *(plan(n, vip, shared, protocol="UDP") for n, vip in (("a", VIP), ("b", OTHER))))
    caller = world.call_from(world.cgroup)
    host, port = FIRST.split(":")
    for name, called, at in (("a", VIP, 80), ("b", OTHER, 80), ("direct", host, int(port))):
        caller.calls("keep", called, at, name=name)
    assert datapath.drained_sockets(Database(*TABLES)).destroy({call(VIP, FIRST, protocol="UDP")}) == 1
    assert alive(caller, "a", "b", "direct") == ["b", "direct"]


@pytest.mark.bpf
@pytest.mark.parametrize(
    ("protocol", "read"),
    [
        ("UDP", {"call_places", "pod_links", "udp_connects", "udp_flows", "udp_unknown"}),
        ("TCP", {"call_places", "flows"}),
    ],
)
def test_of_what_sockets_called_only_that_of_the_drained_protocol_is_read(
    datapath: Datapath, monkeypatch: pytest.MonkeyPatch, protocol: Protocol, read: set[str]
) -> None:
    names, items = set[str](), KernelMaps.items

    def noted(maps: KernelMaps, name: str) -> Iterable[tuple[bytes, bytes]]:
        names.add(name)
        return items(maps, name)

    monkeypatch.setattr(KernelMaps, "items", noted)
    datapath.drained_sockets(Database(*TABLES)).destroy({call(VIP, FIRST, protocol=protocol)})
    assert names == read


def rows(*, called: bool, closing: bool) -> Database:
    """A service at VIP with one backend of c2, which is drained."""
    db = Database(*TABLES)
    key = BackendKey(ECHO, ClusterName("c2"), "10.2.0.1", 80, "TCP")
    planned = PlanKey(ECHO, 80, "TCP", "IPv4")
    groups = (Group((Target("10.2.0.1", 80, "TCP", ClusterName("c2")),)),) if called else ()
    at = FrontendKey(VIP, 80, "TCP")
    drain = Drain(kind="Cluster", target="c2")
    with db.write() as txn:
        txn.put(tables.BACKENDS, Backend(key=key, port_names=("",)))
        txn.put(tables.FRONTENDS, Frontend(key=at, service=ECHO, port_name="", plan=planned))
        txn.put(tables.PLANS, Plan(key=planned, frontends=(at,), groups=groups))
        txn.put(tables.DRAINING, Draining(by=ClusterName("c2"), drain=drain, closing=closing))
    return db


def test_what_is_still_called_is_not_closed() -> None:
    assert [to_close(rows(called=called, closing=True).snapshot()) != set() for called in (False, True)] == [
        True,
        False,
    ]


def test_nothing_is_closed_before_the_deadline() -> None:
    assert to_close(rows(called=False, closing=False).snapshot()) == set()
