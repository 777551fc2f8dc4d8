"""The errors of this package, and their translation from gRPC's.

``reflector.Transient`` (retry) and ``reflector.Expired`` (list again) are the two that a reflector handles itself; the
others are below.
"""

from __future__ import annotations

import re
from typing import Any, Final

import grpc

from isthmus.reflector import Expired, Transient


class EtcdError(Exception):
    """The server refused the request; a retry would be refused as well."""


class Denied(Transient):
    """Authentication failed or a permission is missing. Retried: users and permissions may be created later."""


class TooLarge(EtcdError):  # noqa: N818
    """A message exceeds the limit of the client or of the server."""


class LeaseGone(EtcdError):  # noqa: N818
    """The lease expired or was revoked: its keys are deleted."""


Code = grpc.StatusCode
DENIED: Final = frozenset({Code.UNAUTHENTICATED, Code.PERMISSION_DENIED})
ENDED_TOKEN: Final = "invalid auth token"
RIGHTS_CHANGED: Final = ("revision of auth store is old", "revision in header is old")
"""Users or rights changed while a call was under way, by whatever it was authenticated; the second is of a write, which
etcd refused as it applied it."""
UNTRUSTED: Final = re.compile(r"CERTIFICATE_VERIFY_FAILED: (.+?)(: OK)?$")
"""gRPC's account of a certificate that it refuses, which ends with OpenSSL's reason."""
ALERT: Final = re.compile(r"ALERT_([A-Z_]*(?:CERTIFICATE|CA)(?:_[A-Z]+)*)")
"""The same of a server that refuses the client's: a TLS alert, as in SSLV3_ALERT_BAD_CERTIFICATE."""
NOT_ALLOWED: Final = (
    "user name is empty",
    "authentication failed",
    "permission denied",
    "authentication is not enabled",
)


def outdated(error: Any, *, token: bool) -> bool:
    """Whether the call may succeed when it is repeated, with a new token where it had one."""
    details = error.details() or ""
    if any(text in details for text in RIGHTS_CHANGED):
        return True
    return token and (error.code() is Code.UNAUTHENTICATED or ENDED_TOKEN in details)


def denies(details: str) -> bool:
    """Whether a server's words are about who calls: a token, a password or a right."""
    return any(text in details for text in (ENDED_TOKEN, *RIGHTS_CHANGED, *NOT_ALLOWED))


def translated(error: Any, where: str) -> Exception:
    """The error of this package for one of gRPC's; ``where`` is the endpoint."""
    code, details = error.code(), error.details() or ""
    if (alert := ALERT.search(details)) is not None:
        details = f"it refuses the client's certificate: {alert[1].lower().replace('_', ' ')}"
    elif (untrusted := UNTRUSTED.search(details)) is not None:
        details = f"its certificate is refused: {untrusted[1]}"
    message = f"etcd {where}: {details or code.name.lower()}"
    if code is Code.OUT_OF_RANGE:
        return Expired(message)
    if code in DENIED or denies(details):
        return Denied(message)
    if "larger than max" in details or "request is too large" in details:
        return TooLarge(message)
    if code is Code.NOT_FOUND and "lease" in details:
        return LeaseGone(message)
    if code in (Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION, Code.NOT_FOUND, Code.ALREADY_EXISTS):
        return EtcdError(message)
    return Transient(message)
