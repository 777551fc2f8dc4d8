"""Times as objects and records have them: RFC 3339, UTC, in whole seconds or, in Leases, in microseconds."""

from __future__ import annotations

from datetime import UTC, datetime


def timestamp(when: datetime | None = None) -> str:
    """A time, now where none is given, as ``metav1.Time``."""
    return (when or datetime.now(UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(when: datetime | None = None) -> str:
    """A time, now where none is given, as ``metav1.MicroTime``."""
    return (when or datetime.now(UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
