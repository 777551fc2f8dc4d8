"""Which route and rule get a request, and where it goes: as rows, and as the command prints it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from meshes.route_world import C1, RouteWorld, route
from rows.admin_world import serving

from isthmus.admin.protocol import ProcessStatus
from isthmus.cli import root
from isthmus.model.names import ServiceName
from isthmus.model.services import Port, Service
from isthmus.model.tables import PROXY_LISTENERS, SERVICES, XDS_SERVED
from isthmus.model.xds import ServedListener
from isthmus.proxy.attachment import Request
from isthmus.proxy.explain import BadRequest, RequestExplanation, explain, parse, refused

ECHO = ServiceName("demo/echo")
TO_ECHO = "parentRefs: [{group: '', kind: Service, name: echo, namespace: demo}]\n"
RULES = (
    TO_ECHO
    + """
rules:
- backendRefs: [{name: echo, port: 80}]
- matches: [{path: {value: /v2}}]
  backendRefs: [{name: v2, port: 80, weight: 3}, {name: none, port: 80, weight: 1}]
- matches: [{path: {value: /v2}, headers: [{name: X-Who, value: me}]}]
  filters: [{type: RequestMirror, requestMirror: {backendRef: {name: v2, port: 80}, percent: 10}}]
  backendRefs: [{group: multicluster.x-k8s.io, kind: ServiceImport, name: far, port: 80}]
- matches: [{path: {type: Exact, value: /old}}]
  filters: [{type: RequestRedirect, requestRedirect: {statusCode: 301, hostname: new.example}}]
- matches: [{path: {type: Exact, value: /none}}]
"""
)
GRPC = TO_ECHO + "rules: [{matches: [{method: {service: pkg.Echo}}], backendRefs: [{name: v2, port: 80}]}]"


@pytest.fixture
def world() -> RouteWorld:
    found = RouteWorld().service("demo/echo", "10.1.0.1:80").service("demo/v2", "10.1.0.2:80")
    found.imported("demo/far", c2=["10.2.0.1:80", "10.2.0.2:80"], c1=["10.1.0.3:80"])
    return found.routes(route(RULES), route(GRPC, name="demo/grpc", kind="GRPCRoute"))


def asked(world: RouteWorld, text: str, *headers: str) -> RequestExplanation:
    request, port = parse(text, headers)
    [found] = explain(world.db.snapshot(), ECHO, request, port=port)
    return found


@pytest.mark.parametrize(
    ("text", "headers", "request_", "port"),
    [
        ("GET /v2/x", (), Request("GET", "/v2/x"), 0),
        ("get /x?q=1&q=2&r", ("X-A: b", "x-a:c"), Request("GET", "/x", {"x-a": "b,c"}, {"q": "1", "r": ""}), 0),
        ("POST echo:8080/x", (), Request("POST", "/x", {"host": "echo:8080"}), 8080),
        ("POST http://echo", (), Request("POST", "/", {"host": "echo"}), 0),
        ("GRPC pkg.Echo/Get", (), Request("POST", "/pkg.Echo/Get", {"content-type": "application/grpc"}), 0),
    ],
)
def test_a_request_is_read_from_a_text(text: str, headers: tuple[str, ...], request_: Request, port: int) -> None:
    assert parse(text, headers) == (request_, port)


@pytest.mark.parametrize(
    ("text", "header", "why"),
    [
        ("/v2", "a: b", "'/v2' is no request"),
        ("GET", "a: b", "'GET' is no request"),
        ("GET /a b", "a: b", "'GET /a b' is no request"),
        ("GRPC Echo", "a: b", "'Echo' is no method of gRPC"),
        ("GET echo:http/x", "a: b", "'echo:http/x': "),
        ("GET /x", "a", "'a' is no header"),
    ],
)
def test_what_is_no_request_is_refused_with_the_reason(text: str, header: str, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        parse(text, [header])


@pytest.mark.parametrize(
    ("text", "headers", "rule", "reason"),
    [
        ("GET /", (), "HTTPRoute demo/route, rule 1", "no other matches"),
        ("GET /v2/x", (), "HTTPRoute demo/route, rule 2", "its path is longer"),
        ("GET /v2/x", ("x-who: me",), "HTTPRoute demo/route, rule 3", "it asks for more headers"),
        ("GET /old", (), "HTTPRoute demo/route, rule 4", "its path is of a more specific type"),
        ("GRPC pkg.Echo/Get", (), "GRPCRoute demo/grpc, rule 1", "its path is longer"),
        ("POST /pkg.Echo/Get", (), "HTTPRoute demo/route, rule 1", "no other matches"),
    ],
)
def test_the_rule_that_gets_a_request_is_named_with_what_decided(
    world: RouteWorld, text: str, headers: tuple[str, ...], rule: str, reason: str
) -> None:
    found = asked(world, text, *headers)
    assert (found.rule, found.reason, found.callers, found.port) == (rule, reason, "", 80)


def test_backends_have_their_parts_and_clusters_and_what_is_wrong(world: RouteWorld) -> None:
    good, bad = asked(world, "GET /v2").backends
    assert (good.to, good.weight, good.part, good.clusters) == ("Service demo/v2:80", 3, 0.75, {C1: 1.0})
    assert (bad.part, bad.clusters) == (0.25, {})
    assert bad.problem == "500: Service demo/none with TCP port 80 does not exist"
    found = asked(world, "GET /v2", "x-who: me")
    assert found.mirrors == ("a copy of 10% goes to Service demo/v2:80",)
    assert {name: round(part, 3) for name, part in found.backends[0].clusters.items()} == {
        "c1": 0.333,
        "c2": 0.667,
    }
    world.service("demo/idle").routes(
        route(
            TO_ECHO + "rules: [{matches: [{path: {value: /idle}}], backendRefs: [{name: idle, port: 80}]}]",
            name="demo/i",
        )
    )
    assert asked(world, "GET /idle").backends[0].problem == "503: it has no backend"


def test_what_envoy_answers_by_itself_is_shown(world: RouteWorld) -> None:
    assert asked(world, "GET /old").answer == "301: a redirect"
    assert asked(world, "GET /none").answer == "500: the rule has no backend with a weight"
    world.routes(route(RULES.replace("- backendRefs: [{name: echo, port: 80}]\n", "", 1)))
    found = asked(world, "GET /")
    assert (found.rule, found.answer) == ("", "404: no rule matches")


def test_callers_with_routes_of_their_own_and_others_are_explained_separately(world: RouteWorld) -> None:
    rows = RouteWorld().service("demo/echo").routes(route(TO_ECHO + "rules: [{}]", name="web/own"))
    others, web = explain(rows.db.snapshot(), ECHO, Request("GET", "/"))
    assert (others.callers, others.rule, others.answer) == ("", "", "")
    assert (web.callers, web.rule) == ("web", "HTTPRoute web/own, rule 1")


def test_a_section_name_limits_a_route_to_the_port_of_that_name() -> None:
    ports = (Port("http", 80), Port("http-admin", 81), Port("dns", 53, "UDP"))
    row = Service(name=ECHO, source="kubernetes", ports=ports, cluster_ips=("10.96.0.1",))
    text = TO_ECHO.replace("name: echo,", "name: echo, sectionName: http-admin,") + "rules: [{}]"
    world = RouteWorld().put(SERVICES, row).routes(route(text))
    assert [each.port for each in explain(world.db.snapshot(), ECHO, Request("GET", "/"))] == [81]
    listeners = [each.ports for row in world.rows(PROXY_LISTENERS) for each in row.listeners]
    assert listeners == [(81,)]
    world.routes(route(text.replace("http-admin", "dns")))
    assert explain(world.db.snapshot(), ECHO, Request("GET", "/")) == []
    assert refused(world.db.snapshot(), ECHO) == [
        "HTTPRoute demo/route has no effect: its parent has no TCP port named 'dns'"
    ]


async def ask(world: RouteWorld, folder: Path, *arguments: str) -> tuple[int, str, str]:
    async with serving(folder / "agent.sock", db=world.db, status=ProcessStatus()) as process:
        command = ["explain", *arguments, "--socket", str(process.socket)]
        done = await asyncio.to_thread(CliRunner().invoke, root, command)
    return done.exit_code, done.stdout, done.stderr


async def test_the_command_prints_rule_and_backends(world: RouteWorld, tmp_path: Path) -> None:
    world.put(XDS_SERVED, ServedListener("demo/echo:80"))
    world.routes(route(TO_ECHO + "rules: [{filters: [{type: ExtensionRef}]}]", name="demo/bad"))
    code, printed, _ = await ask(world, tmp_path, "demo/echo", "--request", "GET /v2/x")
    assert (code, printed.splitlines()) == (
        0,
        [
            "demo/echo: GET /v2/x",
            "",
            "  demo/echo port 80",
            "    → HTTPRoute demo/route, rule 2 (PathPrefix /v2): its path is longer",
            "    · matched later: HTTPRoute demo/route, rule 1 (PathPrefix /)",
            "",
            "BACKEND                WEIGHT   PART   CLUSTERS",
            "Service demo/v2:80     3        75%    c1 100%",
            "Service demo/none:80   1        25%    500: Service demo/none with TCP port 80 does not exist",
            "",
            "  HTTPRoute demo/bad has no effect: spec.rules[0].filters[0].type: 'ExtensionRef' is not supported, "
            "or its field is missing",
        ],
    )


async def test_the_command_gives_the_same_as_json(world: RouteWorld, tmp_path: Path) -> None:
    code, printed, _ = await ask(
        world, tmp_path, "echo", "-n", "demo", "-o", "json", "--request", "GET /v2", "-H", "x-who: me"
    )
    found = json.loads(printed)
    assert (code, found["refused"]) == (0, [])
    assert found["request"] == {"method": "GET", "path": "/v2", "headers": {"x-who": "me"}, "query": {}}
    [port] = found["ports"]
    assert (port["rule"], port["served"]) == ("HTTPRoute demo/route, rule 3", False)
    assert port["backends"][0]["to"] == "ServiceImport demo/far:80"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["demo/echo", "--request", "/v2"], 1, "'/v2' is no request"),
        (["demo/none", "--request", "GET /"], 1, "no service or import is called demo/none"),
        (["demo/echo", "-H", "a: b"], 2, "--header wants --request"),
        (["demo/echo", "--without", "c2", "--request", "GET /"], 2, "--request and --without exclude each other"),
    ],
)
async def test_what_cannot_be_explained_ends_with_the_reason(
    world: RouteWorld, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    found, _, error = await ask(world, tmp_path, *arguments)
    assert found == code
    assert message in error


async def test_a_service_without_a_route_does_not_go_through_envoy(world: RouteWorld, tmp_path: Path) -> None:
    code, printed, _ = await ask(world, tmp_path, "demo/v2", "--request", "GET /")
    assert code == 0
    assert "no route is for it: calls do not go through Envoy" in printed
