"""The wire format of the admin socket: rows as JSON, keys as text that is the same in every process."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from isthmus.model import chunked

R = TypeVar("R")

VERSION = "v1"
GONE = 410
"""The revision is another instance's or no longer kept: list again."""


class Listing(Struct, Generic[R]):
    """A whole table. Not complete: sources in ``pending`` have not listed, so nothing may be removed."""

    instance: str
    revision: int
    complete: bool
    pending: list[str]
    keys: list[str]
    rows: list[R]


class Event(Struct, Generic[R]):
    """One row put, or deleted where ``row`` is null."""

    key: str
    row: R | None


class Line(Struct, Generic[R], omit_defaults=True):
    """A line of a watch: the list, a batch of events, or why the stream ends here and a new list is needed."""

    list: Listing[R] | None = None
    revision: int = 0
    events: tuple[Event[R], ...] = ()
    expired: str = ""


class FeedLine(Struct, Generic[R]):
    """A line of a feed: rows in the order in which they came, and how many were lost since the line before."""

    rows: tuple[R, ...]
    lost: int = 0


class ProcessStatus(Struct, frozen=True, kw_only=True):
    """What a process reports of itself; each kind of process adds the stats of its parts as fields."""

    problems: tuple[str, ...] = ()
    """Why the process does not do its work, a sentence each. One that has any is not ready."""


class Failure(Struct):
    """The body of an answer with a status of 400 and more."""

    error: str
    tables: list[str] = []
    """Where there is no such table: those there are."""


def key_text(key: Any) -> str:
    """A primary key as text, unambiguously: as it is, as its type writes itself, or as compact JSON.

    >>> key_text("demo/echo"), key_text(("c1", "demo/echo"))
    ('demo/echo', '["c1","demo/echo"]')
    """
    if isinstance(key, str):
        return key
    if isinstance(key, Struct) and type(key).__str__ is not object.__str__:
        return str(key)
    return msgspec.json.encode(key).decode()


def encode(value: Any) -> bytes:
    """A value as JSON; large sequences of rows are arrays, as small ones are."""
    return _encoder.encode(value)


_encoder = msgspec.json.Encoder(enc_hook=chunked.plain)
