"""What of an object is ours: whole objects by an annotation, parts of others' by kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

from isthmus import kube
from isthmus.kube.objects.meta import Meta
from isthmus.model.mcs import MANAGED_BY as MANAGED_BY
from isthmus.model.services import Labels

MANAGER: Final = "isthmus-operator"
"""The field manager of server-side apply."""


class Ownership(NamedTuple):
    """What we own of a kind, beside the fields that a wanted object sets."""

    kind: kube.Kind[Any]
    absent: frozenset[str] = frozenset()
    """Fields of ``spec`` that have to be absent where a wanted object does not set them."""
    conditions: frozenset[str] = frozenset()
    """Types of conditions that only we write; others' stay."""
    controller: str = ""
    """The controllerName of our entries of ``status.parents`` or ``status.ancestors``; others' stay."""
    selector: str | None = None
    """Label selector of objects that may be ours; None for a kind whose objects we neither make nor remove."""


class Labelled(Protocol):
    """A row with the labels and annotations of its object."""

    @property
    def labels(self) -> Labels:
        """metadata.labels"""
        ...

    @property
    def annotations(self) -> Labels:
        """metadata.annotations"""
        ...


Ownerships = Mapping[str, Ownership]
"""By kind, in the order of writing: objects of one kind may control those of the next."""


TAKEN_OVER: Final = ("karmada.io/managed", "true")
"""Label of objects that Karmada writes in its members. It may take over one of ours, annotation and all: no longer
ours then, neither to write nor to remove."""


def is_ours(meta: Meta) -> bool:
    """Whether an object carries our annotation, and is not taken over."""
    key, value = TAKEN_OVER
    return MANAGED_BY in (meta.annotations or {}) and (meta.labels or {}).get(key) != value


def is_our_row(row: Labelled) -> bool:
    """The same of an object's row."""
    return any(key == MANAGED_BY for key, _ in row.annotations) and TAKEN_OVER not in row.labels
