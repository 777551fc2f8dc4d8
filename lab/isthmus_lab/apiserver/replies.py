"""Responses: objects and lists in the version and format that the client requested."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from aiohttp import web

from isthmus_lab.apiserver import requests, tables
from isthmus_lab.apiserver.errors import ApiError
from isthmus_lab.apiserver.kinds import Kind
from isthmus_lab.apiserver.objects import Object, metadata
from isthmus_lab.apiserver.requests import ObjectPath
from isthmus_lab.apiserver.storage import Item


class ResponseFormat:
    """Response format of one request. Objects in their storage version are sent without re-encoding."""

    def __init__(self, request: web.Request, target: ObjectPath) -> None:
        self._kind = target.kind
        self._api_version = target.kind.api_version(target.version)
        self._stored = target.version == target.kind.versions[0]
        self._include = request.query.get("includeObject", "Metadata")
        self._header = True
        warns = target.kind.warning and request.method in ("POST", "PUT", "PATCH")
        self._headers = {"Warning": f'299 - "{target.kind.warning}"'} if warns else {}
        self.table = requests.as_table(request)

    def single(self, item: Item, *, status: int = 200) -> web.Response:
        """One object."""
        if self.table:
            meta = {"resourceVersion": metadata(item.body).get("resourceVersion", "")}
            return reply(self._table([item.body], meta), status=status)
        body, kind = self.raw(item), "application/json"
        return web.Response(body=body, status=status, content_type=kind, headers=self._headers)

    def many(self, items: Sequence[Item], meta: Object, *, with_kind: bool = True) -> web.Response:
        """A list. ``with_kind``: elements have kind and apiVersion, as everywhere but in a deleted collection."""
        if self.table:
            return reply(self._table([item.body for item in items], meta))
        head = {"kind": f"{self._kind.kind}List", "apiVersion": self._api_version, "metadata": meta}
        raw = self.raw if with_kind else _kindless
        body = msgspec.json.encode(head)[:-1] + b',"items":[' + b",".join(map(raw, items)) + b"]}"
        return web.Response(body=body, content_type="application/json")

    def event(self, body: Object, item: Item | None) -> bytes:
        """An object in an event of a watch; the item it is of, if it is stored as it is."""
        if self.table:
            meta = {"resourceVersion": metadata(body).get("resourceVersion", "")}
            return msgspec.json.encode(self._table([body], meta))
        return self.raw(item) if item is not None else msgspec.json.encode(body | {"apiVersion": self._api_version})

    def raw(self, item: Item) -> bytes:
        """An object as JSON."""
        return item.raw if self._stored else msgspec.json.encode(item.body | {"apiVersion": self._api_version})

    def _table(self, bodies: Sequence[Object], meta: Object) -> Object:
        header, self._header = self._header, False
        return tables.table(self._kind, bodies, include=self._include, meta=meta, header=header)


def _kindless(item: Item) -> bytes:
    return msgspec.json.encode({key: value for key, value in item.body.items() if key not in ("apiVersion", "kind")})


def reply(body: Any, *, status: int = 200) -> web.Response:
    """Anything, as JSON."""
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


def failure(error: ApiError) -> web.Response:
    """An error, as a Status."""
    return reply(error.status(), status=error.code)


def deleted(kind: Kind, body: Object) -> web.Response:
    """The reply to the deletion of an object that is removed at once."""
    details = {"name": metadata(body).get("name"), "kind": kind.resource, "uid": metadata(body).get("uid")}
    details |= {"group": kind.group} if kind.group else {}
    return reply({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
