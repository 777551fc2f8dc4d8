"""Computes the frontends, backends and plans of a service as one unit and writes them in one transaction.

Inputs that all services of a batch share are looked up once. The rules are those of :mod:`.frontends`, :mod:`.backends`
and :mod:`.plans`. The one shortcut here, for a Service whose addresses have no other claimant, needs only look-ups of
its own rows and falls back to the general rule, which tests compare it with.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from operator import attrgetter
from typing import Final

from isthmus.loadbalancer import affected, backends, drains, envoy, frontends, gateways, islands, members, plans
from isthmus.loadbalancer.backends import PartCache, Viewpoint
from isthmus.loadbalancer.claims import ClaimRules
from isthmus.loadbalancer.members import Large
from isthmus.loadbalancer.plans import PlanContext
from isthmus.loadbalancer.services import (
    ResolvedService,
    Which,
    best,
    is_answered,
    resolved,
    resolved_import,
    resolved_pod,
)
from isthmus.model.balancing import Backend, Frontend, Plan
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Import, Service
from isthmus.model.sources import is_peer
from isthmus.model.tables import (
    BACKENDS,
    CLUSTERS,
    DRAINING,
    ENDPOINT_SETS,
    ENVOY_CHECKS,
    FRONTENDS,
    GATEWAY_CHECKS,
    IMPORTS,
    ISLAND_LISTENERS,
    ISLAND_PODS,
    NODES,
    OWN_RANGES,
    PLANS,
    POLICIES,
    PORT_REDIRECTS,
    PROBES,
    REDIRECTS,
    REFUSED_GATEWAYS,
    SERVICES,
    XDS_SERVED,
)
from isthmus.statedb import (
    DerivedTogether,
    Dirty,
    PendingWrites,
    Rows,
    WriteTxn,
    pending,
    per_row,
    rewrite,
    rows_of,
)

GIVING: Final = ((IMPORTS, "service"), (ISLAND_PODS, "name"), (REDIRECTS, "service"))
"""Tables whose rows give frontends to a service without a Service row."""
OF_FRONTENDS: Final = (SERVICES, IMPORTS, NODES, REDIRECTS, PORT_REDIRECTS, ISLAND_PODS)
OF_ISLANDS: Final = (ISLAND_LISTENERS, XDS_SERVED, ENVOY_CHECKS, GATEWAY_CHECKS, REFUSED_GATEWAYS)
OF_BACKENDS: Final = (ENDPOINT_SETS, SERVICES, IMPORTS, PROBES, CLUSTERS, OWN_RANGES, *OF_ISLANDS)
OF_PLANS: Final = (*OF_FRONTENDS, *OF_BACKENDS, POLICIES, DRAINING)


def derived(
    cluster: ClusterName, node: str, *, which: Which, rules: ClaimRules, large: int = members.LARGE
) -> DerivedTogether:
    """Declare the three tables for a node of a cluster.

    ``large``: number of backends above which changes of endpoints are applied incrementally, if possible.
    """
    return DerivedTogether(
        FRONTENDS,
        BACKENDS,
        PLANS,
        renew=Units(cluster, node, which=which, rules=rules, large=large).renew,
        members=(ENDPOINT_SETS, attrgetter("service")),
        reads={
            (SERVICES, IMPORTS): partial(affected.by_services_and_imports, node=node),
            NODES: partial(affected.by_nodes, node=node),
            REDIRECTS: partial(affected.by_redirects, node=node),
            PORT_REDIRECTS: affected.by_port_redirects,
            POLICIES: per_row(plans.by_policy),
            PROBES: affected.by_probes,
            CLUSTERS: affected.by_clusters,
            OWN_RANGES: per_row(backends.by_own_ranges),
            DRAINING: per_row(drains.affected),
            ISLAND_PODS: affected.by_island_pods,
            ISLAND_LISTENERS: per_row(islands.by_listener),
            XDS_SERVED: per_row(islands.by_served),
            ENVOY_CHECKS: per_row(envoy.by_check),
            GATEWAY_CHECKS: per_row(islands.by_check),
            REFUSED_GATEWAYS: per_row(gateways.by_refused),
        },
        awaits={
            FRONTENDS: lambda reader: pending(reader, OF_FRONTENDS),
            BACKENDS: lambda reader: pending(reader, OF_BACKENDS),
            # a plan lists the peers it awaits and is programmed without them
            PLANS: lambda reader: (name for name in pending(reader, OF_PLANS) if not is_peer(name)),
        },
        arrived=plans.by_source,
    )


class Units:
    """Renews services. The caches ``_parts`` and ``_followed`` save work and change no result.

    Invariant: a service is in at most one of them. One in ``_followed`` is popped before anything else of it is
    computed, so an exception leaves it to be computed as a whole the next time.
    """

    def __init__(
        self, cluster: ClusterName, node: str, *, which: Which, rules: ClaimRules, large: int = members.LARGE
    ) -> None:
        self._cluster = cluster
        self._node = node
        self._which: Which = which
        self._rules = rules
        self._large = large
        self._parts: PartCache = {}
        self._followed: dict[ServiceName, Large] = {}

    def renew(self, txn: WriteTxn, services: Dirty) -> None:  # hot:
        """Compute these services and write the rows that differ."""
        view = backends.viewpoint(txn, self._cluster)
        context = plans.plan_context(txn, self._cluster, self._node, sources=pending(txn, OF_BACKENDS))
        if remaining := self._not_followed(txn, services, view=view, context=context) if self._followed else services:
            self._compute(txn, remaining, view=view, context=context)

    def _not_followed(
        self, txn: WriteTxn, services: Dirty, *, view: Viewpoint, context: PlanContext
    ) -> list[ServiceName]:
        """Apply changes of endpoints to the followed services; return the services left to compute as a whole."""
        remaining: list[ServiceName] = []
        for name, endpoints in services.items():
            large = self._followed.pop(name, None)
            if (
                large is not None
                and endpoints is not None
                and members.follow(txn, large, endpoints, view=view, context=context)
            ):
                self._followed[name] = large
            else:
                remaining.append(name)
        return remaining

    def _compute(
        self, txn: WriteTxn, services: Collection[ServiceName], *, view: Viewpoint, context: PlanContext
    ) -> None:  # hot:
        which, parts = self._which, self._parts
        claims = Claims(txn, self._node, which=which, rules=self._rules)
        listed = txn.finder(SERVICES, "name")
        answering, planned = txn.finder(BACKENDS, "service"), txn.finder(PLANS, "service")
        of_backends, of_plans = PendingWrites(txn, BACKENDS), PendingWrites(txn, PLANS)
        stored_rows = dict(zip(services, map(listed, services), strict=True))
        if withdrawn := claims.withdraw([name for name, stored in stored_rows.items() if stored is None]):
            of_backends.withdraw(map(answering, withdrawn))
            of_plans.withdraw(map(planned, withdrawn))
            for name in withdrawn:
                parts.pop(name, None)
                del stored_rows[name]
        for name, stored in stored_rows.items():
            row = best(txn, name) if type(stored) is dict else stored
            managed = row is not None and is_answered(row, which)
            service_frontends = claims.renew(name, stored, managed=managed)
            subject = resolved(txn, row) if row is not None else resolved_import(txn, name) or resolved_pod(txn, name)
            service_backends: Collection[Backend] = ()
            if subject is not None and (row is None or managed or (service_frontends and _is_proxied(context, name))):
                service_backends = backends.of_service(txn, subject, view=view, cache=parts)
            elif parts:
                parts.pop(name, None)
            of_backends.rewrite(answering(name), service_backends)
            service_plans = (
                plans.of_service(
                    txn, name, subject, frontends=service_frontends, backends=service_backends, context=context
                )
                if service_frontends
                else ()
            )
            of_plans.rewrite(planned(name), service_plans)
            if len(service_backends) > self._large:
                self._follow(
                    txn, subject, service_frontends, service_backends, service_plans, view=view, context=context
                )
        for writes in (claims.writes, of_backends, of_plans):
            writes.flush()

    def _follow(
        self,
        txn: WriteTxn,
        subject: ResolvedService | None,
        service_frontends: Sequence[Frontend],
        service_backends: Collection[Backend],
        service_plans: Sequence[Plan],
        *,
        view: Viewpoint,
        context: PlanContext,
    ) -> None:
        """Apply later changes of a service just computed incrementally, if possible; its cached parts are dropped."""
        if subject is None:
            return
        parts = self._parts.get(subject.name)
        if parts is not None and sum(len(part.backends) for part in parts.values()) != len(service_backends):
            return  # some endpoints are in several parts
        large = members.large(
            txn,
            subject,
            backends=service_backends,
            plans=service_plans,
            ports=plans.port_names(service_frontends),
            view=view,
            context=context,
        )
        if large is not None:
            self._followed[subject.name] = large
            self._parts.pop(subject.name, None)


def _is_proxied(context: PlanContext, name: ServiceName) -> bool:
    """True if a proxy takes calls of the service: its own backends are fallbacks even if kube-proxy serves it."""
    return any(row.kind == "proxy" for row in rows_of(context.redirected(name)))


class Claims:
    """Writes the frontends of services in one batch."""

    def __init__(self, txn: WriteTxn, node: str, *, which: Which, rules: ClaimRules) -> None:
        self._txn = txn
        self._node = node
        self._which: Which = which
        self._rules = rules
        self._of_node = frozenset(frontends.addresses_of_node(txn, node))
        self._claiming = txn.finder(SERVICES, "address")
        self._imports_at, self._pods_at = txn.finder(IMPORTS, "address"), txn.finder(ISLAND_PODS, "address")
        self._redirects, self._redirects_at = txn.finder(REDIRECTS, "service"), txn.finder(REDIRECTS, "address")
        self._redirected = txn.finder(PORT_REDIRECTS, "service")
        self._called = txn.finder(FRONTENDS, "service")
        self.writes = PendingWrites(txn, FRONTENDS)

    def renew(self, name: ServiceName, stored: Rows, *, managed: bool) -> Sequence[Frontend]:  # hot:
        """Write the frontends of a service and return them.

        ``stored``: its Service rows as the index returns them. ``managed``: Isthmus answers calls of the best of them.
        """
        current = self._called(name)
        if self._is_uncontested(name, stored, current):
            rows = frontends.uncontested(stored) if managed else []
            self.writes.rewrite(current, rows)
            return rows
        self.writes.flush()
        return self._compared(name, rows_of(self._called(name)))

    def withdraw(self, names: Sequence[ServiceName]) -> Sequence[ServiceName]:  # hot:
        """Delete the frontends of services whose rows are deleted. Returns those that have no frontends left.

        A service that an import, an island's pod or a redirect still claims is skipped. Other claimants of its
        addresses are affected too and renewed by themselves.
        """
        if not names:
            return names
        claimed_elsewhere = {name for table, index in GIVING for name in self._txn.with_rows(table, index, names)}
        withdrawn = [name for name in names if name not in claimed_elsewhere] if claimed_elsewhere else names
        self.writes.withdraw(map(self._called, withdrawn))
        return withdrawn

    def _compared(self, name: ServiceName, current: Sequence[Frontend]) -> list[Frontend]:
        """Apply the general rule, by which the strongest claim wins, to each key that the service claims or holds."""
        txn = self._txn
        keys = dict.fromkeys([*frontends.claimed(txn, name, node=self._node), *(row.key.called for row in current)])
        stored = [row for key in keys for row in txn.by(FRONTENDS, "called", key)]
        computed = [
            row
            for key in keys
            for row in frontends.compute(txn, key, node=self._node, which=self._which, rules=self._rules)
        ]
        rewrite(txn, FRONTENDS, stored, computed)
        return [row for row in computed if row.service == name]

    def _is_uncontested(self, name: ServiceName, row: Rows, current: Rows) -> bool:  # hot:
        """True if a service has one row, only cluster IPs, no redirect, and no other claimant of its addresses."""
        if self._redirects(name) is not None or self._redirected(name) is not None:
            return False
        if type(row) is not Service or row.type != "ClusterIP" or row.external_ips:
            return False
        own = row.cluster_ips
        claiming, imports_at, redirects_at, pods_at, of_node = (
            self._claiming,
            self._imports_at,
            self._redirects_at,
            self._pods_at,
            self._of_node,
        )
        if current is None:
            addresses: Collection[str] = own
        else:
            addresses = {*own, *[each.key.address for each in rows_of(current)]}
        for address in addresses:
            claimant = claiming(address)
            if (claimant is not None and claimant is not row) or redirects_at(address) is not None:
                return False
            imported = imports_at(address)  # a Service's own import has its address
            if imported is not None and (type(imported) is not Import or imported.name != row.import_of):
                return False
            if address in of_node or pods_at(address) is not None:
                return False
        return True
