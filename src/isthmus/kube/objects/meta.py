"""meta/v1: what all objects have."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field


class Wire(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Base of all wire structs. Objects from JSON have no cycles, so the collector need not look at them."""


class OwnerReference(Wire, frozen=True):
    """Owner whose deletion deletes this object."""

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


class MetadataFields(Wire, frozen=True):
    """Keys of metadata's maps, each as ``f:key``; ``.`` stands for the map itself."""

    labels: dict[str, Any] | None = field(default=None, name="f:labels")
    annotations: dict[str, Any] | None = field(default=None, name="f:annotations")


class FieldsV1(Wire, frozen=True):
    """The set of fields that a manager owns; of it only what we read."""

    metadata: MetadataFields | None = field(default=None, name="f:metadata")


class ManagedFields(Wire, frozen=True):
    """Fields of an object that one manager owns (server-side apply)."""

    manager: str = ""
    fields_v1: FieldsV1 | None = field(default=None, name="fieldsV1")


class ManagedMeta(Meta, frozen=True):
    """ObjectMeta with the owners of its labels and annotations: of kinds whose maps we write for others."""

    managed_fields: list[ManagedFields] | None = None


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
