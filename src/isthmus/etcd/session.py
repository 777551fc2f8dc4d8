"""A session with an etcd: the calls that the rest of Isthmus makes.

Calls raise Transient when no answer comes within ``timeout`` seconds, Expired for a compacted revision, Denied when a
permission is missing, EtcdError when the server refuses the request. Only a stale token is retried here: callers have
retry loops of their own, with back-off.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final, Self

from isthmus.etcd import wire
from isthmus.etcd.bounded import BoundedKeys
from isthmus.etcd.errors import TooLarge
from isthmus.etcd.lease import Lease
from isthmus.etcd.transport import TIMINGS, Credentials, SessionTimings, Tls, Transport
from isthmus.etcd.values import (
    Compare,
    KeyValue,
    Limits,
    Listing,
    Op,
    RangeResult,
    Status,
    TxnResult,
    WatchBatch,
    encode,
    end_of,
    key_value,
    start_of,
    txn_result,
)
from isthmus.etcd.watching import Request, watch
from isthmus.reflector import Expired

NO_LIMITS: Final = Limits()


class Session:
    """A client of one etcd cluster. ``async with Session(["https://host:2379"], tls=Tls("ca.crt")) as session: …``"""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        tls: Tls | None = None,
        credentials: Credentials | None = None,
        timeout: float = 10.0,
        progress: float = 60.0,
        timings: SessionTimings = TIMINGS,
    ) -> None:
        self._transport = Transport(endpoints, tls=tls, credentials=credentials, timeout=timeout, timings=timings)
        self._progress = progress

    def __repr__(self) -> str:
        return f"<Session with {self._transport.endpoint}>"

    async def __aenter__(self) -> Self:
        self._transport.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._transport.close()

    async def get(self, key: str) -> KeyValue | None:
        """One key, or None."""
        kvs = (await self.read(key)).kvs
        return kvs[0] if kvs else None

    async def read(self, key: str) -> Listing:
        """Exactly one key, and the revision at which it was read."""
        got = await self._range(encode(key), b"", 0, 0)
        return Listing(got.kvs, got.revision, got.store)

    async def list(self, prefix: str, *, page: int = 1000, limits: Limits = NO_LIMITS) -> Listing:
        """All keys with a prefix at one revision, read in pages; TooLarge if they exceed the limits."""
        held, store = BoundedKeys(prefix, limits), 0
        revision, start, end = 0, start_of(prefix), end_of(prefix)
        while True:
            try:
                got = await self._range(start, end, page, revision)
            except TooLarge:
                if page == 1:
                    raise
                page = max(1, page // 8)
                continue
            if limits.group is None and got.count > limits.keys:  # later pages count only what is left
                raise TooLarge(f"{prefix}: {got.count} keys: more than {limits.keys} are not read")
            held.add(got.kvs)
            if store not in (0, got.store):  # separate stores behind one name have unrelated revisions
                raise Expired(f"another store answered in the middle of listing {prefix}")
            revision, store = revision or got.revision, got.store
            if not got.more:
                return Listing(held.held(), revision, store, held.left_out)
            start = encode(got.kvs[-1].key) + b"\0"

    async def range(self, start: str, end: str, limit: int = 0, revision: int = 0) -> RangeResult:
        """Keys in [``start``, ``end``), at most ``limit``, at ``revision``. 0: no limit; the current revision."""
        return await self._range(encode(start), encode(end), limit, revision)

    async def put(self, key: str, value: bytes, *, lease: int = 0) -> int:
        """Write a key; returns the revision."""
        request = wire.PutRequest(key=encode(key), value=value, lease=lease)
        revision: int = (await self._transport.call(wire.PUT, request)).header.revision
        return revision

    async def delete(self, key: str) -> bool:
        """Delete a key; whether it existed."""
        return bool((await self._transport.call(wire.DELETE_RANGE, wire.DeleteRangeRequest(key=encode(key)))).deleted)

    async def delete_prefix(self, prefix: str) -> int:
        """Delete all keys with a prefix; returns their number."""
        request = wire.DeleteRangeRequest(key=start_of(prefix), range_end=end_of(prefix))
        deleted: int = (await self._transport.call(wire.DELETE_RANGE, request)).deleted
        return deleted

    async def txn(self, compare: Sequence[Compare], success: Sequence[Op], failure: Sequence[Op] = ()) -> TxnResult:
        """Do ``success`` if every condition holds, else ``failure``, at one revision. At most 128 operations."""
        request = wire.TxnRequest(
            compare=[each.message() for each in compare],
            success=[each.message() for each in success],
            failure=[each.message() for each in failure],
        )
        return txn_result(await self._transport.call(wire.TXN, request))

    def watch(
        self, prefix: str, revision: int, *, store: int = 0, exact: bool = False, previous: bool = False
    ) -> AsyncGenerator[WatchBatch, None]:
        """Changes of keys with a prefix from ``revision`` on, or of that key alone when ``exact``.

        Raises Expired, Denied, or Transient when the stream breaks. ``store`` is the id from the listing that gave the
        revision: an answer of another store is Expired too. ``previous`` adds the value before to each event; the
        server reads it for each, which is slow.
        """
        request = Request(prefix, revision, exact=exact, previous=previous)
        return watch(self._transport, request, progress=self._progress, store=store)

    async def grant_lease(self, ttl: int) -> Lease:
        """A lease of ``ttl`` seconds; run its ``keep`` in a task group."""
        response = await self._transport.call(wire.LEASE_GRANT, wire.LeaseGrantRequest(ttl=ttl))
        return Lease(self._transport, lease=response.id, ttl=response.ttl)

    async def compact(self, revision: int, *, timeout: float | None = None) -> None:
        """Drop the history before a revision, and wait until it is out of the file: only then can that shrink."""
        await self._transport.call(wire.COMPACT, wire.CompactRequest(revision=revision, physical=True), timeout=timeout)

    async def status(self) -> Status:
        """Return the version, size, quota, revision and alarms of the member that answers."""
        got = await self._transport.call(wire.STATUS, wire.StatusRequest())
        header = got.header
        return Status(
            version=got.version,
            db_size=got.db_size,
            revision=header.revision,
            cluster_id=header.cluster_id,
            alarms=tuple(got.errors),
            db_quota=got.quota,
            in_use=got.db_size_in_use,
            member=header.member_id,
        )

    async def defragment(self, *, timeout: float) -> None:
        """Give back the unused part of the answering member's file; it answers nothing else meanwhile."""
        await self._transport.call(wire.DEFRAGMENT, wire.Nothing(), timeout=timeout)

    async def disarm(self, member: int) -> None:
        """Remove a member's alarm about its quota, so that it accepts writes again."""
        request = wire.AlarmRequest(action=wire.DISARM, member_id=member, alarm=wire.NOSPACE)
        await self._transport.call(wire.ALARM, request)

    async def call(self, method: wire.Method, request: Any) -> Any:
        """A procedure without a method here; ``access`` has those for administrators."""
        return await self._transport.call(method, request)

    async def _range(self, start: bytes, end: bytes, limit: int, revision: int) -> RangeResult:
        request = wire.RangeRequest(key=start, range_end=end, limit=limit, revision=revision)
        got: Any = await self._transport.call(wire.RANGE, request)
        return RangeResult(
            [key_value(kv) for kv in got.kvs], got.more, got.header.revision, got.count, got.header.cluster_id
        )
