"""What of an object is ours: whole objects by an annotation, parts of others' by kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

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
    selector: str | None = None
    """Label selector of objects that may be ours; None for a kind whose objects we neither make nor remove."""


Ownerships = Mapping[str, Ownership]
"""By kind, in the order of writing: objects of one kind may control those of the next."""


def is_ours(meta: Meta | Labels) -> bool:
    """Whether an object carries our annotation. Takes its metadata, or the annotations of its row."""
    if isinstance(meta, Meta):
        return MANAGED_BY in (meta.annotations or {})
    return any(key == MANAGED_BY for key, _ in meta)
