"""Drain objects as rows, and the object for a drain that a command asks for.

Clusters and nodes are drained from the namespace that Isthmus runs in, since whoever may write there runs Isthmus
anyway; a Service from its own namespace. An invalid object is a row whose field ``invalid`` gives the reason,
which its status shows.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, get_args

from isthmus import bounds
from isthmus.bounds import OutOfBounds
from isthmus.kube.objects import drains as wire
from isthmus.model.drains import Drain, DrainKind, DrainRequest
from isthmus.model.names import valid_cluster
from isthmus.sources.normal import name_of
from isthmus.times import timestamp

KINDS: Final = get_args(DrainKind)
MAX_SECONDS: Final = 604_800
"""A week."""
MAX_NAME: Final = 253
"""Characters of an object's name."""


class Invalid(Exception):  # noqa: N818 about the object, not about us
    """A drain cannot be followed; the message names the field."""


def request(namespace: str) -> Callable[[wire.Drain], DrainRequest]:
    """Return the conversion of Drain objects. ``namespace`` is the one that Isthmus runs in."""

    def convert(wire_drain: wire.Drain) -> DrainRequest:
        meta = wire_drain.metadata
        name = name_of(meta)
        drain = Drain(kind="", target="", reason=f"Drain {name}")
        try:
            drain, invalid = _filled(wire_drain, drain.reason, namespace=namespace), ""
        except (Invalid, OutOfBounds) as error:
            invalid = str(error)
        return DrainRequest(name=name, drain=drain, uid=meta.uid, generation=meta.generation, invalid=invalid)

    return convert


def _filled(wire_drain: wire.Drain, reason: str, *, namespace: str) -> Drain:
    kind, target = _target(wire_drain, namespace=namespace)
    spec = wire_drain.spec
    ramp = _seconds("rampSeconds", spec.ramp_seconds) or 0
    deadline = _seconds("deadlineSeconds", spec.deadline_seconds)
    if bounds.choice(spec.existing or "Keep", ("Keep", "Close"), field="spec.existing") == "Close":
        if deadline is not None:
            raise Invalid("spec.deadlineSeconds: existing Close closes connections as soon as no new call is made")
        deadline = ramp
    elif deadline is not None and deadline < ramp:
        raise Invalid(f"spec.deadlineSeconds: {deadline} is less than rampSeconds, {ramp}: calls would still be made")
    end_ramp = _seconds("endRampSeconds", spec.end_ramp_seconds) or 0
    if end_ramp and not spec.end_time:
        raise Invalid("spec.endRampSeconds: it wants endTime, before which the share grows back")
    return Drain(
        kind=kind,
        target=target,
        reason=reason,
        started=_time("spec.startTime", spec.start_time)
        or _time("metadata.creationTimestamp", wire_drain.metadata.creation_timestamp),
        ramp=ramp,
        deadline=deadline,
        ends=_time("spec.endTime", spec.end_time),
        end_ramp=end_ramp,
    )


def _target(wire_drain: wire.Drain, *, namespace: str) -> tuple[str, str]:
    kind, name = wire_drain.spec.target_ref.kind, wire_drain.spec.target_ref.name
    bounds.choice(kind, KINDS, field="spec.targetRef.kind")
    bounds.text(name, least=1, most=MAX_NAME, field="spec.targetRef.name")
    if kind == "Service":
        return kind, f"{wire_drain.metadata.namespace}/{name}"
    if wire_drain.metadata.namespace != namespace:
        raise Invalid(f"spec.targetRef.kind: a {kind.lower()} is drained from namespace {namespace} only")
    if kind == "Cluster" and not valid_cluster(name):
        raise Invalid(f"spec.targetRef.name: {bounds.shown(name)} cannot be a cluster's name")
    return kind, name


def _seconds(field: str, value: int | None) -> int | None:
    return None if value is None else bounds.count(value, most=MAX_SECONDS, field=f"spec.{field}")


def _time(field: str, text: str | None) -> str:
    return timestamp(bounds.timestamp(text, field=field)) if text else ""


def ending(drain: wire.Drain, now: datetime, ramp: int) -> dict[str, Any] | None:
    """Return the spec, without the target, of a drain that ends after a ramp of seconds from now.

    ``None`` if it has ended or gives calls back already: a new ramp would take them away again.
    """
    try:
        ends = bounds.timestamp(drain.spec.end_time) if drain.spec.end_time else None
    except OutOfBounds:  # such a drain is invalid, and ends with this spec
        ends = None
    if ends is not None and now >= ends - bounds.span(drain.spec.end_ramp_seconds or 0):
        return None
    spec = {
        "startTime": drain.spec.start_time,
        "rampSeconds": drain.spec.ramp_seconds,
        "existing": drain.spec.existing,
        "deadlineSeconds": drain.spec.deadline_seconds,
        "endTime": timestamp(bounds.after(now, ramp)),
        "endRampSeconds": ramp,
    }
    return {name: value for name, value in spec.items() if value is not None}


def object_name(kind: DrainKind, name: str) -> str:
    """Name of the object that a command writes: one per target, so that a second command changes the first drain."""
    return f"{kind.lower()}-{name}"


def body(kind: DrainKind, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Return the Drain object of a target, to be applied."""
    return {
        "apiVersion": wire.DRAIN.api_version,
        "kind": wire.DRAIN.kind,
        "metadata": {"labels": {"app.kubernetes.io/part-of": "isthmus"}},
        "spec": {"targetRef": {"kind": kind, "name": name}, **spec},
    }
