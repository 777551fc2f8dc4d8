"""The wire format of the admin socket: rows as JSON, keys as text that is the same in every process."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from isthmus.admin.machine import Machine
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


class TableLine(Line[R], Generic[R], kw_only=True):
    """A line of a watch of several tables. A list replaces all that was known of its table."""

    table: str


class FeedLine(Struct, Generic[R]):
    """A line of a feed: rows in the order in which they came, and how many were lost since the line before."""

    rows: tuple[R, ...]
    lost: int = 0
    displaced: int = 0
    """Number of older rows that newer ones displaced, in the first line."""
    note: str = ""
    """Sentence on which rows are recorded, in the first line; empty if all are."""


class ProcessStatus(Struct, frozen=True, kw_only=True):
    """Report of a process. Each kind of process adds the statistics of its parts as fields."""

    problems: tuple[str, ...] = ()
    """Reasons why the process does not do its work, or soon will not, a sentence each. It is not ready with any."""
    faults: tuple[str, ...] = ()
    """Rows in quarantine, a sentence each, up to a few."""
    warnings: tuple[str, ...] = ()
    """Future problems, unless an operator acts, a sentence each."""
    standing_by: str = ""
    """The active replica; empty if it is this one, or the only one."""
    machine: Machine | None = None
    """Measurements of its machine, from the moment of the request."""


class Failure(Struct):
    """The body of an answer with a status of 400 and more."""

    error: str
    tables: list[str] = []
    """Names of the existing tables, if the requested one does not exist."""


def key_text(key: Any) -> str:
    """A primary key as text, unambiguously: as it is, as its type writes itself, or as compact JSON.

    >>> key_text("demo/echo"), key_text(("c1", "demo/echo"))
    ('demo/echo', '["c1","demo/echo"]')
    """
    if isinstance(key, str):
        return key
    if isinstance(key, Struct) and type(key).__str__ is not object.__str__:
        return str(key)
    try:
        return msgspec.json.encode(key).decode()
    except (UnicodeEncodeError, ValueError, OverflowError, TypeError):  # of a row that is left out for the same reason
        return ascii(key)


def encode(value: Any) -> bytes:
    """A value as JSON; large sequences of rows are arrays, as small ones are."""
    return _encoder.encode(value)


def encodable(value: Any) -> bool:
    """True if a value can be written: a row with one that cannot costs itself, and not its whole table."""
    try:
        encode(value)
    except MemoryError:
        raise
    except Exception:
        return False
    return True


_encoder = msgspec.json.Encoder(enc_hook=chunked.plain)
