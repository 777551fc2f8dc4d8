"""The Multi-Cluster Services API: exports of all clusters → what the own API server is wanted to hold.

What belongs here: what is exported, global and merged, and the ServiceImport, derived Service, EndpointSlices and
conditions that follow from it, all pure. What never does: transport of records (clusterset), writing objects (desired),
choice of backends (loadbalancer).

    exports.py           what the own cluster exports, and which Services are global
    records.py           what of that is published
    merge.py             exports → the clusterset's one view, and every conflict
    merged.py            the table of that
    view.py              all that is known of one name
    quota.py             imports that get no derived Service, since there are as many as there may be
    unpublished.py       own exports that the own etcd does not take
    refusals.py          what is published to peers about their records that are not taken
    imports.py  derived_services.py  conditions.py      what its import, Service and export say
    slices.py  mirrored_slices.py  remote.py      endpoints behind that Service: the own cluster's, and those of others
    objects.py           the table of those
    kinds.py  words.py   what of each kind is ours; labels and annotations
    events.py  metrics.py      Events and metrics from them
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isthmus.mcs import exports, merged, objects, quota, records, refusals
from isthmus.mcs.events import Notifier
from isthmus.mcs.kinds import KINDS
from isthmus.mcs.merge import ImportFamilies
from isthmus.mcs.view import Settings
from isthmus.model.names import ClusterName
from isthmus.model.services import Family
from isthmus.statedb import Derived

__all__ = ["KINDS", "Notifier", "derived", "records"]


def derived(
    cluster: ClusterName,
    families: Sequence[Family] = ("IPv4",),
    *,
    default_global: bool = True,
    max_derived_services: int = 2_500,
    import_families: ImportFamilies = "oldest",
    list_importers: bool = False,
) -> list[Derived[Any]]:
    """The derived tables ``own_exports``, ``merged``, ``over_quota``, ``objects`` and ``refusals`` of the operator.

    ``families`` are those that Services of the cluster can have; ``default_global``: whether a namespace without
    the annotation takes part in the clusterset. ``import_families``: see :func:`isthmus.mcs.merge.merge`.
    ``list_importers``: whether a ServiceExport's status lists the clusters that may import.
    """
    settings = Settings(cluster, tuple(families), default_global=default_global, list_importers=list_importers)
    own = exports.derived(cluster, default_global=default_global)
    over = quota.declaration(cluster, max_derived_services)
    return [own, merged.derived(cluster, import_families), over, objects.derived(settings), refusals.derived(cluster)]
