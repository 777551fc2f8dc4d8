"""Times written as objects and records have them: RFC 3339, UTC, in whole seconds or, in Leases, in microseconds.

``bounds.timestamp`` reads them. ``isoformat`` and not ``strftime``, which writes the year 999 with three digits.
"""

from __future__ import annotations

from datetime import UTC, datetime


def timestamp(when: datetime | None = None) -> str:
    """A time, or now, as ``metav1.Time``."""
    return _utc(when).isoformat(timespec="seconds") + "Z"


def micro_timestamp(when: datetime | None = None) -> str:
    """A time, or now, as ``metav1.MicroTime``."""
    return _utc(when).isoformat(timespec="microseconds") + "Z"


def _utc(when: datetime | None) -> datetime:
    return (when or datetime.now(UTC)).astimezone(UTC).replace(tzinfo=None)
