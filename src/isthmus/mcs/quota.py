"""The table ``over_quota``: imports that get no derived Service, since the cluster has as many as it may have.

Peers decide how many names there are; Services cost addresses of the own cluster's Service range, which all its
Services share. A Service that exists stays. Room goes to what the own cluster exports first, then to peers in fair
shares, and within a peer to its namespaces (``isthmus.fair``); a namespace's oldest exports come first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from isthmus.desired import is_our_row
from isthmus.fair import Path, Shares, always_fits, grant
from isthmus.model.mcs import Merged, OverQuota
from isthmus.model.names import ClusterName, ServiceName, derived, split
from isthmus.model.services import Service
from isthmus.model.sources import KUBERNETES
from isthmus.model.tables import MERGED, OVER_QUOTA, SERVICES
from isthmus.statedb import Derived, Reader, on_change, unit_of

WHOLE = True
"""The one unit: who gets a Service depends on all that want one."""
LEVELS = 2
"""Of groups: cluster and namespace."""


def declaration(cluster: ClusterName, limit: int) -> Derived[OverQuota]:
    """The declaration of ``over_quota`` for a cluster that may have so many derived Services."""

    def compute(reader: Reader, _: bool) -> Iterable[OverQuota]:
        if reader.count(MERGED) <= always_fits(limit, levels=LEVELS):
            return ()
        return [OverQuota(row.name, limit) for row in _refused(reader, cluster, limit)]

    return Derived(
        OVER_QUOTA,
        compute=compute,
        unit="all",
        reads={MERGED: on_change(("clusters",), unit_of(lambda row: WHOLE)), SERVICES: _service},
    )


def _refused(reader: Reader, cluster: ClusterName, limit: int) -> list[Merged]:
    """The imports without a derived Service that are granted none."""

    def holders(row: Merged) -> list[Path]:
        """The own cluster where it exports the service, else any exporter: a peer cannot use up another one's share."""
        exporters = (cluster,) if cluster in row.clusters else row.clusters
        return [(each, split(row.name)[0]) for each in exporters]

    def order(row: Merged) -> tuple[str, str]:
        return row.created, row.name

    rows = list(reader.all(MERGED))
    everything = Shares(limit)
    for path, count in Counter(holders(row)[0] for row in rows).items():
        everything.hold(path, count)
    if everything.fits():
        return []
    shares = Shares(limit)
    waiting: list[Merged] = []
    for row in sorted(rows, key=order):
        if _has_service(reader, row.name):
            shares.hold(shares.least(holders(row)))
        else:
            waiting.append(row)
    own = [row for row in waiting if cluster in row.clusters]
    granted = grant(own, shares, holders=holders, order=order)
    granted += grant((row for row in waiting if cluster not in row.clusters), shares, holders=holders, order=order)
    names = {row.name for row in granted}
    return [row for row in waiting if row.name not in names]


def _has_service(reader: Reader, name: ServiceName) -> bool:
    service = reader.get(SERVICES, (derived(name), KUBERNETES))
    return service is not None and is_our_row(service)


def _service(_: Reader, old: Service | None, new: Service | None) -> Iterable[bool]:
    """A derived Service that came or went."""
    row = new or old
    return (WHOLE,) if row is not None and row.import_of and (old is None or new is None) else ()
