"""The own cluster's API server as a source: which kind fills which table."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

from isthmus import kube
from isthmus.kube.objects import core, discovery, mcs
from isthmus.model import tables as model
from isthmus.model.names import ClusterName
from isthmus.reflector import Reflector
from isthmus.sources import machines, multicluster, services, slices
from isthmus.sources.sink import TableSink
from isthmus.statedb import Database, Table

NAME: Final = "kubernetes"


class Feed(NamedTuple):
    """One kind into one table."""

    kind: kube.Kind[Any]
    table: Table[Any, Any]
    convert: Callable[[Any], Any]
    field_selector: str = ""


def feeds(*, cluster: ClusterName, node: str = "", remote_slices: bool = False) -> dict[str, Feed]:
    """Every table that the API server can fill, by its name."""
    slice_of = slices.endpoint_set(cluster, remote=remote_slices)
    of_node = f"spec.nodeName={node}" if node else ""
    all_of_them = (
        Feed(core.SERVICE, model.SERVICES, services.service),
        Feed(discovery.ENDPOINT_SLICE, model.ENDPOINT_SETS, slice_of),
        Feed(mcs.SERVICE_EXPORT, model.EXPORT_MARKS, multicluster.export_mark),
        Feed(mcs.SERVICE_IMPORT, model.IMPORTS, multicluster.service_import),
        Feed(core.NAMESPACE, model.NAMESPACES, machines.namespace),
        Feed(core.NODE, model.NODES, machines.node),
        Feed(core.POD, model.PODS, machines.pod, of_node),
    )
    return {feed.table.name: feed for feed in all_of_them}


def reflectors(
    db: Database,
    client: kube.Client,
    *,
    tables: Collection[str],
    cluster: ClusterName,
    node: str = "",
    remote_slices: bool = False,
) -> list[Reflector[Any]]:
    """One reflector per table named, to be run by the caller; each table awaits the source 'kubernetes' from now on.

    ``node`` limits pods to those of that node. ``remote_slices`` takes slices that stand for other clusters too.
    """
    known = feeds(cluster=cluster, node=node, remote_slices=remote_slices)
    return [_reflector(db, client, known[name]) for name in tables]


def _reflector(db: Database, client: kube.Client, feed: Feed) -> Reflector[Any]:
    store = client.store(feed.kind, field_selector=feed.field_selector)
    sink = TableSink(db, feed.table, NAME, feed.convert)
    return Reflector(store, sink, name=f"{NAME}/{feed.kind.resource}")
