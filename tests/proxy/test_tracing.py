"""Traces of HTTP requests through a node's Envoy: what it is configured with, and what callers notice of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from meshes.route_world import NODE, RouteWorld, route
from meshes.traced import PARENT, SAMPLED, TO_ECHO, TRACE, UNSAMPLED, serving, traced
from peers.etcd_server import free_ports

from isthmus.config import ConfigError, load
from isthmus.model.tables import XDS
from isthmus.proxy.delta import MESSAGES
from isthmus.proxy.messages import message, unpacked
from isthmus.proxy.tracing import BUFFER, CLUSTER, CONNECTIONS, Tracing


def resources(rows: RouteWorld, type_: str) -> dict[str, Any]:
    """The messages of a type that Envoy gets, by name."""
    found = rows.db.snapshot().by(XDS, "type", type_)
    return {row.name: message(MESSAGES[row.type]).FromString(row.body) for row in found}


def manager(rows: RouteWorld, name: str = "demo/echo:80") -> Any:
    """The connection manager of a listener."""
    return opened(resources(rows, "listener")[name].filter_chains[0].filters[0].typed_config)


def opened(packed: Any) -> Any:
    """The message in an Any."""
    return unpacked(packed)


def routed(tracing: Tracing | None, *endpoints: str) -> RouteWorld:
    rows = RouteWorld(tracing=tracing).service("demo/echo", *endpoints or ("127.0.0.1:1",))
    return rows.routes(route(TO_ECHO))


def test_without_the_option_nothing_is_traced() -> None:
    rows = routed(None)
    assert not manager(rows).HasField("tracing")
    assert CLUSTER not in resources(rows, "cluster")


def test_spans_have_the_names_of_service_namespace_and_route_and_no_query() -> None:
    tracing = manager(routed(traced())).tracing
    assert tracing.operation == "demo/echo:80"
    assert tracing.max_path_tag_length.value == 0
    tags = {each.tag: each.literal.value or each.value for each in tracing.custom_tags}
    assert tags == {
        "isthmus.service": "demo/echo",
        "k8s.namespace.name": "demo",
        "isthmus.route": "%ROUTE_NAME%",
        "url.path": "%PATH(NQ):256%",
    }


def test_a_derived_service_has_the_name_of_its_import() -> None:
    rows = RouteWorld(tracing=traced()).imported("demo/echo", app_protocol="http", c2=["10.1.0.2:80"])
    import_parent = TO_ECHO.replace("group: '', kind: Service", "group: multicluster.x-k8s.io, kind: ServiceImport")
    rows.routes(route(import_parent))
    [listener] = [name for name in resources(rows, "listener") if name.startswith("demo/derived-")]
    assert manager(rows, listener).tracing.operation == "demo/echo:80"


def test_a_node_is_named_in_its_spans_and_every_listener_has_the_same_tracer() -> None:
    """Envoy has a buffer of spans for each tracer that differs."""
    rows = routed(traced()).service("demo/other", "127.0.0.1:1")
    rows.routes(route(TO_ECHO), route(TO_ECHO.replace("echo", "other"), name="demo/other"))
    providers = {manager(rows, f"demo/{each}:80").tracing.provider.SerializeToString() for each in ("echo", "other")}
    assert len(providers) == 1
    tracer = opened(manager(rows).tracing.provider.typed_config)
    assert tracer.service_name == "isthmus-node"
    assert dict(opened(tracer.resource_detectors[0].typed_config).attributes) == {
        "service.namespace": "isthmus",
        "service.instance.id": NODE,
        "k8s.cluster.name": "c1",
        "isthmus.node": NODE,
    }


def test_what_is_kept_for_a_collector_and_sent_to_it_is_bounded() -> None:
    rows = routed(traced())
    tracer = opened(manager(rows).tracing.provider.typed_config)
    assert tracer.max_cache_size.value == BUFFER
    assert tracer.grpc_service.timeout.seconds == 1
    [limits] = resources(rows, "cluster")[CLUSTER].circuit_breakers.thresholds
    bounds = (limits.max_connections, limits.max_pending_requests, limits.max_requests, limits.max_retries)
    assert [each.value for each in bounds] == [2, 4, 4, 0]


@pytest.mark.parametrize(("host", "type_"), [("fd00::1", 0), ("10.0.0.1", 0), ("otel.example", 1)])
def test_a_collector_is_an_address_or_a_name_that_delays_no_other_cluster(host: str, type_: int) -> None:
    cluster = resources(routed(traced(host=host)), "cluster")[CLUSTER]
    assert cluster.type == type_  # STATIC, STRICT_DNS
    assert cluster.HasField("wait_for_warm_on_init")
    assert not cluster.wait_for_warm_on_init.value


def test_callers_choose_what_is_sampled_only_where_the_option_says_so() -> None:
    def sampler(*, follow_callers: bool) -> Any:
        rows = routed(traced(share=0.25, follow_callers=follow_callers))
        return opened(opened(manager(rows).tracing.provider.typed_config).sampler.typed_config)

    assert sampler(follow_callers=False).sampling_percentage.numerator == 250_000
    wrapped = opened(sampler(follow_callers=True).wrapped_sampler.typed_config)
    assert wrapped.sampling_percentage.numerator == 250_000


@pytest.mark.parametrize(
    ("flag", "field"),
    [
        ("tracing.collector=http://otel:4317", "tracing.collector"),
        ("tracing.collector=otel", "tracing.collector"),
        ("tracing.collector=user:secret@otel:4317", "tracing.collector"),
        ("tracing.share=2", "tracing.share"),
        ("tracing.share=some", "tracing.share"),
        ("tracing.follow_callers=perhaps", "tracing.follow_callers"),
    ],
)
def test_a_bad_value_is_one_line_that_names_the_field(flag: str, field: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(None, environment={}, flags=[flag])
    assert field in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.needs("envoy")
@pytest.mark.parametrize("kind", ["away", "hanging", "hostile"])
async def test_calls_are_answered_whatever_becomes_of_the_collector(tmp_path: Path, kind: str) -> None:
    """Spans that no collector takes are dropped: no retry, and no connection more than is allowed."""
    connections = 0

    async def collector(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        if kind == "hostile":
            writer.write(b"\xff" * 100_000)
        await reader.read(-1)
        writer.close()

    [port] = free_ports(1)
    server = await asyncio.start_server(collector, "127.0.0.1", port) if kind != "away" else None
    seen: list[web.BaseRequest] = []
    async with serving(tmp_path / "envoy", traced(port), seen) as (envoy, listener):
        for _ in range(3 * BUFFER):
            assert (await envoy.ask(listener, traceparent=SAMPLED)).status == 200
        if kind == "hanging":
            assert connections <= CONNECTIONS
    if server is not None:
        server.close()


@pytest.mark.needs("envoy")
@pytest.mark.parametrize(
    ("share", "follow_callers", "sent", "passed_on"),
    [
        (0.0, False, SAMPLED, "00"),  # the caller's flag is not followed, and a callee does not follow it either
        (0.0, True, SAMPLED, "01"),
        (0.0, True, UNSAMPLED, "00"),
        (1.0, True, UNSAMPLED, "00"),
        (1.0, False, UNSAMPLED, "01"),
    ],
)
async def test_a_trace_goes_on_whether_it_is_sampled_or_not(
    tmp_path: Path, share: float, follow_callers: bool, sent: str, passed_on: str
) -> None:
    seen: list[web.BaseRequest] = []
    [away] = free_ports(1)
    async with serving(tmp_path / "envoy", traced(away, share=share, follow_callers=follow_callers), seen) as (
        envoy,
        port,
    ):
        await envoy.ask(port, traceparent=sent, tracestate="vendor=1", **{"x-client-trace-id": "1"})
        version, trace, span, flags = seen[0].headers["traceparent"].split("-")
    assert (version, trace, flags) == ("00", TRACE, passed_on)
    assert span != PARENT and len(span) == 16  # noqa: PT018 one value
    assert seen[0].headers["tracestate"] == "vendor=1"


@pytest.mark.needs("envoy")
async def test_without_the_option_the_callers_trace_is_passed_on_as_it_is(tmp_path: Path) -> None:
    seen: list[web.BaseRequest] = []
    async with serving(tmp_path / "envoy", None, seen) as (envoy, port):
        await envoy.ask(port, traceparent=SAMPLED)
        await envoy.ask(port)
    assert [each.headers.get("traceparent") for each in seen] == [SAMPLED, None]
