"""Entries and conditions in the status of routes of every kind (Gateway API, RouteParentStatus). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from isthmus.desired import Condition, condition
from isthmus.model.names import split
from isthmus.model.routes import ParentRef

CONTROLLER: Final = "isthmus.io/mesh"
"""The controllerName of our entries."""
GROUPS: Final = {"Service": "", "ServiceImport": "multicluster.x-k8s.io"}
SHOWN: Final = 4
"""Number of references that a message names; the others are only counted."""
EFFECTIVE: Final = "isthmus.io/Effective"
"""A condition type that the Gateway API lacks for fields. It is set only while it is False."""


class Judged(Protocol):
    """A route, as far as these conditions depend on it."""

    @property
    def generation(self) -> int:
        """Generation of the object."""

    @property
    def unread(self) -> tuple[str, ...]:
        """Fields that nothing follows."""


def reference(parent: ParentRef) -> dict[str, str | int]:
    """Return the reference as the route spells it, by which readers find the entry."""
    reference: dict[str, str | int] = {"group": GROUPS[parent.kind], "kind": parent.kind, "name": split(parent.name)[1]}
    if parent.namespace:
        reference["namespace"] = parent.namespace
    if parent.section:
        reference["sectionName"] = parent.section
    if parent.port:
        reference["port"] = parent.port
    return reference


def resolved(route: Judged, unresolved: Iterable[tuple[str, str]]) -> Condition:
    """Return the condition ResolvedRefs. If several references fail, its reason is that of the first.

    ``unresolved``: reason and message of each reference that fails.
    """
    failures = list(dict.fromkeys(unresolved))
    if not failures:
        return condition("ResolvedRefs", True, reason="ResolvedRefs", generation=route.generation)
    message = "; ".join(text for _, text in failures[:SHOWN])
    if len(failures) > SHOWN:
        message += f"; and {len(failures) - SHOWN} more"
    return condition("ResolvedRefs", False, reason=failures[0][0], message=message, generation=route.generation)


def not_effective(route: Judged, *, shadowed: str = "") -> Iterator[Condition]:
    """Yield the condition Effective if a usable route has fields that nothing follows, or is ``shadowed`` by others."""
    message = "; ".join(filter(None, [shadowed, unfollowed(route) if route.unread else ""]))
    if message:
        reason = "Conflicted" if shadowed else "UnsupportedValue"
        yield condition(EFFECTIVE, False, reason=reason, message=message, generation=route.generation)


def unfollowed(route: Judged) -> str:
    """Name the fields of a route that nothing follows, as a sentence."""
    shown = ", ".join(route.unread[:SHOWN])
    more = f" and {len(route.unread) - SHOWN} more" if len(route.unread) > SHOWN else ""
    return f"not followed, the rest of the route is: {shown}{more}"
