"""Events about claims on addresses that do not count."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from isthmus.model.names import ServiceName
from isthmus.model.refusals import ClaimantKind, RefusedClaim
from isthmus.model.tables import REFUSED_CLAIMS
from isthmus.processes.refused_claims import ClaimEvents, complaints
from isthmus.statedb import Database


def refused(
    address: str = "8.8.8.8", *, kind: ClaimantKind = "Service", reason: str = "ExternalIPsDisabled"
) -> RefusedClaim:
    name = ServiceName("demo/echo")
    return RefusedClaim(
        kind=kind, name=name, type="ExternalIP", address=address, reason=reason, message=address, service=name, uid="u"
    )


class Written:
    """What would be Events, in the place of the recorder that sends them."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str, str]] = []

    def record(self, kind: Any, *, namespace: str, name: str, reason: str, message: str, **_: Any) -> None:
        self.events.append((kind.kind, f"{namespace}/{name}", reason, message))


def test_all_addresses_of_an_object_that_one_reason_refuses_are_one_complaint() -> None:
    rows = [refused("8.8.8.8"), refused("1.1.1.1"), refused("127.0.0.1", reason="ReservedAddress")]
    assert {(each.reason, each.message) for each in complaints(rows)} == {
        ("ExternalIPsDisabled", "1.1.1.1; 8.8.8.8"),
        ("ReservedAddress", "127.0.0.1"),
    }


@pytest.mark.looptime
async def test_a_claim_that_stays_refused_is_one_event_and_one_that_passes_is_none() -> None:
    db, recorder = Database(REFUSED_CLAIMS), Written()
    task = asyncio.create_task(ClaimEvents(db, recorder, persists=5.0).run())  # type: ignore[arg-type]
    row, passing = refused(), refused("10.96.0.7", kind="ServiceImport", reason="NotAllocated")
    with db.write() as txn:
        txn.put(REFUSED_CLAIMS, row)
        txn.put(REFUSED_CLAIMS, passing)
    await asyncio.sleep(4)
    assert recorder.events == []
    with db.write() as txn:
        txn.delete(REFUSED_CLAIMS, REFUSED_CLAIMS.key(passing))
    await asyncio.sleep(60)
    assert recorder.events == [("Service", "demo/echo", "ExternalIPsDisabled", "8.8.8.8")]
    with db.write() as txn:
        txn.put(REFUSED_CLAIMS, refused("1.1.1.1"))
    await asyncio.sleep(60)
    assert [message for *_, message in recorder.events] == ["8.8.8.8", "1.1.1.1; 8.8.8.8"]
    task.cancel()
