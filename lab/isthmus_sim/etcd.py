"""A double of etcd: one store with revisions, history, compaction, watches, leases and users' tokens.

It takes and gives the messages of :mod:`isthmus.etcd.wire` below the real client, which keeps its retries, tokens and
translation of errors. A request is done at one moment, at one revision. Not modelled: several members, the quota,
rights (any user may do anything), ``fragment``.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio

from isthmus.etcd import wire
from isthmus.etcd.transport import END
from isthmus_sim.network import Connection, Lost, Network, Refused
from isthmus_sim.process import current

TOKEN_LIFE: Final = 300.0
"""Seconds for which an unused token is valid, etcd's ``--auth-token-ttl``."""
KEEPALIVE: Final = 15.0
"""Seconds of silence after which gRPC abandons a connection: a ping after 10, and 5 more for its answer."""
SWEEP: Final = 0.5
"""Seconds between looks for leases that have run out, as in etcd."""

Code = grpc.StatusCode
Key = tuple[bytes, bytes]


class _Change(NamedTuple):
    revision: int
    key: bytes
    now: Any
    before: Any


class Fault(Exception):  # noqa: N818
    """An answer that is an error."""

    def __init__(self, code: Code, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


class Watcher:
    """One watch on the server's side."""

    def __init__(self, start: bytes, end: bytes, push: Callable[[Any], None]) -> None:
        self._start, self._end = start, end
        self.push = push

    def wants(self, key: bytes) -> bool:
        """True if the key is in its range."""
        return _within(key, self._start, self._end)


class _Lease(NamedTuple):
    ttl: int
    expires: float


class Etcd:
    """The store of one cluster."""

    def __init__(self, name: str, number: int, chance: random.Random, *, users: bool = True) -> None:
        self.name = name
        self._users = users
        self._chance = chance
        self._number = number
        self._ids = itertools.count(1000)
        self._tokens: dict[str, float] = {}
        self._watchers: list[Watcher] = []
        self.deleted: Callable[[str, int], None] = lambda key, revision: None
        """Called with each key that is deleted, also by an expired lease."""
        self.writes = 0
        self.clear()

    def __repr__(self) -> str:
        return f"<Etcd {self.name}: revision {self.revision}, {len(self._keys)} keys, {len(self._watchers)} watches>"

    # Faults.

    def clear(self) -> None:
        """Lose all data: the store begins again under the same id."""
        self.revision = 1
        self._compacted = 0
        self._keys: dict[bytes, Any] = {}
        self._log: list[_Change] = []
        self._leases: dict[int, _Lease] = {}
        self._tokens.clear()
        self._watchers.clear()

    def restarted(self) -> None:
        """End every watch and forget every token; leases begin their time anew, as under a new leader."""
        now = _now()
        self._tokens.clear()
        self._watchers.clear()
        self._leases = {number: lease._replace(expires=now + lease.ttl) for number, lease in self._leases.items()}

    def expire_tokens(self) -> None:
        """Forget every token."""
        self._tokens.clear()

    def compact(self) -> None:
        """Forget the history."""
        self._compacted = self.revision
        self._log.clear()

    async def run(self) -> None:
        """Delete the keys of leases that have run out, for ever."""
        while True:
            await asyncio.sleep(SWEEP)
            now = _now()
            for number in [number for number, lease in self._leases.items() if lease.expires <= now]:
                self._revoke(number)

    def values(self, prefix: str) -> dict[str, bytes]:
        """The values of all keys with a prefix, for invariants."""
        start = prefix.encode()
        return {key.decode(): kv.value for key, kv in sorted(self._keys.items()) if key.startswith(start)}

    # Requests.

    def answer(self, method: wire.Method, request: Any, metadata: Any) -> Any:
        """Do a unary request; Fault is its error."""
        if method is wire.AUTHENTICATE:
            token = f"{self._chance.getrandbits(64):x}"
            self._tokens[token] = _now() + TOKEN_LIFE
            return self._reply("AuthResponse", token=token)
        self.check_token(metadata)
        handlers: dict[str, Callable[[Any], Any]] = {
            wire.RANGE.path: self._range,
            wire.PUT.path: self._put,
            wire.DELETE_RANGE.path: self._delete,
            wire.TXN.path: self._txn,
            wire.COMPACT.path: self._compact,
            wire.LEASE_GRANT.path: self._grant,
            wire.LEASE_REVOKE.path: lambda request: self._revoked(request.id),
            wire.STATUS.path: self._status,
        }
        if method.path not in handlers:
            raise Fault(Code.UNIMPLEMENTED, f"the double has no {method.path}")
        return handlers[method.path](request)

    def check_token(self, metadata: Any) -> None:
        """Refuse a request without a valid token."""
        if not self._users:
            return
        token = dict(metadata or ()).get("token", "")
        if self._tokens.get(token, 0.0) <= _now():
            raise Fault(Code.UNAUTHENTICATED, "etcdserver: invalid auth token")
        self._tokens[token] = _now() + TOKEN_LIFE

    def _status(self, request: Any) -> Any:
        return self._reply("StatusResponse", version="3.5.9", db_size=20480, leader=1, db_size_in_use=20480)

    def _range(self, request: Any) -> Any:
        if request.revision > self.revision:
            raise Fault(Code.OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision")
        if request.revision and request.revision < self._compacted:
            raise Fault(Code.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted")
        keys = self._keys if not request.revision else self._as_of(request.revision)
        found = [keys[key] for key in sorted(keys) if _within(key, request.key, request.range_end)]
        shown = found[: request.limit] if request.limit else found
        return self._reply("RangeResponse", kvs=shown, more=len(shown) < len(found), count=len(found))

    def _as_of(self, revision: int) -> dict[bytes, Any]:
        keys = dict(self._keys)
        for change in reversed(self._log):
            if change.revision <= revision:
                break
            if change.before is None:
                del keys[change.key]
            else:
                keys[change.key] = change.before
        return keys

    def _put(self, request: Any) -> Any:
        self._check_lease(request)
        self.revision += 1
        self._commit([self._written(request)])
        return self._reply("PutResponse")

    def _check_lease(self, request: Any) -> None:
        if request.lease and request.lease not in self._leases:
            raise Fault(Code.NOT_FOUND, "etcdserver: requested lease not found")

    def _written(self, request: Any) -> _Change:
        before = self._keys.get(request.key)
        now = wire.KeyValue(
            key=request.key,
            value=request.value,
            lease=request.lease,
            mod_revision=self.revision,
            create_revision=before.create_revision if before is not None else self.revision,
            version=before.version + 1 if before is not None else 1,
        )
        self._keys[request.key] = now
        return _Change(self.revision, request.key, now, before)

    def _delete(self, request: Any) -> Any:
        keys = [key for key in sorted(self._keys) if _within(key, request.key, request.range_end)]
        if keys:
            self.revision += 1
        changes = [self._removed(key) for key in keys]
        self._commit(changes)
        previous = [change.before for change in changes] if request.prev_kv else []
        return self._reply("DeleteRangeResponse", deleted=len(keys), prev_kvs=previous)

    def _removed(self, key: bytes) -> _Change:
        return _Change(self.revision, key, None, self._keys.pop(key))

    def _txn(self, request: Any) -> Any:
        holds = all(self._holds(each) for each in request.compare)
        operations = request.success if holds else request.failure
        for each in operations:
            if each.HasField("put"):
                self._check_lease(each.put)
        writes = any(
            each.HasField("put") or (each.HasField("delete_range") and self._hits(each.delete_range))
            for each in operations
        )
        self.revision += writes
        changes: list[_Change] = []
        answers = [self._operate(each, changes) for each in operations]
        self._commit(changes)
        return self._reply("TxnResponse", succeeded=holds, responses=answers)

    def _hits(self, request: Any) -> bool:
        return any(_within(key, request.key, request.range_end) for key in self._keys)

    def _operate(self, operation: Any, changes: list[_Change]) -> Any:
        response = wire.message("ResponseOp")
        if operation.HasField("range"):
            return response(range=self._range(operation.range))
        if operation.HasField("put"):
            changes.append(self._written(operation.put))
            return response(put=self._reply("PutResponse"))
        request = operation.delete_range
        removed = [self._removed(key) for key in sorted(self._keys) if _within(key, request.key, request.range_end)]
        changes += removed
        return response(
            delete_range=self._reply(
                "DeleteRangeResponse", deleted=len(removed), prev_kvs=[each.before for each in removed]
            )
        )

    def _holds(self, compare: Any) -> bool:
        kv = self._keys.get(compare.key)
        field = ("version", "create_revision", "mod_revision", "value", "lease")[compare.target]
        if kv is None:
            have: Any = b"" if field == "value" else 0
        else:
            have = getattr(kv, field)
        want = getattr(compare, field)
        if field == "value" and kv is None:
            return False  # as in etcd: a missing key has no value to compare
        return bool((have == want, have > want, have < want, have != want)[compare.result])

    def _compact(self, request: Any) -> Any:
        if request.revision > self.revision or request.revision <= self._compacted:
            raise Fault(Code.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted")
        self._compacted = request.revision
        self._log = [change for change in self._log if change.revision > request.revision]
        return self._reply("CompactResponse")

    def _grant(self, request: Any) -> Any:
        number = next(self._ids)
        self._leases[number] = _Lease(request.ttl, _now() + request.ttl)
        return self._reply("LeaseGrantResponse", id=number, ttl=request.ttl)

    def keep_alive(self, number: int) -> Any:
        """Renew a lease; a ttl of 0 if there is none."""
        lease = self._leases.get(number)
        if lease is not None:
            self._leases[number] = lease._replace(expires=_now() + lease.ttl)
        return self._reply("KeepAliveResponse", id=number, ttl=lease.ttl if lease is not None else 0)

    def _revoked(self, number: int) -> Any:
        if number not in self._leases:
            raise Fault(Code.NOT_FOUND, "etcdserver: requested lease not found")
        self._revoke(number)
        return self._reply("LeaseRevokeResponse")

    def _revoke(self, number: int) -> None:
        del self._leases[number]
        keys = [key for key, kv in sorted(self._keys.items()) if kv.lease == number]
        if keys:
            self.revision += 1
            self._commit([self._removed(key) for key in keys])

    # Watches.

    def watch(self, create: Any, push: Callable[[Any], None]) -> Watcher | None:
        """Begin a watch: its first answers are pushed at once. None if it is canceled."""
        push(self._response(created=True))
        if create.start_revision and create.start_revision <= self._compacted:
            push(self._response(canceled=True, compact_revision=self._compacted))
            return None
        watcher = Watcher(create.key, create.range_end, push)
        if create.start_revision:
            missed = [change for change in self._log if change.revision >= create.start_revision]
            self._send(watcher, missed)
        self._watchers.append(watcher)
        return watcher

    def unwatch(self, watcher: Watcher) -> None:
        """End a watch."""
        if watcher in self._watchers:
            self._watchers.remove(watcher)

    def progress(self) -> Any:
        """Return the answer to a request for progress."""
        return self._response()

    def _commit(self, changes: list[_Change]) -> None:
        if not changes:
            return
        self.writes += 1
        self._log += changes
        for change in changes:
            if change.now is None:
                self.deleted(change.key.decode(), change.revision)
        for watcher in list(self._watchers):
            self._send(watcher, changes)

    def _send(self, watcher: Watcher, changes: list[_Change]) -> None:
        events = [_event(change) for change in changes if watcher.wants(change.key)]
        if events:
            watcher.push(self._response(events=events))

    def _response(self, **fields: Any) -> Any:
        return self._reply("WatchResponse", **fields)

    def _reply(self, name: str, **fields: Any) -> Any:
        header = {"cluster_id": self._number, "member_id": 1, "revision": self.revision, "raft_term": 2}
        return wire.message(name)(header=header, **fields)


class Channel:
    """The part of a gRPC channel that :class:`isthmus.etcd.transport.Transport` uses, to one etcd over the network."""

    def __init__(self, network: Network, etcd: Etcd) -> None:
        self._network = network
        self._etcd = etcd
        self._process = current()
        self._connection = network.open(self._process, etcd.name)
        self._streams: dict[Stream, None] = {}

    def get_state(self) -> Any:
        """The connectivity, which the client asks for before it uses a token again."""
        return grpc.ChannelConnectivity.IDLE if self._connection.broken else grpc.ChannelConnectivity.READY

    async def close(self) -> None:
        """End every call."""
        for stream in list(self._streams):
            stream.cancel()

    def unary_unary(self, path: str, **codecs: Any) -> Any:
        """The callable of a unary procedure."""
        method = _METHODS[path]

        async def call(request: Any, *, timeout: float, metadata: Any = ()) -> Any:
            try:
                async with asyncio.timeout(timeout):
                    async with self.connected() as connection:
                        await connection.to_server()
                        answer = self._etcd.answer(method, request, metadata)
                        await connection.to_client()
                        return answer
            except TimeoutError:
                raise error(Code.DEADLINE_EXCEEDED, "Deadline Exceeded") from None

        return call

    def stream_stream(self, path: str, **codecs: Any) -> Any:
        """The callable of a procedure with streams."""

        def call(*, metadata: Any = ()) -> Stream:
            stream = Stream(self, self._etcd, path, metadata)
            self._streams[stream] = None
            return stream

        return call

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Connection]:
        """The connection, a new one if it broke. Errors are raised as gRPC raises them."""
        if self._connection.broken:
            self._connection = self._network.open(self._process, self._etcd.name)
        try:
            yield self._connection
        except Refused:
            self._connection = self._network.open(self._process, self._etcd.name)
            raise error(Code.UNAVAILABLE, "failed to connect to all addresses: Connection refused") from None
        except Lost:
            raise error(Code.UNAVAILABLE, "Connection reset by peer") from None
        except Fault as fault:
            raise error(fault.code, fault.details) from None

    def ended(self, stream: Stream) -> None:
        """Forget a stream."""
        self._streams.pop(stream, None)


class Stream:
    """A call with streams: a watch, or the renewal of a lease."""

    def __init__(self, channel: Channel, etcd: Etcd, path: str, metadata: Any) -> None:
        self._channel = channel
        self._etcd = etcd
        self._path = path
        self._metadata = metadata
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self._arrived: asyncio.Queue[Any] = asyncio.Queue()
        self._ended: Exception | None = None
        self._watcher: Watcher | None = None
        self._tasks = [asyncio.ensure_future(self._run())]

    async def write(self, request: Any) -> None:
        """Send a message."""
        if self._ended is not None:
            raise self._ended if isinstance(self._ended, grpc.aio.AioRpcError) else asyncio.InvalidStateError
        self._requests.put_nowait(request)
        await asyncio.sleep(0)

    async def done_writing(self) -> None:
        """End the requests; the double needs no sign of it."""

    async def read(self) -> Any:
        """The next message; gRPC's END after the last, AioRpcError if the stream broke."""
        if self._arrived.empty() and self._ended is not None:
            raise self._ended
        message = await self._arrived.get()
        if isinstance(message, Exception):
            raise message
        return message

    def cancel(self) -> None:
        """End the stream from the client's side."""
        self._finish(None)
        for task in self._tasks:
            task.cancel()

    def _finish(self, error: Exception | None) -> None:
        if self._watcher is not None:
            self._etcd.unwatch(self._watcher)
            self._watcher = None
        self._channel.ended(self)
        if self._ended is None:
            self._ended = error or asyncio.CancelledError()  # type: ignore[assignment]
            self._arrived.put_nowait(error if error is not None else END)

    async def _run(self) -> None:
        try:
            async with self._channel.connected() as connection:
                requests = asyncio.ensure_future(self._serve(connection))
                answers = asyncio.ensure_future(self._deliver(connection))
                fails = asyncio.ensure_future(connection.fails(KEEPALIVE))
                parts = [requests, answers, fails]
                self._tasks += parts
                try:
                    done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
                    for each in (part for part in parts if part in done):
                        each.result()
                    raise Lost
                finally:
                    for part in parts:
                        part.cancel()
        except grpc.aio.AioRpcError as broken:
            self._finish(broken)

    async def _serve(self, connection: Connection) -> None:
        """Take requests on the server's side."""
        while True:
            request = await self._requests.get()
            await connection.to_server()
            self._etcd.check_token(self._metadata)
            if self._path == wire.LEASE_KEEP_ALIVE.path:
                self._answers.put_nowait(self._etcd.keep_alive(request.id))
            elif request.HasField("create"):
                self._watcher = self._etcd.watch(request.create, self._answers.put_nowait)
            elif self._watcher is not None:
                self._answers.put_nowait(self._etcd.progress())

    async def _deliver(self, connection: Connection) -> None:
        while True:
            answer = await self._answers.get()
            await connection.to_client()
            self._arrived.put_nowait(answer)


def error(code: Code, details: str) -> grpc.aio.AioRpcError:
    """An error as gRPC raises it."""
    return grpc.aio.AioRpcError(
        code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details, debug_error_string=None
    )


def _methods() -> Iterator[tuple[str, wire.Method]]:
    for value in vars(wire).values():
        if isinstance(value, wire.Method):
            yield value.path, value


_METHODS: Final = dict(_methods())


def _event(change: _Change) -> Any:
    kv = change.now if change.now is not None else wire.KeyValue(key=change.key, mod_revision=change.revision)
    kind = wire.DELETE_EVENT if change.now is None else 0
    before = {"prev_kv": change.before} if change.before is not None else {}
    return wire.message("Event")(type=kind, kv=kv, **before)


def _within(key: bytes, start: bytes, end: bytes) -> bool:
    if not end:
        return key == start
    return start <= key and (end == b"\0" or key < end)


def _now() -> float:
    return asyncio.get_running_loop().time()
