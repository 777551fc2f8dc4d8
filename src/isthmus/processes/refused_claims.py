"""Events about claims on addresses that do not count: one for each object and reason, by the operator alone.

A claim is reported once it has been refused for a while: an import names the address of its derived Service before that
Service's own row is seen here, or for a moment after it was made anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from isthmus import kube
from isthmus.kube.events import Recorder
from isthmus.kube.objects.cilium import LOCAL_REDIRECT_POLICY
from isthmus.kube.objects.core import SERVICE
from isthmus.kube.objects.mcs import SERVICE_IMPORT
from isthmus.model.names import ServiceName, split
from isthmus.model.refusals import ClaimantKind, RefusedClaim
from isthmus.model.tables import REFUSED_CLAIMS
from isthmus.statedb import Database

PERSISTS: Final = 5.0
"""Seconds for which a claim must have been refused before there is an Event about it."""

KINDS: Final[Mapping[ClaimantKind, kube.Kind[Any]]] = {
    "Service": SERVICE,
    "ServiceImport": SERVICE_IMPORT,
    "CiliumLocalRedirectPolicy": LOCAL_REDIRECT_POLICY,
}


class Complaint(NamedTuple):
    """Subject of one Event: an object, and the reason for which some of its addresses are refused."""

    kind: ClaimantKind
    name: ServiceName
    uid: str
    reason: str
    message: str


def complaints(rows: Iterable[RefusedClaim]) -> set[Complaint]:
    """Refused claims by object and reason."""
    messages: dict[tuple[ClaimantKind, ServiceName, str, str], list[str]] = {}
    for row in sorted(rows, key=REFUSED_CLAIMS.key):
        messages.setdefault((row.kind, row.name, row.uid, row.reason), []).append(row.message)
    return {Complaint(*about, "; ".join(dict.fromkeys(recorded))) for about, recorded in messages.items()}


class ClaimEvents:
    """Writes an Event about each complaint that lasts. Restarted after a failure, it repeats none."""

    def __init__(self, db: Database, recorder: Recorder, *, persists: float = PERSISTS) -> None:
        self._db = db
        self._recorder = recorder
        self._persists = persists
        self._changes = db.changes(REFUSED_CLAIMS)
        self._first_seen: dict[Complaint, float] = {}
        self._written: set[Complaint] = set()

    def __repr__(self) -> str:
        return f"<ClaimEvents: {len(self._written)} of {len(self._first_seen)} written>"

    async def run(self) -> None:
        """Write, for ever."""
        while True:
            due = self._step(asyncio.get_running_loop().time())
            try:
                async with asyncio.timeout_at(due):
                    await self._db.until(lambda _: self._changes.ready)
            except TimeoutError:
                pass

    def _step(self, now: float) -> float | None:
        """Write what has lasted; gives when the next complaint will have."""
        snapshot, _ = self._changes.next()
        current = complaints(snapshot.all(REFUSED_CLAIMS))
        self._first_seen = {complaint: self._first_seen.get(complaint, now) for complaint in current}
        self._written &= current
        for complaint in sorted(current - self._written):
            if self._first_seen[complaint] + self._persists <= now:
                self._written.add(complaint)
                _write(self._recorder, complaint)
        return min(
            (self._first_seen[complaint] + self._persists for complaint in current - self._written), default=None
        )


def _write(recorder: Recorder, complaint: Complaint) -> None:
    namespace, name = split(complaint.name)
    recorder.record(
        KINDS[complaint.kind],
        namespace=namespace,
        name=name,
        uid=complaint.uid,
        type="Warning",
        reason=complaint.reason,
        message=complaint.message,
    )
