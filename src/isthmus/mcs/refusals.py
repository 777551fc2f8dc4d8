"""The table ``refusals``: what is published to each peer about its records and exports that are not taken here."""

from __future__ import annotations

from collections.abc import Iterable

from isthmus.clusterset import refusals
from isthmus.fair import Shares, grant
from isthmus.model.mcs import Merged, OverQuota, Refusals, RefusedRecord
from isthmus.model.names import ClusterName, split
from isthmus.model.tables import MERGED, OVER_QUOTA, REFUSALS, REFUSED_RECORDS
from isthmus.statedb import Derived, Reader, unit_of


def derived(cluster: ClusterName) -> Derived[Refusals]:
    """The declaration of ``refusals`` for a cluster."""

    def compute(reader: Reader, peer: ClusterName) -> Iterable[Refusals]:
        refused = {REFUSED_RECORDS.key(row): row for row in reader.by(REFUSED_RECORDS, "cluster", peer)}
        for row in _over_quota(reader, peer, cluster):
            refused.setdefault(REFUSED_RECORDS.key(row), row)
        return (Refusals(peer, refusals.encode(refused.values())),) if refused else ()

    def of_quota(reader: Reader, old: OverQuota | None, new: OverQuota | None) -> Iterable[ClusterName]:
        row = new or old
        merged = reader.get(MERGED, row.name) if row is not None else None
        return [each for each in merged.clusters if each != cluster] if merged is not None else ()

    def of_merged(reader: Reader, old: Merged | None, new: Merged | None) -> Iterable[ClusterName]:
        row = new or old
        if row is None or reader.get(OVER_QUOTA, row.name) is None:
            return ()
        return {name for each in (old, new) if each is not None for name in each.clusters if name != cluster}

    return Derived(
        REFUSALS,
        compute=compute,
        reads={REFUSED_RECORDS: unit_of("cluster"), OVER_QUOTA: of_quota, MERGED: of_merged},
    )


def _over_quota(reader: Reader, peer: ClusterName, cluster: ClusterName) -> Iterable[RefusedRecord]:
    """Exports of a peer for which this cluster makes no derived Service, as many as are named."""
    if not reader.count(OVER_QUOTA):
        return
    names = (row.name for row in reader.by(MERGED, "cluster", peer) if reader.get(OVER_QUOTA, row.name) is not None)
    shares = Shares(refusals.MAX_NAMED, reserve=False)
    for name in grant(names, shares, holders=lambda name: [(split(name)[0],)], order=str):
        message = f"namespace {split(name)[0]} has its share of the derived Services of cluster {cluster}"
        yield RefusedRecord(cluster=peer, kind="serviceexports", name=name, reason="QuotaExceeded", message=message)
