"""Which routes count and which rule gets a request; hostile objects are refused, in bounded time."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from route_world import RouteWorld, grant, route

from isthmus.model.names import ServiceName
from isthmus.model.tables import GRANTS, PROXY_LISTENERS, XDS
from isthmus.proxy.attachment import MAX_MATCHES, Request, attached, by_callers, entries, matching, unresolved
from isthmus.proxy.ports import assign_ports

ECHO = ServiceName("demo/echo")
TO_ECHO = "parentRefs: [{group: '', kind: Service, name: echo, namespace: demo}]\n"
ALL = TO_ECHO + "rules: [{backendRefs: [{name: echo, port: 80}]}]"


def why_invalid(rules: str) -> str:
    return route(TO_ECHO + rules).invalid


@pytest.mark.parametrize(
    ("rules", "wrong"),
    [
        (
            "rules: [{matches: [{path: {type: RegularExpression, value: '(a)\\1'}}]}]",
            "spec.rules[0].matches[0].path.value: '(a)\\1' is no expression of RE2",
        ),
        ("rules: [{matches: [{path: {type: RegularExpression, value: '(?=a)'}}]}]", "no expression of RE2"),
        ("rules: [{matches: [{path: {value: relative}}]}]", "'relative' is no absolute path"),
        (
            "rules: [{backendRefs: [{name: a, port: 80, weight: 2147483648}]}]",
            "2147483648 is not between 0 and 1000000",
        ),
        ("rules: [{filters: [{type: ExtensionRef}]}]", "'ExtensionRef' is not supported"),
        ("rules: [{timeouts: {request: 5 seconds}}]", "'5 seconds' is no duration"),
        ("rules: [{retry: {attempts: 1000}}]", "1000 is not between 0 and 16"),
        ("rules: [" + "{}," * 17 + "]", "spec.rules: 17 rules, more than 16"),
        (
            "rules: [{filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: a b}]}}]}]",
            "'a b' and its value are no header",
        ),
    ],
)
def test_an_object_that_cannot_be_followed_names_its_field(rules: str, wrong: str) -> None:
    assert wrong in why_invalid(rules)


def test_the_older_route_counts_first_and_then_the_name() -> None:
    young = route(ALL, name="demo/a", created="2026-02-01T00:00:00Z")
    old, equal = route(ALL, name="demo/z"), route(ALL, name="demo/b")
    world = RouteWorld().service("demo/echo").routes(young, old, equal)
    routes, refused = attached(world.db.snapshot(), ECHO)
    assert [each.name for each in routes] == ["demo/b", "demo/z", "demo/a"]
    assert refused == []
    got = next(matching(entries(routes), Request("GET", "/x")))
    assert got.name == "HTTPRoute demo/b, rule 1"


def test_consumers_have_their_own_routes() -> None:
    own, other = route(ALL, name="demo/own"), route(ALL, name="web/other")
    world = RouteWorld().service("demo/echo").routes(own, other)
    routes, _ = attached(world.db.snapshot(), ECHO)
    assert by_callers(routes, ECHO) == {"": [own], "web": [other]}


def test_a_route_without_its_parent_or_port_is_refused_with_the_reason() -> None:
    other_port = TO_ECHO.replace("name: echo,", "name: echo, port: 81,") + "rules: [{}]"
    world = RouteWorld().routes(route(ALL))
    assert attached(world.db.snapshot(), ECHO)[1] == [(route(ALL), "its parent does not exist")]
    world.service("demo/echo").routes(route(other_port, name="demo/port"))
    assert [why for _, why in attached(world.db.snapshot(), ECHO)[1]] == ["its parent has no TCP port 81"]


def test_a_reference_across_namespaces_wants_a_grant() -> None:
    far = route(TO_ECHO + "rules: [{backendRefs: [{name: far, namespace: other, port: 80}]}]")
    world = RouteWorld().service("demo/echo").service("other/far").routes(far)
    [backend] = far.rules[0].backends
    assert unresolved(world.db.snapshot(), far, backend.to)[0] == "RefNotPermitted"
    world.put(GRANTS, grant("other", of="web"))
    assert unresolved(world.db.snapshot(), far, backend.to)[0] == "RefNotPermitted"
    world.put(GRANTS, grant("other", of="demo"))
    assert unresolved(world.db.snapshot(), far, backend.to) == ("", "")


def test_a_cluster_is_a_backend_where_it_is_one_of_the_clusterset_and_takes_no_port() -> None:
    member = route(TO_ECHO + "rules: [{backendRefs: [{group: isthmus.io, kind: Cluster, name: c2}]}]")
    other = route(TO_ECHO + "rules: [{backendRefs: [{group: isthmus.io, kind: Cluster, name: c9}]}]")
    world = RouteWorld().service("demo/echo").routes(member)
    for each, wanted in (
        (member, ("", "")),
        (other, ("BackendNotFound", "no cluster of the clusterset is called 'c9'")),
    ):
        [backend] = each.rules[0].backends
        assert unresolved(world.db.snapshot(), each, backend.to) == wanted
    assert "a Cluster takes no namespace and no port" in why_invalid(
        "rules: [{backendRefs: [{group: isthmus.io, kind: Cluster, name: c2, port: 80}]}]"
    )


def test_ten_thousand_routes_of_one_service_are_taken_up_to_a_bound() -> None:
    one = route(ALL)
    rows = [replace(one, name=ServiceName(f"demo/r{number:05}")) for number in range(10_000)]
    world = RouteWorld().service("demo/echo")
    world.routes(*rows)
    routes, refused = attached(world.db.snapshot(), ECHO)
    assert (len(routes), len(refused)) == (MAX_MATCHES, 10_000 - MAX_MATCHES)
    assert sum(len(row.body) for row in world.rows(XDS)) < 2_000_000


def test_a_service_without_a_route_has_neither_listener_nor_cluster() -> None:
    world = RouteWorld().service("demo/echo", "127.0.0.1:80").imported("demo/far", c1=["10.1.0.1:80"])
    assert world.rows(PROXY_LISTENERS) == world.rows(XDS) == []


def test_ports_of_listeners_stay_when_others_come_and_differ() -> None:
    some = [(ServiceName(f"demo/s{number}"), 80) for number in range(100)]
    given = assign_ports(some, 15_000, 100)
    assert len(set(given.values())) == 100
    assert assign_ports(reversed(some), 15_000, 100) == given
    assert len(assign_ports([*some, (ServiceName("demo/t"), 80)], 15_000, 100)) == 100
