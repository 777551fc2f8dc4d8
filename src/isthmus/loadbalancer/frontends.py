"""Frontends: addresses and ports that clients call, each with the one service that answers there.

Several services may claim one address and port. The winner depends on the claims alone: allocated addresses precede
those that a spec names, explicit ones precede those of the node, then the better source, the older service and the name
decide. If Isthmus does not answer for the winner (a plain Service), the address has no frontend at all. A redirect of a
service makes Isthmus answer the redirected ports; a redirect of an address applies only where no service claims it.

Claims are compared for each address and port. An uncontested Service, the usual case, needs no comparison.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from isthmus.loadbalancer import refusals
from isthmus.loadbalancer.claims import ClaimRules
from isthmus.loadbalancer.exposure import NODE_PORTS, ON_NODE, exposures, keys, keys_of_import, ports_called
from isthmus.loadbalancer.port_redirects import of_plan
from isthmus.loadbalancer.services import (
    UNKNOWN_AGE,
    Which,
    best,
    is_answered,
    served_elsewhere,
    stands_alone,
)
from isthmus.model.balancing import Frontend, FrontendKey, FrontendType, PlanKey, Scope
from isthmus.model.hosts import family
from isthmus.model.islands import IslandPod
from isthmus.model.names import ServiceName
from isthmus.model.redirects import Redirect
from isthmus.model.services import Import, Port, Service
from isthmus.model.sources import KUBERNETES, rank
from isthmus.model.tables import IMPORTS, ISLAND_PODS, NODES, REDIRECTS, SERVICES
from isthmus.statedb import Reader

RANK: Final[dict[FrontendType, int]] = {
    "ClusterIP": 0,  # allocated: two Services never have the same
    "LoadBalancer": 1,  # from a status, which takes rights to write
    "Import": 2,
    "ExternalIP": 3,  # from a spec: whoever may write a Service may write any address
    "HostPort": 4,
    "NodePort": 5,
    "LocalRedirect": 6,  # of an address: whoever may write a policy may write any
    "IslandPod": 7,  # given out here, from a range that nothing else should have
}

ALLOCATED: Final = ("ClusterIP", "Import", "LocalRedirect")
"""Types of addresses at which a local redirect of a service applies."""


class Claim(Struct, frozen=True, gc=False):
    """A service's claim of one address and port."""

    key: FrontendKey
    type: FrontendType
    service: ServiceName
    import_of: ServiceName
    port: Port
    source: str
    created: str
    managed: bool
    """Isthmus answers calls of the service even if it is not redirected."""
    other_proxy: bool
    """The Service's labels assign it to another proxy: its calls are not redirected either."""
    scope: Scope
    """The plan's scope, which selects one of the two traffic policies."""

    @property
    def plan(self) -> PlanKey:
        """Key of the plan for these calls."""
        return PlanKey(self.service, self.port.port, self.key.protocol, family(self.key.address), self.scope)

    def order(self) -> tuple[int, int, str, str]:
        """Sort key of claims of one address: the smallest wins."""
        return (RANK[self.type], rank(self.source), self.created or UNKNOWN_AGE, self.service)


def compute(  # hot:
    reader: Reader, key: FrontendKey, *, node: str, which: Which, rules: ClaimRules
) -> Iterable[Frontend]:
    """Return the frontends at an address: those of the strongest claim, if Isthmus answers its calls."""
    claims = claims_at(reader, key, node=node, which=which, rules=rules)
    if not claims:
        return ()
    winner = claims[0] if len(claims) == 1 else min(claims, key=Claim.order)
    shadowed = tuple(sorted({claim.service for claim in claims} - {winner.service})) if len(claims) > 1 else ()
    redirect = None if winner.other_proxy else of_plan(reader, winner.plan)
    if redirect is None:
        return (_frontend(winner, key, winner.plan, shadowed),) if winner.managed else ()
    # Three cases: a local redirect does not apply at an address that was not allocated; one that skips its own pods
    # leaves them the original plan, if that is answered here; any other redirect applies to all calls.
    original = replace(winner.plan, scope=winner.scope.original())
    kept = (winner.managed and winner.type != "LocalRedirect") or of_plan(reader, original) is not None
    if redirect.kind == "local" and winner.type not in ALLOCATED:
        return (_frontend(winner, key, original, shadowed),) if kept else ()
    original_key = replace(key, scope=key.scope.original())
    skipping = (_frontend(winner, original_key, original, shadowed),) if redirect.skip and kept else ()
    return (*skipping, _frontend(winner, key, winner.plan, shadowed))


def uncontested(service: Service) -> list[Frontend]:  # hot:
    """Return the frontends of a managed ClusterIP Service without other claimants or redirects.

    The fast path of ``exposures``: such a Service has only cluster IPs, and only the internal traffic policy applies.
    """
    name, import_of, ports = service.name, service.import_of, service.ports
    if service.headless:
        return []
    rows = [
        Frontend(
            FrontendKey(address, port.port, port.protocol),
            name,
            port.name,
            PlanKey(name, port.port, port.protocol, "IPv6" if ":" in address else "IPv4"),
            "ClusterIP",
            (),
            import_of,
        )
        for address in service.cluster_ips
        for port in ports
    ]
    if len(rows) < 2:
        return rows
    first: dict[FrontendKey, Frontend] = {}  # the first of two ports with one number and protocol wins
    for row in rows:
        first.setdefault(row.key, row)
    return list(first.values())


def _frontend(claim: Claim, key: FrontendKey, plan: PlanKey, shadowed: tuple[ServiceName, ...]) -> Frontend:
    return Frontend(key, claim.service, claim.port.name, plan, claim.type, shadowed, claim.import_of, claim.managed)


def claimed(reader: Reader, name: ServiceName, *, node: str) -> list[FrontendKey]:
    """Return every address and port that a service claims, including those that it does not win."""
    node_addresses = addresses_of_node(reader, node)
    claimed_keys: list[FrontendKey] = []
    for service in reader.by(SERVICES, "name", name):
        claimed_keys += keys(exposures(service, node_addresses=node_addresses), service.ports)
    for imported in reader.by(IMPORTS, "service", name):
        claimed_keys += keys_of_import(imported)
    pod = reader.get(ISLAND_PODS, name)
    if pod is not None:
        claimed_keys += [claim.key for claim in _claims_of_pod(pod)]
    for redirect in reader.by(REDIRECTS, "service", name):
        claimed_keys += [claim.key for claim in _claims_of_redirect(redirect)]
    return claimed_keys


def claims_at(reader: Reader, key: FrontendKey, *, node: str, which: Which, rules: ClaimRules) -> list[Claim]:  # hot:
    """Return every valid claim of an address and port."""
    node_addresses = addresses_of_node(reader, node)
    services = reader.by(SERVICES, "address", key.address)
    if key.address in node_addresses:
        services += reader.by(SERVICES, "node_port", (key.port, key.protocol))
    of_a_node = key.port in NODE_PORTS and bool(reader.by(NODES, "address", key.address))
    claims: list[Claim] = []
    for name in {row.name: None for row in services}:
        service = best(reader, name)
        if service is not None:
            service_claims = _claims(service, key, node_addresses=node_addresses, which=which, of_a_node=of_a_node)
            claims += [each for each in service_claims if _counts(reader, service, each, node=node, rules=rules)]
    for row in reader.by(IMPORTS, "address", key.address):
        if row.type != "ClusterSetIP" or not stands_alone(reader, row):
            continue
        if refusals.of_import(reader, row, key.address, rules=rules) is None:
            claims += _claims_of_import(reader, row, key)
    for pod in reader.by(ISLAND_PODS, "address", key.address):
        claims += [claim for claim in _claims_of_pod(pod) if claim.key == key]
    for redirect in reader.by(REDIRECTS, "address", key.address):
        claims += [claim for claim in _claims_of_redirect(redirect) if claim.key == key]
    return claims


def _counts(reader: Reader, service: Service, claim: Claim, *, node: str, rules: ClaimRules) -> bool:  # hot:
    """True if a Service may have the address. Cluster IPs and node ports, nearly all claims, are always valid."""
    if claim.type in ("ClusterIP", "NodePort"):
        return True
    if claim.type == "HostPort" and not service.external_ips:
        return True
    return refusals.of_service(reader, service, claim.type, claim.key.address, node=node, rules=rules) is None


def _claims(
    service: Service, key: FrontendKey, *, node_addresses: Collection[str], which: Which, of_a_node: bool
) -> Iterator[Claim]:
    """Yield a Service's claims of one address and port. An address of several types gives several claims."""
    for exposure in exposures(service, node_addresses=node_addresses):
        if key.address not in exposure.addresses or key.scope is not exposure.scope:
            continue
        if of_a_node and exposure.type in ("LoadBalancer", "ExternalIP"):
            continue  # a claim of a node's address in the node port range would shadow Services with node ports
        for port in ports_called(service.ports, key.port, key.protocol, on_node=exposure.type in ON_NODE):
            if exposure.port_of(port):
                yield Claim(
                    key=key,
                    type=exposure.type,
                    service=service.name,
                    import_of=service.import_of,
                    port=port,
                    source=service.source,
                    created=service.created,
                    managed=is_answered(service, which),
                    other_proxy=served_elsewhere(service),
                    scope=exposure.plan_scope,
                )


def _claims_of_import(reader: Reader, row: Import, key: FrontendKey) -> Iterator[Claim]:
    """Yield the claims of an import without a derived Service, at one of its own addresses."""
    service = row.derived_service
    if best(reader, service) is None and key.scope is Scope.EXTERNAL:
        for port in ports_called(row.ports, key.port, key.protocol):
            yield Claim(key, "Import", service, row.name, port, KUBERNETES, "", True, False, Scope.EXTERNAL)


def _claims_of_pod(row: IslandPod) -> Iterator[Claim]:
    for address in row.addresses:
        for port in row.ports:
            key = FrontendKey(address, port.port, port.protocol)
            yield Claim(key, "IslandPod", row.name, row.import_of, port, row.source, "", True, False, Scope.EXTERNAL)


def _claims_of_redirect(row: Redirect) -> Iterator[Claim]:
    """Yield the claims of a redirect of an address: at the ports that have a target of the address's family."""
    if not row.address:
        return
    for rule in row.rules:
        if any(family(target.address) == family(row.address) for target in rule.targets):
            port = Port("", rule.port, rule.protocol)
            key = FrontendKey(row.address, rule.port, rule.protocol)
            no_import = ServiceName("")
            yield Claim(
                key, "LocalRedirect", row.service, no_import, port, KUBERNETES, row.created, True, False, Scope.EXTERNAL
            )


def addresses_of_node(reader: Reader, node: str) -> tuple[str, ...]:
    """Return this node's addresses, at each of which node ports are called."""
    row = reader.get(NODES, node)
    return row.addresses if row else ()
