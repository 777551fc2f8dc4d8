"""A small API server in memory that speaks real bytes over real sockets, and fails in the ways that real ones do.

It is for tests of clients: it stores what it is given, knows list, watch, get, create, replace, patch and delete of
any kind, and keeps everything in one dictionary by path. ``faults`` are taken one by one by the next requests that
match; what it was asked is in ``asked``.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from email.utils import formatdate
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

Object = dict[str, Any]


class Request(NamedTuple):
    """A request as it came."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") == "1"


class Reply(Exception):  # noqa: N818
    """What is answered: a status and a body."""

    def __init__(self, code: int, body: Object | bytes) -> None:
        super().__init__(code)
        self.code = code
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()


def status(code: int, reason: str, message: str = "as the test wants", *, name: str = "") -> Reply:
    """A refusal."""
    details = {"details": {"name": name}} if name else {}
    return Reply(code, {"kind": "Status", "code": code, "reason": reason, "message": message, **details})


class Stream:
    """A watch that the test feeds by hand."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.open = True

    def send(self, data: bytes) -> None:
        self.writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def event(self, kind: str, obj: Object) -> None:
        self.send(json.dumps({"type": kind, "object": obj}).encode() + b"\n")

    def end(self) -> None:
        self.writer.write(b"0\r\n\r\n")
        self.open = False

    def reset(self) -> None:
        reset(self.writer)
        self.open = False


def reset(writer: asyncio.StreamWriter) -> None:
    """RST instead of FIN; nothing where the client has closed the connection a moment before."""
    made: socket.socket = writer.get_extra_info("socket")
    if made.fileno() < 0:
        return
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


Fault = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]


class FakeApiServer:
    """The store, and what was asked of it."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.revision = 100
        self.oldest = 0
        self.page_limit = 0
        self.served: dict[str, list[str]] = {}
        self.token = ""
        self.cut_off: set[str] = set()
        """Tokens of clients that no longer reach us."""
        self.hangs: Callable[[Request], bool] = lambda request: False
        """Requests that are read and never answered, as by a server that lost its store."""
        self.asked: list[Request] = []
        self.faults: list[tuple[Callable[[Request], bool], Fault]] = []
        self.streams: list[tuple[str, Stream]] = []
        self.lists: dict[tuple[str, int], list[tuple[str, Object]]] = {}
        self.history: list[tuple[int, str, str, Object]] = []
        self.connections: set[asyncio.StreamWriter] = set()
        self.url = ""

    # what tests say

    def put(self, path: str, **fields: Any) -> Object:
        """Store an object at its path ('/api/v1/namespaces/demo/services/echo') and send it to watchers."""
        self.revision += 1
        collection, _, name = path.rpartition("/")
        before = self.objects.get(path)
        meta = {"name": name, "uid": before["metadata"]["uid"] if before else str(uuid.uuid4())}
        if "/namespaces/" in path:
            meta["namespace"] = path.partition("/namespaces/")[2].partition("/")[0]
        meta |= fields.pop("metadata", {})
        meta["resourceVersion"] = str(self.revision)
        self.objects[path] = {"metadata": meta, **fields}
        self._tell(collection, "MODIFIED" if before else "ADDED", self.objects[path])
        return self.objects[path]

    def remove(self, path: str) -> None:
        """Delete an object and send the event to the watchers."""
        self.revision += 1
        deleted = self.objects.pop(path)
        deleted = {**deleted, "metadata": {**deleted["metadata"], "resourceVersion": str(self.revision)}}
        self._tell(path.rpartition("/")[0], "DELETED", deleted)

    def expire(self) -> None:
        """Compact: no watch from before now any more; those that stand go on."""
        self.revision += 1
        self.oldest = self.revision

    def fail(self, fault: Fault | Reply, *, on: Callable[[Request], bool] = lambda request: True) -> None:
        """Do this to the next request that matches, once."""

        async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
            assert isinstance(fault, Reply)
            _respond(writer, fault)

        self.faults.append((on, answer if isinstance(fault, Reply) else fault))

    def verbs(self) -> list[str]:
        """What was asked, in short."""
        return [f"{'WATCH' if r.is_watch else r.method} {r.path}" for r in self.asked]

    async def watcher(self, index: int = -1) -> Stream:
        """A standing watch, once there is one."""
        async with asyncio.timeout(60):
            while not [s for _, s in self.streams if s.open]:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        return [s for _, s in self.streams if s.open][index]

    # serving

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until the client goes."""
        self.connections.add(writer)
        try:
            while (request := await _read(reader)) is not None:
                self.asked.append(request)
                if not await self._serve(request, reader, writer):
                    break
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.connections.discard(writer)
            writer.close()

    async def _serve(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if request.headers.get("authorization", "").removeprefix("Bearer ") in self.cut_off:
            reset(writer)
            return False
        if self.hangs(request):
            while not (writer.transport.is_closing() or reader.at_eof()):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            return False
        for index, (matches, fault) in enumerate(self.faults):
            if matches(request):
                del self.faults[index]
                await fault(request, writer)
                return not writer.transport.is_closing()
        try:
            if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
                raise status(401, "Unauthorized")
            if request.is_watch:
                await self._watch(request, reader, writer)
                return True
            answer = Reply(200, self._answer(request))
        except Reply as refusal:
            answer = refusal
        _respond(writer, answer)
        return True

    async def _watch(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        start = int(request.query["resourceVersion"])
        if start < self.oldest:
            raise status(410, "Expired", "too old resource version")
        stream = start_stream(writer)
        for revision, collection, kind, obj in self.history:
            if revision > start and _within(f"{collection}/x", request.path):
                stream.event(kind, obj)
        self.streams.append((request.path, stream))
        while stream.open and not (writer.transport.is_closing() or reader.at_eof()):  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        stream.open = False

    def _answer(self, request: Request) -> Object:
        path, method = request.path, request.method
        if path in self.served:
            return {"kind": "APIResourceList", "resources": [{"name": each} for each in self.served[path]]}
        group = "/".join(path.split("/")[:4])
        if path.startswith("/apis/") and self.served and group not in self.served:
            raise Reply(404, b"404 page not found\n")
        body = json.loads(request.body) if request.body else {}
        path = path.removesuffix("/status")
        name = path.rpartition("/")[2]
        if method == "GET" and path not in self.objects and _is_collection(path):
            return self._list(request)
        if method == "POST":
            return self._create(path, body)
        if path not in self.objects and not (method == "PATCH" and "apply" in request.headers["content-type"]):
            raise status(404, "NotFound", f'"{name}" not found', name=name)
        if method == "GET":
            return self.objects[path]
        if method == "DELETE":
            self._precondition(path, body.get("preconditions", {}).get("uid"), "uid")
            self.remove(path)
            return {"kind": "Status", "status": "Success"}
        self._precondition(path, body.get("metadata", {}).get("resourceVersion"), "resourceVersion")
        return self.put(path, **(body if method == "PUT" else _merge(self.objects.get(path, {}), body)))

    def _create(self, collection: str, body: Object) -> Object:
        meta = body.get("metadata", {})
        name = meta.get("name") or meta.get("generateName", "") + uuid.uuid4().hex[:5]
        if f"{collection}/{name}" in self.objects:
            raise status(409, "AlreadyExists", f'"{name}" already exists', name=name)
        return self.put(f"{collection}/{name}", **body)

    def _precondition(self, path: str, want: str | None, field: str) -> None:
        """What is applied where nothing is has nothing to be held against."""
        if want and path in self.objects and self.objects[path]["metadata"][field] != want:
            raise status(409, "Conflict", "the object has been modified", name=path.rpartition("/")[2])

    def _list(self, request: Request) -> Object:
        """A page; all pages of a list are of one revision, and run out when that is compacted."""
        token = request.query.get("continue")
        revision, start = (int(part) for part in token.split("/")) if token else (self.revision, 0)
        if not token:
            paths = sorted(path for path in self.objects if _within(path, request.path))
            self.lists[request.path, revision] = [(path, self.objects[path]) for path in paths]
        if revision < self.oldest or (request.path, revision) not in self.lists:
            raise status(410, "Expired", "the continue token is too old")
        found = [obj for _, obj in self.lists[request.path, revision]]
        limit = int(request.query.get("limit") or 0)
        if self.page_limit and limit:
            limit = self.page_limit
        page = found[start : start + limit] if limit else found[start:]
        more = {"continue": f"{revision}/{start + limit}"} if limit and start + limit < len(found) else {}
        return {"kind": "List", "metadata": {"resourceVersion": str(revision), **more}, "items": page or None}

    def _tell(self, collection: str, kind: str, obj: Object) -> None:
        self.history.append((self.revision, collection, kind, obj))
        for path, stream in self.streams:
            if stream.open and _within(f"{collection}/x", path):
                stream.event(kind, obj)


def start_stream(writer: asyncio.StreamWriter) -> Stream:
    """Answer 200 and leave the rest to the test."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
    return Stream(writer)


@asynccontextmanager
async def running(*, tls: ssl.SSLContext | None = None) -> AsyncIterator[FakeApiServer]:
    """A server on a free port of loopback."""
    server = FakeApiServer()
    listener = await asyncio.start_server(server.connected, "127.0.0.1", 0, ssl=tls, limit=2**22)
    scheme = "https" if tls else "http"
    server.url = f"{scheme}://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()
        for writer in list(server.connections):
            writer.transport.abort()
        while server.connections:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@contextmanager
def refusing() -> Iterator[str]:
    """An address without a listener."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


async def _read(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.split("\r\n")
    method, target, _ = first.split(" ")
    headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    url = urlsplit(target)
    return Request(method, url.path, dict(parse_qsl(url.query)), headers, body)


def _respond(writer: asyncio.StreamWriter, reply: Reply) -> None:
    fields = {"Content-Type": "application/json", "Content-Length": len(reply.body), "Date": formatdate(usegmt=True)}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    head = f"HTTP/1.1 {reply.code} -\r\n{head}\r\n"
    writer.write(head.encode() + reply.body)


def _is_collection(path: str) -> bool:
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    return len(rest) in (1, 3)


def _within(path: str, collection: str) -> bool:
    """Whether an object is in a collection: of its namespace, or of all of them."""
    own = path.rpartition("/")[0]
    if own == collection:
        return True
    root, found, rest = own.partition("/namespaces/")
    return bool(found) and f"{root}/{rest.partition('/')[2]}" == collection


def _merge(old: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), value)
    return merged
