"""The table ``over_quota``: imports that get no derived Service, since the cluster has as many as it may have.

Peers decide how many names there are; Services cost addresses of the own cluster's Service range, which all its
Services share. A Service that exists stays; room goes to what the own cluster exports first, then by name.
"""

from __future__ import annotations

from collections.abc import Iterable

from isthmus.desired import is_our_row
from isthmus.model.mcs import Merged, OverQuota
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.services import Service
from isthmus.model.sources import KUBERNETES
from isthmus.model.tables import MERGED, OVER_QUOTA, SERVICES
from isthmus.statedb import Derived, Reader

WHOLE = True
"""The one unit: who gets a Service depends on all that want one."""


def declaration(cluster: ClusterName, limit: int) -> Derived[OverQuota]:
    """The declaration of ``over_quota`` for a cluster that may have so many derived Services."""

    def compute(reader: Reader, _: bool) -> Iterable[OverQuota]:
        if reader.count(MERGED) <= limit:
            return ()
        return [OverQuota(name, limit) for name in _over(reader, cluster, limit)]

    return Derived(OVER_QUOTA, compute=compute, unit="all", reads={MERGED: _merged, SERVICES: _service})


def _over(reader: Reader, cluster: ClusterName, limit: int) -> list[ServiceName]:
    waiting = [row for row in reader.all(MERGED) if not _has_service(reader, row.name)]
    room = max(0, limit - (reader.count(MERGED) - len(waiting)))
    waiting.sort(key=lambda row: (cluster not in row.clusters, row.name))
    return [row.name for row in waiting[room:]]


def _has_service(reader: Reader, name: ServiceName) -> bool:
    found = reader.get(SERVICES, (derived(name), KUBERNETES))
    return found is not None and is_our_row(found)


def _merged(_: Reader, old: Merged | None, new: Merged | None) -> Iterable[bool]:
    changed = old is None or new is None or old.clusters != new.clusters
    return (WHOLE,) if changed else ()


def _service(_: Reader, old: Service | None, new: Service | None) -> Iterable[bool]:
    """A derived Service that came or went."""
    row = new or old
    return (WHOLE,) if row is not None and row.import_of and (old is None or new is None) else ()
