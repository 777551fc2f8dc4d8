"""CORS filters and sessions of HTTPRoutes, from objects to the real Envoy's answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from meshes.route_world import RouteWorld, route
from meshes.routed_envoy import TO_ECHO, Both, routed_envoy

from isthmus.model.names import ServiceName
from isthmus.model.routes import Session
from isthmus.model.tables import ROUTE_PARTS
from isthmus.proxy.explain import explain, parse
from isthmus.proxy.messages import message, unpacked
from isthmus.proxy.routing import ROUTE

CORS = """
rules:
- filters: [{{type: CORS, cors: {cors}}}]
  backendRefs: [{{name: echo, port: 80}}]
"""
SESSION = """
rules:
- sessionPersistence: {session}
  backendRefs: {backends}
"""
ONE_BACKEND = "[{name: echo, port: 80}, {name: v2, port: 80, weight: 0}]"


def cors(text: str) -> str:
    return TO_ECHO + CORS.format(cors=text)


def session(text: str, backends: str = ONE_BACKEND) -> str:
    return TO_ECHO + SESSION.format(session=text, backends=backends)


def allowed(headers: Mapping[str, str]) -> dict[str, str]:
    """The CORS headers of an answer, without their common prefix and without spaces."""
    prefix = "access-control-"
    named = {name.lower(): value for name, value in headers.items()}
    return {name.removeprefix(prefix): each.replace(" ", "") for name, each in named.items() if prefix in name}


def opened(packed: Any) -> Any:
    """A message that is packed in another one, and known."""
    found = unpacked(packed)
    assert found is not None
    return found


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Both]:
    async with routed_envoy(tmp_path) as made:
        yield made


@pytest.mark.needs("envoy")
async def test_preflights_are_answered_by_envoy_and_answers_to_allowed_origins_may_be_read(world: Both) -> None:
    rules = """
rules:
- matches: [{path: {value: /listed}, method: GET}]
  filters:
  - type: CORS
    cors: {allowOrigins: ["https://www.foo.com:443", "https://*.bar.com"], allowMethods: [GET, OPTIONS],
           allowHeaders: [x-1, x-2], exposeHeaders: [x-3], allowCredentials: true, maxAge: 3600}
  backendRefs: [{name: v2, port: 80}]
- matches: [{path: {value: /any}}]
  filters: [{type: CORS, cors: {allowOrigins: ["*"], allowMethods: ["*"], allowHeaders: ["*"], exposeHeaders: ["*"]}}]
  backendRefs: [{name: v2, port: 80}]
- matches: [{path: {value: /credentials}}]
  filters:
  - {type: CORS, cors: {allowOrigins: ["*"], allowMethods: ["*"], allowHeaders: ["*"], exposeHeaders: ["*"],
                        allowCredentials: true}}
  backendRefs: [{name: v2, port: 80}]
- backendRefs: [{name: echo, port: 80}]
"""
    world.rows.routes(route(TO_ECHO + rules))
    port = await world.answers("v1")

    async def preflight(path: str, origin: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str]]:
        answer = await world.envoy.ask(
            port, "OPTIONS", path, origin=origin, **{"access-control-request-method": method}, **headers
        )
        return answer.status, allowed(answer.headers)

    for origin in ("https://www.foo.com", "https://a.b.bar.com"):
        assert await preflight("/listed", origin) == (
            200,
            {
                "allow-origin": origin,
                "allow-methods": "GET,OPTIONS",
                "allow-headers": "x-1,x-2",
                "expose-headers": "x-3",
                "allow-credentials": "true",
                "max-age": "3600",
            },
        )
    for origin in ("https://bar.com", "https://bar.com.evil", "https://a.bar.com:8443", "null"):
        status, refused = await preflight("/listed", origin)
        assert (status, refused.get("allow-origin")) == (200, None)
    answer = await world.envoy.ask(port, "GET", "/listed", origin="https://www.foo.com")
    assert (answer.headers["x-backend"], allowed(answer.headers)["allow-origin"]) == ("v2", "https://www.foo.com")
    answer = await world.envoy.ask(port, "GET", "/listed", origin="https://other.com")
    assert (answer.headers["x-backend"], allowed(answer.headers)) == ("v2", {})
    asked = {"access-control-request-headers": "x-9"}
    status, any_one = await preflight("/any", "https://x.org", "PUT", **asked)
    asked_for = {"allow-methods": "PUT", "allow-headers": "x-9", "max-age": "5"}  # Envoy repeats what was asked for
    assert (status, any_one) == (200, {"allow-origin": "https://x.org", "expose-headers": "*", **asked_for})
    status, with_credentials = await preflight("/credentials", "https://x.org", "PUT", **asked)
    assert with_credentials == {
        "allow-origin": "https://x.org",
        "allow-methods": "PUT",
        "allow-headers": "x-9",
        "allow-credentials": "true",
        "max-age": "5",
    }
    assert (await world.envoy.ask(port, "GET", "/")).headers["x-backend"] == "v1"
    assert not world.envoy.refused()


def test_a_preflight_belongs_to_the_rule_of_the_method_that_it_asks_for() -> None:
    rules = """
rules:
- matches: [{method: PUT}]
  filters: [{type: CORS, cors: {allowOrigins: ["https://a.org"]}}]
  backendRefs: [{name: echo, port: 80}]
- backendRefs: [{name: echo, port: 80}]
"""
    world = RouteWorld().service("demo/echo", "127.0.0.1:8080").routes(route(TO_ECHO + rules))

    def rule(*headers: str) -> tuple[str, str]:
        request, _ = parse("OPTIONS /x", ["origin: https://a.org", *headers])
        [explained] = explain(world.db.snapshot(), ServiceName("demo/echo"), request)
        return explained.rule, explained.answer

    assert rule("access-control-request-method: PUT") == ("HTTPRoute demo/route, rule 1", "200: a preflight of CORS")
    assert rule("access-control-request-method: GET") == ("HTTPRoute demo/route, rule 2", "")
    assert rule() == ("HTTPRoute demo/route, rule 2", "")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{allowOrigins: ["https://a.*.org"]}', "cors.allowOrigins"),
        ('{allowOrigins: ["ftp://a.org"]}', "cors.allowOrigins"),
        ("{allowMethods: [BREW]}", "cors.allowMethods"),
        ('{allowHeaders: ["a b"]}', "cors.allowHeaders"),
        ("{maxAge: 0}", "cors.maxAge"),
    ],
)
def test_a_cors_filter_that_breaks_a_bound_of_the_api_names_its_field(text: str, field: str) -> None:
    assert field in route(cors(text)).invalid


@pytest.mark.needs("envoy")
async def test_requests_of_a_session_reach_the_endpoint_of_the_first_as_long_as_it_is_there(world: Both) -> None:
    ports = {text: await world.envoy.backend(text) for text in ("a", "b", "c")}
    world.rows.service("demo/echo", *(f"127.0.0.1:{port}" for port in ports.values()))
    rules = """
rules:
- matches: [{path: {value: /cookie}}]
  sessionPersistence: {sessionName: who, absoluteTimeout: 1h, cookieConfig: {lifetimeType: Permanent}}
  backendRefs: [{name: echo, port: 80}]
- matches: [{path: {value: /header}}]
  sessionPersistence: {type: Header, sessionName: x-who}
  backendRefs: [{name: echo, port: 80}]
- backendRefs: [{name: v2, port: 80}]
"""
    world.rows.routes(route(TO_ECHO + rules))
    port = await world.answers("v2")
    first = await world.envoy.ask(port, "GET", "/header")
    mine = {"x-who": first.headers["x-who"]}
    again = {(await world.envoy.ask(port, "GET", "/header", **mine)).headers["x-backend"] for _ in range(12)}
    assert again == {first.headers["x-backend"]}

    first = await world.envoy.ask(port, "GET", "/cookie")
    cookie = first.cookies["who"]
    assert (cookie["max-age"], cookie["path"], cookie["httponly"]) == ("3600", "/", True)
    mine, bound = {"cookie": f"who={cookie.coded_value}"}, first.headers["x-backend"]
    world.envoy.session.cookie_jar.clear()
    again = {(await world.envoy.ask(port, "GET", "/cookie", **mine)).headers["x-backend"] for _ in range(12)}
    assert again == {bound}
    world.rows.service("demo/echo", *(f"127.0.0.1:{each}" for text, each in ports.items() if text != bound))
    while (await world.envoy.ask(port, "GET", "/cookie", **mine)).headers["x-backend"] == bound:
        pass
    assert not world.envoy.refused()


def test_each_rule_without_a_session_name_has_a_cookie_of_its_own() -> None:
    rules = f"""
rules:
- {{matches: [{{path: {{value: /a}}}}], sessionPersistence: {{}}, backendRefs: {ONE_BACKEND}}}
- {{sessionPersistence: {{type: Cookie, cookieConfig: {{lifetimeType: Session}}}}, backendRefs: {ONE_BACKEND}}}
"""
    row = route(TO_ECHO + rules)
    assert [rule.session for rule in row.rules] == [Session(), Session()]
    world = RouteWorld().service("demo/echo", "127.0.0.1:8080").routes(row)
    [parts] = world.rows(ROUTE_PARTS)
    names = []
    for each in parts.matches:
        [config] = message(ROUTE).FromString(each.body).typed_per_filter_config.values()
        cookie = opened(opened(config).stateful_session.session_state.typed_config).cookie
        assert (cookie.path, cookie.ttl.seconds) == ("/", 0)
        names.append(cookie.name)
    assert len(set(names)) == 2
    assert all(name.startswith("isthmus-") for name in names)


@pytest.mark.parametrize(
    ("text", "backends", "field"),
    [
        ("{}", "[{name: echo, port: 80}, {name: v2, port: 80}]", "sessionPersistence: not supported with several"),
        ("{type: Magic}", ONE_BACKEND, "sessionPersistence.type"),
        ("{sessionName: 'a b'}", ONE_BACKEND, "sessionPersistence.sessionName"),
        ("{absoluteTimeout: 1h}", ONE_BACKEND, "sessionPersistence.absoluteTimeout"),
        ("{type: Header, absoluteTimeout: 1h}", ONE_BACKEND, "sessionPersistence.absoluteTimeout"),
        ("{cookieConfig: {lifetimeType: Permanent}}", ONE_BACKEND, "sessionPersistence.absoluteTimeout"),
    ],
)
def test_a_session_that_envoy_would_not_keep_as_asked_for_names_its_field(text: str, backends: str, field: str) -> None:
    assert field in route(session(text, backends)).invalid


def test_rules_without_either_have_no_filter_switched_on() -> None:
    world = RouteWorld().service("demo/echo", "127.0.0.1:8080")
    world.routes(route(TO_ECHO + "rules: [{backendRefs: [{name: echo, port: 80}]}]"))
    [parts] = world.rows(ROUTE_PARTS)
    assert not any(message(ROUTE).FromString(each.body).typed_per_filter_config for each in parts.matches)
