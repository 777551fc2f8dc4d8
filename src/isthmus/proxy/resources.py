"""Makes rows of xDS resources out of fields; the one place that encodes them."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final

from isthmus.model.xds import Resource, ResourceType
from isthmus.proxy.delta import MESSAGES
from isthmus.proxy.messages import message

ADS: Final = {"ads": {}, "resource_api_version": "V3"}
"""A ``ConfigSource``: what refers to further resources gets them on the same stream."""


def resource(type_: ResourceType, name: str, owner: str = "", unit: str = "", **fields: Any) -> Resource:
    """A row of the table ``xds``; ``fields`` are those of the type's message, without its name.

    Raises ValueError or TypeError where a field cannot have such a value, which is a defect of the caller.
    """
    named = {"cluster_name" if type_ == "endpoints" else "name": name}
    body = message(MESSAGES[type_])(**named, **fields).SerializeToString(deterministic=True)
    version = blake2b(body, digest_size=8).hexdigest()
    return Resource(type=type_, name=name, version=version, body=body, owner=owner, unit=unit)


def address(host: str, port: int) -> dict[str, Any]:
    """An ``Address`` of TCP."""
    return {"socket_address": {"address": host, "port_value": port}}
