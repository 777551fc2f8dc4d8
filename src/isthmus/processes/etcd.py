"""The own etcds as the operator sees them: size and quota of their files, and alarms by which they refuse writes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from prometheus_client.metrics_core import Metric

from isthmus import logs, metrics
from isthmus.etcd import EtcdError, Session, Status
from isthmus.mcs import unpublished
from isthmus.reflector import Expired, Transient

DEFAULT_QUOTA: Final = 2 * 1024**3
"""Bytes at which an etcd refuses writes, unless started with another ``--quota-backend-bytes``."""
LOOK_EVERY: Final = 10.0
"""Seconds between looks, and so until an alarm is displayed."""

log = logs.get("etcd")


class EtcdWatch:
    """Asks etcds for their status again and again. One that does not answer keeps its last size."""

    def __init__(self) -> None:
        self._statuses: dict[str, Status] = {}

    def __repr__(self) -> str:
        return f"<EtcdWatch {self._statuses}>"

    async def run(self, name: str, session: Session) -> None:
        """Look into the etcd of this name, for ever."""
        while True:
            try:
                self._statuses[name] = await session.status()
            except (Transient, Expired, EtcdError) as error:
                log.debug("no status of etcd", reason=str(error))  # the publisher reports what it needs
            await asyncio.sleep(LOOK_EVERY)

    def problems(self) -> Sequence[str]:
        """Describe the alarms by which it refuses writes, with their cure."""
        texts = dict.fromkeys(each.strip() for status in self._statuses.values() for each in status.alarms)
        if not texts:
            return []
        alarms = ", ".join(texts)
        return [f"the own etcd refuses writes ({alarms}), so no change of an export is published; {unpublished.CURE}"]

    def families(self, prefix: str) -> Sequence[Metric]:
        """Return size and quota of the largest, and the alarms of all; nothing before the first status."""
        if not self._statuses:
            return []
        largest = max(self._statuses.values(), key=lambda status: status.db_size)
        return [
            metrics.ETCD_SIZE.value(prefix, largest.db_size),
            metrics.ETCD_QUOTA.value(prefix, largest.db_quota or DEFAULT_QUOTA),
            metrics.ETCD_ALARMS.value(prefix, sum(len(status.alarms) for status in self._statuses.values())),
        ]
