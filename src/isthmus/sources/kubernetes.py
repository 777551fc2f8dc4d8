"""The own cluster's API server as a source: which kind fills which table."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, Literal, NamedTuple

from isthmus import kube
from isthmus.kube.objects import cilium, core, discovery, gateway, mcs
from isthmus.kube.objects import drains as drain_kinds
from isthmus.kube.objects import policies as policy_kinds
from isthmus.kube.objects import refusals as refusal_kinds
from isthmus.model import tables as model
from isthmus.model.names import ClusterName
from isthmus.model.policies import PolicyKind
from isthmus.model.sources import KUBERNETES
from isthmus.reflector import Reflector, Sink, Store
from isthmus.sources import (
    drains,
    local_redirects,
    machines,
    multicluster,
    peer_policies,
    policies,
    routes,
    services,
    slices,
)
from isthmus.sources.host_ports import PodSink
from isthmus.sources.observed import Both, observed
from isthmus.sources.optional import Optional
from isthmus.sources.sink import TableSink
from isthmus.statedb import Database, Table

GLOBAL_TRAFFIC_POLICIES: Final[tuple[tuple[kube.Kind[Any], PolicyKind], ...]] = (
    (policy_kinds.FLOMESH_POLICY, "flomesh.io/GlobalTrafficPolicy"),
    (policy_kinds.FSM_POLICY, "multicluster.flomesh.io/GlobalTrafficPolicy"),
)


class Feed(NamedTuple):
    """One kind into one table."""

    kind: kube.Kind[Any]
    table: Table[Any, Any]
    convert: Callable[[Any], Any]
    field_selector: str = ""
    optional: bool = False
    """A cluster may not have the kind, or not let us see it."""
    namespace: str = ""
    label_selector: str = ""
    written: Literal["whole", "status", ""] = ""
    """Whether Isthmus writes objects of the kind: whole ones of its own, or only the status."""


def feeds(
    *, cluster: ClusterName, node: str = "", remote_slices: bool = False, namespace: str = ""
) -> dict[str, list[Feed]]:
    """Every table that the API server can fill, by its name, with the kinds that fill it."""
    slice_of = slices.endpoint_set(cluster, remote=remote_slices)
    of_node = f"spec.nodeName={node}" if node else ""
    all_of_them = (
        Feed(core.SERVICE, model.SERVICES, services.service, written="whole"),
        Feed(discovery.ENDPOINT_SLICE, model.ENDPOINT_SETS, slice_of, written="whole"),
        Feed(mcs.SERVICE_EXPORT, model.EXPORT_MARKS, multicluster.export_mark, written="status"),
        Feed(mcs.SERVICE_IMPORT, model.IMPORTS, multicluster.service_import, written="whole"),
        Feed(core.NAMESPACE, model.NAMESPACES, machines.namespace),
        Feed(core.NODE, model.NODES, machines.node),
        Feed(core.POD, model.PODS, machines.pod, of_node),
        Feed(cilium.LOCAL_REDIRECT_POLICY, model.LOCAL_REDIRECTS, local_redirects.local_redirect, optional=True),
        Feed(
            core.CONFIG_MAP,
            model.PEER_POLICIES,
            peer_policies.peer_policy,
            optional=True,
            namespace=namespace,
            label_selector=peer_policies.CLUSTER,
        ),
        Feed(drain_kinds.DRAIN, model.DRAINS, drains.request(namespace), optional=True, written="status"),
        Feed(policy_kinds.TRAFFIC_POLICY, model.POLICIES, policies.traffic_policy, optional=True, written="status"),
        *(
            Feed(kind, model.POLICIES, policies.global_traffic_policy(name), optional=True)
            for kind, name in GLOBAL_TRAFFIC_POLICIES
        ),
        Feed(gateway.HTTP_ROUTE, model.ROUTES, routes.http_route, optional=True, written="status"),
        Feed(gateway.GRPC_ROUTE, model.ROUTES, routes.grpc_route, optional=True, written="status"),
        Feed(gateway.REFERENCE_GRANT, model.GRANTS, routes.grant, optional=True),
        Feed(refusal_kinds.REFUSED_ROUTES, model.ROUTE_REFUSALS, routes.refusals, optional=True),
    )
    found: dict[str, list[Feed]] = {}
    for feed in all_of_them:
        found.setdefault(feed.table.name, []).append(feed)
    return found


def reflectors(
    db: Database,
    client: kube.Client,
    *,
    tables: Collection[str],
    cluster: ClusterName,
    node: str = "",
    remote_slices: bool = False,
    namespace: str = "",
) -> list[Reflector[Any]]:
    """One reflector for each kind that fills a table named, to be run by the caller.

    Each table awaits the source 'kubernetes' from now on. ``node`` limits pods to those of that node. ``namespace`` is
    Isthmus's own, where peers' policies are. ``remote_slices`` takes slices that stand for other clusters too. Pods
    give the services of their host ports as well, where services and endpoint sets are asked for. The table
    ``observed`` is filled from all kinds asked for that Isthmus writes.
    """
    known = feeds(cluster=cluster, node=node, remote_slices=remote_slices, namespace=namespace)
    with_host_ports = {model.SERVICES.name, model.ENDPOINT_SETS.name} <= set(tables)
    found: list[Reflector[Any]] = []
    for feed in (feed for name in tables if name != model.OBSERVED.name for feed in known[name]):
        first = feed is known[feed.table.name][0]
        initializer = KUBERNETES if first else f"{KUBERNETES}/{feed.kind.resource}.{feed.kind.group}"
        sink: Sink[Any] = TableSink(db, feed.table, initializer, feed.convert)
        if feed.written and model.OBSERVED.name in tables:
            convert = observed(feed.kind, foreign=feed.written == "status")
            sink = Both(sink, TableSink(db, model.OBSERVED, f"{KUBERNETES}/{feed.kind.resource}", convert))
        if feed.table is model.PODS and with_host_ports:
            sink = PodSink(db, sink, cluster=cluster)
        name = f"{KUBERNETES}/{feed.kind.resource}" if first else initializer
        found.append(Reflector(_store(client, feed), sink, name=name))
    return found


def _store(client: kube.Client, feed: Feed) -> Store[Any]:
    store = client.store(
        feed.kind, feed.namespace, label_selector=feed.label_selector, field_selector=feed.field_selector
    )
    return Optional(client, feed.kind, store) if feed.optional else store
