"""Objects of the own API server that Isthmus writes, whole or in part: desired and observed."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from isthmus.model.names import ServiceName

AS_WANTED: Final = "="


class Object(Struct, frozen=True, gc=False, kw_only=True):
    """A desired object of the own API server, or a part of one, limited to the fields that Isthmus owns."""

    kind: str
    """'ServiceImport', 'Service', 'EndpointSlice', 'ServiceExport' …"""
    name: ServiceName
    body: bytes
    """Canonical JSON (sorted keys) of apiVersion, kind, metadata and spec; empty if only the status is ours."""
    status: bytes = b""
    """Canonical JSON of our part of the status, its conditions without times; empty if there is no such part."""
    service: ServiceName = ServiceName("")
    """Import that it belongs to. All objects of an import are computed together."""
    owner: tuple[str, ServiceName, str] | None = None
    """Kind, name and uid of the controlling object; the uid is empty until that object is written."""
    recreate_uid: str = ""
    """Uid of an object that cannot be changed into this one and must be deleted first."""
    preferred: bytes = b""
    """Canonical JSON of fields that are requested on creation and dropped if the server refuses them."""
    seen: str = ""
    """Last observed state: '' if the object does not exist, '=' if it equals this row, otherwise the resource version
    that differs. A change of this field causes another write, even if our write was undone within one batch of the
    watch: the content is then the same as before, the version is not."""


class Observed(Struct, frozen=True, gc=False, kw_only=True):
    """An observed object of a kind that we write. Of kinds that we create, only our own objects have a row."""

    kind: str
    name: ServiceName
    uid: str
    version: str
    """metadata.resourceVersion"""
    body: bytes
    """JSON of the fields that we read or write."""
