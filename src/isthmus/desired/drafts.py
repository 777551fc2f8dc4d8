"""Drafts of objects → their rows: canonical JSON, so that equal drafts are equal rows."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from isthmus.desired.difference import difference
from isthmus.desired.ownership import MANAGED_BY, MANAGER, Ownership
from isthmus.model.names import ServiceName, split
from isthmus.model.objects import AS_WANTED, Object, Observed
from isthmus.model.services import StatusCondition

MESSAGE_LIMIT: Final = 32768
"""Characters of a condition's message that the API takes (meta/v1 Condition)."""

Condition = dict[str, str | int]
"""A condition as the API has it, without the time of its last change: the writer knows that."""


class Draft(NamedTuple):
    """An object as it is wanted, or a status alone."""

    kind: str
    name: ServiceName
    content: dict[str, Any] | None = None
    """What stands beside metadata: spec, or a slice's fields. None: only the status is ours."""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    status: dict[str, Any] | None = None
    owner: tuple[str, ServiceName, str] | None = None
    """Kind, name and uid of the object that controls it; the uid is empty while that is not written."""
    recreate_uid: str = ""
    """Uid of an object that cannot be changed into this one and has to go first."""
    preferred: dict[str, Any] | None = None
    """Fields asked for when it is made, and given up where the server refuses them."""


def row(draft: Draft, observed: Observed | None, *, unit: ServiceName, ownership: Ownership) -> Object:
    """The row of a draft; ``unit`` is the name whose objects are computed together."""
    body, status = _body(draft, ownership), {"status": draft.status} if draft.status is not None else {}
    seen = ""
    if observed is not None:
        current = msgspec.json.decode(observed.body)
        seen = observed.version if difference({**body, **status}, current, ownership) else AS_WANTED
    return Object(
        kind=draft.kind,
        name=draft.name,
        body=encode(body) if body else b"",
        status=encode(draft.status) if draft.status is not None else b"",
        service=unit,
        owner=draft.owner,
        recreate_uid=draft.recreate_uid,
        preferred=encode(draft.preferred) if draft.preferred else b"",
        seen=seen,
    )


def encode(value: dict[str, Any]) -> bytes:
    """Canonical JSON: keys sorted, nothing between."""
    return msgspec.json.encode(value, order="sorted")


def condition(kind: str, status: bool, *, reason: str, message: str = "", generation: int = 0) -> Condition:
    """One condition; ``generation`` is that of the object it is about, 0 where it does not matter."""
    condition: Condition = {
        "type": kind,
        "status": "True" if status else "False",
        "reason": reason,
        "message": message if len(message) <= MESSAGE_LIMIT else f"{message[: MESSAGE_LIMIT - 1]}…",
    }
    return {**condition, **observed_generation(generation)}


def observed_generation(generation: int) -> dict[str, int]:
    """Return the field of a status, or of a condition, that names the generation it is about; none where that is 0."""
    return {"observedGeneration": generation} if generation else {}


def conditions(status: bytes) -> tuple[StatusCondition, ...]:
    """The conditions that a row's status sets."""
    wanted = msgspec.json.decode(status).get("conditions", ()) if status else ()
    return tuple(
        StatusCondition(c["type"], c["status"], c["reason"], c["message"], c.get("observedGeneration", 0))
        for c in wanted
    )


def without_empty(value: dict[str, Any]) -> dict[str, Any]:
    """The fields that have a value."""
    return {key: each for key, each in value.items() if each not in (None, "", [], {})}


def _body(draft: Draft, ownership: Ownership) -> dict[str, Any]:
    if draft.content is None:
        return {}
    namespace, short = split(draft.name)
    metadata: dict[str, Any] = {
        "name": short,
        "namespace": namespace,
        "annotations": {**(draft.annotations or {}), MANAGED_BY: MANAGER},
    }
    if draft.labels:  # a server drops an empty map it is sent, and takes the next one for a change
        metadata["labels"] = draft.labels
    kind = ownership.kind
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **draft.content}
