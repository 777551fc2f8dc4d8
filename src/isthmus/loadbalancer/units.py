"""A service as one unit: its frontends, backends and plans, computed one from the other and written in one go.

What is the same for all services of a batch is looked up once. Rules are those of :mod:`.frontends`, :mod:`.backends`
and :mod:`.plans`; the one shortcut here, a Service whose addresses nobody else claims, is taken for each service by
look-ups of its own rows, and the general rule is what it falls back to (and what tests compare it with).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from operator import attrgetter
from typing import Final

from isthmus.loadbalancer import affected, backends, drains, frontends, islands, members, plans
from isthmus.loadbalancer.backends import PartCache, Viewpoint
from isthmus.loadbalancer.claims import ClaimRules
from isthmus.loadbalancer.members import Large
from isthmus.loadbalancer.plans import Outlook
from isthmus.loadbalancer.services import ResolvedService, Which, best, resolved, resolved_import, resolved_pod, wanted
from isthmus.model.balancing import Backend, Frontend, Plan
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Import, Service
from isthmus.model.sources import is_peer
from isthmus.model.tables import (
    BACKENDS,
    CLUSTERS,
    DRAINING,
    ENDPOINT_SETS,
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
    SERVICES,
    XDS_SERVED,
)
from isthmus.statedb import (
    DerivedTogether,
    Dirty,
    PendingWrites,
    Rows,
    WriteTxn,
    each,
    pending,
    rewrite,
    rows_of,
)

GIVING: Final = ((IMPORTS, "service"), (ISLAND_PODS, "name"), (REDIRECTS, "service"))
"""Whose rows give a service frontends that has no row itself."""
OF_FRONTENDS: Final = (SERVICES, IMPORTS, NODES, REDIRECTS, PORT_REDIRECTS, ISLAND_PODS)
OF_ISLANDS: Final = (ISLAND_LISTENERS, XDS_SERVED, GATEWAY_CHECKS)
OF_BACKENDS: Final = (ENDPOINT_SETS, SERVICES, IMPORTS, PROBES, CLUSTERS, OWN_RANGES, *OF_ISLANDS)
OF_PLANS: Final = (*OF_FRONTENDS, *OF_BACKENDS, POLICIES, DRAINING)


def derived(
    cluster: ClusterName, node: str, *, which: Which, rules: ClaimRules, large: int = members.LARGE
) -> DerivedTogether:
    """The declaration of the three tables, as this node of this cluster sees them.

    ``large``: backends above which the changes of a service's endpoints are followed, where they can be.
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
            POLICIES: each(plans.by_policy),
            PROBES: affected.by_probes,
            CLUSTERS: affected.by_clusters,
            OWN_RANGES: each(backends.by_own_ranges),
            DRAINING: each(drains.affected),
            ISLAND_PODS: affected.by_island_pods,
            ISLAND_LISTENERS: each(islands.by_listener),
            XDS_SERVED: each(islands.by_served),
            GATEWAY_CHECKS: each(islands.by_check),
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
    """Renews services; ``_parts`` and ``_followed`` save work and change no result."""

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
        """Make the rows of these services what they are computed to be."""
        at = backends.viewpoint(txn, self._cluster)
        by = plans.outlook(txn, self._cluster, self._node, sources=pending(txn, OF_BACKENDS))
        if remaining := self._not_followed(txn, services, at=at, by=by) if self._followed else services:
            self._compute(txn, remaining, at=at, by=by)

    def _not_followed(self, txn: WriteTxn, services: Dirty, *, at: Viewpoint, by: Outlook) -> list[ServiceName]:
        """Those whose rows have to be computed, after the others have followed the changes of their endpoints."""
        remaining: list[ServiceName] = []
        for name, endpoints in services.items():
            large = self._followed.pop(name, None)
            if large is not None and endpoints is not None and members.follow(txn, large, endpoints, at=at, by=by):
                self._followed[name] = large
            else:
                remaining.append(name)
        return remaining

    def _compute(self, txn: WriteTxn, services: Collection[ServiceName], *, at: Viewpoint, by: Outlook) -> None:  # hot:
        which, parts = self._which, self._parts
        claims = Claims(txn, self._node, which=which, rules=self._rules)
        listed = txn.finder(SERVICES, "name")
        answering, planned = txn.finder(BACKENDS, "service"), txn.finder(PLANS, "service")
        of_backends, of_plans = PendingWrites(txn, BACKENDS), PendingWrites(txn, PLANS)
        present = dict(zip(services, map(listed, services), strict=True))
        if withdrawn := claims.withdraw([name for name, stored in present.items() if stored is None]):
            of_backends.withdraw(map(answering, withdrawn))
            of_plans.withdraw(map(planned, withdrawn))
            for name in withdrawn:
                parts.pop(name, None)
                del present[name]
        for name, stored in present.items():
            row = best(txn, name) if type(stored) is dict else stored
            ours = row is not None and wanted(row, which)
            called = claims.renew(name, stored, ours=ours)
            subject = resolved(txn, row) if row is not None else resolved_import(txn, name) or resolved_pod(txn, name)
            found: Collection[Backend] = ()
            if subject is not None and (row is None or ours):
                found = backends.of_service(txn, subject, at=at, cache=parts)
            elif parts:
                parts.pop(name, None)
            of_backends.rewrite(answering(name), found)
            wants = plans.of_service(txn, name, subject, frontends=called, backends=found, by=by) if called else ()
            of_plans.rewrite(planned(name), wants)
            if len(found) > self._large:
                self._follow(txn, subject, called, found, wants, at=at, by=by)
        for writes in (claims.writes, of_backends, of_plans):
            writes.flush()

    def _follow(
        self,
        txn: WriteTxn,
        subject: ResolvedService | None,
        called: Sequence[Frontend],
        found: Collection[Backend],
        wants: Sequence[Plan],
        *,
        at: Viewpoint,
        by: Outlook,
    ) -> None:
        """Follow a service that was just computed, where that can be done; its parts are not needed then."""
        if subject is None:
            return
        parts = self._parts.get(subject.name)
        if parts is not None and sum(len(part.backends) for part in parts.values()) != len(found):
            return  # some are in several parts
        large = members.large(txn, subject, found=found, plans=wants, ports=plans.port_names(called), at=at, by=by)
        if large is not None:
            self._followed[subject.name] = large
            self._parts.pop(subject.name, None)


class Claims:
    """The addresses of services in one batch."""

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

    def renew(self, name: ServiceName, stored: Rows, *, ours: bool) -> Sequence[Frontend]:  # hot:
        """Have the frontends of a service written; returns those it has.

        ``stored``: its rows, as an index has them, or None. ``ours``: Isthmus answers for the one that counts.
        """
        present = self._called(name)
        if self._simple(name, stored, present):
            found = frontends.uncontested(stored) if ours else []
            self.writes.rewrite(present, found)
            return found
        self.writes.flush()
        return self._compared(name, rows_of(self._called(name)))

    def withdraw(self, names: Sequence[ServiceName]) -> Sequence[ServiceName]:  # hot:
        """Delete the frontends of services without a row; gives these services.

        Without those that have frontends still, since something else stands for them or redirects them. Who else claims
        an address of theirs is affected too, and is renewed for itself.
        """
        if not names:
            return names
        given = {name for table, index in GIVING for name in self._txn.with_rows(table, index, names)}
        withdrawn = [name for name in names if name not in given] if given else names
        self.writes.withdraw(map(self._called, withdrawn))
        return withdrawn

    def _compared(self, name: ServiceName, present: Sequence[Frontend]) -> list[Frontend]:
        """The general rule: at each address and port that the service claims or has, the strongest claim counts."""
        txn = self._txn
        at = dict.fromkeys([*frontends.claimed(txn, name, node=self._node), *(row.key.called for row in present)])
        there = [row for key in at for row in txn.by(FRONTENDS, "called", key)]
        found = [
            row
            for key in at
            for row in frontends.compute(txn, key, node=self._node, which=self._which, rules=self._rules)
        ]
        rewrite(txn, FRONTENDS, there, found)
        return [row for row in found if row.service == name]

    def _simple(self, name: ServiceName, row: Rows, present: Rows) -> bool:  # hot:
        """Whether a service has one row, only cluster IPs, no redirect, and no other claims what it has."""
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
        if present is None:
            addresses: Collection[str] = own
        else:
            addresses = {*own, *[each.key.address for each in rows_of(present)]}
        for address in addresses:
            claimant = claiming(address)
            if (claimant is not None and claimant is not row) or redirects_at(address) is not None:
                return False
            imported = imports_at(address)  # the import that a Service stands for has the Service's address
            if imported is not None and (type(imported) is not Import or imported.name != row.import_of):
                return False
            if address in of_node or pods_at(address) is not None:
                return False
        return True
