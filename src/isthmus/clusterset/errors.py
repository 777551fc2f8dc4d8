"""Errors of a peer's records, its file, keys, and of joining."""

from __future__ import annotations

from typing import NamedTuple

from isthmus.model.mcs import RefusalOfRecord


class Refusal(NamedTuple):
    """Reason and sentence for a record of a peer that is not taken."""

    reason: RefusalOfRecord
    message: str


class RecordError(Exception):
    """A record of a peer cannot be used; the message names the field and the reason."""

    def __init__(self, message: str, reason: RefusalOfRecord = "Invalid") -> None:
        super().__init__(message)
        self.refusal = Refusal(reason, message)


class PeerFileError(Exception):
    """A file of the configuration directory cannot be used; the message names file and field."""


class PkiError(Exception):
    """A key, certificate or password is missing or cannot be used; the message names the file."""


class JoinError(Exception):
    """Two clusters cannot be joined or parted; the message has the reason, and what to do."""


class LinkError(Exception):
    """A link cannot be used; ``reason`` is that of its condition, the message names the field."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
