"""What the API server holds of desired objects, as it last answered us: so that a change costs what it needs."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from isthmus import bounds
from isthmus.bounds import OutOfBounds
from isthmus.desired.difference import difference
from isthmus.desired.ownership import Ownership
from isthmus.model.objects import AS_WANTED, Object


class Written(NamedTuple):
    """What we last asked of the server for an object."""

    body: bytes
    status: bytes


class Known(Struct, gc=False):
    """An object as the server last answered it to us."""

    uid: str
    version: str
    found: bytes
    written: Written | None = None
    """None where another process wrote it."""

    def object(self) -> dict[str, Any]:
        """All of it that we read."""
        found: dict[str, Any] = msgspec.json.decode(self.found)
        return found

    def left(self, row: Object, body: dict[str, Any], ownership: Ownership) -> dict[str, Any]:
        """What it lacks of what is wanted; ``body`` is the row's, with its owner."""
        wanted = {**body, **({"status": msgspec.json.decode(row.status)} if row.status else {})}
        return difference(wanted, self.object(), ownership)

    def times(self, status: str) -> dict[str, str]:
        """By type, since when conditions have had a status."""
        conditions = (self.object().get("status") or {}).get("conditions") or ()
        return {each["type"]: each.get("lastTransitionTime", "") for each in conditions if each["status"] == status}


def is_done(row: Object, body: dict[str, Any], known: Known | None, ownership: Ownership) -> bool:
    """Whether the server holds a row as far as its table shows and we know.

    What the table shows may be older than what we wrote; then our write decides.
    """
    if row.seen != AS_WANTED and (known is None or not is_older(row.seen, known.version)):
        return False
    if row.recreate_uid:
        return False
    return known is None or not known.left(row, body, ownership)


def is_older(seen: str, version: str) -> bool:
    """Whether a version that the table shows is older than, or the same as, that of our last answer.

    Versions of one server are numbers that grow (KEP-5504 makes that part of the API); anything else is not compared.
    """
    try:
        return bounds.count(seen, most=bounds.MAX_INT64) <= bounds.count(version, most=bounds.MAX_INT64)
    except OutOfBounds:
        return False
