"""Times as objects and records have them: RFC 3339, UTC, in whole seconds or, in Leases, in microseconds."""

from __future__ import annotations

from datetime import UTC, datetime


def timestamp(when: datetime | None = None) -> str:
    """A time, now where none is given, as ``metav1.Time``."""
    return (when or datetime.now(UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse(text: str) -> datetime:
    """A time of an object or a record in UTC, which it is in where it names no zone; ValueError where it is none."""
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except OverflowError:  # in UTC its year would be 0 or 10000
        raise ValueError(f"{text!r} is out of range") from None


def micro_timestamp(when: datetime | None = None) -> str:
    """A time, now where none is given, as ``metav1.MicroTime``."""
    return (when or datetime.now(UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
