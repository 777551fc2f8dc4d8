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
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from isthmus.loadbalancer import refusals
from isthmus.loadbalancer.claims import ClaimRules
from isthmus.loadbalancer.port_redirects import of_plan
from isthmus.loadbalancer.services import (
    UNKNOWN_AGE,
    Which,
    best,
    external_policy,
    served_elsewhere,
    stands_alone,
    wanted,
)
from isthmus.model import names
from isthmus.model.balancing import Frontend, FrontendKey, FrontendType, PlanKey, Scope
from isthmus.model.hosts import family
from isthmus.model.names import ServiceName
from isthmus.model.redirects import PortRedirect, Redirect
from isthmus.model.services import Import, Node, Port, Service
from isthmus.model.sources import KUBERNETES, rank
from isthmus.model.tables import FRONTENDS, IMPORTS, NODES, PORT_REDIRECTS, REDIRECTS, SERVICES
from isthmus.statedb import Derived, Reader

RANK: Final[dict[FrontendType, int]] = {
    "ClusterIP": 0,  # allocated: nobody can wish for a taken one
    "LoadBalancer": 1,  # from a status, which takes rights to write
    "Import": 2,
    "ExternalIP": 3,  # from a spec: whoever may write a Service may write any address
    "HostPort": 4,
    "NodePort": 5,
    "LocalRedirect": 6,  # of an address: whoever may write a policy may write any
}

NODE_PORTS: Final = range(30000, 32768)
ON_NODE: Final = ("NodePort", "HostPort")
INSIDE, OUTSIDE = Scope.INTERNAL, Scope.EXTERNAL


class Wish(Struct, frozen=True, gc=False):
    """What a Service wants of one kind of address: to be called there, at its ports."""

    type: FrontendType
    addresses: Collection[str]
    at: Scope = Scope.EXTERNAL
    """From where it is called."""
    plan: Scope = Scope.EXTERNAL
    """Which of the two traffic policies applies."""

    def port_of(self, port: Port) -> int:
        """The number at which one of the service's ports is called there; 0: it is not."""
        if self.type == "HostPort" and port.node_port in NODE_PORTS:
            return 0
        return port.node_port if self.type in ON_NODE else port.port


ALLOCATED: Final = ("ClusterIP", "Import", "LocalRedirect")
"""Addresses at which a local redirect counts."""


class Claim(Struct, frozen=True, gc=False):
    """One service's wish to answer at one address and port."""

    key: FrontendKey
    type: FrontendType
    service: ServiceName
    import_of: ServiceName
    port: Port
    source: str
    created: str
    ours: bool
    foreign: bool
    """Another proxy serves the Service, by its labels: no redirect makes it ours."""
    scope: Scope
    """Of the plan: which of the two traffic policies applies."""

    @property
    def plan(self) -> PlanKey:
        """The plan that calls of it follow."""
        return PlanKey(self.service, self.port.port, self.key.protocol, family(self.key.address), self.scope)

    def order(self) -> tuple[int, int, str, str]:
        """What decides between claims of one address: the least wins."""
        return (RANK[self.type], rank(self.source), self.created or UNKNOWN_AGE, self.service)


def derived(node: str, *, which: Which, rules: ClaimRules) -> Derived[Frontend]:
    """The declaration of the table, as this node sees it."""
    return Derived(
        FRONTENDS,
        compute=partial(compute, node=node, which=which, rules=rules),
        reads={
            SERVICES: partial(by_service, node=node),
            IMPORTS: by_import,
            NODES: partial(by_node, node=node),
            REDIRECTS: by_redirect,
            PORT_REDIRECTS: partial(by_port_redirect, node=node),
        },
        unit="called",
    )


def compute(  # hot:
    reader: Reader, key: FrontendKey, *, node: str, which: Which, rules: ClaimRules
) -> Iterable[Frontend]:
    """The frontends at an address: those of the strongest claim, if calls of it are ours to answer."""
    claims = claims_at(reader, key, node=node, which=which, rules=rules)
    if not claims:
        return ()
    winner = claims[0] if len(claims) == 1 else min(claims, key=Claim.order)
    shadowed = tuple(sorted({claim.service for claim in claims} - {winner.service})) if len(claims) > 1 else ()
    redirect = None if winner.foreign else of_plan(reader, winner.plan)
    if redirect is None:
        return (_frontend(winner, key, winner.plan, shadowed),) if winner.ours else ()
    # Three cases: a local redirect of an address that was not allocated does not mean its calls; one that skips its own
    # pods leaves them the original, where that is ours to answer; any other redirect means all calls.
    original = replace(winner.plan, scope=winner.scope.original())
    kept = (winner.ours and winner.type != "LocalRedirect") or of_plan(reader, original) is not None
    if redirect.kind == "local" and winner.type not in ALLOCATED:
        return (_frontend(winner, key, original, shadowed),) if kept else ()
    beside = replace(key, scope=key.scope.original())
    skipping = (_frontend(winner, beside, original, shadowed),) if redirect.skip and kept else ()
    return (*skipping, _frontend(winner, key, winner.plan, shadowed))


def _frontend(claim: Claim, key: FrontendKey, plan: PlanKey, shadowed: tuple[ServiceName, ...]) -> Frontend:
    return Frontend(
        key=key,
        service=claim.service,
        port_name=claim.port.name,
        plan=plan,
        type=claim.type,
        shadowed=shadowed,
        import_of=claim.import_of,
    )


def by_service(reader: Reader, old: Service | None, new: Service | None, *, node: str) -> Iterable[FrontendKey]:  # hot:
    """A Service affects its own addresses, those of its rows from other sources, and those of its import."""
    rows = [row for row in (old, new) if row is not None]
    name, lent = rows[0].name, _lent(reader, node)
    rows += [row for row in reader.by(SERVICES, "name", name) if row is not new]
    keys = [key for row in rows for key in _keys(_wishes(row, lent=lent), row.ports)]
    for imported in reader.by(IMPORTS, "service", name):
        keys += _keys_of_import(imported)
    for row in rows:
        if row.import_of and (of := reader.get(IMPORTS, row.import_of)) is not None:
            keys += _keys_of_import(of)
    return keys


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
            yield from _keys(_on_node(service, lent=moved), service.ports)
        for address in moved:
            yield from (frontend.key for frontend in reader.by(FRONTENDS, "lent", address))
    for address in moved:
        for service in reader.by(SERVICES, "address", address):
            yield from (key for key in _keys(_wishes(service, lent=()), service.ports) if key.address == address)
        for imported in reader.by(IMPORTS, "address", address):
            yield from (key for key in _keys_of_import(imported) if key.address == address)


def by_redirect(reader: Reader, old: Redirect | None, new: Redirect | None) -> Iterator[FrontendKey]:
    """A redirect of an address affects that address."""
    for row in (old, new):
        if row is not None:
            yield from (claim.key for claim in _claims_of_redirect(row))


def by_port_redirect(
    reader: Reader, old: PortRedirect | None, new: PortRedirect | None, *, node: str
) -> Iterator[FrontendKey]:
    """A port that is redirected, or no more, affects the addresses of its service: calls of them may become ours."""
    row = new or old
    if row is None:
        return
    name, lent = row.key.service, _lent(reader, node)
    for service in reader.by(SERVICES, "name", name):
        yield from _keys(_wishes(service, lent=lent), service.ports)
    for imported in reader.by(IMPORTS, "service", name):
        yield from _keys_of_import(imported)
    for redirect in reader.by(REDIRECTS, "service", name):
        yield from (claim.key for claim in _claims_of_redirect(redirect))


def claims_at(reader: Reader, key: FrontendKey, *, node: str, which: Which, rules: ClaimRules) -> list[Claim]:  # hot:
    """Every claim on an address and port that counts."""
    lent = _lent(reader, node)
    services = reader.by(SERVICES, "address", key.address)
    if key.address in lent:
        services += reader.by(SERVICES, "node_port", (key.port, key.protocol))
    of_a_node = key.port in NODE_PORTS and bool(reader.by(NODES, "address", key.address))
    claims: list[Claim] = []
    for name in {row.name: None for row in services}:
        service = best(reader, name)
        if service is not None:
            found = _claims(service, key, lent=lent, which=which, of_a_node=of_a_node)
            claims += [each for each in found if _counts(reader, service, each, node=node, rules=rules)]
    for row in reader.by(IMPORTS, "address", key.address):
        if row.type != "ClusterSetIP" or not stands_alone(reader, row):
            continue
        if refusals.of_import(reader, row, key.address, rules=rules) is None:
            claims += [claim for claim in _claims_of_import(reader, row) if claim.key == key]
    for redirect in reader.by(REDIRECTS, "address", key.address):
        claims += [claim for claim in _claims_of_redirect(redirect) if claim.key == key]
    return claims


def _counts(reader: Reader, service: Service, claim: Claim, *, node: str, rules: ClaimRules) -> bool:  # hot:
    """Whether a Service may have the address. A cluster IP and a node port need no question: nearly all are such."""
    if claim.type in ("ClusterIP", "NodePort"):
        return True
    if claim.type == "HostPort" and not service.external_ips:
        return True
    return refusals.of_service(reader, service, claim.type, claim.key.address, node=node, rules=rules) is None


def _claims(
    service: Service, key: FrontendKey, *, lent: Collection[str], which: Which, of_a_node: bool
) -> Iterator[Claim]:
    """What a Service claims of one address and port: none, one, or several for as many reasons."""
    for wish in _wishes(service, lent=lent):
        if key.address not in wish.addresses or key.scope is not wish.at:
            continue
        if of_a_node and wish.type in ("LoadBalancer", "ExternalIP"):
            continue  # what sends the node ports of a node elsewhere would take them from all Services that have one
        for port in service.ports:
            if wish.port_of(port) == key.port and port.protocol == key.protocol:
                yield Claim(
                    key=key,
                    type=wish.type,
                    service=service.name,
                    import_of=service.import_of,
                    port=port,
                    source=service.source,
                    created=service.created,
                    ours=wanted(service, which),
                    foreign=served_elsewhere(service),
                    scope=wish.plan,
                )


def _keys(wishes: Iterable[Wish], ports: Iterable[Port]) -> list[FrontendKey]:
    """Everywhere that a Service with these ports wants to be called."""
    return [
        FrontendKey(address, number, port.protocol, wish.at)
        for wish in wishes
        for address in wish.addresses
        for port in ports
        if (number := wish.port_of(port))
    ]


def _wishes(service: Service, *, lent: Collection[str]) -> list[Wish]:
    """Where a Service wants to be called. A ClusterIP is called from inside, all else from outside."""
    differ = external_policy(service) != service.internal_policy
    wishes: list[Wish] = []
    if not service.headless:
        wishes.append(Wish("ClusterIP", service.cluster_ips, plan=INSIDE if differ else OUTSIDE))
    if service.external_ips and service.type != "HostPort":
        wishes.append(Wish("ExternalIP", service.external_ips))
    if service.type == "LoadBalancer":
        wishes.append(Wish("LoadBalancer", service.load_balancer_ips))
        if differ:
            wishes.append(Wish("LoadBalancer", service.load_balancer_ips, INSIDE, INSIDE))
    return wishes if service.type == "ClusterIP" else wishes + _on_node(service, lent=lent)


def _on_node(service: Service, *, lent: Collection[str]) -> list[Wish]:
    """What a Service is called at on the node: node ports, or the port of a pod at every address or at one it names."""
    if service.type == "HostPort":
        return [Wish("HostPort", service.external_ips or lent)]
    if service.type not in ("NodePort", "LoadBalancer"):
        return []
    if external_policy(service) == service.internal_policy:
        return [Wish("NodePort", lent)]
    return [Wish("NodePort", lent), Wish("NodePort", lent, INSIDE, INSIDE)]


def _claims_of_import(reader: Reader, row: Import) -> Iterator[Claim]:
    service = names.derived(row.name)
    if best(reader, service) is not None:
        return
    for address in row.ips:
        for port in row.ports:
            key = FrontendKey(address, port.port, port.protocol)
            yield Claim(key, "Import", service, row.name, port, KUBERNETES, "", True, False, Scope.EXTERNAL)


def _claims_of_redirect(row: Redirect) -> Iterator[Claim]:
    """What a redirect of an address wants to be called at: there, at the ports that have a target of that family."""
    if not row.address:
        return
    for rule in row.rules:
        if any(family(target.address) == family(row.address) for target in rule.targets):
            port = Port("", rule.port, rule.protocol)
            key = FrontendKey(row.address, rule.port, rule.protocol)
            none = ServiceName("")
            yield Claim(
                key, "LocalRedirect", row.service, none, port, KUBERNETES, row.created, True, False, Scope.EXTERNAL
            )


def _keys_of_import(row: Import) -> Iterator[FrontendKey]:
    for address in row.ips:
        for port in row.ports:
            yield FrontendKey(address, port.port, port.protocol)


def _lent(reader: Reader, node: str) -> tuple[str, ...]:
    """This node's addresses, which it lends to every node port."""
    row = reader.get(NODES, node)
    return row.addresses if row else ()
