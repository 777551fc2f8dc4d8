"""The table ``merged``: for each exported name, what all its exports together make.

Nothing is unmade because a cable is cut. Exports of a peer that cannot be reached stay rows until it withdraws them or
is taken out of the configuration. Of one whose exports this process has not received yet, what an earlier process
made of them stays: the import that lists it stands in for its export.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from isthmus.desired import is_our_row
from isthmus.mcs.merge import ImportFamilies, merge
from isthmus.mcs.words import IMPORTERS, reserved
from isthmus.model.clusters import Cluster
from isthmus.model.mcs import Merged, OwnExport
from isthmus.model.names import ClusterName, ServiceName, split
from isthmus.model.services import Export, ExportMark, Import, Namespace
from isthmus.model.tables import CLUSTERS, EXPORT_MARKS, EXPORTS, IMPORTS, MERGED, NAMESPACES, OWN_EXPORTS
from isthmus.statedb import Derived, Reader, on_change, through, unit_of

AWAITED: Final = ("connecting", "listing")
"""States of a peer whose exports have not been received yet."""

OLDEST: Final = ""
"""Before any time of creation: what stands wins until the peer's own records are there."""


def derived(cluster: ClusterName, import_families: ImportFamilies = "oldest") -> Derived[Merged]:
    """The declaration of ``merged`` for the cluster whose API server the input rows come from."""

    def compute(reader: Reader, name: ServiceName) -> Iterable[Merged]:
        namespace = reader.get(NAMESPACES, split(name)[0])
        if namespace is None or namespace.terminating:
            return ()
        peers = [export for export in reader.by(EXPORTS, "name", name) if export.cluster != cluster]
        exports = [export for export in peers if may_import(cluster, export)]
        own = reader.get(OWN_EXPORTS, name)
        waiting = stand_ins(reader, name, received={cluster, *(export.cluster for export in peers)})
        own_exports = [own.export] if own is not None and own.export is not None else []
        merged = merge([*exports, *waiting, *own_exports], import_families)
        return () if merged is None else (merged,)

    return Derived(
        MERGED,
        compute=compute,
        reads={
            EXPORTS: unit_of("name"),
            OWN_EXPORTS: unit_of("name"),
            IMPORTS: _import,
            NAMESPACES: _namespace,
            CLUSTERS: on_change(_awaited_changed, through(IMPORTS, "name", index="cluster")),
        },
    )


def may_import(cluster: ClusterName, export: Export) -> bool:
    """Whether an exporter lets a cluster import: its annotation names the clusters that may, else all may.

    Asked for in kubernetes-sigs/mcs-api#168. The importer enforces it: on one network nothing else can.
    """
    allowed = importers(export)
    return allowed is None or cluster in allowed


def importers(export: Export) -> tuple[ClusterName, ...] | None:
    """The clusters that an export's annotation names as those that may import it; None without it: every cluster."""
    named = dict(export.annotations).get(IMPORTERS)
    if named is None:
        return None
    return tuple(sorted({ClusterName(each.strip()) for each in named.split(",") if each.strip()}))


def stand_ins(reader: Reader, name: ServiceName, *, received: set[ClusterName]) -> Iterator[Export]:
    """An export for each cluster that the import lists and whose own has not been received yet: the import as it is."""
    current = reader.get(IMPORTS, name)
    if current is None or not is_our_row(current):
        return
    for cluster in current.clusters:
        row = reader.get(CLUSTERS, cluster)
        if cluster not in received and row is not None and row.state in AWAITED:
            yield Export(
                cluster=cluster,
                name=name,
                created=OLDEST,
                type=current.type,
                ports=current.ports,
                affinity=current.affinity,
                affinity_timeout=current.affinity_timeout,
                families=current.families,
                internal_policy=current.internal_policy,
                distribution=current.distribution,
                labels=current.labels,
                annotations=tuple(pair for pair in current.annotations if not reserved(pair[0])),
            )


Named = Export | ExportMark | OwnExport


def _import(reader: Reader, old: Import | None, new: Import | None) -> Iterable[ServiceName]:
    """An import that may stand in for a cluster."""
    row = new or old
    if row is None:
        return ()
    states = (reader.get(CLUSTERS, cluster) for cluster in row.clusters)
    return (row.name,) if any(state is not None and state.state in AWAITED for state in states) else ()


def _namespace(reader: Reader, old: Namespace | None, new: Namespace | None) -> Iterable[ServiceName]:
    """All that is exported in a namespace that came, went, or changed whether it takes part."""
    row = new or old
    if row is None:
        return set()
    named: list[Named] = [*reader.by(EXPORTS, "namespace", row.name), *reader.by(EXPORT_MARKS, "namespace", row.name)]
    return {each.name for each in named}


def _awaited_changed(old: Cluster | None, new: Cluster | None) -> bool:
    """True if a cluster's exports begin or cease to be awaited; then imports that list it change."""
    before, after = (row is not None and row.state in AWAITED for row in (old, new))
    return before != after
