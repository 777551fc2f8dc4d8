"""The X25519 keys of a cluster by day: the present one, and the next one with the day from which it is used. Pure.

Both clusters of a pair derive the secret of a day from the keys of that day, so another key is used from the same
moment on both sides, if the other side has read it by then. It is published :data:`LEAD` days before: every file of
secrets that has that day is then written by a process that could have read it, and replaced once it has.

The previous key stays beside the next one for the whole of its first day, for peers that read late.
"""

from __future__ import annotations

import base64
import math
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from isthmus import bounds
from isthmus.identity import keys
from isthmus.model.signing import MAX_DAY

LEAD: Final = 3
"""Days from the day on which a next key is made to the one from which it is used: one more than secrets are ahead."""
MAX_FILE: Final = 1024
"""Bytes of a file that is read; 200 are written."""


class Schedule(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """Keys of a cluster, all private or all public."""

    key: bytes
    next: bytes = b""
    """Key that replaces it; empty if none is planned."""
    day: Annotated[int, Meta(ge=0, le=MAX_DAY)] = 0
    """Day from which the next one is used, in days since 1970 in UTC."""
    made: int = 0
    """Unix time at which the newest private key was made; 0 if that is not known."""

    def __repr__(self) -> str:
        return f"<Schedule {f'with another key from {self.day}' if self.next else 'of one key'}>"  # keys are in no log

    def on(self, day: int) -> bytes:
        """Key of a day."""
        return self.next if self.next and day >= self.day else self.key

    def public(self) -> Schedule:
        """Public keys of private ones; ValueError if one is none."""
        return Schedule(
            key=keys.public_key(self.key), next=keys.public_key(self.next) if self.next else b"", day=self.day
        )

    def begun(self, now: float) -> Schedule:
        """Private keys with another one that is used in :data:`LEAD` days."""
        return Schedule(key=self.key, next=keys.new_private_key(), day=_today(now) + LEAD, made=math.floor(now))

    def settled(self, now: float) -> Schedule:
        """Keys without one that has been replaced for a day."""
        replaced = self.next and _today(now) > self.day
        return Schedule(key=self.next, made=self.made) if replaced else self

    def due(self, *, requested: float, every: float, now: float) -> bool:
        """True if another key is to be made: the newest precedes a request, whose time has come, or exceeds a period.

        ``requested``: Unix time, 0 for none. ``every``: seconds, 0 for no period. A request alone replaces what was
        made while the clock was ahead: a clock that is behind now must not.
        """
        made = 0 if self.made > now else self.made
        planned = self.next and not self.too_far(now)
        return not planned and (made < requested <= now or 0 < every <= now - self.made)

    def too_far(self, now: float) -> bool:
        """True if the next key waits for a day that no correct clock would have planned."""
        return bool(self.next) and self.day > _today(now) + LEAD


def new(now: float) -> Schedule:
    """Make a private key."""
    return Schedule(key=keys.new_private_key(), made=math.floor(now))


def encode(schedule: Schedule) -> bytes:
    """Encode as JSON, with keys in base64."""
    return msgspec.json.encode(schedule)


def decode(content: bytes) -> Schedule:
    """Decode a file of JSON, or of one key in base64; ValueError has the reason without anything of its content."""
    if len(content) > MAX_FILE:
        raise ValueError(f"it is larger than {MAX_FILE} bytes")
    try:
        if not content.startswith(b"{"):
            return Schedule(key=_checked(base64.b64decode(content, validate=True)))
        schedule = bounds.json(content, _decoder)
        _checked(schedule.key)
        _checked(schedule.next or schedule.key)
    except (bounds.OutOfBounds, msgspec.MsgspecError, ValueError):
        raise ValueError("it is no X25519 key in base64") from None
    return schedule


def _checked(key: bytes) -> bytes:
    keys.public_key(key)  # of any 32 bytes there is one
    return key


def _today(now: float) -> int:
    return keys.day_of(keys.epoch_at(now))


_decoder = msgspec.json.Decoder(Schedule)
