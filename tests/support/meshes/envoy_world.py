"""A real Envoy fed by our discovery service in the test's own loop, and backends that answer with their names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from ssl import SSLContext
from typing import Any, Final

import aiohttp
from aiohttp import web
from peers.etcd_server import free_ports

from isthmus.model.tables import XDS, XDS_REFUSED, XDS_SERVED
from isthmus.model.xds import Resource, ResourceKey
from isthmus.proxy import AdsServer, BootstrapFile, Settings, Supervisor, address, binary, resource
from isthmus.proxy.ads import RETRY
from isthmus.proxy.bootstrap import NO_RUNTIME, PING_EVERY
from isthmus.proxy.messages import duration, packed
from isthmus.proxy.resources import ADS
from isthmus.proxy.tracing import RUNTIME
from isthmus.statedb import Database

HCM: Final = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
ROUTER: Final = "envoy.extensions.filters.http.router.v3.Router"


def http_listener(name: str, port: int, **more: Any) -> Resource:
    """A listener of HTTP on loopback, with the routes of its own name."""
    manager = packed(
        HCM,
        stat_prefix="isthmus",
        rds={"route_config_name": name, "config_source": ADS},
        http_filters=[{"name": "envoy.filters.http.router", "typed_config": packed(ROUTER)}],
    )
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    chains = {"address": address("127.0.0.1", port), "filter_chains": [chain], "enable_reuse_port": {"value": True}}
    return resource("listener", name, f"Service demo/{name}", **(chains | more))


def routes(name: str, *to: tuple[str, str]) -> Resource:
    """Routes by (path prefix, cluster)."""
    found = [{"match": {"prefix": prefix}, "route": {"cluster": cluster}} for prefix, cluster in to]
    hosts = [{"name": "all", "domains": ["*"], "routes": found}]
    return resource("routes", name, f"HTTPRoute demo/{name}", virtual_hosts=hosts)


def cluster(name: str, **more: Any) -> Resource:
    """A cluster whose endpoints come by EDS."""
    fields: dict[str, Any] = {
        "connect_timeout": duration(10.0),  # of a busy machine
        "type": "EDS",
        "eds_cluster_config": {"eds_config": ADS},
    }
    return resource("cluster", name, f"Service demo/{name}", **(fields | more))


def endpoints(name: str, *ports: int) -> Resource:
    """Endpoints of a cluster on loopback."""
    found = [{"endpoint": {"address": address("127.0.0.1", port)}} for port in ports]
    return resource("endpoints", name, f"Service demo/{name}", endpoints=[{"lb_endpoints": found}])


class EnvoyWorld:
    """Envoy's directory, its discovery service and its supervisor, each of which can be stopped and started."""

    def __init__(
        self,
        directory: Path,
        stack: AsyncExitStack,
        db: Database | None,
        *,
        workers: int,
        retry: float,
        ping_every: float,
        ready_timeout: float,
        traced: bool,
    ) -> None:
        self.db = Database(XDS, XDS_REFUSED, XDS_SERVED) if db is None else db
        self.directory = directory
        self.wanted = BootstrapFile(directory, ping_every=ping_every, runtime=RUNTIME if traced else NO_RUNTIME)
        self.server = AdsServer(self.db, self.wanted.ads, retry=retry)
        self.supervisor = Supervisor(
            Settings(binary.find(), directory, concurrency=workers, drain_time=1.0, ready_timeout=ready_timeout)
        )
        self.host = "127.0.0.1"
        """Where calls go."""
        self._stack = stack
        self._retry = retry
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60))

    def serve(self) -> None:
        self.server = AdsServer(self.db, self.wanted.ads, retry=self._retry)
        self._tasks["ads"] = asyncio.create_task(self.server.run())

    def supervise(self) -> None:
        self._tasks["supervisor"] = asyncio.create_task(self.supervisor.run())

    async def stop(self, name: str) -> None:
        task = self._tasks.pop(name)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def close(self) -> None:
        await self.session.close()
        for name in list(self._tasks)[::-1]:
            await self.stop(name)

    def put(self, *rows: Resource) -> None:
        with self.db.write() as txn:
            for row in rows:
                txn.put(XDS, row)

    def delete(self, *keys: ResourceKey) -> None:
        with self.db.write() as txn:
            for key in keys:
                txn.delete(XDS, key)

    async def backend(
        self,
        text: str,
        *,
        seen: list[web.BaseRequest] | None = None,
        status: int = 200,
        ssl: SSLContext | None = None,
    ) -> int:
        """An HTTP server that answers every request with a text, and lists the requests it saw; its port."""
        [port] = free_ports(1)

        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            if seen is not None:
                seen.append(request)
            return web.Response(text=text, status=status, headers={"x-backend": text, "x-secret": "1"})

        runner = web.ServerRunner(web.Server(answer))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=1024, ssl_context=ssl).start()
        self._stack.push_async_callback(runner.cleanup)
        return port

    async def ask(self, port: int, method: str = "GET", path: str = "/", **headers: str) -> aiohttp.ClientResponse:
        """A call on a kept connection, answered whatever its status; its headers and status."""
        url = f"http://{self.host}:{port}{path}"
        async with self.session.request(method, url, headers=headers, allow_redirects=False) as answer:
            await answer.read()
            return answer

    async def get(self, port: int, path: str = "/", **headers: str) -> tuple[int, str]:
        """A call on a connection of its own: status and text; status 0 where there was no answer."""
        try:
            connector = aiohttp.TCPConnector(force_close=True)
            async with (
                aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=30)) as session,
                session.get(f"http://{self.host}:{port}{path}", headers=headers) as got,
            ):
                return got.status, await got.text()
        except (OSError, aiohttp.ClientError, TimeoutError) as why:
            return 0, repr(why)

    async def until(self, port: int, want: tuple[int, str], path: str = "/") -> None:
        """Wait until a call has that answer."""
        got = None
        try:
            async with asyncio.timeout(90):
                while (got := await self.get(port, path)) != want:  # noqa: ASYNC110 of another process
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"want {want}, got {got}: {self.server!r} {self.supervisor!r}") from None

    def refused(self) -> Sequence[str]:
        """What is not in force, as 'owner: error'."""
        return [f"{row.owner}: {row.error}" for row in self.db.snapshot().all(XDS_REFUSED)]


@asynccontextmanager
async def envoy_world(
    directory: Path,
    *,
    db: Database | None = None,
    workers: int = 1,
    retry: float = RETRY,
    ping_every: float = PING_EVERY,
    ready_timeout: float = 30.0,
    traced: bool = False,
) -> AsyncIterator[EnvoyWorld]:
    """A world with an Envoy that starts; ended with everything in it. ``traced``: an Envoy that may send spans."""
    async with AsyncExitStack() as stack:
        world = EnvoyWorld(
            directory,
            stack,
            db,
            workers=workers,
            retry=retry,
            ping_every=ping_every,
            ready_timeout=ready_timeout,
            traced=traced,
        )
        stack.push_async_callback(world.close)
        world.serve()
        world.wanted.write("test")
        world.supervise()
        yield world
