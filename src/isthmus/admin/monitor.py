"""Health and metrics of a process over HTTP: liveness, readiness, Prometheus. Read-only; nothing secret.

``/livez`` is answered as long as the event loop runs; ``/readyz`` is 503 with a reason until the process works, or
stands by for it; ``/metrics`` is Prometheus' text format, computed when asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from isthmus.config import ConfigError

Families = Callable[[], Iterable[Metric]]


class Monitor:
    """Serves on one address from :meth:`run` to its cancellation. ``ready`` gives why it is not, or nothing."""

    def __init__(self, listen: str, *, ready: Callable[[], str], families: Families) -> None:
        self._listen = listen
        self._ready = ready
        self._registry = CollectorRegistry()
        self._registry.register(_Computed(families))
        self._open = asyncio.Event()
        self.address: tuple[str, int] = ("", 0)

    def __repr__(self) -> str:
        return f"<Monitor {self._listen}>"

    async def run(self) -> None:
        """Serve until cancelled; ConfigError when the address cannot be had."""
        host, port = address(self._listen)
        app = web.Application()
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        try:
            await runner.setup()
            try:
                await web.TCPSite(runner, host or None, port).start()
            except OSError as error:
                raise ConfigError(f"monitor.listen = '{self._listen}': {error.strerror or error}") from None
            self.address = runner.addresses[0][:2]
            self._open.set()
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    async def listening(self) -> None:
        """Return when clients can connect."""
        await self._open.wait()

    async def _livez(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        why = self._ready()
        return web.Response(status=503, text=f"{why}\n") if why else web.Response(text="ok\n")

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


class _Computed(Collector):
    def __init__(self, families: Families) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families()

    def describe(self) -> list[Metric]:
        """Nothing: the families depend on what there is."""
        return []


def address(listen: str) -> tuple[str, int]:
    """':9963' or '127.0.0.1:9963' → host and port; no host means every address."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit():
        raise ConfigError(f"monitor.listen = '{listen}': want address:port, or :port for every address")
    return host.strip("[]"), int(port)
