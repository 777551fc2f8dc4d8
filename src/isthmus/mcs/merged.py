"""The table ``merged``: for each name that anybody exports, what all exports together make.

It does not look at connections: exports of a peer that cannot be reached stay rows until it withdraws them or is taken
out of the configuration, so nothing is unmade because a cable is cut.
"""

from __future__ import annotations

from collections.abc import Iterable

from isthmus.mcs.merge import merge
from isthmus.model.exports import exported
from isthmus.model.mcs import Merged
from isthmus.model.names import ClusterName, ServiceName, split
from isthmus.model.services import Export, ExportMark, Namespace, Service
from isthmus.model.tables import EXPORT_MARKS, EXPORTS, MERGED, NAMESPACES, SERVICES
from isthmus.statedb import Derived, Reader


def derived(cluster: ClusterName, *, default_global: bool) -> Derived[Merged]:
    """The declaration of ``merged`` for the cluster whose API server the input rows come from."""

    def compute(reader: Reader, name: ServiceName) -> Iterable[Merged]:
        namespace = reader.get(NAMESPACES, split(name)[0])
        if namespace is None or namespace.terminating:
            return ()
        exports = [export for export in reader.by(EXPORTS, "name", name) if export.cluster != cluster]
        own = exported(reader, name, cluster=cluster, default=default_global)
        merged = merge([*exports, own] if own is not None else exports)
        return () if merged is None else (merged,)

    return Derived(
        MERGED,
        compute=compute,
        reads={EXPORTS: _name, EXPORT_MARKS: _name, SERVICES: _name, NAMESPACES: _namespace},
    )


Named = Export | ExportMark | Service


def _name(_: Reader, old: Named | None, new: Named | None) -> Iterable[ServiceName]:
    return {row.name for row in (old, new) if row is not None}


def _namespace(reader: Reader, old: Namespace | None, new: Namespace | None) -> Iterable[ServiceName]:
    """All that is exported in a namespace that came, went, or changed whether it takes part."""
    row = new or old
    if row is None:
        return set()
    named: list[Named] = [*reader.by(EXPORTS, "namespace", row.name), *reader.by(EXPORT_MARKS, "namespace", row.name)]
    return {each.name for each in named}
