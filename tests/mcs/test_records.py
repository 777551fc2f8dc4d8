"""What of the own cluster becomes a record: a pure function of its tables."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isthmus.clusterset.records import slices
from isthmus.mcs import exports, records
from isthmus.model import tables
from isthmus.model.mcs import Merged
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.services import Condition, Endpoint, EndpointSet, ExportMark, Namespace, Port, Service
from isthmus.statedb import Database, Derivations

C1 = ClusterName("c1")
NAME = ServiceName("demo/echo")
HTTP = Port("http", 80)
BACK = Port("http", 8080)


class World:
    def __init__(self, *, default_global: bool = True, publish_endpoints: Any = "services") -> None:
        self.db = Database(
            tables.SERVICES,
            tables.ENDPOINT_SETS,
            tables.EXPORT_MARKS,
            tables.OWN_EXPORTS,
            tables.NAMESPACES,
            tables.MERGED,
            tables.RECORDS,
        )
        own = exports.derived(C1, default_global=default_global)
        published = records.derived(C1, 1, default_global=default_global, publish_endpoints=publish_endpoints)
        self.derivations = Derivations(self.db, own, published)
        self.put(tables.NAMESPACES, Namespace("demo"))

    def put(self, table: Any, *rows: Any) -> None:
        with self.db.write() as txn:
            for row in rows:
                txn.put(table, row)

    def service(self, name: ServiceName = NAME, **fields: Any) -> None:
        given = {"name": name, "source": "kubernetes", "ports": (HTTP,), "cluster_ips": ("10.96.0.7",)}
        self.put(tables.SERVICES, Service(**given | fields))

    def marked(self, *ports: Port) -> None:
        self.put(tables.EXPORT_MARKS, ExportMark(name=NAME, created="2026-01-01T00:00:00Z"))
        self.put(tables.MERGED, Merged(name=NAME, type="ClusterSetIP", ports=ports or (HTTP,), clusters=(C1,)))

    def slice(self, *endpoints: Endpoint, part: str = "a", **fields: Any) -> None:
        given = {"service": NAME, "cluster": C1, "source": "kubernetes", "part": part, "endpoints": endpoints}
        self.put(tables.ENDPOINT_SETS, EndpointSet(**given | fields))

    def records(self) -> dict[str, Any]:
        self.derivations.step()
        rows = self.db.snapshot().all(tables.RECORDS)
        return {f"{row.kind}:{row.name}": json.loads(row.value) for row in rows}

    def backends(self, name: ServiceName | None = None) -> Any:
        return self.records()[f"services:{name or derived(NAME)}"]["backends"]


@pytest.fixture
def world() -> World:
    return World()


def test_a_service_without_an_export_is_told_to_nobody(world: World) -> None:
    world.service()
    world.slice(Endpoint("10.1.1.1", (BACK,)))
    assert world.records() == {}


def test_ports_on_which_the_clusterset_disagrees_are_left_out(world: World) -> None:
    world.service(ports=(HTTP, Port("admin", 9000)))
    world.slice(Endpoint("10.1.1.1", (BACK, Port("admin", 9000))))
    world.marked(HTTP, Port("admin", 9999))
    assert world.backends() == {"10.1.1.1": {"http": {"Protocol": "TCP", "Port": 8080}}}


def test_an_endpoint_with_no_agreed_port_is_left_out(world: World) -> None:
    world.service()
    world.slice(Endpoint("10.1.1.1", (BACK,)))
    world.marked(Port("http", 81))
    assert world.backends() == {}


def test_an_address_for_which_peers_would_refuse_the_record_is_left_out(world: World) -> None:
    """Kubernetes takes the broadcast address in a slice that somebody writes by hand."""
    world.service()
    world.marked()
    world.slice(*(Endpoint(address, (BACK,)) for address in ("10.1.0.7", "255.255.255.255", "127.0.0.1")))
    assert [*world.backends()] == ["10.1.0.7"]


def test_what_a_peer_told_us_is_not_told_again(world: World) -> None:
    world.service()
    world.marked()
    world.slice(Endpoint("10.1.1.1", (BACK,)))
    world.slice(Endpoint("10.2.1.1", (BACK,)), cluster=ClusterName("c2"), source="clusterset", part="record")
    name = derived(NAME)
    world.slice(Endpoint("10.2.1.2", (BACK,)), service=name, cluster=ClusterName("c2"), source="clusterset")
    world.service(name, import_of=NAME, annotations=(("service.cilium.io/global", "true"),))
    assert list(world.backends()) == ["10.1.1.1"]
    assert len(world.records()) == 2


def test_slices_of_one_service_are_joined(world: World) -> None:
    world.service(ports=(HTTP, Port("admin", 9000)))
    world.marked(HTTP, Port("admin", 9000))
    world.slice(Endpoint("10.1.1.1", (BACK,)), part="a")
    world.slice(Endpoint("10.1.1.1", (Port("admin", 9000),)), Endpoint("10.1.1.2", (BACK,)), part="b")
    assert {address: sorted(ports) for address, ports in world.backends().items()} == {
        "10.1.1.1": ["admin", "http"],
        "10.1.1.2": ["http"],
    }


def test_one_address_with_two_numbers_of_a_port_is_published_with_both(world: World) -> None:
    """Two hostNetwork Deployments behind one Service (kubernetes#101935): two slices, one address."""
    world.service()
    world.marked()
    world.slice(Endpoint("172.30.1.7", (BACK,)), part="a")
    world.slice(Endpoint("172.30.1.7", (Port("http", 9090),)), part="b")
    record = world.records()[f"services:{derived(NAME)}"]
    assert record["backends"] == {"172.30.1.7": {"http": {"Protocol": "TCP", "Port": 8080}}}
    assert record["morePorts"] == {"172.30.1.7": {"http": [{"Protocol": "TCP", "Port": 9090}]}}


def test_a_port_that_is_renamed_keeps_its_endpoints_until_the_slices_follow(world: World) -> None:
    web = Port("web", 80)
    world.service()
    world.marked()
    world.slice(Endpoint("10.1.1.1", (BACK,)))
    world.service(ports=(web,))
    world.marked(web)
    assert world.backends() == {"10.1.1.1": {"web": {"Protocol": "TCP", "Port": 8080}}}


def test_of_two_ports_that_are_renamed_at_once_neither_is_guessed(world: World) -> None:
    ports = Port("web", 80), Port("control", 9000)
    world.service(ports=ports)
    world.slice(Endpoint("10.1.1.1", (BACK, Port("admin", 9000))))
    world.marked(*ports)
    assert world.backends() == {}


def test_endpoints_that_end_are_published_only_where_nothing_else_is_left(world: World) -> None:
    world.service()
    world.marked()
    ending = Endpoint("10.1.1.2", (BACK,), Condition.TERMINATING)
    gone = Endpoint("10.1.1.3", (BACK,), Condition.NOT_READY)
    world.slice(Endpoint("10.1.1.1", (BACK,)), ending, gone)
    assert list(world.backends()) == ["10.1.1.1"]
    world.slice(ending, gone)
    assert list(world.backends()) == ["10.1.1.2"]
    world.slice(gone)
    assert world.backends() == {}


def test_hostnames_and_zones_travel(world: World) -> None:
    world.service()
    world.marked()
    world.slice(Endpoint("10.1.1.1", (BACK,), hostname="web-0", zone="eu-1", for_zones=("eu-1", "eu-2")))
    content = world.records()[f"services:{derived(NAME)}"]
    assert content["hostnames"] == {"10.1.1.1": "web-0"}
    assert content["zones"] == {"10.1.1.1": {"zone": "eu-1", "forZones": [{"name": "eu-1"}, {"name": "eu-2"}]}}


def test_a_headless_export_has_no_frontends(world: World) -> None:
    world.service(headless=True, cluster_ips=())
    world.marked()
    assert world.records()[f"services:{derived(NAME)}"]["frontends"] == {}


@pytest.mark.parametrize(
    ("annotations", "shared"),
    [
        ({}, False),
        ({"service.cilium.io/global": "True"}, True),
        ({"io.cilium/global-service": "true"}, True),
        ({"service.cilium.io/global": "yes"}, False),
        ({"service.cilium.io/global": "false", "io.cilium/global-service": "true"}, False),
        ({"service.cilium.io/global": "true", "service.cilium.io/shared": "FALSE"}, False),
        ({"service.cilium.io/global": "true", "io.cilium/shared-service": "no"}, False),
        ({"service.cilium.io/shared": "true"}, False),
    ],
)
def test_a_global_service_is_published_under_its_own_name(
    world: World, annotations: dict[str, str], shared: bool
) -> None:
    world.service(annotations=tuple(sorted(annotations.items())), selector=(("app", "echo"),))
    world.slice(Endpoint("10.1.1.1", (BACK,)))
    content = world.records()
    assert list(content) == (["services:demo/echo"] if shared else [])
    if shared:
        assert content["services:demo/echo"]["selector"] == {"app": "echo"}


def test_where_namespaces_are_not_shared_by_default_only_those_that_say_so_are_published() -> None:
    world = World(default_global=False)
    world.service(annotations=(("service.cilium.io/global", "true"),))
    world.marked()
    assert world.records() == {}
    world.put(tables.NAMESPACES, Namespace("demo", annotations=(("clustermesh.cilium.io/global", "true"),)))
    assert set(world.records()) == {f"services:{derived(NAME)}", "services:demo/echo", "serviceexports:demo/echo"}
    world.put(tables.NAMESPACES, Namespace("demo"))
    assert world.records() == {}


def test_a_namespace_that_leaves_the_clusterset_takes_its_records_along(world: World) -> None:
    world.service(annotations=(("service.cilium.io/global", "true"),))
    world.marked()
    assert len(world.records()) == 3
    world.put(tables.NAMESPACES, Namespace("demo", (("clustermesh.cilium.io/global", "false"),)))
    assert world.records() == {}
    world.put(tables.NAMESPACES, Namespace("demo", (("clustermesh.cilium.io/global", "True"),)))
    assert len(world.records()) == 3


def test_a_service_that_vanishes_withdraws_its_records(world: World) -> None:
    world.service()
    world.marked()
    assert len(world.records()) == 2
    with world.db.write() as txn:
        txn.delete(tables.SERVICES, (NAME, "kubernetes"))
    assert world.records() == {}


@pytest.mark.parametrize(
    ("publish", "kinds"), [("both", {"services", "endpointslices"}), ("endpointslices", {"endpointslices"})]
)
def test_endpoints_are_published_in_the_records_that_are_asked_for(publish: str, kinds: set[str]) -> None:
    world = World(publish_endpoints=publish)
    world.service()
    world.marked()
    world.slice(Endpoint("10.1.1.1", (BACK,)), Endpoint("fd00::1", (BACK,)))
    world.derivations.step()
    rows = [row for row in world.db.snapshot().all(tables.RECORDS) if row.kind != "serviceexports"]
    assert {row.kind for row in rows} == kinds
    in_slices = [row for row in rows if row.kind == "endpointslices"]
    assert {row.service for row in in_slices} == {derived(NAME)}
    read = [slices.decode(row.value, cluster=C1, cluster_id=1, name=row.name).row for row in in_slices]
    assert [[each.address for each in row.endpoints] for row in read if row is not None] in (
        [["10.1.1.1"], ["fd00::1"]],
        [["fd00::1"], ["10.1.1.1"]],
    )
    world.slice(Endpoint("10.1.1.1", (BACK,)))
    world.derivations.step()
    assert len([row for row in world.db.snapshot().all(tables.RECORDS) if row.kind == "endpointslices"]) == 1
    with world.db.write() as txn:
        txn.delete(tables.SERVICES, (NAME, "kubernetes"))
    assert world.records() == {}
