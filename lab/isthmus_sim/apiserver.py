"""A double of a kube-apiserver: the lab's verbs, rules and watches over a registry in memory, without HTTP.

The lab's API server is compared with a real one by its own tests; what is new here is the registry, which has
revisions, a window of changes and compaction, and the way to it: requests and watches of the real
:class:`isthmus.kube.transport.Transport` over the simulated network, with answers that may be 409, 429 or 500.
"""

from __future__ import annotations

import asyncio
import ipaddress
import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
import msgspec
from aiohttp import web
from multidict import CIMultiDict, MultiDict

from isthmus.kube import transport
from isthmus.kube.access import Access
from isthmus.reflector import Expired
from isthmus_lab.apiserver import definitions, requests, watching
from isthmus_lab.apiserver.addresses import Addresses
from isthmus_lab.apiserver.api import Api, Author
from isthmus_lab.apiserver.http import Server
from isthmus_lab.apiserver.kinds import BUILT_IN, Kind, Registry
from isthmus_lab.apiserver.nodes import Nodes
from isthmus_lab.apiserver.objects import Object
from isthmus_lab.apiserver.storage import Change, Item, Page, Store
from isthmus_lab.apiserver.stored_kinds import STORED_KINDS
from isthmus_lab.apiserver.tokens import Tokens
from isthmus_lab.controllers import garbage, namespaces
from isthmus_lab.realapi import definitions as crds
from isthmus_sim.network import Connection, Lost, Network, Refused
from isthmus_sim.process import Process, current

PEOPLE: Final = Author("people")
KEEPALIVE: Final = 25.0
"""Seconds of silence after which the kernel breaks a connection of the client: TCP_USER_TIMEOUT."""
WRITES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class _Ordered(set[Any]):
    """A set in order of arrival, so that each run iterates it in the same order."""

    def __init__(self) -> None:
        self._items: dict[Any, None] = {}

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._items))

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: Any) -> None:
        self._items[item] = None

    def discard(self, item: Any) -> None:
        self._items.pop(item, None)

    def clear(self) -> None:
        self._items.clear()


class MemoryStore(Store):
    """The registry without an etcd under it. A write is visible at once, and history is kept until it is compacted."""

    def __init__(self) -> None:
        super().__init__(session=None)  # type: ignore[arg-type]
        self._window = deque()
        self._subscriptions = _Ordered()
        self.revision = self.seen = 1
        self._expiring: list[tuple[float, Item]] = []
        self.changed: Callable[[Change], None] = lambda change: None
        """Called with each change."""
        self.ready.set()

    async def page(self, resource: str, namespace: str, *, limit: int, after: str = "", revision: int = 0) -> Page:
        """At most ``limit`` objects after a key, as of a revision."""
        if revision and revision < self._floor:
            raise Expired(f"revision {revision} is compacted, up to {self._floor}")
        objects = dict(self._items.get(resource, {}))
        for change in reversed(self._window) if revision else ():
            if change.revision <= revision:
                break
            if change.resource == resource:
                objects.pop(change.key, None)
                objects |= {change.key: change.old} if change.old is not None else {}
        keys = sorted(key for key in objects if key > after and (not namespace or key.startswith(f"{namespace}/")))
        shown = keys[:limit] if limit else keys
        more = shown[-1] if len(shown) < len(keys) else ""
        return Page([objects[key] for key in shown], more, len(keys) - len(shown), revision or self.revision)

    async def create(self, resource: str, key: str, body: Object, *, lifetime: int = 0) -> Item | None:
        """Store a new object; None if the name is taken."""
        if self.get(resource, key) is not None:
            return None
        item = await self._commit(resource, key, body)
        if lifetime and item is not None:
            self._expiring.append((_now() + lifetime, item))
        return item

    async def update(self, item: Item, body: Object, *, lifetime: int = 0) -> Item | None:
        """Replace an object; None if it has changed."""
        if self.get(item.resource, item.key) is not item:
            return None
        return await self._commit(item.resource, item.key, body)

    async def delete(self, item: Item) -> bool:
        """Remove an object; False if it has changed."""
        if self.get(item.resource, item.key) is not item:
            return False
        await self._commit(item.resource, item.key, None)
        return True

    async def expire(self) -> None:
        """Remove objects whose lifetime is over (Events), for ever."""
        while True:
            await asyncio.sleep(600)
            for _, item in [each for each in self._expiring if each[0] <= _now()]:
                await self.delete(item)
            self._expiring = [each for each in self._expiring if each[0] > _now()]

    def compacted(self) -> None:
        """Forget the history: watches and pages from before now are Expired."""
        self._window.clear()
        self._floor = self.revision

    def break_watches(self) -> None:
        """End every watch with 410, as a server does that rebuilt its cache."""
        for subscription in self._subscriptions:
            subscription.fail(Expired("the watch cache was built anew"))
        self._subscriptions.clear()

    async def _commit(self, resource: str, key: str, body: Object | None) -> Item | None:
        revision, items = self.revision + 1, self._items.setdefault(resource, {})
        old, new = items.pop(key, None), None
        if body is not None:
            metadata = {**body["metadata"], "resourceVersion": str(revision)}
            raw = msgspec.json.encode(body | {"metadata": metadata})
            new = items[key] = Item(resource, key, revision, msgspec.json.decode(raw), raw)
        change = Change(resource, key, old, new, revision)
        self.changed(change)
        self._window.append(change)
        self.revision = self.seen = revision
        for subscription in self._subscriptions:
            subscription.push([change])
        return new


class ApiServer:
    """The API server of one cluster, and the controllers that every cluster needs."""

    def __init__(self, name: str, network: Network, chance: random.Random, *, services: str) -> None:
        self.name = name
        self.network = network
        self._chance = chance
        self.store = MemoryStore()
        self.registry = Registry([*BUILT_IN, *STORED_KINDS])
        for definition in _definitions():
            definitions.serve(self.registry, definition)
        addresses = Addresses([ipaddress.ip_network(services)], choose=chance)
        self.api = Api(self.store, self.registry, addresses)
        ready = asyncio.Event()
        ready.set()
        self._server = Server(self.api, Nodes(self.api), Tokens(""), ready=ready)
        self.trouble: Counter[int] = Counter()
        """Status codes that a third of all requests gets now, with the number of faults that set each."""
        self.writes: Counter[str] = Counter()
        """Writes by host; those of the Lease are not among them."""
        self.writing: Callable[[Request], None] = lambda request: None
        """Called with each write but those of Leases, before it is done."""

    def __repr__(self) -> str:
        return f"<ApiServer {self.name}: {self.store!r}>"

    async def run(self) -> None:
        """Run the controllers, for ever."""
        parts = [part.controller(self.api).run() for part in (namespaces, garbage)]
        async with asyncio.TaskGroup() as tasks:
            for part in (*parts, self.store.expire()):
                tasks.create_task(part)

    def kind(self, group: str, resource: str) -> Kind:
        """A kind that is served."""
        (kind,) = (each for each in self.registry if each.group == group and each.resource == resource)
        return kind

    async def answer(self, request: Request) -> web.Response:
        """The answer to a request that is no watch."""
        leases = "/leases/" in request.path or request.path.endswith("/leases")
        if request.method in WRITES:
            self.writes[request.process.host] += not leases
            if not leases:
                self.writing(request)
        for code in sorted(+self.trouble):
            wrong = code != 409 or request.method in ("PUT", "PATCH")
            if wrong and self._chance.random() < 1 / 3:
                return _status(code)
        try:
            response = await self._server.handle(request)  # type: ignore[arg-type]
        except web.HTTPException as refusal:  # of a group that is not served
            return web.Response(text=refusal.text, status=refusal.status)
        assert isinstance(response, web.Response)
        return response


class Request:
    """The parts of an HTTP request that the lab's API server reads."""

    def __init__(
        self,
        process: Process,
        method: str,
        path: str,
        params: Mapping[str, str],
        body: bytes,
        headers: Mapping[str, str],
    ) -> None:
        self.process = process
        self.method = method
        self.path = path
        self.query = MultiDict(params)
        self.headers = CIMultiDict(headers)
        self.content_type = self.headers.get("Content-Type", "application/octet-stream")
        self._body = body

    def __repr__(self) -> str:
        return f"<{self.method} {self.path}?{urlencode(self.query)} of {self.process.host}>"

    async def read(self) -> bytes:
        """The body."""
        return self._body


class Transport(transport.Transport):
    """The real transport up to the point where it would send over HTTP."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._process = current()
        self._connection = server.network.open(self._process, server.name)
        self._access = Access(server=f"http://{server.name}")
        self._token = ""
        self._failing = None
        self.skew = 0.0
        self.requests = 0

    async def close(self) -> None:
        """End nothing: requests end with the tasks that made them."""

    async def _send(self, method: str, path: str, arguments: dict[str, Any]) -> Any:
        self.requests += 1
        headers = {"User-Agent": "isthmus", **(arguments.get("headers") or {})}
        params = arguments.get("params") or {}
        request = Request(self._process, method, path, params, arguments.get("data") or b"", headers)
        if self._connection.broken:
            self._connection = self._server.network.open(self._process, self._server.name)
        connection, silence = self._connection, arguments["timeout"].sock_read
        try:
            if params.get("watch"):
                return await self._watch(connection, request, silence)
            async with asyncio.timeout(min(silence, KEEPALIVE)):
                await connection.to_server()
                answer = await self._server.answer(request)
                await connection.to_client()
        except Refused:
            self._connection = self._server.network.open(self._process, self._server.name)
            raise aiohttp.ClientOSError(111, "Connection refused") from None
        except Lost:
            raise aiohttp.ServerDisconnectedError from None
        return Response(answer.status, _body(answer))

    async def _watch(self, connection: Connection, request: Request, silence: float) -> Any:
        async with asyncio.timeout(KEEPALIVE):
            await connection.to_server()
            for code in sorted(+self._server.trouble):
                if code != 409:
                    await connection.to_client()
                    answer = _status(code)
                    return Response(answer.status, _body(answer))
            await connection.to_client()
        return Response(200, b"", _Stream(self._server, connection, request, silence))


class Response:
    """The parts of aiohttp's response that the real transport reads."""

    def __init__(self, status: int, body: bytes, content: _Stream | None = None) -> None:
        self.status = status
        self.reason = "OK" if status < 400 else "refused by the simulation"
        self.headers: dict[str, str] = {}
        self._body = body
        self.content = content

    async def read(self) -> bytes:
        """The whole body."""
        return self._body

    def release(self) -> None:
        """Release the connection."""

    async def __aenter__(self) -> Response:
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self.content is not None:
            self.content.close()


class _Stream:
    """The chunks of a watch."""

    def __init__(self, server: ApiServer, connection: Connection, request: Request, silence: float) -> None:
        self._connection = connection
        self._silence = silence
        self._sent: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._arrived: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        target = requests.target(server.registry, request.path)
        self._watch = watching.Watch(request, server.store, target)  # type: ignore[arg-type]
        self._tasks = [asyncio.ensure_future(each) for each in (self._serve(), self._deliver(), self._guard())]

    async def write(self, data: bytes) -> None:
        """Take lines on the server's side."""
        self._sent.put_nowait(data)

    async def iter_any(self) -> AsyncIterator[bytes]:
        """Yield what arrives; ends with the watch."""
        while True:
            async with asyncio.timeout(self._silence):
                chunk = await self._arrived.get()
            if chunk is None:
                return
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk

    def close(self) -> None:
        """End the watch from the client's side."""
        for task in self._tasks:
            task.cancel()

    async def _serve(self) -> None:
        async def begin() -> None: ...

        await self._watch.feed(self, begin=begin)
        self._sent.put_nowait(None)

    async def _deliver(self) -> None:
        with suppress(Lost):  # _guard reports it
            while True:
                chunk = await self._sent.get()
                await self._connection.to_client()
                self._arrived.put_nowait(chunk)
                if chunk is None:
                    return

    async def _guard(self) -> None:
        await self._connection.fails(KEEPALIVE)
        self._arrived.put_nowait(aiohttp.ClientPayloadError("connection reset by peer"))


@cache
def _definitions() -> list[Object]:
    return crds.bodies()


def _body(answer: web.Response) -> bytes:
    assert answer.body is None or isinstance(answer.body, bytes)
    return answer.body or b""


def _status(code: int) -> web.Response:
    reason = {409: "Conflict", 429: "TooManyRequests", 500: "InternalError"}.get(code, "ServiceUnavailable")
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "simulated", "reason": reason}
    return web.Response(body=msgspec.json.encode({**status, "code": code, "details": {"name": "x"}}), status=code)


def _now() -> float:
    return asyncio.get_running_loop().time()
