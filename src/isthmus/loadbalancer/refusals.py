"""Claims on addresses that do not count, as rows: what `isthmus explain` and Events show of :mod:`.claims`.

The unit is the object that makes the claims. Frontends and redirects judge by the same functions of rows, so an address
is refused here exactly where it has no frontend there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Final

from isthmus.loadbalancer.claims import AddressClaim, ClaimRules, Refusal, judge
from isthmus.loadbalancer.services import Which, best, wanted
from isthmus.model.addresses import reserved
from isthmus.model.balancing import FrontendType
from isthmus.model.mcs import MANAGED_BY
from isthmus.model.names import ServiceName, split
from isthmus.model.redirects import LocalRedirect
from isthmus.model.refusals import ClaimantKind, RefusedClaim
from isthmus.model.services import Import, Node, Service
from isthmus.model.tables import IMPORTS, LOCAL_REDIRECTS, NODES, REFUSED_CLAIMS, SERVICES
from isthmus.statedb import DerivedTogether, Pairs, PendingWrites, Reader, Rows, WriteTxn, each, rows_of

MAX_ROWS: Final = 16
"""Refused claims of one object that are rows: a Service may name any number of addresses."""

Claimant = tuple[ClaimantKind, ServiceName]


def derived(node: str, *, which: Which, rules: ClaimRules) -> DerivedTogether:
    """The declaration of the table, as a node sees it; without a node, as the whole cluster does."""
    return DerivedTogether(
        REFUSED_CLAIMS,
        renew=partial(renew, node=node, which=which, rules=rules),
        reads={
            (SERVICES, IMPORTS): by_services_and_imports,
            LOCAL_REDIRECTS: each(by_policy),
            NODES: each(by_node),
        },
    )


def renew(txn: WriteTxn, claimants: Iterable[Claimant], *, node: str, which: Which, rules: ClaimRules) -> None:  # hot:
    """Make the rows of these objects what they are computed to be."""
    writes = PendingWrites(txn, REFUSED_CLAIMS)
    for kind, name in claimants:
        present = [row for row in txn.by(REFUSED_CLAIMS, "name", name) if row.kind == kind]
        writes.exchange(present, list(compute(txn, (kind, name), node=node, which=which, rules=rules)))
    writes.flush()


def compute(
    reader: Reader, claimant: Claimant, *, node: str, which: Which, rules: ClaimRules
) -> Iterator[RefusedClaim]:
    """The claims of an object that do not count, the first of them where they are many."""
    yield from islice(_refused(reader, claimant, node=node, which=which, rules=rules), MAX_ROWS)


def _refused(
    reader: Reader, claimant: Claimant, *, node: str, which: Which, rules: ClaimRules
) -> Iterator[RefusedClaim]:
    kind, name = claimant
    if kind == "Service":
        service = best(reader, name)
        if service is not None and wanted(service, which):
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
    """Why a Service may not be called at an address that it, or its status, names."""
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
    """Why an import may not be called at one of its ``spec.ips``."""
    standing = reader.by(SERVICES, "import", row.name) + reader.by(SERVICES, "name", row.derived_service)
    claim = AddressClaim(
        type="Import",
        address=address,
        namespace=split(row.name)[0],
        manager=dict(row.annotations).get(MANAGED_BY, ""),
        allocated=tuple(ip for service in standing for ip in service.cluster_ips),
        any_node=bool(reader.by(NODES, "address", address)),
    )
    return judge(claim, rules)


def of_policy(policy: LocalRedirect, *, rules: ClaimRules) -> Refusal | None:
    """Why a local redirect may not have the address that it names."""
    namespace = split(policy.name)[0]
    return judge(AddressClaim(type="LocalRedirect", address=policy.address, namespace=namespace), rules)


def by_services_and_imports(reader: Reader, services: Pairs, imports: Pairs) -> list[Claimant]:  # hot:
    """An import affects its own claims, but for those of addresses of its derived Service that are not reserved. A
    Service affects its own, and those of the import that it stands for, which may have changed with it."""
    named, refused = reader.finder(SERVICES, "name"), reader.finder(REFUSED_CLAIMS, "name")
    judged: set[ServiceName] = set()
    found: list[Claimant] = []
    for old, new in imports:
        name = (new or old).name
        judged.add(name)
        if (new is not None and not _has_addresses_of(named(new.derived_service), new)) or refused(name) is not None:
            found.append(("ServiceImport", name))
    return found + _by_services(reader, services, judged)


def _by_services(reader: Reader, changed: Pairs, judged: Collection[ServiceName]) -> list[Claimant]:  # hot:
    """The same of Services, without the claims of imports that have changed themselves."""
    imports, named = reader.finder(IMPORTS, "service"), reader.getter(IMPORTS)
    refused = reader.finder(REFUSED_CLAIMS, "name")
    found: list[Claimant] = []
    for old, new in changed:
        for row in (old, new):
            if row is None:
                continue
            if row.external_ips or row.load_balancer_ips:
                found.append(_claimant(row))
            stood_for, import_of = imports(row.name), row.import_of
            if import_of and import_of not in judged:
                own = type(stood_for) is Import and stood_for.name == import_of  # nearly always
                imported = stood_for if own else named(import_of)
                # Reserved addresses are refused whatever stands for the import, which is judged when it changes.
                if refused(import_of) or (imported is not None and (row is not new or imported.ips != row.cluster_ips)):
                    found.append(("ServiceImport", import_of))
            if type(stood_for) is dict or (stood_for is not None and stood_for.name != import_of):
                found += [("ServiceImport", imported.name) for imported in rows_of(stood_for)]
    return found


def _has_addresses_of(standing: Rows, row: Import) -> bool:
    """Whether an import claims the addresses of the one Service that its name's hash names, none of them reserved."""
    return type(standing) is Service and standing.cluster_ips == row.ips and not [*filter(reserved, row.ips)]


def by_policy(reader: Reader, old: LocalRedirect | None, new: LocalRedirect | None) -> Iterator[Claimant]:
    """A policy affects its own claim."""
    row = new or old
    if row is not None:
        yield "CiliumLocalRedirectPolicy", row.name


def by_node(reader: Reader, old: Node | None, new: Node | None) -> Iterator[Claimant]:
    """An address that a node has now, or no more, affects whoever claims it."""
    for address in set(old.addresses if old else ()) ^ set(new.addresses if new else ()):
        yield from (_claimant(service) for service in reader.by(SERVICES, "address", address))
        yield from (("ServiceImport", row.name) for row in reader.by(IMPORTS, "address", address))


def _claimant(service: Service) -> Claimant:
    return "Service", service.name


def _explicit(service: Service) -> Iterable[tuple[FrontendType, str]]:
    """The addresses that a Service names itself, and those of its load balancer."""
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
