"""What can go wrong with an etcd, and the one place where gRPC's errors become ours.

``reflector.Transient`` (try again) and ``reflector.Expired`` (list again) are the shared words for the two that a
watcher lives with; the rest is below.
"""

from __future__ import annotations

from typing import Any, Final

import grpc

from isthmus.reflector import Expired, Transient


class EtcdError(Exception):
    """The store refused what was asked; asking again gives the same answer."""


class Denied(Transient):
    """The store does not accept who we are or what we may do. Retried, since rights and passwords are granted later."""


class TooLarge(EtcdError):  # noqa: N818
    """A message is larger than one side takes."""


class LeaseGone(EtcdError):  # noqa: N818
    """The lease has expired or was revoked: what was written under it is deleted."""


Code = grpc.StatusCode
DENIED: Final = frozenset({Code.UNAUTHENTICATED, Code.PERMISSION_DENIED})
STALE_TOKEN: Final = ("invalid auth token", "revision of auth store is old")
NOT_ALLOWED: Final = (
    "user name is empty",
    "authentication failed",
    "permission denied",
    "authentication is not enabled",
)


def stale_token(error: Any) -> bool:
    """Whether another token may help."""
    return error.code() is Code.UNAUTHENTICATED or any(text in (error.details() or "") for text in STALE_TOKEN)


def translated(error: Any, where: str) -> Exception:
    """An error of gRPC as one of ours; ``where`` is the endpoint."""
    code, details = error.code(), error.details() or ""
    said = f"etcd {where}: {details or code.name.lower()}"
    if code is Code.OUT_OF_RANGE:
        return Expired(said)
    if code in DENIED or any(text in details for text in NOT_ALLOWED):
        return Denied(said)
    if "larger than max" in details or "request is too large" in details:
        return TooLarge(said)
    if code is Code.NOT_FOUND and "lease" in details:
        return LeaseGone(said)
    if code in (Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION, Code.NOT_FOUND, Code.ALREADY_EXISTS):
        return EtcdError(said)
    return Transient(said)
