"""Which routes count and which rule gets a request; hostile objects are refused, in bounded time."""

from __future__ import annotations

import pytest
from meshes.route_world import RouteWorld, grant, route
from msgspec.structs import replace

from isthmus.loadbalancer.references import unresolved
from isthmus.model.names import ServiceName
from isthmus.model.services import Port, Service
from isthmus.model.tables import GRANTS, PROXY_LISTENERS, ROUTE_PARTS, SERVICES, XDS
from isthmus.proxy.attachment import (
    MAX_MATCHES,
    MAX_NAMESPACES,
    MAX_PORTS,
    Request,
    attached,
    by_callers,
    entries,
    matching,
)
from isthmus.proxy.ports import Range, assign_ports
from isthmus.sources.routes import MAX_BYTES, MAX_SIZE

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
            "spec.rules[0].matches[0].path.value: '(a)\\\\1' is no expression of RE2",
        ),
        ("rules: [{matches: [{path: {type: RegularExpression, value: '(?=a)'}}]}]", "no expression of RE2"),
        ("rules: [{matches: [{path: {value: relative}}]}]", "'relative' is not an absolute path"),
        (
            "rules: [{backendRefs: [{name: a, port: 80, weight: 2147483648}]}]",
            "2147483648 is not a whole number from 0 to 1000000",
        ),
        ("rules: [{filters: [{type: ExtensionRef}]}]", "'ExtensionRef' is not supported"),
        ("rules: [{timeouts: {request: 5 seconds}}]", "'5 seconds' is not a duration"),
        ("rules: [{retry: {attempts: 1000}}]", "1000 is not a whole number from 0 to 16"),
        ("rules: [" + "{}," * 17 + "]", "spec.rules: 17 rules, more than 16"),
        (
            "rules: [{filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: a b}]}}]}]",
            "requestHeaderModifier.name: 'a b' is not the name of a header",
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
    assert attached(world.db.snapshot(), ECHO)[1] == [(route(ALL), "NoMatchingParent", "its parent does not exist")]
    world.service("demo/echo").routes(route(other_port, name="demo/port"))
    assert [why for _, _, why in attached(world.db.snapshot(), ECHO)[1]] == ["its parent has no TCP port 81"]


def service(name: str, *ports: Port) -> Service:
    return Service(name=ServiceName(name), source="kubernetes", ports=ports, cluster_ips=("10.96.7.7",))


def why_not(parent: str, row: Service, *, namespace: str) -> list[tuple[str, str]]:
    """Why a route of a namespace has no effect for a Service, as reason and message."""
    text = f"parentRefs: [{{group: '', kind: Service, {parent}}}]\nrules: [{{}}]"
    world = RouteWorld().put(SERVICES, row).routes(route(text, name=f"{namespace}/route"))
    return [(reason, message) for _, reason, message in attached(world.db.snapshot(), row.name).refused]


def test_ports_that_nothing_declares_as_http_have_no_routes() -> None:
    row = service("demo/db", Port("tcp", 5432), Port("", 80), Port("https", 443))
    [(reason, message)] = why_not("name: db", row, namespace="demo")
    assert reason == "UnsupportedProtocol"
    assert message == (
        "ports 5432, 80, 443 passed on unchanged, for want of a declaration as HTTP: name the Service's port http, "
        "http2 or grpc (or http-…), or set its appProtocol"
    )
    mixed = service("demo/db", Port("tcp", 5432), Port("http", 80))
    assert why_not("name: db", mixed, namespace="demo") == []
    assert [reason for reason, _ in why_not("name: db, port: 5432", mixed, namespace="demo")] == ["UnsupportedProtocol"]
    world = RouteWorld().put(SERVICES, mixed).routes(route(ALL.replace("name: echo", "name: db")))
    assert [row.listeners[0].ports for row in world.rows(PROXY_LISTENERS)] == [(80,)]


@pytest.mark.parametrize("name", ["default/kubernetes", "kube-system/kube-dns"])
def test_services_that_every_namespace_needs_take_routes_of_their_own_namespace_alone(name: str) -> None:
    namespace, _, short = name.partition("/")
    row = service(name, Port("http", 80))
    parent = f"name: {short}, namespace: {namespace}"
    assert [reason for reason, _ in why_not(parent, row, namespace="demo")] == ["NotAllowedByParent"]
    assert why_not(parent, row, namespace=namespace) == []


def test_of_the_ports_of_a_service_so_many_have_routes() -> None:
    ports = [Port(f"http-{number}", number) for number in range(1, MAX_PORTS + 2)]
    row = service("demo/web", *ports)
    assert why_not("name: web", row, namespace="demo") == []
    assert why_not(f"name: web, port: {MAX_PORTS + 1}", row, namespace="demo") == [
        ("TooManyPorts", f"its parent has {MAX_PORTS} ports of HTTP before port {MAX_PORTS + 1}")
    ]


def edits(count: int, *, matches: int = 1) -> str:
    """A rule that sets headers with long values, for some matches."""
    headers = ", ".join(f"{{name: x-{number}, value: {'v' * 4_000}}}" for number in range(count))
    paths = ", ".join(f"{{path: {{value: /{number}}}}}" for number in range(matches))
    modifier = f"{{type: RequestHeaderModifier, requestHeaderModifier: {{set: [{headers}]}}}}"
    return f"{{matches: [{paths}], filters: [{modifier}]}}"


def test_a_route_that_is_too_large_is_refused_before_it_is_read() -> None:
    rules = ", ".join([edits(16)] * 3)
    assert why_invalid(f"rules: [{rules}]").startswith("spec.rules: ")
    assert why_invalid(f"rules: [{rules}]").endswith(f" bytes, more than {MAX_BYTES}")


def test_a_route_of_which_envoy_would_have_too_much_is_refused() -> None:
    """Each match has all that its rule does."""
    assert why_invalid(f"rules: [{edits(16, matches=8)}]") == ""
    found = why_invalid(f"rules: [{edits(16, matches=64)}]")
    assert found.startswith("spec.rules: about ")
    assert found.endswith(f" bytes of Envoy's configuration, more than {MAX_SIZE}")


@pytest.mark.parametrize(
    "rules", [edits(8, matches=8), "{backendRefs: [{name: echo, port: 80}]}", f"{edits(1)}, {edits(2, matches=3)}"]
)
def test_the_size_of_a_route_is_about_what_envoy_gets(rules: str) -> None:
    row = route(TO_ECHO + f"rules: [{rules}]")
    world = RouteWorld().service("demo/echo").routes(row)
    [made] = [len(each.body) for each in world.rows(XDS) if each.type == "routes"]
    assert 0.5 * made < row.size < 2 * made


def test_a_rule_that_cannot_be_decoded_is_named() -> None:
    assert why_invalid("rules: [{backendRefs: [{name: 7}]}]") == (
        "spec.rules: Expected `str`, got `int` - at `$[0].backendRefs[0].name`"
    )


def test_a_reference_across_namespaces_wants_a_grant() -> None:
    far = route(TO_ECHO + "rules: [{backendRefs: [{name: far, namespace: other, port: 80}]}]")
    world = RouteWorld().service("demo/echo").service("other/far").routes(far)
    [backend] = far.rules[0].backends
    assert unresolved(world.db.snapshot(), far, backend.to)[0] == "RefNotPermitted"
    world.put(GRANTS, grant("other", of="web"))
    assert unresolved(world.db.snapshot(), far, backend.to)[0] == "RefNotPermitted"
    world.put(GRANTS, grant("other", of="demo"))
    assert unresolved(world.db.snapshot(), far, backend.to) == ("", "")


def test_a_reference_across_namespaces_counts_as_long_as_its_grant() -> None:
    row = route(TO_ECHO + "rules: [{backendRefs: [{name: far, namespace: other, port: 80}]}]")
    world = RouteWorld().service("demo/echo").service("other/far").routes(row)

    def targets() -> list[str]:
        return [each.service for parts in world.rows(ROUTE_PARTS) for each in parts.targets]

    assert targets() == []
    world.put(GRANTS, grant("other", of="demo"))
    assert targets() == ["other/far"]
    world.delete(GRANTS, grant("other", of="demo"))
    assert targets() == []


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


def test_so_many_other_namespaces_have_routes_for_a_service_beside_its_own() -> None:
    consumers = [route(ALL, name=f"n{number:02}/route") for number in range(MAX_NAMESPACES + 1)]
    world = RouteWorld().service("demo/echo").routes(route(ALL, name="demo/own"), *consumers)
    routes, refused = attached(world.db.snapshot(), ECHO)
    assert {each.namespace for each in routes} == {"demo", *(each.namespace for each in consumers[:-1])}
    [(last, reason, message)] = refused
    assert (last.name, reason) == (consumers[-1].name, "TooManyRoutes")
    assert message == f"routes of {MAX_NAMESPACES} other namespaces are taken already"


def test_a_service_without_a_route_has_neither_listener_nor_cluster() -> None:
    world = RouteWorld().service("demo/echo", "127.0.0.1:80").imported("demo/far", c1=["10.1.0.1:80"])
    assert world.rows(PROXY_LISTENERS) == world.rows(XDS) == []


def test_ports_of_listeners_stay_when_others_come_and_differ() -> None:
    ports = Range(15_000, 100)
    some = [(ServiceName(f"demo/s{number}"), 80) for number in range(50)]
    given = assign_ports(some, ports)
    more = assign_ports([(ServiceName(f"demo/t{number}"), 80) for number in range(50)], ports, reserved=given.values())
    assert sorted([*given.values(), *more.values()]) == list(range(15_000, 15_100))
    assert assign_ports(some, ports) == given
