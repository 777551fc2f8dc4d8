"""Writes wanted objects to the own API server, by server-side apply, and removes those no longer wanted.

Fields are ours or not: what we said and no longer say goes, what others said stays, what others changed of ours is set
right. An object of a wanted name that does not carry our annotation is somebody else's and is left as it is.

What was written is remembered, with the uid and the times of conditions that the server gave, so that a change costs
the requests it needs: one for an object, and one more for a status. What an earlier process wrote and the tables say is
as it should be costs none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from isthmus import kube, logs
from isthmus.kube.objects.core import SERVICE
from isthmus.kube.objects.discovery import ENDPOINT_SLICE
from isthmus.kube.objects.mcs import SERVICE_EXPORT, SERVICE_IMPORT
from isthmus.kube.objects.meta import Meta
from isthmus.mcs import told, wire
from isthmus.mcs.told import Told
from isthmus.model.mcs import Object
from isthmus.model.names import ServiceName, service_name, split
from isthmus.reflector import Expired
from isthmus.sources import multicluster
from isthmus.statedb import NotPruned

log = logs.get("mcs")

Key = tuple[str, ServiceName]

KINDS: Final[dict[str, kube.Kind[Any]]] = {
    kind.kind: kind for kind in (SERVICE_IMPORT, SERVICE, ENDPOINT_SLICE, SERVICE_EXPORT)
}
"""In the order of writing: each controls the next. A ServiceExport's status stands on its own."""

ORDER: Final = {kind: place for place, kind in enumerate(KINDS)}

SELECTORS: Final = {
    "ServiceImport": "",
    "Service": wire.SERVICE_NAME,
    "EndpointSlice": f"{wire.SLICE_MANAGED_BY}={wire.SLICE_MANAGER}",
}
"""How to find what may be ours among all objects of a kind."""

AT_ONCE: Final = 16

UNWRITTEN: Final = "1"
"""A resourceVersion that no object has: what is applied with it is made, and a conflict where something is there."""


class Refused(Exception):  # noqa: N818
    """An object cannot be written now; the message says why."""


class Known(Struct, gc=False):
    """What the API server has of a wanted object, as far as we wrote it or saw it."""

    uid: str
    conditions: dict[str, tuple[str, str]]
    """By type: status, and since when."""
    told: Told
    """What its status says."""
    body: bytes = b""

    def is_as(self, body: bytes, status: bytes) -> bool:
        """Whether it was written so."""
        return self.body == body and (not status or self.told == told.wanted(status))


def now() -> str:
    """The time, as conditions have it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class ApiTarget:
    """A statedb Target of wanted objects. What controls is written before what it controls, the rest side by side."""

    def __init__(self, client: kube.Client, *, at_once: int = AT_ONCE, clock: Callable[[], str] = now) -> None:
        self._client = client
        self._slots = asyncio.Semaphore(at_once)
        self._clock = clock
        self._known: dict[Key, Known] = {}

    def __repr__(self) -> str:
        return f"<ApiTarget of {self._client!r}, {len(self._known)} objects>"

    async def update(self, rows: Sequence[Object]) -> Mapping[Key, str]:
        """Make the API server hold these; the failures, as sentences."""
        return await self._each_name(sorted(rows, key=lambda row: ORDER[row.kind]), self._write)

    async def delete(self, rows: Sequence[Object]) -> Mapping[Key, str]:
        """Remove these where they are ours, what is controlled before what controls it."""
        return await self._each_name(sorted(rows, key=lambda row: -ORDER[row.kind]), self._remove)

    async def prune(self, rows: Iterable[Object]) -> str:
        """Remove every object of ours that no row wants: an earlier process left it. NotPruned where one cannot be."""
        wanted = {(row.kind, row.name) for row in rows}
        gone = 0
        for kind in SELECTORS:
            try:
                gone += await self._prune(kind, wanted)
            except (kube.KubeError, Expired) as error:
                raise NotPruned(f"{gone} pruned, then: {error}") from None
        return f"{gone} pruned"

    async def _prune(self, name: str, wanted: Collection[Key]) -> int:
        gone = 0
        for found in await self._client.list(KINDS[name], label_selector=SELECTORS[name]):
            meta = found.metadata
            key = (name, service_name(meta.namespace, meta.name))
            if key not in wanted and _ours(meta):
                gone += await self._client.delete(KINDS[name], meta.namespace, meta.name, uid=meta.uid)
                self._known.pop(key, None)
        return gone

    async def _each_name(self, rows: Iterable[Object], act: Callable[[Object], Awaitable[None]]) -> dict[Key, str]:
        """Names side by side; of each name kind after kind, as the rows are ordered, those of a kind side by side."""
        names: dict[ServiceName, dict[str, list[Object]]] = {}
        for row in rows:
            names.setdefault(row.service, {}).setdefault(row.kind, []).append(row)
        failures: dict[Key, str] = {}

        async def one(name: dict[str, list[Object]]) -> None:
            for kind in name.values():
                await asyncio.gather(*(self._one(row, act, failures) for row in kind))

        await asyncio.gather(*map(one, names.values()))
        return failures

    async def _one(self, row: Object, act: Callable[[Object], Awaitable[None]], failures: dict[Key, str]) -> None:
        async with self._slots:
            try:
                await act(row)
            except (kube.KubeError, Expired, Refused) as error:
                self._known.pop((row.kind, row.name), None)
                if not _ending(error):
                    failures[row.kind, row.name] = str(error)

    async def _write(self, row: Object) -> None:
        known = self._known.get((row.kind, row.name))
        body = await self._body(row) if row.body else b""
        if row.seen == wire.SEEN_AS_WANTED and (not body or known is None or known.is_as(body, row.status)):
            return
        written = await self._make(row, body) if body and known is None and not row.seen else None
        if written is None:
            written = await self._renew(row, body, known)
        if written is not None:
            await self._write_status(row, written)

    async def _make(self, row: Object, body: bytes) -> Known | None:
        """An object that nobody has seen; None where there is one after all."""
        try:
            return await self._write_body(row, body, None)
        except kube.Conflict:
            return None

    async def _renew(self, row: Object, body: bytes, known: Known | None) -> Known | None:
        """What is there becomes as wanted; None where there is nothing whose status could be written."""
        if known is None or not row.seen or not body:
            known = await self._look(row)
        if row.remake:
            await self._remake(row)
            known = None
        if not body:
            return known
        if row.kind == "Service" and known is not None and known.body in (b"", body):
            await self._take_back(row, body, known)
        return await self._write_body(row, body, known)

    async def _take_back(self, row: Object, body: bytes, known: Known) -> None:
        """What somebody else said of a Service: applied ports are added to theirs, and a selector would stay."""
        namespace, name = split(row.name)
        unsaid = dict.fromkeys(("selector", "sessionAffinityConfig", "externalTrafficPolicy"))
        spec = {**unsaid, **msgspec.json.decode(body)["spec"]}
        said = {"metadata": {"uid": known.uid}, "spec": spec}
        await self._client.patch(KINDS[row.kind], namespace, name, said, field_manager=wire.MANAGER)

    async def _look(self, row: Object) -> Known | None:
        """What is there before we write; Refused where it is not ours to write."""
        namespace, name = split(row.name)
        try:
            found = await self._client.get(KINDS[row.kind], name, namespace)
        except kube.NotFound:
            self._known.pop((row.kind, row.name), None)
            return None
        if row.body and not _ours(found.metadata):
            raise Refused(f"{row.kind} {row.name} exists and is not managed by {wire.MANAGER}: left as it is")
        return self._learn((row.kind, row.name), found)

    def _learn(self, key: Key, found: Any) -> Known:
        status = getattr(found, "status", None)
        conditions = getattr(status, "conditions", None) or ()
        since = {each.type: (each.status, each.last_transition_time or self._clock()) for each in conditions}
        clusters = getattr(status, "clusters", None) or ()
        said = told.found((each.cluster for each in clusters), multicluster.conditions(conditions))
        known = self._known[key] = Known(found.metadata.uid, since, said)
        return known

    async def _body(self, row: Object) -> bytes:
        """The body with its owner's reference, whose uid may have become known only just now."""
        if row.owner is None:
            return row.body
        kind, name, uid = row.owner
        reference = {
            "apiVersion": await self._api_version(kind),
            "kind": kind,
            "name": split(name)[1],
            "uid": await self._uid(kind, name, uid),
            "controller": True,
            "blockOwnerDeletion": True,
        }
        body = msgspec.json.decode(row.body)
        body["metadata"]["ownerReferences"] = [reference]
        return wire.encode(body)

    async def _api_version(self, kind: str) -> str:
        return (await self._client.served(KINDS[kind])).api_version

    async def _uid(self, kind: str, name: ServiceName, uid: str) -> str:
        """Newest first: what we wrote in this process, then what the tables say, then what the server says."""
        known = self._known.get((kind, name))
        if known is not None:
            return known.uid
        if uid:
            return uid
        try:
            namespace, short = split(name)
            found = await self._client.get(KINDS[kind], short, namespace)
        except kube.NotFound:
            raise Refused(f"waits for {kind} {name}") from None
        if not _ours(found.metadata):
            raise Refused(f"waits for {kind} {name}, which is not managed by {wire.MANAGER}")
        return str(found.metadata.uid)

    async def _apply(self, row: Object, body: dict[str, Any], *, subresource: str = "") -> Any:
        namespace, name = split(row.name)
        return await self._client.apply(
            KINDS[row.kind], namespace, name, body, field_manager=wire.MANAGER, subresource=subresource
        )

    async def _write_body(self, row: Object, body: bytes, known: Known | None) -> Known:
        """Only the object that we know is written, or a new one: another one in its place is a conflict."""
        decoded = msgspec.json.decode(body)
        decoded["metadata"] |= {"uid": known.uid} if known is not None else {"resourceVersion": UNWRITTEN}
        written = self._learn((row.kind, row.name), await self._apply(row, decoded))
        written.body = body
        return written

    async def _remake(self, row: Object) -> None:
        """Make room for an object that the present one cannot become."""
        namespace, name = split(row.name)
        try:
            await self._client.delete(KINDS[row.kind], namespace, name, uid=row.remake)
        except kube.Conflict:
            raise Refused(f"{row.kind} {row.name}: another one was made in its place") from None
        self._known.pop((row.kind, row.name), None)

    async def _write_status(self, row: Object, known: Known) -> None:
        if not row.status or known.told == told.wanted(row.status):
            return
        status = msgspec.json.decode(row.status)
        for condition in status.get("conditions", ()):
            before = known.conditions.get(condition["type"])
            same = before is not None and before[0] == condition["status"]
            condition["lastTransitionTime"] = before[1] if before is not None and same else self._clock()
        try:
            found = await self._apply(row, {"status": status}, subresource="status")
        except kube.NotFound:
            self._known.pop((row.kind, row.name), None)
            return
        learned = self._learn((row.kind, row.name), found)
        if not learned.told.clusters <= told.wanted(row.status).clusters:
            learned = await self._only_clusters(row, status["clusters"])
        learned.body = known.body

    async def _only_clusters(self, row: Object, clusters: Sequence[Any]) -> Known:
        """Take out clusters that somebody else put in: what is applied adds to a list, and replaces none."""
        namespace, name = split(row.name)
        body = {"status": {"clusters": clusters}}
        found = await self._client.patch(KINDS[row.kind], namespace, name, body, subresource="status")
        return self._learn((row.kind, row.name), found)

    async def _remove(self, row: Object) -> None:
        key = (row.kind, row.name)
        known = self._known.pop(key, None)
        if not row.body:
            return
        namespace, name = split(row.name)
        if known is None:
            try:
                found = await self._client.get(KINDS[row.kind], name, namespace)
            except kube.NotFound:
                return
            if not _ours(found.metadata):
                return
            known = self._learn(key, found)
            del self._known[key]
        try:
            await self._client.delete(KINDS[row.kind], namespace, name, uid=known.uid)
        except kube.Conflict:
            log.info("not removed: it is another one by now", kind=row.kind, object=row.name)


def _ours(meta: Meta) -> bool:
    return wire.MANAGED_BY in (meta.annotations or {})


def _ending(error: Exception) -> bool:
    """The namespace is going away: what we want in it no longer matters."""
    return isinstance(error, kube.Forbidden) and "being terminated" in str(error)
