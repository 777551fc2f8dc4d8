"""Rows as keys of the own etcd: targets of reconcilers. Only the own cluster's keys are touched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from isthmus.clusterset.publishing.owned_keys import OwnedKeys
from isthmus.clusterset.records import keys
from isthmus.config import PublishedEndpoints
from isthmus.etcd import Session
from isthmus.model.mcs import Record, RecordKind, Refusals
from isthmus.model.names import ClusterName
from isthmus.model.tables import RECORDS, REFUSALS
from isthmus.reflector import Transient
from isthmus.statedb import NotPruned, Table

KINDS: Final[tuple[RecordKind, ...]] = ("serviceexports", "services")
ENDPOINTS: Final[Mapping[PublishedEndpoints, tuple[RecordKind, ...]]] = {
    "services": ("services",),
    "endpointslices": ("endpointslices",),
    "both": ("services", "endpointslices"),
}
OF_CALLERS: Final[tuple[RecordKind, ...]] = ("identities", "ip")
EVERY: Final[tuple[RecordKind, ...]] = ("serviceexports", *ENDPOINTS["both"], *OF_CALLERS)
WITH_IDENTITIES: Final[tuple[RecordKind, ...]] = (*KINDS, *OF_CALLERS)
"""Kinds that are published and mirrored if ``identity.enabled``."""


def published(endpoints: PublishedEndpoints, *, identities: bool) -> tuple[RecordKind, ...]:
    """The kinds that a cluster publishes."""
    exports = ("serviceexports", *ENDPOINTS[endpoints])
    return (*exports, *OF_CALLERS) if identities else exports


def records_target(session: Session, cluster: ClusterName, kinds: Sequence[RecordKind] = KINDS) -> KeyTarget[Record]:
    """The own cluster's records in the own etcd."""
    prefixes = [keys.prefix(kind, cluster) for kind in kinds]
    return KeyTarget(session, RECORDS, prefixes, lambda row: keys.record(row.kind, cluster, row.name))


def refusals_target(session: Session, cluster: ClusterName) -> KeyTarget[Refusals]:
    """The own cluster's refusals of peers' records in the own etcd."""
    prefixes = [keys.all_refusals(cluster)]
    return KeyTarget(session, REFUSALS, prefixes, lambda row: keys.refusals(cluster, row.cluster))


class Published(Protocol):
    """A row with the value of its key."""

    @property
    def value(self) -> bytes: ...


R = TypeVar("R", bound=Published)


class KeyTarget(Generic[R]):
    """A statedb target: the rows of a table as keys of the own etcd, and no others below the prefixes."""

    def __init__(
        self, session: Session, table: Table[Any, R], prefixes: Sequence[str], key: Callable[[R], str]
    ) -> None:
        self._table = table
        self._key = key
        self.prefixes = prefixes
        self.owned = OwnedKeys(session, prefixes)
        self.complete = asyncio.Event()
        """Set once all rows are known, so that what no row wants is stale."""

    def __repr__(self) -> str:
        return f"<KeyTarget of {self._table.name}: {self.owned}>"

    async def update(self, rows: Sequence[R]) -> Mapping[Any, str]:
        """Write the records that the store does not hold as they are."""
        for row in rows:
            self.owned.want(self._key(row), row.value)
        return await self._flush(rows)

    async def delete(self, rows: Sequence[R]) -> Mapping[Any, str]:
        """Delete the records that the store holds."""
        for row in rows:
            self.owned.want(self._key(row), None)
        return await self._flush(rows)

    async def prune(self, rows: Iterable[R]) -> str:
        """Delete keys below our prefixes that no row wants; write again keys that another client removed."""
        self.owned.want_all({self._key(row): row.value for row in rows})
        self.complete.set()
        try:
            return f"{await self.owned.settle(prune=True)} stale keys pruned"
        except Transient as error:  # the publisher settles before it calls anything whole
            raise NotPruned(str(error)) from None

    async def settle(self) -> None:
        """Write the rows' keys, and delete all others once all rows are known; Transient if it fails."""
        await self.owned.settle(prune=self.complete.is_set())

    async def _flush(self, rows: Sequence[R]) -> Mapping[Any, str]:
        failed = await self.owned.flush()
        return {self._table.key(row): failed[key] for row in rows if (key := self._key(row)) in failed}
