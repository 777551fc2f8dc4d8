"""Records of own exports that the own etcd does not take: which are displayed, and the reason for people. Pure.

Messages are the same at every retry and for every endpoint, so a failure costs an export one write of its status.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from isthmus.model.names import ServiceName, derived
from isthmus.model.tables import RECORDS_STATUS
from isthmus.statedb import Reader, Status

ATTEMPTS: Final = 3
"""Failed writes of a record before its export is displayed as unpublished; an etcd that elects a leader fails fewer."""
NO_SPACE: Final = "database space exceeded"
"""Part of etcd's error when its database has reached the quota."""
CURE: Final = "'isthmus keys' cures that within seconds, and without it etcdctl compact, defrag and alarm disarm do"

RecordStatus = Status[tuple[str, ServiceName]]


class Reason(NamedTuple):
    """Reason of the condition and its sentence."""

    name: Literal["EtcdFull", "EtcdUnavailable"]
    message: str


def reason(error: str) -> Reason:
    """The reason for a failed write."""
    if NO_SPACE in error:
        return Reason("EtcdFull", f"the own etcd has reached its quota and refuses writes (NOSPACE); {CURE}")
    return Reason("EtcdUnavailable", "the own etcd does not take it; isthmus status of the operator has the reason")


def read(reader: Reader, name: ServiceName) -> tuple[RecordStatus, ...]:
    """Displayed failures of an export's record and of its endpoints' record, in this order."""
    if not reader.count(RECORDS_STATUS):
        return ()
    keys = (("serviceexports", name), ("services", derived(name)))
    rows = (reader.get(RECORDS_STATUS, key) for key in keys)
    return tuple(row for row in rows if row is not None and _displayed(row))


def changed(old: RecordStatus | None, new: RecordStatus | None) -> bool:
    """True if what is displayed of a record changes; a retry alone does not."""
    before, after = (reason(row.error) if row is not None and _displayed(row) else None for row in (old, new))
    return before != after


def _displayed(row: RecordStatus) -> bool:
    return row.attempts >= ATTEMPTS
