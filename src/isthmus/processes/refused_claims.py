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
    """What one Event is about: an object, and one reason for all its addresses that are refused for it."""

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


async def record(db: Database, recorder: Recorder, *, persists: float = PERSISTS) -> None:
    """Write an Event about each complaint that lasts, for ever."""
    changes = db.changes(REFUSED_CLAIMS)
    first_seen: dict[Complaint, float] = {}
    written: set[Complaint] = set()
    while True:
        snapshot, _ = changes.next()
        now = asyncio.get_running_loop().time()
        present = complaints(snapshot.all(REFUSED_CLAIMS))
        first_seen = {each: first_seen.get(each, now) for each in present}
        written &= present
        for each in sorted(present - written):
            if first_seen[each] + persists <= now:
                _write(recorder, each)
                written.add(each)
        due = min((first_seen[each] + persists for each in present - written), default=None)
        try:
            async with asyncio.timeout_at(due):
                await db.until(lambda _: changes.ready)
        except TimeoutError:
            pass


def _write(recorder: Recorder, each: Complaint) -> None:
    namespace, name = split(each.name)
    recorder.record(
        KINDS[each.kind],
        namespace=namespace,
        name=name,
        uid=each.uid,
        type="Warning",
        reason=each.reason,
        message=each.message,
    )
