"""Errors of requests to an API server, and the one place where a reply becomes an error."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from isthmus import bounds
from isthmus.reflector import Expired, Transient


class KubeError(Exception):
    """The server refused a request. The message is a sentence for people: request, status, the server's reason."""


class Unauthorized(KubeError):  # noqa: N818
    """The server does not know who we are: token or client certificate are wrong or have run out."""


class Forbidden(KubeError):  # noqa: N818
    """We may not: RBAC, admission, or a namespace that is going away."""


class NotFound(KubeError):  # noqa: N818
    """There is no such object, or no such namespace."""


class NotServed(NotFound):
    """The server has no such kind: its CustomResourceDefinition is not installed."""


class Conflict(KubeError):  # noqa: N818
    """The object is not as the request expects: another resource version, another uid, another field manager."""


class AlreadyExists(Conflict):
    """An object of this name is there already."""


class Invalid(KubeError):  # noqa: N818
    """The server finds the object invalid: a field is missing or wrong."""


class Unreachable(KubeError, Transient):  # noqa: N818
    """No answer, or one that asks to try again later (429, 5xx)."""


class Cause(Struct, frozen=True, gc=False):
    """One reason of a Status."""

    reason: str = ""
    message: str = ""
    field: str = ""


class Details(Struct, frozen=True, gc=False):
    """Object that a Status concerns. Without a name the kind itself was not found."""

    name: str = ""
    causes: list[Cause] | None = None


class Status(Struct, frozen=True, gc=False):
    """meta/v1 Status: a refusal."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: Details | None = None


_BY_CODE: Final[dict[int, type[KubeError]]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: Invalid,
    415: Invalid,
    422: Invalid,
}
_LATER: Final = {408, 429}


def status_of(code: int, body: bytes) -> Status:
    """The Status in a reply; for one that carries none (a proxy's page, plain text) its code and first line."""
    try:
        status = bounds.json(body, msgspec.json.Decoder(Status))
    except msgspec.MsgspecError:
        text = body[:200].decode(errors="replace").strip().partition("\n")[0]
        return Status(message=text, code=code)
    return msgspec.structs.replace(status, code=code or status.code)


def failure(what: str, status: Status) -> KubeError | Expired:
    """The error that a status is. ``what`` names the request: 'PATCH serviceimports demo/echo'."""
    sentence = f"{what}: {status.code} {status.reason or 'error'}: {status.message or 'the server gives no reason'}"
    if status.code == 410 or _too_new(status):
        return Expired(sentence)
    if status.code >= 500 or status.code in _LATER:
        return Unreachable(sentence)
    if status.reason == "AlreadyExists":
        return AlreadyExists(sentence)
    if status.code == 404 and not (status.details and status.details.name):
        return NotServed(sentence)
    return _BY_CODE.get(status.code, KubeError)(sentence)


def _too_new(status: Status) -> bool:
    """A revision from the future: the server's store was restored. Waiting for it would be waiting for ever."""
    causes = status.details.causes if status.details else None
    return status.code == 504 and (
        "Too large resource version" in status.message
        or any(c.reason == "ResourceVersionTooLarge" for c in causes or ())
    )
