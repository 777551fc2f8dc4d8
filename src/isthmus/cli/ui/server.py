"""HTTP on loopback for one person: the page, a stream of changes, details on demand. It reads and never writes.

The token is in the fragment of the printed URL, which browsers do not send; the page sends it as a header, so no
other site's page, and no other local user, can ask. Names other than loopback's are refused in ``Host``: a foreign name
that was made to resolve to this machine (DNS rebinding) gets nothing. The page itself holds no data and needs no token.
"""

from __future__ import annotations

import asyncio
import hmac
import socket as sockets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import resources
from typing import Any, Final

import msgspec
from aiohttp import web

from isthmus.cli.ui import details
from isthmus.cli.ui.history import History
from isthmus.cli.ui.sources import Process, Source
from isthmus.cli.ui.view import View, difference, view
from isthmus.model.hosts import endpoint

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
"""Hosts by which the page may be called. The port is free: it may be forwarded, as by ssh."""
STREAMS: Final = 16
"""Pages that are served at a time."""
COMMANDS: Final = 3
"""Commands that run at a time for the details of services."""
PACE: Final = 1.0
"""Least seconds between two views; at least three times what one takes to compute."""
HEARTBEAT: Final = 5.0
"""Seconds after which a page without news gets a sign of life."""
STALL: Final = 30.0
"""Seconds for which a page may leave its stream full."""
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""``require-trusted-types-for``: a browser refuses to parse any text as HTML, whatever a script attempts."""
TYPES: Final = {
    "html": "text/html",
    "js": "text/javascript",
    "css": "text/css",
    "svg": "image/svg+xml",
    "LICENSE": "text/plain",
}

Kubectl = Mapping[str, Sequence[str]]
"""Beginning of a kubectl command by the name under which a cluster is asked."""


class Page:
    """State that is served: the sources, the newest view of them, and the last hour."""

    def __init__(self, sources: Sequence[Source], *, token: str, kubectl: Kubectl | None = None) -> None:
        self._sources = sources
        self._token = token.encode()
        self._kubectl = kubectl or {}
        self._view = self._marked = View()
        self._began = time.time()
        self._history = History(self._began)
        self._news = asyncio.Condition()
        self._changed = asyncio.Event()
        self._running = asyncio.Semaphore(COMMANDS)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._files = _files()
        self.streams = 0

    def __repr__(self) -> str:
        return f"<Page: {len(self._sources)} sources, {self.streams} streams>"

    def changed(self) -> None:
        """Compute the view anew, soon; called by any thread."""
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._changed.set)
            except RuntimeError:
                pass  # the server has ended

    def app(self) -> web.Application:
        """Return the application: GET alone."""
        app = web.Application(middlewares=[self._guard])
        for path, handler in {
            "/api/stream": self._stream,
            "/api/timeline": self._timeline,
            "/api/service": self._service,
            "/api/explain": self._explain,
            "/api/diagnose": self._diagnose,
            "/api/events": self._events,
            "/{file:.*}": self._file,
        }.items():
            app.router.add_get(path, handler, allow_head=False)
        return app

    async def run(self) -> None:
        """Keep the view up to date, for ever."""
        self._loop = asyncio.get_running_loop()
        self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            began = time.monotonic()
            new = await asyncio.to_thread(self._compute)
            async with self._news:
                self._view = new
                self._news.notify_all()
            await asyncio.sleep(max(PACE, 3 * (time.monotonic() - began)))

    def _compute(self) -> View:
        processes: list[Process] = [source.process() for source in self._sources]
        self._history.count(processes)
        new = view(processes)
        if all(process.error or (process.status and process.tables) for process in processes):
            self._history.mark(self._marked, new, time.time())
            self._marked = new
        return new

    @web.middleware
    async def _guard(self, request: web.Request, handler: Callable[[web.Request], Awaitable[Any]]) -> Any:
        response: web.StreamResponse
        if not _is_loopback(request.host):
            response = _refusal(403, "this page is served to this machine, by the name localhost or 127.0.0.1")
        elif request.path.startswith("/api/") and not self._is_authorized(request):
            response = _refusal(401, "the token is missing or another one's: open the URL that isthmus ui printed")
        else:
            try:
                return await handler(request)
            except web.HTTPException as error:
                response = _refusal(error.status, error.reason)
        return response

    def _is_authorized(self, request: web.Request) -> bool:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        return scheme == "Bearer" and hmac.compare_digest(token.encode(errors="replace"), self._token)

    async def _file(self, request: web.Request) -> web.Response:
        name = request.match_info["file"] or "index.html"
        content = self._files.get(name)
        if content is None:
            return _refusal(404, "there is no such file")
        kind = TYPES[name.rpartition(".")[2]]
        return web.Response(body=content, content_type=kind, charset="utf-8", headers=HEADERS)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Write the view as a first event, then what changes of it."""
        if self.streams >= STREAMS:
            return _refusal(503, f"{STREAMS} pages are open already: close one")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **HEADERS})
        await response.prepare(request)
        self.streams += 1
        known = View()
        try:
            while True:
                newest = self._view
                await _send(response, {"now": time.time(), "began": self._began, **difference(known, newest)})
                known = newest
                await self._next(known)
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self.streams -= 1
        return response

    async def _next(self, known: View) -> None:
        """Wait for another view, or for as long as a page waits for a sign of life."""
        try:
            async with asyncio.timeout(HEARTBEAT), self._news:
                await self._news.wait_for(lambda: self._view is not known)
        except TimeoutError:
            pass

    async def _timeline(self, request: web.Request) -> web.Response:
        service, cluster = request.query.get("service", ""), request.query.get("cluster", "")
        return _json(await asyncio.to_thread(self._history.timeline, service, cluster, time.time()))

    async def _service(self, request: web.Request) -> web.Response:
        name = self._named(request)
        return _json(await asyncio.to_thread(details.details, name, self._sources))

    async def _explain(self, request: web.Request) -> web.Response:
        name, source = self._named(request), self._asked(request)
        async with self._running:
            return _json(await details.explain(name, source))

    async def _diagnose(self, request: web.Request) -> web.Response:
        name, source = self._named(request), self._asked(request)
        async with self._running:
            return _json(await details.diagnose(name, source))

    async def _events(self, request: web.Request) -> web.Response:
        name, source = self._named(request), self._asked(request)
        async with self._running:
            return _json(await details.events(name, self._kubectl.get(source.cluster, ()), source.cluster))

    def _named(self, request: web.Request) -> str:
        """The service of a request: one that the view has, since commands get the name."""
        name = request.query.get("name", "")
        if name not in self._view.services:
            raise web.HTTPNotFound(reason="there is no such service")
        return name

    def _asked(self, request: web.Request) -> Source:
        """The agent of the cluster of a request."""
        cluster = request.query.get("cluster", "")
        for source in self._sources:
            if source.name == "agent" and cluster in (source.cluster, source.process().cluster):
                return source
        raise web.HTTPNotFound(reason="no agent of that cluster is asked")


async def serve(page: Page, *, port: int, ready: Callable[[int], None]) -> None:
    """Serve a page on loopback until cancelled. ``port`` 0 selects a free one; ``ready`` gets its number."""
    runner = web.AppRunner(page.app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    listener = sockets.socket(sockets.AF_INET, sockets.SOCK_STREAM)
    try:
        listener.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        await web.SockSite(runner, listener).start()
        ready(listener.getsockname()[1])
        await page.run()
    finally:
        await runner.cleanup()
        listener.close()


def _files() -> dict[str, bytes]:
    folder = resources.files("isthmus.cli.ui") / "static"
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.name.rpartition(".")[2] in TYPES}


def _is_loopback(host: str) -> bool:
    try:
        return endpoint(host, port=80).host.lower() in LOOPBACK
    except ValueError:
        return False


async def _send(response: web.StreamResponse, value: Any) -> None:
    async with asyncio.timeout(STALL):
        await response.write(b"data: " + msgspec.json.encode(value) + b"\n\n")


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json", headers=HEADERS)


def _refusal(status: int, reason: str) -> web.Response:
    body = msgspec.json.encode({"error": reason})
    return web.Response(status=status, body=body, content_type="application/json", headers=HEADERS)
