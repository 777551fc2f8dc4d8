"""The requests that read and write one object of a row, by server-side apply as our field manager. Nothing is decided
or remembered here.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from isthmus import kube, logs
from isthmus.desired.ownership import MANAGER, Ownerships, is_ours
from isthmus.model.names import ServiceName, split
from isthmus.model.objects import Object

log = logs.get("objects")

ALLOCATED: Final = "already allocated"
"""Text of kube-apiserver's refusal of an address that another Service has, or had until now."""
RELEASED_WITHIN: Final = (0.05, 0.1, 0.2, 0.4)
"""Seconds to wait after each such refusal: a Service's deletion is shown before its addresses are released."""


class Refused(Exception):  # noqa: N818
    """An object cannot be written now; the message has the reason."""


class Requests:
    """Sends them; objects are named by their kind and namespace/name. Errors are those of ``kube``."""

    def __init__(self, client: kube.Client, ownerships: Ownerships) -> None:
        self._client = client
        self._ownerships = ownerships

    def __repr__(self) -> str:
        return repr(self._client)

    async def find(self, kind: str, name: ServiceName) -> Any | None:
        """The object; None where there is none."""
        namespace, short = split(name)
        try:
            return await self._client.get(self._ownerships[kind].kind, short, namespace)
        except kube.NotFound:
            return None

    async def labelled(self, kind: str, selector: str) -> list[Any]:
        """All objects of a kind that a label selector takes."""
        return await self._client.list(self._ownerships[kind].kind, label_selector=selector)

    async def apply(self, row: Object, body: dict[str, Any], *, subresource: str = "") -> Any:
        """The object as the server answers it, with the fields of the body ours."""
        namespace, name = split(row.name)
        kind = self._ownerships[row.kind].kind
        log.debug("applying", kind=row.kind, object=row.name, subresource=subresource)
        return await self._client.apply(kind, namespace, name, body, field_manager=MANAGER, subresource=subresource)

    async def create(self, row: Object, body: dict[str, Any]) -> Any:
        """Apply what is not there yet, with the fields that are preferred where the server gives them."""
        if row.preferred:
            preferred: dict[str, dict[str, Any]] = msgspec.json.decode(row.preferred)
            try:
                return await self._insist(row, {**body, **{key: {**body[key], **preferred[key]} for key in preferred}})
            except kube.Invalid as error:
                log.info("not given what it had before", kind=row.kind, object=row.name, why=str(error))
        return await self.apply(row, body)

    async def _insist(self, row: Object, body: dict[str, Any]) -> Any:
        """Apply it, again while the server has not released its addresses. Raises kube.Invalid if that takes long."""
        for pause in RELEASED_WITHIN:
            try:
                return await self.apply(row, body)
            except kube.Invalid as error:
                if ALLOCATED not in str(error):
                    raise
            await asyncio.sleep(pause)
        return await self.apply(row, body)

    async def patch(self, row: Object, body: dict[str, Any], *, subresource: str = "") -> Any:
        """The object as the server answers it, after a merge patch."""
        namespace, name = split(row.name)
        kind = self._ownerships[row.kind].kind
        return await self._client.patch(kind, namespace, name, body, field_manager=MANAGER, subresource=subresource)

    async def delete(self, kind: str, name: ServiceName, *, uid: str) -> bool:
        """Remove the object of this uid; whether it was there. Conflict where another has its name."""
        namespace, short = split(name)
        return await self._client.delete(self._ownerships[kind].kind, namespace, short, uid=uid)

    async def owner_reference(self, kind: str, name: ServiceName, *, uid: str) -> dict[str, Any]:
        """How what it controls names an object."""
        served = await self._client.served(self._ownerships[kind].kind)
        return {
            "apiVersion": served.api_version,
            "kind": kind,
            "name": split(name)[1],
            "uid": uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }

    async def uid(self, kind: str, name: ServiceName) -> str:
        """The uid of an object of ours; Refused where there is none."""
        current = await self.find(kind, name)
        if current is None:
            raise Refused(f"waits for {kind} {name}")
        if not is_ours(current.metadata):
            raise Refused(f"waits for {kind} {name}, which is not managed by {MANAGER}")
        return str(current.metadata.uid)
