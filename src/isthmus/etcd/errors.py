"""The errors of this package, and their translation from gRPC's.

``reflector.Transient`` (retry) and ``reflector.Expired`` (list again) are the two that a reflector handles itself; the
others are below.
"""

from __future__ import annotations

from typing import Any, Final

import grpc

from isthmus.bounds import Syntax
from isthmus.reflector import Expired, Transient


class EtcdError(Exception):
    """The server refused the request; a retry would be refused as well."""


class Denied(Transient):
    """Authentication failed or a permission is missing. Retried: users and permissions may be created later."""


class Untrusted(Transient):
    """One side refuses the other's certificate. Retried: either may be renewed."""


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
MAX_DETAILS: Final = 2048
"""Characters of an error's text that are looked at."""
UNTRUSTED: Final = Syntax(r"CERTIFICATE_VERIFY_FAILED: (.+?)(: OK)?$", most=MAX_DETAILS, meaning="such an account")
"""gRPC's account of a certificate that it refuses, which ends with OpenSSL's reason."""
ALERT: Final = Syntax(r"ALERT_([A-Z_]*(?:CERTIFICATE|CA)(?:_[A-Z]+)*)", most=MAX_DETAILS, meaning="an alert")
"""TLS alert of a server that refuses the client's certificate, as in SSLV3_ALERT_BAD_CERTIFICATE."""
UNNAMED_ALERT: Final = "Unwrap failed (TSI_DATA_CORRUPTED)"
"""gRPC's account of an alert that ends a connection after the client's part of the handshake: with TLS 1.3 a server
refuses the client's certificate so. The alert's name is missing from some of these errors."""
NOT_ALLOWED: Final = (
    "user name is empty",
    "authentication failed",
    "permission denied",
    "authentication is not enabled",
)


def outdated(error: Any, *, token: bool) -> bool:
    """True if the call may succeed when it is repeated, with a new token if it had one."""
    details = error.details() or ""
    if any(text in details for text in RIGHTS_CHANGED):
        return True
    return token and (error.code() is Code.UNAUTHENTICATED or ENDED_TOKEN in details)


def denies(details: str) -> bool:
    """True if a server's message concerns the caller: a token, a password or a permission."""
    return any(text in details for text in (ENDED_TOKEN, *RIGHTS_CHANGED, *NOT_ALLOWED))


def translated(error: Any, where: str) -> Exception:
    """The error of this package for one of gRPC's; ``where`` is the endpoint."""
    code, details = error.code(), error.details() or ""
    refused = True
    if (alert := ALERT.search(details)) is not None:
        details = f"it refuses the client's certificate: {alert[1].lower().replace('_', ' ')}"
    elif UNNAMED_ALERT in details:
        details = "it refuses the client's certificate: an alert followed the handshake"
    elif (untrusted := UNTRUSTED.search(details)) is not None:
        details = f"its certificate is refused: {untrusted[1]}"
    else:
        refused = False
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
    return Untrusted(message) if refused else Transient(message)
