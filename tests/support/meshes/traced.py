"""A node's Envoy that traces the requests of one route."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from aiohttp import web
from meshes.envoy_world import EnvoyWorld, envoy_world
from meshes.route_world import C1, NODE, RouteWorld, route

from isthmus.proxy.tracing import Tracing

TO_ECHO: Final = (
    "{parentRefs: [{group: '', kind: Service, name: echo}], rules: [{backendRefs: [{name: echo, port: 80}]}]}"
)
TRACE: Final = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT: Final = "00f067aa0ba902b7"
SAMPLED, UNSAMPLED = (f"00-{TRACE}-{PARENT}-{flag}" for flag in ("01", "00"))


def traced(port: int = 4317, *, host: str = "127.0.0.1", share: float = 1.0, follow_callers: bool = False) -> Tracing:
    """Traces of the node that :class:`RouteWorld` is."""
    return Tracing(host, port, share, follow_callers, "node", C1, NODE)


@asynccontextmanager
async def serving(
    directory: Path, tracing: Tracing | None, seen: list[web.BaseRequest]
) -> AsyncIterator[tuple[EnvoyWorld, int]]:
    """A real Envoy with a route to a backend that lists the requests it saw, and its port."""
    rows = RouteWorld(tracing=tracing)
    async with envoy_world(directory, db=rows.db, traced=tracing is not None) as envoy:
        [envoy.host] = rows.addresses
        rows.service("demo/echo", f"127.0.0.1:{await envoy.backend('answered', seen=seen)}").routes(route(TO_ECHO))
        port = rows.listener_port("demo/echo")
        await envoy.until(port, (200, "answered"))
        assert envoy.refused() == []
        del seen[:]
        yield envoy, port
