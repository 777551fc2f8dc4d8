"""Records as keys of the own etcd: the target of the reconciler of RECORDS. Only the own cluster's keys are touched."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from isthmus.clusterset import keys
from isthmus.clusterset.owned_keys import OwnedKeys
from isthmus.etcd import Session
from isthmus.model.mcs import Record, RecordKind
from isthmus.model.names import ClusterName
from isthmus.model.tables import RECORDS
from isthmus.reflector import Transient
from isthmus.statedb import NotPruned

KINDS: Final[tuple[RecordKind, ...]] = ("serviceexports", "services")


class RecordTarget:
    """A statedb target: the own cluster's records in the own etcd."""

    def __init__(self, session: Session, cluster: ClusterName) -> None:
        self._cluster = cluster
        self.prefixes = [keys.prefix(kind, cluster) for kind in KINDS]
        self.owned = OwnedKeys(session, self.prefixes)
        self.complete = asyncio.Event()
        """Set once all rows are known, so that what no row wants is stale."""

    def __repr__(self) -> str:
        return f"<RecordTarget of {self._cluster}: {self.owned}>"

    async def update(self, rows: Sequence[Record]) -> Mapping[Any, str]:
        """Write the records that the store does not hold as they are."""
        for row in rows:
            self.owned.want(self._key(row), row.value)
        return await self._flush(rows)

    async def delete(self, rows: Sequence[Record]) -> Mapping[Any, str]:
        """Delete the records that the store holds."""
        for row in rows:
            self.owned.want(self._key(row), None)
        return await self._flush(rows)

    async def prune(self, rows: Iterable[Record]) -> str:
        """Delete keys below our prefixes that no row wants; write again keys that another client removed."""
        self.owned.want_all({self._key(row): row.value for row in rows})
        self.complete.set()
        try:
            return f"{await self.owned.settle(prune=True)} stale keys pruned"
        except Transient as why:  # the publisher settles before it calls anything whole
            raise NotPruned(str(why)) from None

    async def settle(self) -> None:
        """Make the store hold what is wanted, and nothing else once all rows are known; Transient if it cannot be."""
        await self.owned.settle(prune=self.complete.is_set())

    async def _flush(self, rows: Sequence[Record]) -> Mapping[Any, str]:
        failed = await self.owned.flush()
        return {RECORDS.key(row): failed[key] for row in rows if (key := self._key(row)) in failed}

    def _key(self, row: Record) -> str:
        return keys.record(row.kind, self._cluster, row.name)
