"""Drain objects as rows, and the object for a drain that a command asks for.

Clusters and nodes are drained from the namespace that Isthmus runs in, since whoever may write there runs Isthmus
anyway; a Service from its own namespace. What is wrong with an object becomes a field of its row, which its status
then names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, get_args

from isthmus.kube.objects import drains as wire
from isthmus.model.drains import Drain, DrainKind, DrainRequest
from isthmus.model.names import valid_cluster
from isthmus.sources.normal import name_of
from isthmus.times import parse, timestamp

KINDS: Final = get_args(DrainKind)
MAX_SECONDS: Final = 604_800
"""A week."""


class Invalid(Exception):  # noqa: N818 about the object, not about us
    """A drain cannot be followed; the message names the field."""


def request(namespace: str) -> Callable[[wire.Drain], DrainRequest]:
    """The conversion of Drain objects; ``namespace``: that of Isthmus."""

    def convert(found: wire.Drain) -> DrainRequest:
        meta = found.metadata
        name = name_of(meta)
        drain = Drain(kind="", target="", reason=f"Drain {name}", started=meta.creation_timestamp or "")
        try:
            drain, invalid = _filled(found, drain.started, drain.reason, namespace=namespace), ""
        except Invalid as why:
            invalid = str(why)
        return DrainRequest(name=name, drain=drain, uid=meta.uid, generation=meta.generation, invalid=invalid)

    return convert


def _filled(found: wire.Drain, started: str, reason: str, *, namespace: str) -> Drain:
    kind, target = _target(found, namespace=namespace)
    spec = found.spec
    ramp = _seconds("rampSeconds", spec.ramp_seconds) or 0
    deadline = _seconds("deadlineSeconds", spec.deadline_seconds)
    if spec.existing not in (None, "Keep", "Close"):
        raise Invalid(f"spec.existing: '{str(spec.existing)[:64]}' is neither Keep nor Close")
    if spec.existing == "Close":
        if deadline is not None:
            raise Invalid("spec.deadlineSeconds: existing Close closes connections as soon as no new call is made")
        deadline = ramp
    elif deadline is not None and deadline < ramp:
        raise Invalid(f"spec.deadlineSeconds: {deadline} is less than rampSeconds, {ramp}: calls would still be made")
    return Drain(
        kind=kind,
        target=target,
        reason=reason,
        started=_time("startTime", spec.start_time) or started,
        ramp=ramp,
        deadline=deadline,
        ends=_time("endTime", spec.end_time),
    )


def _target(found: wire.Drain, *, namespace: str) -> tuple[str, str]:
    kind, name = found.spec.target_ref.kind, found.spec.target_ref.name
    if kind not in KINDS:
        raise Invalid(f"spec.targetRef.kind: '{kind[:64]}' is none of {', '.join(KINDS)}")
    if not name:
        raise Invalid("spec.targetRef.name: empty")
    if kind == "Service":
        return kind, f"{found.metadata.namespace}/{name}"
    if found.metadata.namespace != namespace:
        raise Invalid(f"spec.targetRef.kind: a {kind.lower()} is drained from namespace {namespace} only")
    if kind == "Cluster" and not valid_cluster(name):
        raise Invalid(f"spec.targetRef.name: '{name[:64]}' cannot be a cluster's name")
    return kind, name


def _seconds(field: str, value: int | None) -> int | None:
    if value is not None and not 0 <= value <= MAX_SECONDS:
        raise Invalid(f"spec.{field}: {value} is not between 0 and {MAX_SECONDS}")
    return value


def _time(field: str, text: str | None) -> str:
    if not text:
        return ""
    try:
        return timestamp(parse(text))
    except ValueError:
        raise Invalid(f"spec.{field}: '{text[:64]}' is not a time") from None


def object_name(kind: DrainKind, name: str) -> str:
    """What the object is called that a command makes: one for each target, so that a second command changes it."""
    return f"{kind.lower()}-{name}"


def body(kind: DrainKind, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """The object that drains a target, to be applied."""
    return {
        "apiVersion": wire.DRAIN.api_version,
        "kind": wire.DRAIN.kind,
        "metadata": {"labels": {"app.kubernetes.io/part-of": "isthmus"}},
        "spec": {"targetRef": {"kind": kind, "name": name}, **spec},
    }
