"""The field ``signing`` of a cluster's description: how its nodes prove who calls, and whether they verify it.

    "signing": {"key": "<X25519 public key, base64>", "verifies": true, "next": {"key": "<another one>", "day": 20787}}

A key that cannot be one is refused alone; the description keeps its other values.
"""

from __future__ import annotations

import base64
from typing import Any, Final

import msgspec
from msgspec import Struct

from isthmus.model.signing import MAX_DAY

LENGTH: Final = 44
"""Characters of 32 bytes in base64, with padding."""
PROBE: Final = bytes(31) + b"\x40"
"""Any private key: a point of low order gives a shared secret of zero with each, which the library refuses."""


class Next(Struct, frozen=True, gc=False):
    """The key that replaces a cluster's present one."""

    key: str
    day: int
    """Day from which it is used, in days since 1970 in UTC."""


class Signing(Struct, frozen=True, gc=False, omit_defaults=True):
    """A cluster's public key and abilities; all of it is empty in a cluster without identities of callers."""

    key: str = ""
    """X25519 public key in base64; empty if it has none."""
    verifies: bool = False
    """True if its nodes verify signed calls, so that it is worth signing them."""
    next: Next | None = None
    """Another key, published some days before it is used; ``None`` if none is planned."""


class _Signing(Signing, frozen=True, gc=False):
    next: Any = None


NONE: Final = Signing()
"""The field of a cluster without one; records leave it out."""


def bounded(value: object) -> Signing:
    """The field with its keys checked, from a decoded one or from any JSON value; empty if it is malformed."""
    try:
        signing = value if isinstance(value, Signing) else NONE if value is None else msgspec.convert(value, _Signing)
    except msgspec.ValidationError:
        return NONE
    if not signing.key or not public_key(signing.key):
        return Signing(verifies=signing.verifies) if signing.verifies else NONE
    return Signing(signing.key, signing.verifies, _next(signing.next))


def _next(value: object) -> Next | None:
    try:
        found = value if isinstance(value, Next | None) else msgspec.convert(value, Next)
    except msgspec.ValidationError:
        return None
    return found if found and 0 <= found.day <= MAX_DAY and public_key(found.key) else None


def public_key(text: str) -> bytes:
    """The 32 bytes of a public key in base64; empty if it is none, or a point of low order (RFC 7748, section 6.1)."""
    if len(text) != LENGTH:
        return b""
    # Here, since commands that only read records import this module: they start without the library.
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    try:
        key = base64.b64decode(text, validate=True)
        X25519PrivateKey.from_private_bytes(PROBE).exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:
        return b""
    return key
