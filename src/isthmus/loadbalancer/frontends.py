"""Frontends: the addresses that are called, each with the one service that answers there.

Several services may claim one address and port. The winner follows from the claims alone: what the API server allocated
before what a spec names, explicit addresses before those of the node, then the better source, the older service, the
name. A winner that Isthmus does not answer for (a plain Service) leaves the address alone: no other claim has it then.
A redirect makes the ports that it redirects Isthmus's to answer; one of an address takes only what no service has.

Claims are compared for one address and port. A Service that nobody contests, as nearly all, needs no comparison.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from isthmus.loadbalancer import refusals
from isthmus.loadbalancer.claims import ClaimRules
from isthmus.loadbalancer.exposure import NODE_PORTS, exposures, keys, keys_of_import
from isthmus.loadbalancer.port_redirects import of_plan
from isthmus.loadbalancer.services import (
    UNKNOWN_AGE,
    Which,
    best,
    served_elsewhere,
    stands_alone,
    wanted,
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
"""Addresses at which a local redirect counts."""


class Claim(Struct, frozen=True, gc=False):
    """One service that is called at one address and port, if no other claim comes before."""

    key: FrontendKey
    type: FrontendType
    service: ServiceName
    import_of: ServiceName
    port: Port
    source: str
    created: str
    managed: bool
    """Isthmus answers calls of the service, redirected or not."""
    other_proxy: bool
    """Another proxy serves the Service, by its labels: its calls are not redirected either."""
    scope: Scope
    """Of the plan: which of the two traffic policies applies."""

    @property
    def plan(self) -> PlanKey:
        """The plan that calls of it follow."""
        return PlanKey(self.service, self.port.port, self.key.protocol, family(self.key.address), self.scope)

    def order(self) -> tuple[int, int, str, str]:
        """What decides between claims of one address: the least wins."""
        return (RANK[self.type], rank(self.source), self.created or UNKNOWN_AGE, self.service)


def compute(  # hot:
    reader: Reader, key: FrontendKey, *, node: str, which: Which, rules: ClaimRules
) -> Iterable[Frontend]:
    """The frontends at an address: those of the strongest claim, if its calls are Isthmus's to answer."""
    claims = claims_at(reader, key, node=node, which=which, rules=rules)
    if not claims:
        return ()
    winner = claims[0] if len(claims) == 1 else min(claims, key=Claim.order)
    shadowed = tuple(sorted({claim.service for claim in claims} - {winner.service})) if len(claims) > 1 else ()
    redirect = None if winner.other_proxy else of_plan(reader, winner.plan)
    if redirect is None:
        return (_frontend(winner, key, winner.plan, shadowed),) if winner.managed else ()
    # Three cases: a local redirect of an address that was not allocated does not mean its calls; one that skips its own
    # pods leaves them the original, where that is answered here; any other redirect means all calls.
    original = replace(winner.plan, scope=winner.scope.original())
    kept = (winner.managed and winner.type != "LocalRedirect") or of_plan(reader, original) is not None
    if redirect.kind == "local" and winner.type not in ALLOCATED:
        return (_frontend(winner, key, original, shadowed),) if kept else ()
    beside = replace(key, scope=key.scope.original())
    skipping = (_frontend(winner, beside, original, shadowed),) if redirect.skip and kept else ()
    return (*skipping, _frontend(winner, key, winner.plan, shadowed))


def uncontested(service: Service) -> list[Frontend]:  # hot:
    """The frontends of a managed Service of type ClusterIP that no other claims and nothing redirects.

    Of what ``exposures`` knows such a Service has its cluster IPs, and one traffic policy: that for calls from inside.
    """
    name, import_of, ports = service.name, service.import_of, service.ports
    if service.headless:
        return []
    found = [
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
    if len(found) < 2:
        return found
    first: dict[FrontendKey, Frontend] = {}  # of two ports of one number and protocol the first counts
    for row in found:
        first.setdefault(row.key, row)
    return list(first.values())


def _frontend(claim: Claim, key: FrontendKey, plan: PlanKey, shadowed: tuple[ServiceName, ...]) -> Frontend:
    return Frontend(key, claim.service, claim.port.name, plan, claim.type, shadowed, claim.import_of)


def claimed(reader: Reader, name: ServiceName, *, node: str) -> list[FrontendKey]:
    """Every address and port that a service claims, whoever has it."""
    node_addresses = addresses_of_node(reader, node)
    found: list[FrontendKey] = []
    for service in reader.by(SERVICES, "name", name):
        found += keys(exposures(service, node_addresses=node_addresses), service.ports)
    for imported in reader.by(IMPORTS, "service", name):
        found += keys_of_import(imported)
    pod = reader.get(ISLAND_PODS, name)
    if pod is not None:
        found += [claim.key for claim in _claims_of_pod(pod)]
    for redirect in reader.by(REDIRECTS, "service", name):
        found += [claim.key for claim in _claims_of_redirect(redirect)]
    return found


def claims_at(reader: Reader, key: FrontendKey, *, node: str, which: Which, rules: ClaimRules) -> list[Claim]:  # hot:
    """Every claim on an address and port that counts."""
    node_addresses = addresses_of_node(reader, node)
    services = reader.by(SERVICES, "address", key.address)
    if key.address in node_addresses:
        services += reader.by(SERVICES, "node_port", (key.port, key.protocol))
    of_a_node = key.port in NODE_PORTS and bool(reader.by(NODES, "address", key.address))
    claims: list[Claim] = []
    for name in {row.name: None for row in services}:
        service = best(reader, name)
        if service is not None:
            found = _claims(service, key, node_addresses=node_addresses, which=which, of_a_node=of_a_node)
            claims += [each for each in found if _counts(reader, service, each, node=node, rules=rules)]
    for row in reader.by(IMPORTS, "address", key.address):
        if row.type != "ClusterSetIP" or not stands_alone(reader, row):
            continue
        if refusals.of_import(reader, row, key.address, rules=rules) is None:
            claims += [claim for claim in _claims_of_import(reader, row) if claim.key == key]
    for pod in reader.by(ISLAND_PODS, "address", key.address):
        claims += [claim for claim in _claims_of_pod(pod) if claim.key == key]
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
    service: Service, key: FrontendKey, *, node_addresses: Collection[str], which: Which, of_a_node: bool
) -> Iterator[Claim]:
    """What a Service claims of one address and port: none, one, or several for as many reasons."""
    for exposure in exposures(service, node_addresses=node_addresses):
        if key.address not in exposure.addresses or key.scope is not exposure.at:
            continue
        if of_a_node and exposure.type in ("LoadBalancer", "ExternalIP"):
            continue  # what sends the node ports of a node elsewhere would take them from all Services that have one
        for port in service.ports:
            if exposure.port_of(port) == key.port and port.protocol == key.protocol:
                yield Claim(
                    key=key,
                    type=exposure.type,
                    service=service.name,
                    import_of=service.import_of,
                    port=port,
                    source=service.source,
                    created=service.created,
                    managed=wanted(service, which),
                    other_proxy=served_elsewhere(service),
                    scope=exposure.plan,
                )


def _claims_of_import(reader: Reader, row: Import) -> Iterator[Claim]:
    service = row.derived_service
    if best(reader, service) is not None:
        return
    for address in row.ips:
        for port in row.ports:
            key = FrontendKey(address, port.port, port.protocol)
            yield Claim(key, "Import", service, row.name, port, KUBERNETES, "", True, False, Scope.EXTERNAL)


def _claims_of_pod(row: IslandPod) -> Iterator[Claim]:
    for address in row.addresses:
        for port in row.ports:
            key = FrontendKey(address, port.port, port.protocol)
            yield Claim(key, "IslandPod", row.name, row.import_of, port, row.source, "", True, False, Scope.EXTERNAL)


def _claims_of_redirect(row: Redirect) -> Iterator[Claim]:
    """The claims of a redirect of an address: at the ports that have a target of that family."""
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


def addresses_of_node(reader: Reader, node: str) -> tuple[str, ...]:
    """This node's addresses: node ports are called at each of them."""
    row = reader.get(NODES, node)
    return row.addresses if row else ()
