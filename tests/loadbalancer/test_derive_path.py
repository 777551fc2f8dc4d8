"""The path of an import: who is called, what answers, what calls are spread over."""

from __future__ import annotations

from rows.balancing_world import PERMISSIVE, World, make

from isthmus.model.services import Condition, Port


def test_an_import_is_called_at_its_derived_services_address_and_reaches_every_cluster() -> None:
    world = World()
    world.put(make.imported(), make.derived())
    world.put(make.endpoints("c1", "10.1.1.2"), make.endpoints("c2", "10.2.1.2", "10.2.1.3"))
    assert world.called() == {"10.96.0.7:80/TCP": make.DERIVED}
    assert world.frontends[0].import_of == "demo/echo"
    assert world.reached() == {
        f"{make.DERIVED}:80/TCP/IPv4": ["c1/10.1.1.2:8080", "c2/10.2.1.2:8080", "c2/10.2.1.3:8080"]
    }
    assert {row.import_of for row in world.plans} == {"demo/echo"}


def test_a_plain_service_has_no_row_anywhere() -> None:
    world = World()
    world.put(make.service(), make.endpoints("c1", "10.1.1.2", service="demo/echo"))
    assert (world.frontends, world.backends, world.plans) == ([], [], [])


def test_every_service_is_taken_where_that_is_configured() -> None:
    every = World("all")
    every.put(make.service(), make.endpoints("c1", "10.1.1.2", service="demo/echo"))
    assert every.reached() == {"demo/echo:80/TCP/IPv4": ["c1/10.1.1.2:8080"]}


def test_a_plain_service_takes_no_backend_from_another_cluster() -> None:
    every = World("all")
    every.put(make.service(), make.endpoints("c2", "10.2.1.2", service="demo/echo"))
    assert every.backends == []


def test_a_global_service_takes_backends_of_its_name_from_every_cluster() -> None:
    world = World()
    world.put(make.globally(), make.endpoints("c2", "10.2.1.2", service="demo/echo"))
    assert world.reached() == {"demo/echo:80/TCP/IPv4": ["c2/10.2.1.2:8080"]}


def test_an_import_without_derived_service_is_called_at_its_own_addresses() -> None:
    world = World(rules=PERMISSIVE)
    world.put(make.imported(), make.endpoints("c2", "10.2.1.2"))
    assert [row.type for row in world.frontends] == ["Import"]
    assert world.reached() == {f"{make.DERIVED}:80/TCP/IPv4": ["c2/10.2.1.2:8080"]}
    world.put(make.derived(cluster_ips=("10.96.0.8",)))
    assert world.called() == {"10.96.0.8:80/TCP": make.DERIVED}
    world.delete(make.derived())
    assert world.called() == {"10.96.0.7:80/TCP": make.DERIVED}


def test_a_headless_import_has_backends_and_no_frontend() -> None:
    world = World()
    world.put(make.imported(type="Headless", ips=()), make.derived(headless=True, cluster_ips=()))
    world.put(make.endpoints("c2", make.endpoint("10.2.1.2", ports=(), hostname="a")))
    assert [(row.key.address, row.key.port, row.hostname) for row in world.backends] == [("10.2.1.2", 0, "a")]
    assert (world.frontends, world.plans) == ([], [])


def test_a_plan_without_backend_stays_so_that_calls_are_refused_at_once() -> None:
    world = World()
    world.put(make.imported(), make.derived())
    assert world.reached() == {f"{make.DERIVED}:80/TCP/IPv4": []}


def test_endpoints_may_come_before_their_service() -> None:
    world = World()
    world.put(make.endpoints("c2", "10.2.1.2")).settle()
    world.put(make.derived())
    assert world.reached() == {f"{make.DERIVED}:80/TCP/IPv4": ["c2/10.2.1.2:8080"]}


def test_everything_goes_when_the_rows_go() -> None:
    world = World()
    rows = (make.imported(), make.derived(), make.endpoints("c1", "10.1.1.2"), make.endpoints("c2", "10.2.1.2"))
    world.put(*rows).settle()
    world.delete(*rows)
    assert (world.frontends, world.backends, world.plans) == ([], [], [])


def test_only_ports_that_agree_in_name_and_protocol_are_backends() -> None:
    world = World()
    offered = (Port("http", 8080), Port("http", 8081, "UDP"), Port("admin", 9000))
    world.put(make.derived(), make.endpoints("c2", make.endpoint("10.2.1.2", ports=offered)))
    assert [(row.key.port, row.key.protocol) for row in world.backends] == [(8080, "TCP")]


def test_port_names_that_share_a_port_are_one_backend_of_two_names() -> None:
    world = World()
    world.put(make.derived(ports=(Port("a", 80), Port("b", 81))))
    world.put(make.endpoints("c2", make.endpoint("10.2.1.2", ports=(Port("b", 8080), Port("a", 8080)))))
    assert [row.port_names for row in world.backends] == [("a", "b")]
    assert list(world.reached().values()) == [["c2/10.2.1.2:8080"]] * 2


def test_session_affinity_of_an_import_is_enforced_whatever_its_derived_service_says() -> None:
    world = World()
    world.put(make.imported(affinity="ClientIP", affinity_timeout=42), make.derived())
    assert [(row.affinity, row.affinity_timeout) for row in world.plans] == [("ClientIP", 42)]


def test_a_service_without_affinity_has_no_timeout() -> None:
    world = World()
    world.put(make.derived(affinity_timeout=99))
    assert [(row.affinity, row.affinity_timeout) for row in world.plans] == [("None", 0)]


def test_each_family_has_its_own_plan() -> None:
    world = World()
    world.put(make.derived(cluster_ips=("10.96.0.7", "fd00::7")))
    world.put(make.endpoints("c2", "10.2.1.2"), make.endpoints("c1", "fd01::2"))
    assert world.reached() == {
        f"{make.DERIVED}:80/TCP/IPv4": ["c2/10.2.1.2:8080"],
        f"{make.DERIVED}:80/TCP/IPv6": ["c1/fd01::2:8080"],
    }


def test_what_is_not_ready_stays_a_backend_and_leaves_the_plan() -> None:
    world = World()
    away = make.endpoint("10.2.1.3", condition=Condition.NOT_READY)
    world.put(make.derived(), make.endpoints("c2", "10.2.1.2", away))
    assert [row.condition for row in world.backends] == [Condition.READY, Condition.NOT_READY]
    assert list(world.reached().values()) == [["c2/10.2.1.2:8080"]]
