"""Routes of the Gateway API, from objects to what the real Envoy does with a request."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from meshes.route_expressions import TAKEN
from meshes.route_world import grant, route
from meshes.routed_envoy import TO_ECHO, Both, routed_envoy
from msgspec.structs import replace

from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.routes import Route, with_rules
from isthmus.model.tables import GRANTS, PLANS, ROUTES, XDS_SERVED
from isthmus.proxy import listeners
from isthmus.proxy.explain import explain, parse
from isthmus.proxy.routing import cluster_name

pytestmark = pytest.mark.needs("envoy")

CALLS = 10_000
WITHIN = 0.015
"""Five standard deviations of so many calls at 10 %."""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Both]:
    async with routed_envoy(tmp_path) as made:
        yield made


@pytest.mark.slow
async def test_a_split_is_as_its_weights(world: Both) -> None:
    split = "rules: [{backendRefs: [{name: echo, port: 80, weight: 90}, {name: v2, port: 80, weight: 10}]}]"
    world.rows.routes(route(TO_ECHO + split))
    port = await world.answers("v1")
    seen = Counter([(await world.envoy.ask(port)).headers["x-backend"] for _ in range(CALLS)])
    assert abs(seen["v2"] / CALLS - 0.1) <= WITHIN, seen
    assert seen.total() == CALLS


async def test_the_most_specific_match_gets_the_request(world: Both) -> None:
    for name in ("exact", "get", "header", "query", "regex"):
        await world.serve(f"demo/{name}", name)
    rules = """
rules:
- backendRefs: [{name: echo, port: 80}]
- matches: [{path: {value: /v2}}]
  backendRefs: [{name: v2, port: 80}]
- matches: [{path: {value: /v2}, method: POST}]
  backendRefs: [{name: get, port: 80}]
- matches: [{path: {value: /v2}, headers: [{name: X-Who, value: me}]}]
  backendRefs: [{name: header, port: 80}]
- matches: [{path: {value: /v2}, queryParams: [{name: q, value: "1"}]}]
  backendRefs: [{name: query, port: 80}]
- matches: [{path: {type: Exact, value: /v2/x}}]
  backendRefs: [{name: exact, port: 80}]
- matches: [{path: {type: RegularExpression, value: "/r[0-9]+"}}]
  backendRefs: [{name: regex, port: 80}]
"""
    world.rows.routes(route(TO_ECHO + rules))
    port = await world.answers("v2", "/v2")

    async def backend(method: str, path: str, **headers: str) -> str:
        """Of Envoy's answer, which is the one that is explained."""
        got = (await world.envoy.ask(port, method, path, **headers)).headers["x-backend"]
        request, _ = parse(f"{method} {path}", [f"{name}: {value}" for name, value in headers.items()])
        [explained] = explain(world.rows.db.snapshot(), ServiceName("demo/echo"), request)
        assert [each.to for each in explained.backends] == [f"Service demo/{'echo' if got == 'v1' else got}:80"]
        return got

    assert await backend("GET", "/") == "v1"
    assert await backend("GET", "/v2") == "v2"
    assert await backend("GET", "/v2/") == "v2"
    assert await backend("GET", "/v2x") == "v1"
    assert await backend("POST", "/v2/y") == "get"
    assert await backend("GET", "/v2", **{"x-who": "me"}) == "header"
    assert await backend("POST", "/v2", **{"x-who": "me"}) == "get"
    assert await backend("GET", "/v2?q=1") == "query"
    assert await backend("GET", "/v2/x?q=1") == "exact"
    assert await backend("GET", "/r17") == "regex"
    assert await backend("GET", "/r17x") == "v1"


async def test_headers_paths_and_redirects_are_edited(world: Both) -> None:
    seen: list[Any] = []
    await world.serve("demo/edited", "edited", seen=seen)
    rules = """
rules:
- matches: [{path: {value: /edit}}]
  filters:
  - type: RequestHeaderModifier
    requestHeaderModifier: {set: [{name: X-Set, value: "100%"}], add: [{name: X-Add, value: b}], remove: [x-gone]}
  - type: ResponseHeaderModifier
    responseHeaderModifier: {set: [{name: x-answer, value: a}], remove: [x-secret]}
  - type: URLRewrite
    urlRewrite: {hostname: other.example, path: {type: ReplacePrefixMatch, replacePrefixMatch: /}}
  backendRefs: [{name: edited, port: 80}]
- matches: [{path: {value: /full}}]
  filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplaceFullPath, replaceFullPath: /one/two}}}]
  backendRefs: [{name: edited, port: 80}]
- matches: [{path: {value: /old}}]
  filters: [{type: RequestRedirect, requestRedirect: {scheme: https, hostname: new.example, port: 8443, statusCode: 301,
             path: {type: ReplacePrefixMatch, replacePrefixMatch: /new}}}]
- backendRefs: [{name: echo, port: 80}]
"""
    world.rows.routes(route(TO_ECHO + rules))
    port = await world.answers("v1")
    answer = await world.envoy.ask(port, "GET", "/edit/x?y=1", **{"x-set": "0", "x-add": "a", "x-gone": "1"})
    [request] = seen
    assert (request.path_qs, request.host) == ("/x?y=1", "other.example")
    assert request.headers.getall("x-set") == ["100%"]
    assert request.headers.getall("x-add") == ["a", "b"]
    assert "x-gone" not in request.headers
    assert not [name for name in request.headers if name.startswith("x-envoy")]
    assert (answer.headers["x-answer"], answer.headers.get("x-secret")) == ("a", None)
    assert "Python" in answer.headers["server"]
    await world.envoy.ask(port, "GET", "/full/path?y=1")
    assert seen[-1].path_qs == "/one/two?y=1"
    moved = await world.envoy.ask(port, "GET", "/old/x")
    assert (moved.status, moved.headers["location"]) == (301, "https://new.example:8443/new/x")


async def test_what_a_reference_does_not_reach_is_answered_with_500_and_no_match_with_404(world: Both) -> None:
    await world.serve("other/far", "far")
    rules = """
rules:
- matches: [{path: {value: /none}}]
  backendRefs: [{name: nothing, port: 80}]
- matches: [{path: {value: /empty}}]
  backendRefs: [{name: idle, port: 80}]
- matches: [{path: {value: /far}}]
  backendRefs: [{name: far, namespace: other, port: 80}]
- matches: [{path: {value: /near}}]
  backendRefs: [{name: echo, port: 80}]
- matches: [{path: {value: /zero}}]
  backendRefs: [{name: echo, port: 80, weight: 0}]
- matches: [{path: {value: /edited}}]
  filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /new}}}]
  backendRefs: [{name: echo, port: 80, weight: 0}]
"""
    world.rows.service("demo/idle").routes(route(TO_ECHO + rules))
    port = await world.answers("v1", "/near")
    statuses = {
        path: (await world.envoy.ask(port, "GET", path)).status
        for path in ("/none", "/empty", "/far", "/zero", "/edited", "/")
    }
    assert statuses == {"/none": 500, "/empty": 503, "/far": 500, "/zero": 500, "/edited": 500, "/": 404}
    world.rows.put(GRANTS, grant("other", of="demo"))
    await world.answers("far", "/far")
    await world.serve("demo/nothing", "something")
    await world.answers("something", "/none")


async def test_retries_mirrors_and_timeouts(world: Both) -> None:
    mirrored: list[Any] = []
    failing = await world.envoy.backend("bad", status=503)
    good = await world.envoy.backend("good")
    world.rows.service("demo/flaky", f"127.0.0.1:{failing}", f"127.0.0.1:{good}")
    await world.serve("demo/mirror", "mirror", seen=mirrored)
    rules = """
rules:
- matches: [{path: {value: /retry}}]
  retry: {codes: [503], attempts: 3}
  backendRefs: [{name: flaky, port: 80}]
- filters: [{type: RequestMirror, requestMirror: {backendRef: {name: mirror, port: 80}}}]
  timeouts: {request: 10s, backendRequest: 5s}
  backendRefs: [{name: echo, port: 80}]
"""
    world.rows.routes(route(TO_ECHO + rules))
    port = await world.answers("v1")
    assert {(await world.envoy.ask(port, "GET", "/retry")).status for _ in range(10)} == {200}
    async with world.envoy.session.get(f"http://{world.envoy.host}:{port}/copied") as answer:
        assert await answer.text() == "v1"
    while not any(request.path == "/copied" for request in mirrored):
        await world.envoy.get(port, "/more")


async def test_mirrors_that_name_each_other_make_one_copy_each(world: Both) -> None:
    """A copy goes to backends, not to a Service: it meets no route."""
    seen: dict[str, list[Any]] = {"one": [], "two": []}
    for name, requests in seen.items():
        await world.serve(f"demo/{name}", name, seen=requests)
    copies = "filters: [" + ", ".join(
        f"{{type: RequestMirror, requestMirror: {{backendRef: {{name: {name}, port: 80}}}}}}" for name in seen
    )
    for name in seen:
        to = f"parentRefs: [{{group: '', kind: Service, name: {name}}}]\n"
        world.rows.routes(
            route(f"{to}rules: [{{{copies}], backendRefs: [{{name: {name}, port: 80}}]}}]", name=f"demo/{name}")
        )
    port = await world.answers("one", service="demo/one")
    await world.answers("two", service="demo/two")
    assert (await world.envoy.ask(port, "GET", "/once")).status == 200

    def counts() -> tuple[int, ...]:
        return tuple([request.path for request in requests].count("/once") for requests in seen.values())

    while any(got < want for got, want in zip(counts(), (2, 1), strict=True)):
        await world.envoy.get(port, "/more")
    for _ in range(50):
        await world.envoy.get(port, "/more")
    assert counts() == (2, 1), "the request and its copy, and the other copy"


CONSUMER = "parentRefs: [{group: '', kind: Service, name: echo, namespace: demo}]\n"
ITS_OWN = "rules: [{backendRefs: [{name: echo, namespace: demo, port: 80}]}]"


async def test_a_route_of_another_namespace_has_a_listener_that_only_its_callers_are_sent_to(world: Both) -> None:
    matching = ITS_OWN.replace("rules: [{", "rules: [{matches: [{path: {value: /mine}}],")
    world.rows.routes(route(CONSUMER + matching, name="app/route"))
    port = world.rows.listener_port("demo/echo", callers="app")
    await world.envoy.until(port, (200, "v1"), "/mine")
    assert (await world.envoy.ask(port, "GET", "/other")).status == 404
    await world.envoy.db.until(lambda now: bool(list(now.all(XDS_SERVED))))
    [plan] = world.rows.derive().rows(PLANS)
    assert [(each.namespace, each.target.port) for each in plan.consumers] == [("app", port)]
    assert (plan.redirected_by, plan.consumers_only) == ("", True)


async def test_callers_with_routes_of_their_own_do_not_get_those_of_the_service(world: Both) -> None:
    world.rows.routes(
        route(TO_ECHO + "rules: [{backendRefs: [{name: v2, port: 80}]}]"), route(CONSUMER + ITS_OWN, name="app/route")
    )
    await world.answers("v2")
    await world.envoy.until(world.rows.listener_port("demo/echo", callers="app"), (200, "v1"))


async def test_a_namespace_whose_routes_envoy_refuses_costs_the_others_nothing(world: Both) -> None:
    bad = route(CONSUMER + ITS_OWN, name="app/route")
    [rule] = bad.rules
    expression = replace(rule.matches[0], path="(?i:x{1000}){1000}", path_type="RegularExpression")
    world.rows.routes(with_rules(bad, [replace(rule, matches=(expression,))]))
    await world.envoy.db.until(lambda now: bool(world.envoy.refused()))
    world.rows.routes(route(TO_ECHO + "rules: [{backendRefs: [{name: v2, port: 80}]}]"))
    await world.answers("v2")


async def exchange(host: str, port: int, sent: bytes, size: int) -> bytes:
    """What a server sends back to some bytes; its first word, where nothing is sent."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(sent)
        async with asyncio.timeout(60):
            return await reader.readexactly(size)
    finally:
        writer.close()


@pytest.mark.parametrize(
    "sent",
    [b"\x00\x01\x02\xff raw", b"*1\r\n$4\r\nPING\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"EHLO me\r\n"],
    ids=["binary", "redis", "tls", "text"],
)
async def test_bytes_that_are_no_http_pass_a_port_of_http_unchanged(world: Both, sent: bytes) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        world.rows.service("demo/echo", f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        world.rows.routes(route(TO_ECHO + "rules: [{backendRefs: [{name: v2, port: 80}]}]"))
        port = await world.answers("v2")
        assert await exchange(world.envoy.host, port, sent, len(sent)) == sent


async def test_a_server_that_speaks_first_is_heard_on_a_port_of_http_when_clients_may_stay_silent(
    world: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 0.2 s here. A port that is not declared as HTTP has no listener, and no delay."""
    monkeypatch.setattr(listeners, "SILENT", 0.2)

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hello")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        world.rows.service("demo/echo", f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        world.rows.routes(route(TO_ECHO + "rules: [{backendRefs: [{name: v2, port: 80}]}]"))
        port = await world.answers("v2")
        assert await exchange(world.envoy.host, port, b"", 9) == b"220 hello"


async def test_calls_are_split_over_clusters_and_go_elsewhere_while_one_has_no_backend(world: Both) -> None:
    here, there = [f"127.0.0.1:{await world.envoy.backend(text)}" for text in ("here", "there")]
    world.rows.imported("demo/far", app_protocol="http", c1=[here], c2=[there])
    to_import = "parentRefs: [{group: multicluster.x-k8s.io, kind: ServiceImport, name: far}]"
    rules = """
rules:
- backendRefs: [{group: isthmus.io, kind: Cluster, name: c1}]
- matches: [{path: {value: /new}}]
  backendRefs:
  - {group: isthmus.io, kind: Cluster, name: c1, weight: 1}
  - {group: isthmus.io, kind: Cluster, name: c2, weight: 3}
"""
    world.rows.routes(route(to_import + rules))
    service = derived(ServiceName("demo/far"))
    port = await world.answers("here", "/old", service)
    assert {(await world.envoy.ask(port)).headers["x-backend"] for _ in range(20)} == {"here"}
    await world.envoy.until(port, (200, "there"), "/new")
    seen = Counter([(await world.envoy.ask(port, "GET", "/new")).headers["x-backend"] for _ in range(1_000)])
    assert abs(seen["there"] / 1_000 - 0.75) < 0.06, seen
    [explained] = explain(world.rows.db.snapshot(), service, parse("GET /new")[0])
    assert [(each.to, each.part, each.clusters) for each in explained.backends] == [
        ("Cluster c1", 0.25, {"c1": 1.0}),
        ("Cluster c2", 0.75, {"c2": 1.0}),
    ]
    world.rows.endpoints(service, ClusterName("c2"))
    assert explain(world.rows.db.snapshot(), service, parse("GET /new")[0])[0].backends[1].clusters == {"c1": 1.0}
    while {(await world.envoy.ask(port, "GET", "/new")).headers.get("x-backend") for _ in range(20)} != {"here"}:
        pass


async def test_a_grpc_route_matches_methods_of_grpc_calls_alone(world: Both) -> None:
    import grpc

    await world.serve("demo/web", "web")
    server = grpc.aio.server()

    async def method(request: bytes, context: Any) -> bytes:
        return b"pong"

    handler = grpc.method_handlers_generic_handler("demo.Echo", {"Ping": grpc.unary_unary_rpc_method_handler(method)})
    server.add_generic_rpc_handlers((handler,))
    backend = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    world.rows.service("demo/calls", f"127.0.0.1:{backend}", app_protocol="kubernetes.io/h2c")
    method_match = (
        "rules: [{matches: [{method: {service: demo.Echo, method: Ping}}], backendRefs: [{name: calls, port: 80}]}]"
    )
    world.rows.routes(
        route(TO_ECHO + method_match, kind="GRPCRoute", name="demo/grpc"),
        route(TO_ECHO + "rules: [{backendRefs: [{name: web, port: 80}]}]"),
    )
    port = await world.answers("web")
    async with grpc.aio.insecure_channel(f"{world.envoy.host}:{port}") as channel:
        assert await channel.unary_unary("/demo.Echo/Ping", None, None)(b"ping") == b"pong"
        with pytest.raises(grpc.aio.AioRpcError):
            await channel.unary_unary("/demo.Echo/Other", None, None)(b"ping")
    assert (await world.envoy.ask(port, "POST", "/demo.Echo/Ping")).headers["x-backend"] == "web"
    await server.stop(0)


async def test_a_service_goes_back_to_its_own_path_with_its_last_route(world: Both) -> None:
    row = route(TO_ECHO + "rules: [{backendRefs: [{name: v2, port: 80}]}]")
    world.rows.routes(row)
    port = await world.answers("v2")
    world.rows.delete(ROUTES, row)
    while (await world.envoy.get(port))[0]:
        pass
    assert world.rows.rows(ROUTES) == []


async def test_one_bad_route_holds_up_no_other(world: Both) -> None:
    """Whatever only Envoy finds out: an expression stands for it that our own source would have refused."""
    await world.serve("demo/other", "other")
    good = route(TO_ECHO + "rules: [{backendRefs: [{name: v2, port: 80}]}]", name="demo/bad")
    [rule] = good.rules
    bad = replace(rule.matches[0], path="(?i:x{1000}){1000}", path_type="RegularExpression")
    world.rows.routes(with_rules(good, [replace(rule, matches=(bad,))]))
    world.rows.routes(
        route(
            "parentRefs: [{group: '', kind: Service, name: other}]\nrules: [{backendRefs: [{name: other, port: 80}]}]",
            name="demo/good",
        )
    )
    began = time.monotonic()
    await world.answers("other", service="demo/other")
    assert time.monotonic() - began < 20
    await world.envoy.db.until(lambda now: bool(world.envoy.refused()))
    [refusal] = world.envoy.refused()
    assert refusal.startswith("HTTPRoute demo/bad: ")


async def test_an_expression_that_envoy_would_refuse_holds_up_no_other_route_of_its_service(world: Both) -> None:
    """Envoy takes or refuses the routes of a listener together: so an expression has to be refused before."""

    def to_v2(expression: str, name: str) -> Route:
        match = json.dumps({"path": {"type": "RegularExpression", "value": expression}})
        return route(f"{TO_ECHO}rules: [{{matches: [{match}], backendRefs: [{{name: v2, port: 80}}]}}]", name=name)

    bad = to_v2("/(x{500}){500}", "demo/bad")
    assert "repeats more than 1000 times" in bad.invalid
    large = [to_v2(each, f"demo/large{n}") for n, each in enumerate(TAKEN)]
    assert [each.invalid for each in large if each.invalid] == []
    world.rows.routes(bad, *large, route(TO_ECHO + "rules: [{backendRefs: [{name: echo, port: 80}]}]"))
    port = await world.answers("v2", "/host-name/x")
    assert (await world.envoy.ask(port)).headers["x-backend"] == "v1"
    assert world.envoy.refused() == []


async def test_the_kernel_steers_a_service_to_envoy_while_it_is_served_and_past_it_when_it_has_ended(
    world: Both,
) -> None:
    def targets(service: str) -> set[tuple[str, bool]]:
        world.rows.derive()
        rows = [plan for plan in world.rows.rows(PLANS) if plan.key.service == service]
        called = [group for plan in rows for group in plan.groups if group.tier == 0]
        return {(each.address, each.proxy) for group in called for each in group.targets}

    world.rows.imported("demo/global", app_protocol="http", c1=["10.1.0.1:80"]).imported(
        "demo/plain", c1=["10.1.0.2:80"]
    )
    to_global = "parentRefs: [{group: multicluster.x-k8s.io, kind: ServiceImport, name: global}]\n"
    world.rows.routes(route(to_global + "rules: [{backendRefs: [{name: v2, port: 80}]}]"))
    service = derived(ServiceName("demo/global"))
    assert targets(service) == {("10.1.0.1", False)}
    port = world.rows.listener_port(service)
    await world.envoy.until(port, (200, "v2"))
    await world.envoy.db.until(lambda now: now.get(XDS_SERVED, cluster_name(service, 80)) is not None)
    assert targets(service) == {(world.envoy.host, True)}
    assert targets(derived(ServiceName("demo/plain"))) == {("10.1.0.2", False)}
    os.kill(world.envoy.supervisor.stats().running, signal.SIGKILL)
    await world.envoy.db.until(lambda now: not list(now.all(XDS_SERVED)))
    assert targets(service) == {("10.1.0.1", False)}
    await world.envoy.db.until(lambda now: now.get(XDS_SERVED, cluster_name(service, 80)) is not None)
    assert targets(service) == {(world.envoy.host, True)}
