"""The own cluster's API server as a source: which kind fills which table."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, Literal, NamedTuple

from isthmus import kube
from isthmus.kube.objects import cilium, core, discovery, gateway, mcs
from isthmus.kube.objects import drains as drain_kinds
from isthmus.kube.objects import identities as identity_kinds
from isthmus.kube.objects import links as link_kinds
from isthmus.kube.objects import policies as policy_kinds
from isthmus.kube.objects import refusals as refusal_kinds
from isthmus.kube.store import LIMITS
from isthmus.model import tables as model
from isthmus.model.names import LOCAL, ClusterName
from isthmus.model.policies import PolicyKind
from isthmus.model.sources import KUBERNETES
from isthmus.reflector import Reflector, Sink, Store
from isthmus.sources import (
    backend_tls,
    drains,
    export_policies,
    host_ports,
    identities,
    links,
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


OF_ROUTES: Final = 32
"""Routes of a page: each may weigh 1.5 MB."""


class Feed(NamedTuple):
    """A kind of objects and the table that its rows fill."""

    kind: kube.Kind[Any]
    table: Table[Any, Any]
    convert: Callable[[Any], Any]
    field_selector: str = ""
    optional: bool = False
    """The cluster may not serve the kind, or may forbid to list it."""
    may_be_forbidden: bool = True
    """``False`` if an optional kind that is served has to be permitted."""
    namespace: str = ""
    label_selector: str = ""
    page: int = LIMITS.page
    """Objects of a page of a list."""
    written: Literal["whole", "status", ""] = ""
    """The part of the kind's objects that Isthmus writes: its own whole objects, or only the status."""


def feeds(
    *,
    cluster: ClusterName,
    node: str = "",
    remote_slices: bool = False,
    namespace: str = "",
    accounts: bool = False,
) -> dict[str, list[Feed]]:
    """Return the kinds that fill each table of the API server, by table name."""
    slice_of = slices.endpoint_set(cluster, remote=remote_slices)
    of_node = f"spec.nodeName={node}" if node else ""
    all_of_them = (
        Feed(core.SERVICE, model.SERVICES, services.service, written="whole"),
        Feed(discovery.ENDPOINT_SLICE, model.ENDPOINT_SETS, slice_of, written="whole"),
        Feed(mcs.SERVICE_EXPORT, model.EXPORT_MARKS, multicluster.export_mark, written="status"),
        Feed(mcs.SERVICE_IMPORT, model.IMPORTS, multicluster.service_import, written="whole"),
        Feed(core.NAMESPACE, model.NAMESPACES, machines.namespace),
        Feed(core.NODE, model.NODES, machines.node),
        Feed(core.POD, model.PODS, machines.caller if accounts else machines.pod, of_node),
        Feed(
            identity_kinds.CALLER_IDENTITY,
            model.IDENTITIES,
            identities.identity(cluster),
            optional=True,
            written="whole",
        ),
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
        Feed(link_kinds.CLUSTER_LINK, model.LINKS, links.link, optional=True),
        Feed(policy_kinds.TRAFFIC_POLICY, model.POLICIES, policies.traffic_policy, optional=True, written="status"),
        *(
            Feed(kind, model.POLICIES, policies.global_traffic_policy(name), optional=True)
            for kind, name in GLOBAL_TRAFFIC_POLICIES
        ),
        Feed(
            policy_kinds.EXPORT_POLICY,
            model.EXPORT_POLICIES,
            export_policies.export_policy,
            optional=True,
            may_be_forbidden=False,
            written="status",
        ),
        Feed(gateway.HTTP_ROUTE, model.ROUTES, routes.http_route, optional=True, page=OF_ROUTES, written="status"),
        Feed(gateway.GRPC_ROUTE, model.ROUTES, routes.grpc_route, optional=True, page=OF_ROUTES, written="status"),
        Feed(gateway.TCP_ROUTE, model.L4_ROUTES, routes.tcp_route, optional=True, written="status"),
        Feed(gateway.UDP_ROUTE, model.L4_ROUTES, routes.udp_route, optional=True, written="status"),
        Feed(gateway.BACKEND_TLS_POLICY, model.BACKEND_TLS, backend_tls.policy, optional=True, written="status"),
        Feed(gateway.REFERENCE_GRANT, model.GRANTS, routes.grant, optional=True),
        Feed(refusal_kinds.REFUSED_ROUTES, model.ROUTE_REFUSALS, routes.refusals, optional=True),
    )
    feeds: dict[str, list[Feed]] = {}
    for feed in all_of_them:
        feeds.setdefault(feed.table.name, []).append(feed)
    return feeds


def kinds() -> dict[str, kube.Kind[Any]]:
    """Return every kind that fills a table, by the ``kind`` of the faults of its objects."""
    kinds_of_faults = {str(feed.kind): feed.kind for listed in feeds(cluster=LOCAL).values() for feed in listed}
    return {**kinds_of_faults, host_ports.KIND: core.POD}


def reflectors(
    db: Database,
    client: kube.Client,
    *,
    tables: Collection[str],
    cluster: ClusterName,
    node: str = "",
    remote_slices: bool = False,
    namespace: str = "",
    accounts: bool = False,
) -> list[Reflector[Any]]:
    """Return a reflector for each kind that fills a named table, to be run by the caller.

    Each table awaits the source 'kubernetes' from now on. ``node`` limits pods to those of that node. ``namespace`` is
    Isthmus's own, which holds the peers' policies. ``remote_slices`` includes slices of other clusters' endpoints. If
    ``tables`` names services and endpoint sets, pods also fill these with their host ports. The table ``observed``
    is filled from all requested kinds that Isthmus writes. ``accounts``: of pods only what their callers' identities
    need, and no host ports.
    """
    feeds_by_table = feeds(
        cluster=cluster, node=node, remote_slices=remote_slices, namespace=namespace, accounts=accounts
    )
    with_host_ports = not accounts and {model.SERVICES.name, model.ENDPOINT_SETS.name} <= set(tables)
    reflectors: list[Reflector[Any]] = []
    for feed in (feed for name in tables if name != model.OBSERVED.name for feed in feeds_by_table[name]):
        first = feed is feeds_by_table[feed.table.name][0]
        initializer = KUBERNETES if first else f"{KUBERNETES}/{feed.kind.resource}.{feed.kind.group}"
        sink: Sink[Any] = TableSink(db, feed.table, initializer, feed.convert, kind=str(feed.kind))
        if feed.written and model.OBSERVED.name in tables:
            convert = observed(feed.kind, foreign=feed.written == "status")
            name = f"{KUBERNETES}/{feed.kind.resource}"
            sink = Both(sink, TableSink(db, model.OBSERVED, name, convert, kind=str(feed.kind)))
        if feed.table is model.PODS and with_host_ports:
            sink = PodSink(db, sink, cluster=cluster)
        name = f"{KUBERNETES}/{feed.kind.resource}" if first else initializer
        reflectors.append(Reflector(_store(client, feed), sink, name=name))
    return reflectors


def _store(client: kube.Client, feed: Feed) -> Store[Any]:
    store = client.store(
        feed.kind,
        feed.namespace,
        label_selector=feed.label_selector,
        field_selector=feed.field_selector,
        limits=LIMITS._replace(page=feed.page),
        unreadable=True,
    )
    if not feed.optional:
        return store
    return Optional(client, feed.kind, store, may_be_forbidden=feed.may_be_forbidden)
