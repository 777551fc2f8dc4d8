"""Frontends: the addresses that are called, each with the one service that answers there.

A claim is a service's wish to answer at an address; the winner follows from the claims alone: what was given by the
API server before what anybody may write into a spec, explicit addresses before those a node lends, then the better
source, the older service, the name. A winner that is not ours to answer (a plain Service) leaves the address alone:
nobody takes it over by claiming it too. A redirect makes the ports that it means ours; one of an address takes only
what no service has.

The unit is one address and port, found through indexes in either direction, so a change costs what it changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import Final, Literal, NamedTuple

from msgspec.structs import replace

from isthmus.loadbalancer.redirects import override
from isthmus.loadbalancer.services import UNKNOWN_AGE, Which, best, external_policy, rank, stands_alone, wanted
from isthmus.model import names
from isthmus.model.balancing import Frontend, FrontendKey, PlanKey, Scope
from isthmus.model.names import ServiceName
from isthmus.model.redirects import Redirect
from isthmus.model.services import Family, Import, Node, Port, Service
from isthmus.model.tables import FRONTENDS, IMPORTS, NODES, REDIRECTS, SERVICES
from isthmus.statedb import Derived, Reader

Type = Literal["ClusterIP", "NodePort", "ExternalIP", "LoadBalancer", "HostPort", "Import", "LocalRedirect"]

RANK: Final[dict[str, int]] = {
    "ClusterIP": 0,  # allocated: nobody can wish for a taken one
    "LoadBalancer": 1,  # from a status, which takes rights to write
    "Import": 2,
    "ExternalIP": 3,  # from a spec: whoever may write a Service may write any address
    "HostPort": 4,
    "NodePort": 5,
    "LocalRedirect": 6,  # of an address: whoever may write a policy may write any
}

NODE_PORTS: Final = range(30000, 32768)

MEANT: Final = ("ClusterIP", "Import", "LocalRedirect")
"""Addresses at which a local redirect counts."""


class Claim(NamedTuple):
    """One service's wish to answer at one address and port."""

    key: FrontendKey
    type: Type
    service: ServiceName
    import_of: ServiceName
    port: Port
    source: str
    created: str
    ours: bool
    scope: Scope
    """Of the plan: which of the two traffic policies applies."""

    @property
    def plan(self) -> PlanKey:
        """The plan that calls of it follow."""
        return PlanKey(self.service, self.port.port, self.key.protocol, family(self.key.address), self.scope)

    def order(self) -> tuple[int, int, str, str]:
        """What decides between claims of one address: the least wins."""
        return (RANK[self.type], rank(self.source), self.created or UNKNOWN_AGE, self.service)


def derived(node: str, *, which: Which) -> Derived[Frontend]:
    """The declaration of the table, as this node sees it."""
    return Derived(
        FRONTENDS,
        compute=partial(compute, node=node, which=which),
        reads={
            SERVICES: partial(by_service, node=node),
            IMPORTS: by_import,
            NODES: partial(by_node, node=node),
            REDIRECTS: partial(by_redirect, node=node),
        },
    )


def compute(reader: Reader, key: FrontendKey, *, node: str, which: Which) -> Iterable[Frontend]:
    """The frontend at an address: that of the strongest claim, if it is ours to answer."""
    claims = sorted(claims_at(reader, key, node=node, which=which), key=Claim.order)
    if not claims or not (claims[0].ours or _redirected(reader, claims[0])):
        return ()
    winner = claims[0]
    losers = sorted({claim.service for claim in claims} - {winner.service})
    return (
        Frontend(
            key=key,
            service=winner.service,
            port_name=winner.port.name,
            plan=_plan(reader, winner),
            type=winner.type,
            shadowed=tuple(losers),
            import_of=winner.import_of,
        ),
    )


def family(address: str) -> Family:
    """The address family of canonical text."""
    return "IPv6" if ":" in address else "IPv4"


def by_service(reader: Reader, old: Service | None, new: Service | None, *, node: str) -> Iterator[FrontendKey]:
    """A Service affects its own addresses, those of its rows from other sources, and those of its import."""
    rows = [row for row in (old, new) if row is not None]
    lent = _lent(reader, node)
    for row in (*rows, *reader.by(SERVICES, "name", rows[0].name)):
        yield from (claim.key for claim in _claims(row, lent=lent, ours=True))
        imported = reader.get(IMPORTS, row.import_of) if row.import_of else None
        for each in (imported, *reader.by(IMPORTS, "service", row.name)):
            if each is not None:
                yield from _keys_of_import(each)


def by_import(reader: Reader, old: Import | None, new: Import | None) -> Iterator[FrontendKey]:
    """An import affects its own addresses."""
    for row in (old, new):
        if row is not None:
            yield from _keys_of_import(row)


def by_node(reader: Reader, old: Node | None, new: Node | None, *, node: str) -> Iterator[FrontendKey]:
    """This node's addresses that come or go affect every node port; another's only who may claim its node ports."""
    moved = set(old.addresses if old else ()) ^ set(new.addresses if new else ())
    row = new or old
    if row is not None and row.name == node and moved:
        for service in reader.by(SERVICES, "exposed", True):
            yield from (claim.key for claim in _on_node(service, lent=moved, ours=True))
        for address in moved:
            yield from (frontend.key for frontend in reader.by(FRONTENDS, "lent", address))
    for address in moved:
        for service in reader.by(SERVICES, "address", address):
            yield from (claim.key for claim in _claims(service, lent=(), ours=True) if claim.key.address == address)


def by_redirect(reader: Reader, old: Redirect | None, new: Redirect | None, *, node: str) -> Iterator[FrontendKey]:
    """A redirect affects the addresses of its service, which may be ours or not by its word, and its own."""
    row = new or old
    if row is None:
        return
    lent = _lent(reader, node)
    for service in reader.by(SERVICES, "name", row.service):
        yield from (claim.key for claim in _claims(service, lent=lent, ours=True))
    for each in (old, new):
        if each is not None:
            yield from (claim.key for claim in _claims_of_redirect(each))


def claims_at(reader: Reader, key: FrontendKey, *, node: str, which: Which) -> Iterator[Claim]:
    """Every claim on an address and port that counts."""
    lent = _lent(reader, node)
    services = {row.name: row for row in reader.by(SERVICES, "address", key.address)}
    if key.address in lent:
        services |= {row.name: row for row in reader.by(SERVICES, "node_port", (key.port, key.protocol))}
    of_a_node = key.port in NODE_PORTS and bool(reader.by(NODES, "address", key.address))
    for name in services:
        service = best(reader, name)
        if service is None:
            continue
        for claim in _claims(service, lent=lent, ours=wanted(service, which)):
            # what sends the node ports of a node elsewhere would take them from all Services that have one
            if claim.key == key and not (of_a_node and claim.type in ("LoadBalancer", "ExternalIP")):
                yield claim
    for row in reader.by(IMPORTS, "address", key.address):
        if row.type == "ClusterSetIP" and stands_alone(reader, row):
            yield from (claim for claim in _claims_of_import(reader, row) if claim.key == key)
    for redirect in reader.by(REDIRECTS, "address", key.address):
        yield from (claim for claim in _claims_of_redirect(redirect) if claim.key == key)


def _claims(service: Service, *, lent: Collection[str], ours: bool) -> Iterator[Claim]:
    """Everything a Service wants to be called at. A ClusterIP is called from inside, all else from outside."""
    differ = external_policy(service) != service.internal_policy
    if not service.headless:
        scope = Scope.INTERNAL if differ else Scope.EXTERNAL
        yield from _expand(service, "ClusterIP", service.cluster_ips, ours=ours, plan=scope)
    if service.type != "HostPort":
        yield from _expand(service, "ExternalIP", service.external_ips, ours=ours)
    if service.type == "LoadBalancer":
        yield from _expand(service, "LoadBalancer", service.load_balancer_ips, ours=ours)
        if differ:
            yield from _expand(service, "LoadBalancer", service.load_balancer_ips, ours=ours, at=Scope.INTERNAL)
    yield from _on_node(service, lent=lent, ours=ours)


def _on_node(service: Service, *, lent: Collection[str], ours: bool) -> Iterator[Claim]:
    """What a Service is called at on the node: node ports, or the port of a pod at every address or at one it names."""
    if service.type == "HostPort":
        claims = _expand(service, "HostPort", service.external_ips or lent, ours=ours)
        yield from (claim for claim in claims if claim.key.port not in NODE_PORTS)
    if service.type in ("NodePort", "LoadBalancer"):
        yield from _expand(service, "NodePort", lent, ours=ours)
        if external_policy(service) != service.internal_policy:
            yield from _expand(service, "NodePort", lent, ours=ours, at=Scope.INTERNAL)


def _expand(
    service: Service,
    type_: Type,
    addresses: Iterable[str],
    *,
    ours: bool,
    at: Scope = Scope.EXTERNAL,
    plan: Scope | None = None,
) -> Iterator[Claim]:
    """One claim for each address and port. ``at``: where it is called from; ``plan``: if not the same, whose plan."""
    scope = at if plan is None else plan
    for address in addresses:
        for port in service.ports:
            number = port.node_port if type_ in ("NodePort", "HostPort") else port.port
            if number:
                key = FrontendKey(address, number, port.protocol, at)
                of = (service.name, service.import_of)
                yield Claim(key, type_, *of, port, service.source, service.created, ours, scope)


def _claims_of_import(reader: Reader, row: Import) -> Iterator[Claim]:
    service = names.derived(row.name)
    if best(reader, service) is not None:
        return
    for address in row.ips:
        for port in row.ports:
            key = FrontendKey(address, port.port, port.protocol)
            yield Claim(key, "Import", service, row.name, port, "kubernetes", "", True, Scope.EXTERNAL)


def _redirected(reader: Reader, claim: Claim) -> bool:
    """Whether calls of a plain Service's port are ours because they go elsewhere."""
    rows = reader.by(REDIRECTS, "service", claim.service)
    return bool(rows) and override(rows, _plan(reader, claim), port_name=claim.port.name) is not None


def _plan(reader: Reader, claim: Claim) -> PlanKey:
    """The plan that calls follow. A local redirect means what is allocated: other addresses keep the original."""
    rows = () if claim.type in MEANT else reader.by(REDIRECTS, "service", claim.service)
    found = override(rows, claim.plan, port_name=claim.port.name) if rows else None
    if found is None or found[0].kind != "local":
        return claim.plan
    return replace(claim.plan, scope=claim.scope.original())


def _claims_of_redirect(row: Redirect) -> Iterator[Claim]:
    """What a redirect of an address wants to be called at: there, at the ports that have a target of that family."""
    if not row.address:
        return
    for rule in row.rules:
        if any(family(target.address) == family(row.address) for target in rule.targets):
            port = Port("", rule.port, rule.protocol)
            key = FrontendKey(row.address, rule.port, rule.protocol)
            none = ServiceName("")
            yield Claim(key, "LocalRedirect", row.service, none, port, "kubernetes", row.created, True, Scope.EXTERNAL)


def _keys_of_import(row: Import) -> Iterator[FrontendKey]:
    for address in row.ips:
        for port in row.ports:
            yield FrontendKey(address, port.port, port.protocol)


def _lent(reader: Reader, node: str) -> tuple[str, ...]:
    """This node's addresses, which it lends to every node port."""
    row = reader.get(NODES, node)
    return row.addresses if row else ()
