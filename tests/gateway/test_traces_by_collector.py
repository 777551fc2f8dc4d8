"""Traces of requests as a real collector writes them to a file: of a node's Envoy, and of the gateway behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
import pytest
from aiohttp import web
from meshes.collector import Collector, collector
from meshes.island_world import Pod, islands
from meshes.route_world import C2
from meshes.traced import PARENT, SAMPLED, TRACE, serving, traced

from isthmus.model.names import ServiceName
from isthmus.model.services import Port
from isthmus.proxy import tracing

pytestmark = [pytest.mark.kube, pytest.mark.needs("envoy", "otlp-collector")]

ECHO = ServiceName("demo/echo")
SERVER, CLIENT = 2, 3
UNLUCKY, LUCKY = "f" * 32, "0700000000000007" * 2
"""Trace ids outside and inside of half of the traces."""


@pytest.fixture
async def spans(tmp_path: Path) -> AsyncIterator[Collector]:
    async with collector(tmp_path) as made:
        yield made


async def test_a_call_of_an_island_is_one_trace_of_node_and_gateway(spans: Collector) -> None:
    seen: list[web.BaseRequest] = []

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        seen.append(request)
        return web.Response(text="answered")

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    pod = Pod()
    pod.port = runner.addresses[0][1]
    at_node = traced(spans.port)
    at_gateway = at_node._replace(role="gateway", cluster_name=C2, name="gateway-1")
    with TemporaryDirectory() as short:  # a path of a socket has 108 characters
        async with islands(Path(short), gateway={"tracing": at_gateway}, tracing=at_node) as world:
            world.export(ECHO, pod, ports=(Port("", 80, app_protocol="http"),))
            world.imported(ECHO, app_protocol="http")
            await world.healthy()
            host, port = await world.target(ECHO)
            url, headers = f"http://{host}:{port}/orders?token=secret", {"traceparent": SAMPLED, "cookie": "secret"}
            async with aiohttp.request("GET", url, headers=headers) as response:
                assert await response.text() == "answered"
            found = await spans.until(2, TRACE)
    await runner.cleanup()
    node, gateway = sorted(found, key=lambda span: span.resource["service.name"], reverse=True)
    assert (node.resource["service.name"], gateway.resource["service.name"]) == ("isthmus-node", "isthmus-gateway")
    assert (node.resource["k8s.cluster.name"], gateway.resource["k8s.cluster.name"]) == ("c1", "c2")
    assert (node.resource["isthmus.node"], gateway.resource["isthmus.gateway"]) == ("n1", "gateway-1")
    assert (node.name, gateway.name) == ("demo/echo:80", "gateway of c2")
    assert (node.kind, gateway.kind) == (CLIENT, SERVER)
    assert (node.parent, gateway.parent) == (PARENT, node.id)
    assert seen[0].headers["traceparent"] == f"00-{TRACE}-{gateway.id}-01"
    assert [span.tags["isthmus.service"] for span in found] == ["demo/echo"] * 2
    assert [span.tags["url.path"] for span in found] == ["/orders"] * 2
    assert node.tags["k8s.namespace.name"] == "demo"
    assert gateway.tags["isthmus.caller"] == "c1"
    assert not [span.text for span in found if "secret" in span.text]


async def test_the_share_decides_what_is_sampled_and_callers_do_not(spans: Collector, tmp_path: Path) -> None:
    async with serving(tmp_path / "envoy", traced(spans.port, share=0.5), []) as (envoy, port):
        await envoy.ask(port, traceparent=f"00-{UNLUCKY}-{PARENT}-01")
        await envoy.ask(port, traceparent=f"00-{LUCKY}-{PARENT}-00")
        [span] = await spans.until(1, LUCKY)
    assert span.tags["isthmus.route"].startswith("HTTPRoute demo/route")
    assert UNLUCKY not in {each.trace for each in spans.spans()}


async def test_callers_decide_where_the_option_says_so(spans: Collector, tmp_path: Path) -> None:
    tracer = traced(spans.port, share=0.5, follow_callers=True)
    async with serving(tmp_path / "envoy", tracer, []) as (envoy, port):
        await envoy.ask(port, traceparent=f"00-{LUCKY}-{PARENT}-00")
        await envoy.ask(port, traceparent=f"00-{UNLUCKY}-{PARENT}-01")
        await spans.until(1, UNLUCKY)
    assert LUCKY not in {each.trace for each in spans.spans()}


async def test_spans_are_sent_in_batches_of_a_bounded_size(
    spans: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "BUFFER", 4)
    async with serving(tmp_path / "envoy", traced(spans.port, follow_callers=True), []) as (envoy, port):
        for _ in range(40):
            assert (await envoy.ask(port, traceparent=SAMPLED)).status == 200
        await spans.until(4, TRACE)
    assert max(len(batch) for batch in spans.batches()) == 4
