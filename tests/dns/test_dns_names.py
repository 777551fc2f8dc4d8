"""Which names there are, from imports, backends and namespaces."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import pytest

from isthmus import dns, loadbalancer
from isthmus.loadbalancer import ClaimRules
from isthmus.model import names
from isthmus.model.dns import Name
from isthmus.model.mcs import MANAGED_BY
from isthmus.model.services import Condition, Endpoint, EndpointSet, Import, Namespace, Node, Port, Service
from isthmus.model.sources import PROXY, of_peer
from isthmus.model.tables import (
    ENDPOINT_SETS,
    IMPORTS,
    NAMES,
    NAMESPACES,
    NODES,
    PODS,
    POLICIES,
    SERVICES,
    XDS_SERVED,
)
from isthmus.processes.start import tables_of
from isthmus.statedb import Database, Derivations

ECHO = names.service_name("demo", "echo")
DERIVED = names.derived(ECHO)
APEX = "echo.demo.svc.clusterset.local"
HTTP = Port("http", 80)
TABLES: dict[type, Any] = {t.row: t for t in (SERVICES, ENDPOINT_SETS, IMPORTS, NODES, PODS, NAMESPACES, POLICIES)}


class World:
    def __init__(
        self,
        servers: tuple[str, ...] = (),
        more: dns.More = dns.More(),  # noqa: B008
        rules: ClaimRules = ClaimRules(),  # noqa: B008
    ) -> None:
        zone = dns.derived("clusterset.local", servers=servers, more=more, rules=rules)
        derived = [*loadbalancer.derived(names.ClusterName("c1"), "n1"), zone]
        self.db = Database(*tables_of(derived, *TABLES.values()))
        self.derivations = Derivations(self.db, *derived)

    def put(self, *rows: Any) -> None:
        with self.db.write() as txn:
            for row in rows:
                txn.put(TABLES[type(row)], row)

    def delete(self, *rows: Any) -> None:
        with self.db.write() as txn:
            for row in rows:
                txn.delete(TABLES[type(row)], TABLES[type(row)].key(row))

    def names(self) -> dict[tuple[str, str], tuple[str, ...]]:
        """Everything with records but the zone's own names."""
        return {(row.name, row.type): row.answers for row in self._rows() if row.service and row.answers}

    def empty(self) -> set[str]:
        """The names that exist without records."""
        return {row.name for row in self._rows() if not row.answers}

    def _rows(self) -> list[Name]:
        while self.derivations.step():
            pass
        return list(self.db.snapshot().all(NAMES))


@pytest.fixture
def world() -> World:
    world = World()
    world.put(Namespace("demo"))
    return world


def imported(name: str = ECHO, **fields: Any) -> Import:
    defaults: dict[str, Any] = {"ports": (HTTP,), "ips": ("10.96.0.7",)}
    return Import(name=names.ServiceName(name), **(defaults | fields))


def headless(*endpoints: Endpoint, cluster: str = "c2") -> tuple[Any, ...]:
    return (
        imported(type="Headless", ips=(), clusters=(names.ClusterName(cluster),)),
        Service(name=DERIVED, source="kubernetes", headless=True, ports=(HTTP,), import_of=ECHO),
        EndpointSet(
            service=DERIVED,
            cluster=names.ClusterName(cluster),
            source="clusterset",
            part="record",
            endpoints=endpoints,
        ),
    )


def allocated(name: str, *ips: str) -> Service:
    """The derived Service of an import, with the addresses that the API server gave it."""
    of = names.ServiceName(name)
    return Service(name=names.derived(of), source="kubernetes", ports=(HTTP,), cluster_ips=ips, import_of=of)


def reverses(world: World) -> dict[str, tuple[str, ...]]:
    return {name: answers for (name, type_), answers in world.names().items() if type_ == "PTR"}


def test_an_import_has_its_addresses_a_service_record_and_a_reverse(world: World) -> None:
    world.put(imported(ips=("10.96.0.7", "fd00::7")), allocated(ECHO, "10.96.0.7", "fd00::7"))
    assert world.names() == {
        (APEX, "A"): ("10.96.0.7",),
        (APEX, "AAAA"): ("fd00::7",),
        (f"_http._tcp.{APEX}", "SRV"): (f"0 100 80 {APEX}.",),
        (APEX, "SRV"): (f"0 100 80 {APEX}.",),
        ("7.0.96.10.in-addr.arpa", "PTR"): (f"{APEX}.",),
        ("7." + "0." * 27 + "d.f.ip6.arpa".replace("d.f", "0.0.d.f"), "PTR"): (f"{APEX}.",),
    }


def test_the_name_of_an_import_without_address_exists_without_records(world: World) -> None:
    world.put(imported(ips=()))
    assert world.names() == {}
    assert world.empty() == {APEX, f"_http._tcp.{APEX}"}


def test_an_address_that_an_import_asks_for_again_and_another_service_has_is_no_answer(world: World) -> None:
    world.put(imported(annotations=TRUSTED))
    assert world.names()[APEX, "A"] == ("10.96.0.7",)
    world.put(Service(name=names.service_name("demo", "taker"), source="kubernetes", cluster_ips=("10.96.0.7",)))
    assert world.names() == {}
    assert APEX in world.empty()


def test_only_namespaces_of_the_own_cluster_have_names(world: World) -> None:
    world.put(imported("other/echo"))
    assert world.names() == {}
    world.put(Namespace("other"))
    assert ("echo.other.svc.clusterset.local", "A") in world.names()
    world.delete(Namespace("other"))
    assert world.names() == {}


def test_a_headless_import_has_the_addresses_of_what_is_ready_and_a_name_for_each(world: World) -> None:
    ports = (Port("http", 8080),)
    world.put(
        *headless(
            Endpoint("10.2.1.2", ports, hostname="web-0"),
            Endpoint("10.2.1.3", ports),
            Endpoint("10.2.1.4", ports, Condition.NOT_READY),
        )
    )
    assert world.names() == {
        (APEX, "A"): ("10.2.1.2", "10.2.1.3"),
        (f"web-0.c2.{APEX}", "A"): ("10.2.1.2",),
        (f"10-2-1-3.c2.{APEX}", "A"): ("10.2.1.3",),
        (f"_http._tcp.{APEX}", "SRV"): (f"0 50 8080 10-2-1-3.c2.{APEX}.", f"0 50 8080 web-0.c2.{APEX}."),
        (APEX, "SRV"): (f"0 50 8080 10-2-1-3.c2.{APEX}.", f"0 50 8080 web-0.c2.{APEX}."),
    }


def test_srv_of_a_service_without_port_and_protocol_gives_all_its_ports(world: World) -> None:
    """As CoreDNS: weights are shared before duplicates go, unnamed ports count."""
    world.put(imported(ports=(Port("tcp", 42), Port("udp", 42, "UDP"))))
    assert world.names()[APEX, "SRV"] == (f"0 50 42 {APEX}.",)
    world.put(imported(ports=(Port("", 80),)))
    assert world.names()[APEX, "SRV"] == (f"0 100 80 {APEX}.",)
    assert (f"_._tcp.{APEX}", "SRV") not in world.names()


def test_the_zones_name_server_has_the_address_that_pods_ask() -> None:
    world = World(servers=("10.96.0.10", "fd00::10"))
    world.put(Namespace("demo"))
    world.names()
    snapshot = world.db.snapshot()
    found = {type_: snapshot.get(NAMES, ("ns.dns.clusterset.local", type_)) for type_ in ("A", "AAAA")}
    assert [row and row.answers for row in found.values()] == [("10.96.0.10",), ("fd00::10",)]


def test_a_headless_import_follows_its_endpoints(world: World) -> None:
    world.put(*headless(Endpoint("10.2.1.2", ())))
    assert world.names()[APEX, "A"] == ("10.2.1.2",)
    world.put(*headless(Endpoint("10.2.1.9", (), hostname="b")))
    assert world.names() == {(APEX, "A"): ("10.2.1.9",), (f"b.c2.{APEX}", "A"): ("10.2.1.9",)}


def test_an_import_that_becomes_headless_loses_its_address(world: World) -> None:
    world.put(imported())
    world.put(*headless(Endpoint("10.2.1.2", ())))
    assert set(world.names()) == {(APEX, "A"), (f"10-2-1-2.c2.{APEX}", "A")}


API_SERVER = Service(
    name=names.service_name("default", "kubernetes"), source="kubernetes", ports=(HTTP,), cluster_ips=("10.96.0.1",)
)
SEVEN = "7.0.96.10.in-addr.arpa"


@pytest.mark.parametrize(
    "address", ["10.96.0.1", "10.96.0.7", "8.8.8.8", "10.1.0.7", "172.30.1.12", "127.0.0.1", "169.254.169.254"]
)
def test_an_import_made_by_hand_has_no_reverse_of_an_address_that_it_may_not_claim(world: World, address: str) -> None:
    """The API server's, another import's, a host's of the internet, a pod's, a node's, reserved ones."""
    world.put(API_SERVER, Node("n2", ("172.30.1.12",)), imported("demo/z"), allocated("demo/z", "10.96.0.7"))
    before = reverses(world)
    world.put(imported("demo/a", ips=(address,)))
    assert reverses(world) == before == {SEVEN: ("z.demo.svc.clusterset.local.",)}


def test_an_import_has_a_reverse_of_addresses_of_its_derived_service_alone(world: World) -> None:
    world.put(imported("demo/a", ips=("10.96.0.7", "10.96.0.8", "8.8.8.8")), allocated("demo/a", "10.96.0.8"))
    assert reverses(world) == {"8.0.96.10.in-addr.arpa": ("a.demo.svc.clusterset.local.",)}


def test_a_reverse_follows_the_derived_service_in_any_order(world: World) -> None:
    world.put(imported("demo/a"))
    assert reverses(world) == {}
    world.put(allocated("demo/a", "10.96.0.7"))
    assert reverses(world) == {SEVEN: ("a.demo.svc.clusterset.local.",)}
    world.put(allocated("demo/a", "10.96.0.9"))
    assert reverses(world) == {}


RANGES = ClaimRules(clusterset_ranges=(ip_network("10.96.0.0/16"),))
TRUSTED = ((MANAGED_BY, "isthmus-operator"),)


def test_one_address_of_two_imports_has_one_reverse_and_the_other_surfaces() -> None:
    """Both may claim it: the one whose calls go there has the reverse."""
    world = World(rules=RANGES)
    both = [imported(name, annotations=TRUSTED) for name in ("demo/a", "demo/b")]
    first, second = sorted(both, key=lambda row: row.derived_service)
    world.put(Namespace("demo"), *both)
    for row in (first, second):
        assert reverses(world) == {SEVEN: (f"{row.name.partition('/')[2]}.demo.svc.clusterset.local.",)}
        world.delete(row)
    world.put(second)
    world.put(first)
    assert reverses(world) == {SEVEN: (f"{first.name.partition('/')[2]}.demo.svc.clusterset.local.",)}


def test_what_the_api_server_allocated_comes_before_a_claim_in_an_allowed_range() -> None:
    world = World(rules=RANGES)
    world.put(Namespace("demo"), imported("demo/a", ips=("10.96.0.1",), annotations=TRUSTED))
    assert reverses(world) == {"1.0.96.10.in-addr.arpa": ("a.demo.svc.clusterset.local.",)}
    world.put(API_SERVER)
    assert reverses(world) == {}
    world.delete(API_SERVER)
    world.put(Node("n2", ("10.96.0.1",)))
    assert reverses(world) == {}


def test_an_import_whose_name_is_no_label_has_no_name(world: World) -> None:
    world.put(imported("demo/a.c2.echo"))
    assert world.names() == {}


@pytest.mark.parametrize("is_headless", [False, True])
def test_a_port_whose_name_is_too_long_for_a_label_has_no_name_and_costs_no_other(
    world: World, is_headless: bool
) -> None:
    ports = (Port("x" * 63, 80), Port("y" * 62, 81))
    world.put(*(headless(Endpoint("10.2.1.2", ports)) if is_headless else (imported(ports=ports),)))
    assert {name for name, _ in world.names() if name.startswith("_")} == {f"_{'y' * 62}._tcp.{APEX}"}


def test_the_zone_says_the_version_of_its_scheme(world: World) -> None:
    world.names()
    row = world.db.snapshot().get(NAMES, ("dns-version.clusterset.local", "TXT"))
    assert row is not None
    assert (row.answers, row.ttl) == (('"1.1.0"',), 28800)


def test_names_go_with_their_import(world: World) -> None:
    world.put(imported())
    world.names()
    world.delete(imported())
    assert world.names() == {}


def test_names_are_incomplete_until_peers_were_read_or_are_given_up() -> None:
    patience = dns.PeersPatience()
    derived = [*loadbalancer.derived(names.ClusterName("c1"), "n1"), dns.derived("clusterset.local", awaits=patience)]
    db = Database(*tables_of(derived, *TABLES.values()))
    derivations = Derivations(db, *derived)
    own, peer = (db.initializer(ENDPOINT_SETS, each) for each in ("kubernetes", of_peer(names.ClusterName("c2"))))
    db.initializer(XDS_SERVED, PROXY)  # of an Envoy that does not come

    def complete() -> bool:
        while derivations.step():
            pass
        return db.snapshot().initialized(NAMES)

    with db.write() as txn:
        own.complete(txn)
    assert not complete(), "headless names of c2 that the kernel still has would be removed"
    patience.over = True
    derivations.await_anew()
    assert complete()
    with db.write() as txn:
        peer.complete(txn)
    assert complete()


NATIVE = "echo.demo.svc.cluster.local"


def endpoints_of(cluster: str, *addresses: str) -> EndpointSet:
    ports = (Port("http", 8080),)
    return EndpointSet(
        service=DERIVED,
        cluster=names.ClusterName(cluster),
        source="clusterset",
        part=cluster,
        endpoints=tuple(Endpoint(address, ports) for address in addresses),
    )


def test_by_option_an_import_has_a_name_for_each_cluster_with_what_is_ready_there() -> None:
    world = World(more=dns.More(clusters=True))
    world.put(Namespace("demo"), imported(clusters=(names.ClusterName("c2"), names.ClusterName("c3"))))
    world.put(Service(name=DERIVED, source="kubernetes", ports=(HTTP,), import_of=ECHO))
    world.put(endpoints_of("c2", "10.2.1.2", "10.2.1.3"), endpoints_of("c3", "fd03::1"))
    found = world.names()
    assert found[f"c2.{APEX}", "A"] == ("10.2.1.2", "10.2.1.3")
    assert found[f"c3.{APEX}", "AAAA"] == ("fd03::1",)
    assert found[f"_http._tcp.c2.{APEX}", "SRV"] == (f"0 100 8080 c2.{APEX}.",)
    assert found[APEX, "A"] == ("10.96.0.7",)
    world.put(endpoints_of("c2"))
    assert (f"c2.{APEX}", "A") not in world.names()


def test_by_option_an_import_has_the_native_name_as_long_as_there_is_no_service_of_it() -> None:
    world = World(more=dns.More(native="cluster.local"))
    local = Service(name=ECHO, source="kubernetes", cluster_ips=("10.96.9.9",), ports=(HTTP,))
    world.put(Namespace("demo"), imported())
    assert world.names()[NATIVE, "A"] == ("10.96.0.7",)
    assert world.names()[f"_http._tcp.{NATIVE}", "SRV"] == (f"0 100 80 {NATIVE}.",)
    world.put(local)
    assert not [name for name, _ in world.names() if name.endswith("cluster.local")]
    world.delete(local)
    assert world.names()[NATIVE, "A"] == ("10.96.0.7",)


def test_by_option_a_headless_import_has_the_native_name_too() -> None:
    world = World(more=dns.More(native="cluster.local"))
    world.put(Namespace("demo"), *headless(Endpoint("10.2.1.2", ())))
    assert world.names()[NATIVE, "A"] == ("10.2.1.2",)
