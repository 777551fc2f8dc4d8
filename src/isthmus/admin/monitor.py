"""Health and metrics of a process over HTTP: liveness, readiness, Prometheus. Read-only; nothing secret.

``/livez`` is answered as long as the event loop runs; ``/readyz`` is 503 with a reason until the process works, or
stands by for it, and has in its text whatever else is wrong; ``/metrics`` is Prometheus' text format, computed when
asked for, and can have an address of its own: a kubelet's probes reach an agent on loopback, Prometheus does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from isthmus import bounds
from isthmus.bounds import OutOfBounds
from isthmus.config import ConfigError

Families = Callable[[], Iterable[Metric]]


Readiness = Callable[[], tuple[str, str]]
"""Why the process is not ready, empty if it is; and what else there is to know of it."""


class Monitor:
    """Serves from :meth:`run` to its cancellation. ``metrics``: a second address, which has ``/metrics`` alone."""

    def __init__(self, listen: str, *, ready: Readiness, families: Families, metrics: str = "") -> None:
        self._listen = listen
        self._metrics_listen = metrics
        self._ready = ready
        self._registry = CollectorRegistry()
        self._registry.register(_Computed(families))
        ProcessCollector(registry=self._registry)
        self._open = asyncio.Event()
        self.address: tuple[str, int] = ("", 0)
        self.metrics_address: tuple[str, int] = ("", 0)

    def __repr__(self) -> str:
        return f"<Monitor {self._listen}>"

    async def run(self) -> None:
        """Serve until cancelled; ConfigError when an address cannot be had."""
        async with AsyncExitStack() as stack:
            routes = {"/livez": self._livez, "/readyz": self._readyz, "/metrics": self._metrics}
            self.address = await _serve(stack, "monitor.listen", self._listen, routes)
            if self._metrics_listen:
                routes = {"/metrics": self._metrics}
                self.metrics_address = await _serve(stack, "monitor.metrics", self._metrics_listen, routes)
            self._open.set()
            await asyncio.Event().wait()

    async def listening(self) -> None:
        """Return when clients can connect."""
        await self._open.wait()

    async def _livez(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        reason, more = self._ready()
        lines = "".join(f"{each}\n" for each in (reason or "ok", more) if each)
        return web.Response(status=503 if reason else 200, text=lines)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


Handler = Callable[[web.Request], Awaitable[web.Response]]


async def _serve(stack: AsyncExitStack, option: str, listen: str, routes: Mapping[str, Handler]) -> tuple[str, int]:
    """Serve routes until the stack closes, and return the address. ``option`` names it in a ConfigError."""
    host, port = address(listen, option)
    app = web.Application()
    for path, handler in routes.items():
        app.router.add_get(path, handler)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    stack.push_async_callback(runner.cleanup)
    await runner.setup()
    try:
        await web.TCPSite(runner, host or None, port).start()
    except OSError as error:
        raise ConfigError(f"{option} = '{listen}': {error.strerror or error}") from None
    name, number, *_ = runner.addresses[0]
    return name, number


class _Computed(Collector):
    def __init__(self, families: Families) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families()

    def describe(self) -> list[Metric]:
        """Nothing: the families depend on what there is."""
        return []


def address(listen: str, option: str = "monitor.listen") -> tuple[str, int]:
    """':9963' or '127.0.0.1:9963' → host and port; no host means every address."""
    host, colon, port = listen.rpartition(":")
    try:
        number = bounds.count(port, most=bounds.MAX_PORT)
    except OutOfBounds:
        colon = ""
    if not colon:
        raise ConfigError(f"{option} = '{listen}': want address:port, or :port for every address")
    return host.strip("[]"), number
