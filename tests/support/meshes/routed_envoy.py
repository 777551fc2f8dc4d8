"""The rows of a node's routes, and the real Envoy that follows them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from meshes.envoy_world import EnvoyWorld, envoy_world
from meshes.route_world import RouteWorld

TO_ECHO: Final = "parentRefs: [{group: '', kind: Service, name: echo}]\n"


class Both(NamedTuple):
    """The tables and the Envoy that follows them."""

    rows: RouteWorld
    envoy: EnvoyWorld

    async def serve(self, name: str, text: str, **more: Any) -> None:
        """A Service with one backend that answers with a text."""
        self.rows.service(name, f"127.0.0.1:{await self.envoy.backend(text, **more)}")

    async def answers(self, want: str, path: str = "/", service: str = "demo/echo") -> int:
        """Return the listener's port, once a call gets that answer."""
        port = self.rows.listener_port(service)
        await self.envoy.until(port, (200, want), path)
        return port


@asynccontextmanager
async def routed_envoy(directory: Path) -> AsyncIterator[Both]:
    """An Envoy for the Services ``demo/echo`` and ``demo/v2``, whose backends answer ``v1`` and ``v2``."""
    rows = RouteWorld()
    async with envoy_world(directory / "envoy", db=rows.db) as envoy:
        [envoy.host] = rows.addresses
        made = Both(rows, envoy)
        await made.serve("demo/echo", "v1")
        await made.serve("demo/v2", "v2")
        yield made
