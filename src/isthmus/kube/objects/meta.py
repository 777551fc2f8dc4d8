"""meta/v1: what all objects have."""

from __future__ import annotations

from msgspec import Struct, field


class Wire(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Base of all wire structs. Objects from JSON have no cycles, so the collector need not look at them."""


class OwnerReference(Wire, frozen=True):
    """Who goes takes this object along."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class Meta(Wire, frozen=True):
    """ObjectMeta."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None


class ListMeta(Wire, frozen=True):
    """The revision of a list, and where its next page begins."""

    resource_version: str = ""
    continue_: str = field(default="", name="continue")


class Condition(Wire, frozen=True):
    """A condition in some status."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    observed_generation: int = 0
    last_transition_time: str | None = None
