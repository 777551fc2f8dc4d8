"""What a node's Envoy has for routes, shared among namespaces: ports, and configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from meshes.route_world import CREATED, NODE, RouteWorld, route
from msgspec.structs import replace

from isthmus.model.names import ServiceName
from isthmus.model.redirects import ProxyRedirect
from isthmus.model.routes import Route
from isthmus.model.services import Port, Service
from isthmus.model.tables import PROXY_LISTENERS, ROUTE_PARTS, ROUTES, SERVICES, XDS
from isthmus.proxy import explain, listener_shares, refusals
from isthmus.proxy.attachment import MAX_PORTS

LATER = "2026-02-01T00:00:00Z"


def service(name: str, ports: int) -> Service:
    return Service(
        name=ServiceName(name),
        source="kubernetes",
        ports=tuple(Port(f"http-{number}", number) for number in range(1, ports + 1)),
        cluster_ips=(f"10.97.{len(name)}.{ports % 250 + 1}",),
        created=CREATED,
    )


def producer(name: str, *, created: str = CREATED) -> Route:
    """A route for every port of a Service, in its namespace."""
    short = name.partition("/")[2]
    spec = f"parentRefs: [{{group: '', kind: Service, name: {short}}}]\nrules: [{{}}]"
    return route(spec, name=name, created=created)


def add(world: RouteWorld, **ports: int) -> RouteWorld:
    """A Service with so many ports and a route in each namespace, one namespace after the other."""
    for namespace, count in ports.items():
        world.put(SERVICES, service(f"{namespace}/web", count)).routes(producer(f"{namespace}/web", created=LATER))
    return world


def listening(world: RouteWorld) -> Mapping[tuple[str, int], int]:
    """The port of Envoy of each Service's port."""
    rows: list[ProxyRedirect] = world.rows(PROXY_LISTENERS)
    return {(row.service, number): each.port for row in rows for each in row.listeners for number in each.ports}


def by_namespace(world: RouteWorld) -> Counter[str]:
    return Counter(service.partition("/")[0] for service, _ in listening(world))


def test_a_namespace_that_wants_every_port_takes_none_that_another_has() -> None:
    world = add(RouteWorld(ports=100), demo=5)
    before = listening(world)
    add(world, aaa=200)
    assert before.items() <= listening(world).items()
    assert by_namespace(world) == {"demo": 5, "aaa": 76}


def test_a_namespace_that_comes_after_one_that_wants_every_port_finds_some_and_takes_none() -> None:
    world = add(RouteWorld(ports=100), aaa=200)
    before = listening(world)
    assert by_namespace(world) == {"aaa": 80}
    add(world, demo=5, app=3)
    assert before.items() <= listening(world).items()
    assert by_namespace(world) == {"aaa": 80, "demo": 5, "app": 3}


def test_routes_for_another_namespaces_service_are_charged_to_the_namespace_that_they_are_in() -> None:
    spec = "parentRefs: [{group: '', kind: Service, name: web, namespace: demo}]\nrules: [{}]"
    world = RouteWorld(ports=100).put(SERVICES, service("demo/web", 200)).routes(route(spec, name="aaa/all"))
    assert [(row.callers, len(row.listeners)) for row in world.rows(PROXY_LISTENERS)] == [("aaa", 80)]
    add(world, app=5)
    world.routes(producer("demo/web", created=LATER))
    found = {row.callers or row.service: len(row.listeners) for row in world.rows(PROXY_LISTENERS)}
    assert found == {"aaa": 80, "app/web": 5, "demo/web": 12}


def test_a_port_without_a_listener_is_on_the_object_and_in_explain_and_passes_the_route_by() -> None:
    world = add(RouteWorld(ports=100), aaa=90)
    why = "namespace aaa has its share of the 100 ports of the node's Envoy, 80"
    report = refusals.compute(world.db.snapshot(), NODE)
    assert report is not None
    [refusal] = report.routes
    ports = "81, 82, 83, 84, 85, 86, 87, 88, …"
    assert (refusal.name, refusal.reason, refusal.message) == ("aaa/web", "NoPortLeft", f"port {ports}: {why}")
    [said] = explain.refused(world.db.snapshot(), ServiceName("aaa/web"))
    assert said == f"HTTPRoute aaa/web has no effect for port {ports} on this node: {why}"
    assert not [row for row in world.rows(XDS) if row.name.endswith(":81")]


def test_room_that_a_namespace_leaves_goes_to_who_waits_for_it() -> None:
    world = add(RouteWorld(ports=100), aaa=200, demo=40)
    assert by_namespace(world) == {"aaa": 80, "demo": 16}
    world.delete(ROUTES, producer("aaa/web"))
    assert by_namespace(world) == {"demo": 40}


def test_a_listener_keeps_its_port_whoever_comes_and_goes() -> None:
    world = add(RouteWorld(ports=100), demo=20, app=20)
    before = {key: port for key, port in listening(world).items() if key[0] == "demo/web"}
    world.delete(ROUTES, producer("app/web"))
    add(world, bbb=30, ccc=30)
    after = listening(world)
    assert {key: after[key] for key in before} == before
    assert len(set(after.values())) == len(after)


def test_of_a_service_with_thousands_of_ports_so_many_have_routes() -> None:
    world = add(RouteWorld(), aaa=4_000)
    assert len(listening(world)) == MAX_PORTS


def test_nothing_is_given_out_until_all_routes_are_known_or_the_first_to_be_listed_would_have_everything() -> None:
    world = RouteWorld(ports=100)
    listed = world.db.initializer(ROUTES, "kubernetes")
    add(world, aaa=200)
    assert listening(world) == {}
    world.put(SERVICES, service("demo/web", 40)).put(ROUTES, producer("demo/web", created=LATER))
    with world.db.write() as txn:
        listed.complete(txn)
    world.derive()
    assert by_namespace(world) == {"aaa": 48, "demo": 40}


def test_the_configuration_that_routes_of_one_namespace_come_to_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_shares, "MAX_SIZE", 100_000)
    world = RouteWorld().put(SERVICES, service("demo/a", 1), service("demo/b", 1), service("app/web", 1))
    world.routes(replace(producer("demo/a"), size=60_000), replace(producer("demo/b", created=LATER), size=60_000))
    world.routes(replace(producer("app/web"), size=60_000))
    assert by_namespace(world) == {"demo": 1, "app": 1}
    assert listening(world).keys() == {("demo/a", 1), ("app/web", 1)}
    [left] = [each for row in world.rows(PROXY_LISTENERS) for each in row.left_out]
    assert left.ports == (1,)
    assert left.why == "other routes of namespace demo come to 0 MiB of configuration, its share"
    world.routes(replace(producer("demo/a"), size=30_000))
    assert listening(world).keys() == {("demo/a", 1), ("demo/b", 1), ("app/web", 1)}


def test_an_older_route_takes_no_configuration_from_a_listener_that_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_shares, "MAX_SIZE", 100_000)
    world = RouteWorld().put(SERVICES, service("demo/a", 1), service("demo/b", 1))
    world.routes(replace(producer("demo/b", created=LATER), size=60_000))
    world.routes(replace(producer("demo/a"), size=60_000))
    assert listening(world).keys() == {("demo/b", 1)}


def test_routes_of_a_port_that_loses_its_listener_are_encoded_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_shares, "MAX_SIZE", 100_000)
    world = RouteWorld().put(SERVICES, service("demo/a", 1), service("demo/b", 1))
    older, later = producer("demo/a"), producer("demo/b", created=LATER)
    world.routes(*(replace(each, size=40_000) for each in (older, later)))
    assert {row.route for row in world.rows(ROUTE_PARTS)} == {older.key, later.key}
    world.routes(replace(older, size=80_000))
    assert listening(world).keys() == {("demo/a", 1)}
    assert {row.route for row in world.rows(ROUTE_PARTS)} == {older.key}
