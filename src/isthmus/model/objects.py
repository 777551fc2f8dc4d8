"""Objects of the own API server that Isthmus writes, whole or in part: as they are wanted, and as they were seen."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from isthmus.model.names import ServiceName

AS_WANTED: Final = "="


class Object(Struct, frozen=True, gc=False, kw_only=True):
    """An object wanted in the own API server, or a part of one: only the fields that are ours."""

    kind: str
    """'ServiceImport', 'Service', 'EndpointSlice', 'ServiceExport' …"""
    name: ServiceName
    body: bytes
    """Canonical JSON (sorted keys) of apiVersion, kind, metadata and spec; empty: only the status is ours."""
    status: bytes = b""
    """Canonical JSON of the status that is ours, its conditions without times; empty: none."""
    service: ServiceName = ServiceName("")
    """The import that it is part of; all objects of one are computed together."""
    owner: tuple[str, ServiceName, str] | None = None
    """Kind, name and uid of the object that controls it; the uid is empty while that is not written."""
    recreate_uid: str = ""
    """Uid of an object that cannot be changed into this one and has to go first."""
    preferred: bytes = b""
    """Canonical JSON of fields asked for when it is made, and given up where the server refuses them."""
    seen: str = ""
    """How the API server was last seen to hold it: '' not at all, '=' as wanted, else the resource version that
    differs. A change of it asks for writing again, also where our write was undone within one batch of the
    watch: the content is as it was then, the version is not."""


class Observed(Struct, frozen=True, gc=False, kw_only=True):
    """An object of a kind that we write, as the API server has it. Of kinds that we make only those that are ours."""

    kind: str
    name: ServiceName
    uid: str
    version: str
    """metadata.resourceVersion"""
    body: bytes
    """JSON of the fields that we read or write."""
