"""Refused claims of addresses as rows, which `isthmus explain` and Events show.

The unit is the claiming object. Frontends and redirects judge claims by the same functions, so a claim is a row here
exactly if it gives no frontend there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Final

from isthmus.loadbalancer.claims import AddressClaim, ClaimRules, Refusal, judge
from isthmus.loadbalancer.services import Which, best, is_answered
from isthmus.model.addresses import reserved
from isthmus.model.balancing import FrontendType
from isthmus.model.mcs import MANAGED_BY
from isthmus.model.names import ServiceName, split
from isthmus.model.redirects import LocalRedirect
from isthmus.model.refusals import ClaimantKind, RefusedClaim
from isthmus.model.services import Import, Node, Service
from isthmus.model.tables import IMPORTS, LOCAL_REDIRECTS, NODES, REFUSED_CLAIMS, SERVICES
from isthmus.statedb import DerivedTogether, Pairs, PendingWrites, Reader, Rows, WriteTxn, per_row, rows_of, unit_of

MAX_ROWS: Final = 16
"""Refused claims shown of one object: a Service may name any number of addresses."""

Claimant = tuple[ClaimantKind, ServiceName]


def derived(node: str, *, which: Which, rules: ClaimRules) -> DerivedTogether:
    """Declare the table for a node; with an empty ``node``, for the whole cluster."""
    return DerivedTogether(
        REFUSED_CLAIMS,
        renew=partial(renew, node=node, which=which, rules=rules),
        reads={
            (SERVICES, IMPORTS): by_services_and_imports,
            LOCAL_REDIRECTS: per_row(unit_of(lambda row: ("CiliumLocalRedirectPolicy", row.name))),
            NODES: per_row(by_node),
        },
    )


def renew(txn: WriteTxn, claimants: Iterable[Claimant], *, node: str, which: Which, rules: ClaimRules) -> None:  # hot:
    """Compute these objects and write the rows that differ."""
    writes = PendingWrites(txn, REFUSED_CLAIMS)
    for kind, name in claimants:
        current = [row for row in txn.by(REFUSED_CLAIMS, "name", name) if row.kind == kind]
        writes.exchange(current, list(compute(txn, (kind, name), node=node, which=which, rules=rules)))
    writes.flush()


def compute(
    reader: Reader, claimant: Claimant, *, node: str, which: Which, rules: ClaimRules
) -> Iterator[RefusedClaim]:
    """Yield the refused claims of an object, the first MAX_ROWS of them."""
    yield from islice(_refused(reader, claimant, node=node, which=which, rules=rules), MAX_ROWS)


def _refused(
    reader: Reader, claimant: Claimant, *, node: str, which: Which, rules: ClaimRules
) -> Iterator[RefusedClaim]:
    kind, name = claimant
    if kind == "Service":
        service = best(reader, name)
        if service is not None and is_answered(service, which):
            for type_, address in _explicit(service):
                if refusal := of_service(reader, service, type_, address, node=node, rules=rules):
                    yield _row(claimant, type_, address, refusal, service=name, uid=service.uid)
    elif kind == "ServiceImport":
        row = reader.get(IMPORTS, name)
        for address in row.ips if row is not None and row.type == "ClusterSetIP" else ():
            if row is not None and (refusal := of_import(reader, row, address, rules=rules)):
                yield _row(claimant, "Import", address, refusal, service=row.derived_service, uid=row.uid)
    else:
        policy = reader.get(LOCAL_REDIRECTS, name)
        if policy is not None and policy.address and (refusal := of_policy(policy, rules=rules)):
            yield _row(claimant, "LocalRedirect", policy.address, refusal, service=policy.subject, uid=policy.uid)


def of_service(
    reader: Reader, service: Service, type_: FrontendType, address: str, *, node: str, rules: ClaimRules
) -> Refusal | None:
    """Return the reason why a Service may not claim an address of its spec or status; ``None`` if it may."""
    nodes = [row.name for row in reader.by(NODES, "address", address)]
    claim = AddressClaim(
        type=type_,
        address=address,
        namespace=split(service.name)[0],
        this_node=node in nodes,
        any_node=bool(nodes),
    )
    return judge(claim, rules)


def of_import(reader: Reader, row: Import, address: str, *, rules: ClaimRules) -> Refusal | None:
    """Return the reason why an import may not claim one of its ``spec.ips``; ``None`` if it may."""
    services = reader.by(SERVICES, "import", row.name) + reader.by(SERVICES, "name", row.derived_service)
    claim = AddressClaim(
        type="Import",
        address=address,
        namespace=split(row.name)[0],
        manager=dict(row.annotations).get(MANAGED_BY, ""),
        allocated=tuple(ip for service in services for ip in service.cluster_ips),
        any_node=bool(reader.by(NODES, "address", address)),
    )
    return judge(claim, rules)


def of_policy(policy: LocalRedirect, *, rules: ClaimRules) -> Refusal | None:
    """Return the reason why a local redirect may not claim the address that it names; ``None`` if it may."""
    namespace = split(policy.name)[0]
    return judge(AddressClaim(type="LocalRedirect", address=policy.address, namespace=namespace), rules)


def by_services_and_imports(reader: Reader, services: Pairs, imports: Pairs) -> list[Claimant]:  # hot:
    """An import affects its own claims, a Service its own and those of its import.

    An import is skipped if its addresses are those of its derived Service and none is reserved: they are valid.
    """
    services_named, refused = reader.finder(SERVICES, "name"), reader.finder(REFUSED_CLAIMS, "name")
    judged: set[ServiceName] = set()
    affected: list[Claimant] = []
    for old, new in imports:
        name = (new or old).name
        judged.add(name)
        if (new is not None and not _has_addresses_of(services_named(new.derived_service), new)) or refused(
            name
        ) is not None:
            affected.append(("ServiceImport", name))
    return affected + _by_services(reader, services, judged)


def _by_services(reader: Reader, changed: Pairs, judged: Collection[ServiceName]) -> list[Claimant]:  # hot:
    """Claimants affected by changed Services, without imports that are ``judged`` already."""
    imports, imports_named = reader.finder(IMPORTS, "service"), reader.getter(IMPORTS)
    refused = reader.finder(REFUSED_CLAIMS, "name")
    affected: list[Claimant] = []
    for old, new in changed:
        for row in (old, new):
            if row is None:
                continue
            if row.external_ips or row.load_balancer_ips:
                affected.append(_claimant(row))
            own_import, import_of = imports(row.name), row.import_of
            if import_of and import_of not in judged:
                own = type(own_import) is Import and own_import.name == import_of  # the usual case
                imported = own_import if own else imports_named(import_of)
                # Reserved addresses are refused whatever Service the import has: it is judged when it changes itself.
                if refused(import_of) or (imported is not None and (row is not new or imported.ips != row.cluster_ips)):
                    affected.append(("ServiceImport", import_of))
            if type(own_import) is dict or (own_import is not None and own_import.name != import_of):
                affected += [("ServiceImport", imported.name) for imported in rows_of(own_import)]
    return affected


def _has_addresses_of(service: Rows, row: Import) -> bool:
    """True if an import has exactly the addresses of its only derived Service, none of them reserved."""
    return type(service) is Service and service.cluster_ips == row.ips and not [*filter(reserved, row.ips)]


def by_node(reader: Reader, old: Node | None, new: Node | None) -> Iterator[Claimant]:
    """A node's added and removed addresses affect their claimants."""
    for address in set(old.addresses if old else ()) ^ set(new.addresses if new else ()):
        yield from (_claimant(service) for service in reader.by(SERVICES, "address", address))
        yield from (("ServiceImport", row.name) for row in reader.by(IMPORTS, "address", address))


def _claimant(service: Service) -> Claimant:
    return "Service", service.name


def _explicit(service: Service) -> Iterable[tuple[FrontendType, str]]:
    """Yield the addresses that a Service's spec names, and those of its load balancer."""
    named: FrontendType = "HostPort" if service.type == "HostPort" else "ExternalIP"
    yield from ((named, address) for address in service.external_ips)
    if service.type == "LoadBalancer":
        yield from (("LoadBalancer", address) for address in service.load_balancer_ips)


def _row(
    claimant: Claimant, type_: FrontendType, address: str, refusal: Refusal, *, service: ServiceName, uid: str
) -> RefusedClaim:
    kind, name = claimant
    return RefusedClaim(
        kind=kind,
        name=name,
        type=type_,
        address=address,
        reason=refusal.reason,
        message=refusal.message,
        service=service,
        uid=uid,
    )
