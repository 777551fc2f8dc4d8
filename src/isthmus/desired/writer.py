"""Writes desired objects to the own API server, by server-side apply, and removes those no longer wanted.

Fields are ours or not: what we set and no longer want goes, what others set stays, what others changed of ours is set
right. What apply cannot take back (a field or an item that others added where the whole is ours) is patched. An object
of a wanted name that does not carry our annotation is another's and is left as it is.

What was written is remembered as the server answered it, so that a change costs the requests it needs: one for an
object, and one more for a status. What an earlier process wrote and the tables show as wanted costs none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from isthmus import kube, logs
from isthmus.desired import parents
from isthmus.desired.contention import Contention
from isthmus.desired.difference import difference
from isthmus.desired.known import Known, Written, is_done
from isthmus.desired.ownership import MANAGER, Ownerships, is_ours
from isthmus.desired.requests import Refused, Requests
from isthmus.model.names import ServiceName, service_name
from isthmus.model.objects import Object
from isthmus.reflector import Expired
from isthmus.statedb import NotPruned
from isthmus.times import timestamp

log = logs.get("objects")

Key = tuple[str, ServiceName]

AT_ONCE: Final = 16
"""Requests under way at a time."""

OPTIONAL: Final = ("trafficDistribution",)
"""Fields of ``spec`` without which an object still works, and whose values differ between versions of Kubernetes."""

NEVER: Final = "1"
"""A resourceVersion that no object has: what is applied with it is made, and a conflict where something is there."""


class Contested(Refused):
    """Another writer keeps changing what is ours; it is set right again later."""


class TargetStats(Struct, frozen=True):
    """What a target has done, and holds."""

    objects: int
    corrections: int
    """Writes that set right what another writer changed."""


class ApiTarget:
    """Operations of statedb on desired objects. What controls is written before what it controls, all else at once."""

    def __init__(
        self,
        client: kube.Client,
        ownerships: Ownerships,
        *,
        at_once: int = AT_ONCE,
        timestamp: Callable[[], str] = timestamp,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._requests = Requests(client, ownerships)
        self._ownerships = ownerships
        self._order = {kind: place for place, kind in enumerate(ownerships)}
        self._slots = asyncio.Semaphore(at_once)
        self._timestamp = timestamp
        self._clock = clock
        self._known: dict[Key, Known] = {}
        self._contention = Contention()
        self._unsupported: set[tuple[str, str, str]] = set()
        """Kinds, optional fields and values that this API server refused: objects are written without them."""

    def __repr__(self) -> str:
        return f"<ApiTarget of {self._requests!r}, {len(self._known)} objects>"

    def stats(self) -> TargetStats:
        """Counts since the process began."""
        return TargetStats(len(self._known), self._contention.total)

    async def update(self, rows: Sequence[Object]) -> Mapping[Key, str]:
        """Make the API server hold these; the failures, as sentences."""
        return await self._each_name(sorted(rows, key=lambda row: self._order[row.kind]), self._write)

    async def delete(self, rows: Sequence[Object]) -> Mapping[Key, str]:
        """Remove these where they are ours, what is controlled before what controls it."""
        return await self._each_name(sorted(rows, key=lambda row: -self._order[row.kind]), self._remove)

    async def prune(self, rows: Iterable[Object]) -> str:
        """Remove every object of ours that no row wants: an earlier process left it. NotPruned where one cannot be."""
        wanted = {(row.kind, row.name) for row in rows}
        deleted = 0
        for kind, ownership in self._ownerships.items():
            if ownership.selector is None:
                continue
            try:
                deleted += await self._prune(kind, ownership.selector, wanted)
            except (kube.KubeError, Expired) as error:
                raise NotPruned(f"{deleted} pruned, then: {error}") from None
        return f"{deleted} pruned"

    async def _prune(self, kind: str, selector: str, wanted: Collection[Key]) -> int:
        deleted = 0
        for current in await self._requests.labelled(kind, selector):
            meta = current.metadata
            key = (kind, service_name(meta.namespace, meta.name))
            if key not in wanted and is_ours(meta):
                deleted += await self._requests.delete(*key, uid=meta.uid)
                self._forget(key)
        return deleted

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
            except Contested as error:  # what we know of it still holds
                failures[row.kind, row.name] = str(error)
            except (kube.KubeError, Expired, Refused) as error:
                self._known.pop((row.kind, row.name), None)
                self._note_unsupported(row, error)
                if not _namespace_ends(error):
                    failures[row.kind, row.name] = str(error)

    async def _write(self, row: Object) -> None:
        """Four cases: as wanted; never seen, so it is made; seen and known; seen, or gone, and to be looked at."""
        key = (row.kind, row.name)
        if not row.body and not row.status:  # nothing of it is ours
            self._forget(key)
            return
        known, body, ownership = self._known.get(key), await self._body(row), self._ownerships[row.kind]
        if is_done(row, body, known, ownership):
            return
        if body and known is None and not row.seen and await self._make(row, body):
            return
        before = known.written if known is not None else None
        if known is None or not row.seen or not body:
            known = await self._look(row)
            if known is not None and not row.recreate_uid and not known.left(row, body, ownership):
                known.written = Written(row.body, row.status)
                return
        if before == (row.body, row.status):
            self._correct(row)
        if row.recreate_uid:
            await self._make_room(row)
            known = None
        if body:
            known = await self._write_body(row, body, known)
        if known is not None:
            await self._write_status(row, known)

    def _correct(self, row: Object) -> None:
        """We wrote this before and another writer changed it: Contested where that goes on for too long."""
        key, now = (row.kind, row.name), self._clock()
        if self._contention.wait(key, now=now) > 0:
            count = self._contention.corrections(key)
            raise Contested(
                f"{row.kind} {row.name} is written by somebody else again and again: set right {count} times, "
                "and from now on more and more rarely"
            )
        self._contention.corrected(key, now=now)

    async def _make(self, row: Object, body: dict[str, Any]) -> bool:
        """Make an object that was never seen; False where there is one after all."""
        try:
            known = await self._write_body(row, body, None)
        except kube.Conflict:
            return False
        await self._write_status(row, known)
        return True

    async def _look(self, row: Object) -> Known | None:
        """What is there before we write; Refused where it is not ours to write."""
        current = await self._requests.find(row.kind, row.name)
        if current is None:
            self._known.pop((row.kind, row.name), None)
            return None
        if row.body and not is_ours(current.metadata):
            raise Refused(f"{row.kind} {row.name} exists and is not managed by {MANAGER}: left as it is")
        return self._learn((row.kind, row.name), current)

    def _learn(self, key: Key, current: Any, *, written: Written | None = None) -> Known:
        meta = current.metadata
        known = Known(meta.uid, meta.resource_version, msgspec.json.encode(current), written)
        self._known[key] = known
        return known

    async def _body(self, row: Object) -> dict[str, Any]:
        """The body with its owner's reference, whose uid may have become known only just now; empty where none is."""
        body: dict[str, Any] = msgspec.json.decode(row.body) if row.body else {}
        for kind, field, value in self._unsupported:
            if kind == row.kind and body.get("spec", {}).get(field) == value:
                del body["spec"][field]
        if row.owner is not None:
            kind, name, uid = row.owner
            reference = await self._requests.owner_reference(kind, name, uid=await self._uid(kind, name, uid))
            body["metadata"]["ownerReferences"] = [reference]
        return body

    def _note_unsupported(self, row: Object, error: Exception) -> None:
        """Remember a value that this API server, of an earlier Kubernetes, refuses; the next attempt omits it."""
        if not isinstance(error, kube.Invalid) or not row.body:
            return
        spec = msgspec.json.decode(row.body).get("spec", {})
        for field in OPTIONAL:
            value = spec.get(field)
            if value and f"spec.{field}" in str(error):
                self._unsupported.add((row.kind, field, value))
                log.warning("value left out: this API server does not know it", kind=row.kind, field=field, value=value)

    async def _uid(self, kind: str, name: ServiceName, uid: str) -> str:
        """Newest first: what we wrote in this process, then the tables, then the server."""
        if (known := self._known.get((kind, name))) is not None:
            return known.uid
        return uid or await self._requests.uid(kind, name)

    async def _write_body(self, row: Object, body: dict[str, Any], known: Known | None) -> Known:
        """Only the object that we know is written, or a new one: another one in its place is a conflict."""
        key, written = (row.kind, row.name), Written(row.body, row.status)
        condition = {"uid": known.uid} if known is not None else {"resourceVersion": NEVER}
        body = {**body, "metadata": {**body["metadata"], **condition}}
        try:
            applied = await (self._requests.apply(row, body) if known is not None else self._requests.create(row, body))
        except kube.Invalid:
            if known is None or (there := await self._look(row)) is None:
                raise
            now = there  # our items beside those that others added may be refused together: two ports of one name
        else:
            now = self._learn(key, applied, written=written)
        if left := difference(body, now.object(), self._ownerships[row.kind]):
            metadata = {**left.get("metadata", {}), "uid": now.uid}
            now = self._learn(key, await self._requests.patch(row, {**left, "metadata": metadata}), written=written)
        return now

    async def _make_room(self, row: Object) -> None:
        """Remove an object that cannot become the wanted one."""
        try:
            await self._requests.delete(row.kind, row.name, uid=row.recreate_uid)
        except kube.Conflict:
            raise Refused(f"{row.kind} {row.name}: another one was made in its place") from None
        self._known.pop((row.kind, row.name), None)

    async def _write_status(self, row: Object, known: Known) -> None:
        """A condition keeps its time while its status stays."""
        known.written = Written(row.body, row.status)
        if not row.status:
            return
        status, ownership = msgspec.json.decode(row.status), self._ownerships[row.kind]
        lacking = difference({"status": status}, known.object(), ownership)
        if not lacking:
            return
        if ownership.controller:
            await self._write_parents(row, known, lacking["status"])
            return
        for condition in status.get("conditions", ()):
            since = known.times(condition["status"]).get(condition["type"])
            condition["lastTransitionTime"] = since or self._timestamp()
        try:
            applied = await self._requests.apply(row, {"status": status}, subresource="status")
        except kube.NotFound:
            self._forget((row.kind, row.name))
            return
        now = self._learn((row.kind, row.name), applied, written=known.written)
        if left := difference({"status": status}, now.object(), ownership):
            patched = await self._requests.patch(row, left, subresource="status")
            self._learn((row.kind, row.name), patched, written=known.written)

    async def _write_parents(self, row: Object, known: Known, lacking: Mapping[str, list[Any]]) -> None:
        """All of the list, with others' entries as they were read: what changed since then is a conflict."""
        status = {field: parents.complete(entries, now=self._timestamp()) for field, entries in lacking.items()}
        body = {"metadata": {"resourceVersion": known.version}, "status": status}
        try:
            patched = await self._requests.patch(row, body, subresource="status")
        except kube.NotFound:
            self._forget((row.kind, row.name))
            return
        self._learn((row.kind, row.name), patched, written=known.written)

    async def _remove(self, row: Object) -> None:
        key = (row.kind, row.name)
        known = self._known.get(key)
        self._forget(key)
        if not row.body:
            return
        uid = known.uid if known is not None else ""
        if not uid:
            current = await self._requests.find(*key)
            if current is None or not is_ours(current.metadata):
                return
            uid = current.metadata.uid
        try:
            await self._requests.delete(*key, uid=uid)
        except kube.Conflict:
            log.info("not removed: it is another one by now", kind=row.kind, object=row.name)

    def _forget(self, key: Key) -> None:
        self._known.pop(key, None)
        self._contention.forget(key)


def _namespace_ends(error: Exception) -> bool:
    """The namespace is going away: what we want in it no longer matters."""
    return isinstance(error, kube.Forbidden) and "being terminated" in str(error)
