"""Secrets of the days of one pair of clusters, in both directions: a file of the Secret ``isthmus-pair-keys``.

A file is called as the peer is. It has what nodes need and no private key: whoever reads it can sign and verify calls
between these two clusters on the days in it, and nothing else.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from isthmus import bounds
from isthmus.identity import keys
from isthmus.identity.schedule import Schedule

MAX_DAYS: Final = 16
"""Days that are read of a file; four are written."""
MAX_FILE: Final = 16 * 1024
"""Bytes of a file that is read; 700 are written."""


class Pair(Struct, frozen=True, gc=False, kw_only=True):
    """Secrets that two clusters share."""

    own_key: bytes
    """Own public key with which the secrets were derived."""
    peer_key: bytes
    """The peer's public key, kept for days on which its etcd cannot be read."""
    send: dict[int, bytes]
    """Secrets of calls to the peer, by day since 1970 in UTC."""
    receive: dict[int, bytes]
    """Secrets of calls from the peer."""
    peer_next: bytes = b""
    """The peer's next public key, kept likewise; empty if it published none."""
    peer_day: int = 0
    """Day from which that one is used."""

    @property
    def peer(self) -> Schedule:
        """The peer's public keys."""
        return Schedule(key=self.peer_key, next=self.peer_next, day=self.peer_day)

    def __repr__(self) -> str:
        return f"<Pair send {sorted(self.send)}, receive {sorted(self.receive)}>"  # secrets are in no log


_decoder = msgspec.json.Decoder(Pair)


def pair(private: Schedule, public: Schedule, *, own: str, peer: str, now: float) -> Pair:
    """Derive the secrets of the days that are kept at a Unix time; ValueError for a key of which there is none.

    ``private``: own keys. ``public``: the peer's.
    """
    shared = {day: keys.shared_secret(private.on(day), public.on(day)) for day in keys.kept_days(now)}
    return Pair(
        own_key=keys.public_key(private.key),
        peer_key=public.key,
        peer_next=public.next,
        peer_day=public.day,
        send={day: keys.day_secret(secret, sender=own, receiver=peer, day=day) for day, secret in shared.items()},
        receive={day: keys.day_secret(secret, sender=peer, receiver=own, day=day) for day, secret in shared.items()},
    )


def encode(content: Pair) -> bytes:
    """Encode as JSON, with secrets in base64."""
    return msgspec.json.encode(content)


def decode(content: bytes) -> Pair:
    """Decode a file; ValueError has the reason without anything of its content."""
    if len(content) > MAX_FILE:
        raise ValueError(f"it is larger than {MAX_FILE} bytes")
    try:
        result = bounds.json(content, _decoder)
    except (bounds.OutOfBounds, msgspec.MsgspecError, UnicodeDecodeError):
        raise ValueError("it is no JSON of a pair's secrets, or is cut off") from None
    if max(len(result.send), len(result.receive)) > MAX_DAYS:
        raise ValueError(f"it has more than {MAX_DAYS} days")
    secrets = [*result.send.values(), *result.receive.values()]
    if any(len(each) != keys.DAY_SECRET_BYTES for each in secrets):
        raise ValueError(f"a secret has another length than {keys.DAY_SECRET_BYTES} bytes")
    return result
