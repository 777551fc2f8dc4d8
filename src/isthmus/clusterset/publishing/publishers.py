"""Publishers of one cluster, one for each of its etcds.

Each etcd holds everything and elects nobody, so one that is killed, wiped or full holds up no other, and any one of
them is enough for peers. A record counts as failing if no etcd takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from isthmus.clusterset.publishing.publisher import Publisher, PublisherStats
from isthmus.clusterset.records import identity
from isthmus.clusterset.records.signing import Signing
from isthmus.config import ClusterSection, PublishedEndpoints
from isthmus.etcd import Session
from isthmus.model.tables import RECORDS_STATUS
from isthmus.running import Tasks
from isthmus.statedb import Database


class Publishers:
    """Publishes RECORDS of a database to each etcd, given by its name. :meth:`run` never returns.

    ``signing``: as for :class:`Publisher`.
    """

    def __init__(
        self,
        db: Database,
        sessions: Mapping[str, Session],
        cluster: ClusterSection,
        *,
        max_connected_clusters: identity.Most = 255,
        identities: bool = False,
        publish_endpoints: PublishedEndpoints = "services",
        signing: Callable[[], Signing] | None = None,
    ) -> None:
        self._db = db
        self._publishers = {
            name: Publisher(
                db,
                session,
                cluster,
                max_connected_clusters=max_connected_clusters,
                identities=identities,
                publish_endpoints=publish_endpoints,
                failing=self._write_failures,
                signing=signing,
            )
            for name, session in sessions.items()
        }

    def __repr__(self) -> str:
        return f"<Publishers: {', '.join(map(repr, self._publishers.values()))}>"

    @property
    def published(self) -> bool:
        """True while some etcd holds everything."""
        return any(each.published for each in self._publishers.values())

    @property
    def failures(self) -> int:
        """Failures to publish since the start, of the etcd with the fewest."""
        return min(each.failures for each in self._publishers.values())

    @property
    def settled(self) -> bool:
        """True if every change is written to some etcd."""
        return any(each.reconciler.settled for each in self._publishers.values())

    def problems(self) -> tuple[str, ...]:
        """Reasons why publishing fails, a sentence each; none while one etcd takes what is published."""
        failing = [each.problems() for each in self._publishers.values()]
        return () if not all(failing) else tuple(dict.fromkeys(text for texts in failing for text in texts))

    def warnings(self) -> tuple[str, ...]:
        """Etcds that do not hold everything while others do."""
        if self.problems():
            return ()
        lacking = {name: each.error for name, each in self._publishers.items() if each.error}
        return tuple(f"etcd {name} does not have everything, others do: {error}" for name, error in lacking.items())

    def stats(self) -> PublisherStats:
        """State of the etcd that is closest to complete."""
        order = sorted(self._publishers.values(), key=lambda each: (not each.published, bool(each.error)))
        return order[0].stats()

    async def run(self) -> None:
        """Publish to each, for ever."""
        async with Tasks() as tasks:
            for name, publisher in self._publishers.items():
                tasks.start(f"publisher {name}", publisher.run)

    def _write_failures(self, keys: Collection[Any]) -> None:
        """Write the rows of ``records_status`` for records that a publisher has tried."""
        if RECORDS_STATUS.name not in self._db.tables:
            return
        failing = [each.reconciler.failing for each in self._publishers.values()]
        with self._db.write() as txn:
            for key in keys:
                statuses = [status for each in failing if (status := each.get(key)) is not None]
                if len(statuses) == len(failing):
                    txn.put(RECORDS_STATUS, min(statuses, key=lambda status: status.attempts))
                else:
                    txn.delete(RECORDS_STATUS, key)
