"""Messages of joining: a token, passed on by hand, and the offer that answers it. Pure."""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import Final

import msgspec
from msgspec import Struct

from isthmus.clusterset.errors import JoinError
from isthmus.model.names import ClusterName

MARK: Final = "isthmus1."
LIMIT: Final = 64 * 1024


class Entry(Struct, frozen=True, kw_only=True):
    """Access to a cluster's etcd: addresses, trust bundle, and a client certificate if it requires one."""

    cluster: ClusterName
    id: int
    endpoints: tuple[str, ...]
    ca: bytes
    certificate: bytes
    key: bytes
    pod_ranges: tuple[str, ...] = ()
    """Ranges that its endpoints will be in; empty if it declares none."""
    server_name: str = ""
    """TLS server name of its etcd, by which gateways route to it; empty uses the endpoints' hosts."""


class Token(Struct, frozen=True, kw_only=True):
    """An invitation: its bearer may make one offer until it expires (seconds since the epoch)."""

    entry: Entry
    number: str
    password: str
    expires: int


class Offer(Struct, frozen=True, kw_only=True):
    """The answer to an invitation: the joining cluster's etcd, the password for it, and the password wanted here."""

    entry: Entry
    password: str
    wanted: str


class Trust(Struct, frozen=True, kw_only=True):
    """Trust bundle for a cluster's etcd from now on, and a client certificate for it."""

    ca: bytes
    certificate: bytes
    key: bytes


def pack(token: Token) -> str:
    """Encode a token as one word."""
    packed = zlib.compress(msgspec.msgpack.encode(token), 9)
    return MARK + base64.urlsafe_b64encode(packed).decode().rstrip("=")


def unpack(text: str) -> Token:
    """Decode a token, ignoring line breaks that a terminal added; JoinError if it is invalid."""
    word = "".join(text.split())
    if not word.startswith(MARK):
        raise JoinError(f"this is no token: it does not begin with {MARK}")
    body = word.removeprefix(MARK)
    try:
        packed = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
        plain = zlib.decompressobj().decompress(packed, LIMIT)
        return msgspec.msgpack.decode(plain, type=Token)
    except (binascii.Error, zlib.error, msgspec.MsgspecError, ValueError):
        raise JoinError("this token is damaged: copy all of it") from None


def read_offer(value: bytes) -> Offer:
    """Decode an offer; JoinError if it is malformed."""
    try:
        if len(value) > LIMIT:
            raise JoinError(f"the offer is larger than {LIMIT} bytes")
        return msgspec.json.decode(value, type=Offer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise JoinError(f"the offer cannot be read: {error}") from None
