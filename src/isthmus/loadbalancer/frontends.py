"""Frontends: the addresses that are called, each with the one service that answers there.

A claim is a service's wish to answer at an address; the winner follows from the claims alone: what was given by the
API server before what anybody may write into a spec, explicit addresses before those a node lends, then the better
source, the older service, the name. A winner that is not ours to answer (a plain Service) leaves the address alone:
nobody takes it over by claiming it too.

The unit is one address and port, found through indexes in either direction, so a change costs what it changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final, Literal, NamedTuple

from isthmus.loadbalancer.services import (
    Which,
    best,
    is_best,
    rank,
    stands_alone,
    wanted,
)
from isthmus.model import names
from isthmus.model.balancing import Frontend, FrontendKey, PlanKey, Scope
from isthmus.model.names import ServiceName
from isthmus.model.services import Family, Import, Port, Protocol, Service
from isthmus.model.tables import FRONTENDS, IMPORTS, SERVICES
from isthmus.statedb import Derived, Reader

Type = Literal["ClusterIP", "NodePort", "ExternalIP", "LoadBalancer", "HostPort", "Import", "LocalRedirect"]

RANK: Final[dict[str, int]] = {
    "ClusterIP": 0,  # allocated: nobody can wish for a taken one
    "LoadBalancer": 1,  # from a status, which takes rights to write
    "Import": 2,
    "ExternalIP": 3,  # from a spec: whoever may write a Service may write any address
    "HostPort": 4,
    "NodePort": 5,
}

UNKNOWN_AGE: Final = "~"
"""Sorts after every date: who does not know its age is the youngest."""


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

    def order(self) -> tuple[int, int, str, str]:
        """What decides between claims of one address: the least wins."""
        return (RANK[self.type], rank(self.source), self.created or UNKNOWN_AGE, self.service)


def derived(*, which: Which) -> Derived[Frontend]:
    """The declaration of the table."""
    return Derived(
        FRONTENDS,
        compute=partial(compute, which=which),
        reads={SERVICES: by_service, IMPORTS: by_import},
    )


def compute(reader: Reader, key: FrontendKey, *, which: Which) -> Iterable[Frontend]:
    """The frontend at an address: that of the strongest claim, if it is ours to answer."""
    claims = sorted(_claims_at(reader, key, which=which), key=Claim.order)
    if not claims or not claims[0].ours:
        return ()
    winner = claims[0]
    losers = sorted({claim.service for claim in claims} - {winner.service})
    return (
        Frontend(
            key=key,
            service=winner.service,
            port_name=winner.port.name,
            plan=PlanKey(winner.service, winner.port.port, key.protocol, family(key.address), key.scope),
            type=winner.type,
            shadowed=tuple(losers),
            import_of=winner.import_of,
        ),
    )


def family(address: str) -> Family:
    """The address family of canonical text."""
    return "IPv6" if ":" in address else "IPv4"


def by_service(reader: Reader, old: Service | None, new: Service | None) -> Iterator[FrontendKey]:
    """A Service affects its own addresses, those of its rows from other sources, and those of its import."""
    rows = [row for row in (old, new) if row is not None]
    for row in (*rows, *reader.by(SERVICES, "name", rows[0].name)):
        yield from (key for key, _, _ in _addresses(row))
        imported = reader.get(IMPORTS, row.import_of) if row.import_of else None
        for each in (imported, *reader.by(IMPORTS, "service", row.name)):
            if each is not None:
                yield from _keys_of_import(each)


def by_import(reader: Reader, old: Import | None, new: Import | None) -> Iterator[FrontendKey]:
    """An import affects its own addresses."""
    for row in (old, new):
        if row is not None:
            yield from _keys_of_import(row)


def _claims_at(reader: Reader, key: FrontendKey, *, which: Which) -> Iterator[Claim]:
    for service in reader.by(SERVICES, "address", key.address):
        if is_best(reader, service):
            yield from (claim for claim in _claims(service, which=which) if claim.key == key)
    for row in reader.by(IMPORTS, "address", key.address):
        if row.type == "ClusterSetIP" and stands_alone(reader, row):
            yield from (claim for claim in _claims_of_import(reader, row) if claim.key == key)


def _claims(service: Service, *, which: Which) -> Iterator[Claim]:
    ours = wanted(service, which)
    for key, type_, port in _addresses(service):
        yield Claim(key, type_, service.name, service.import_of, port, service.source, service.created, ours)


def _claims_of_import(reader: Reader, row: Import) -> Iterator[Claim]:
    service = names.derived(row.name)
    if best(reader, service) is not None:
        return
    for address in row.ips:
        for port in row.ports:
            key = FrontendKey(address, port.port, port.protocol)
            yield Claim(key, "Import", service, row.name, port, "kubernetes", "", True)


def _keys_of_import(row: Import) -> Iterator[FrontendKey]:
    for address in row.ips:
        for port in row.ports:
            yield FrontendKey(address, port.port, port.protocol)


def _addresses(service: Service) -> Iterator[tuple[FrontendKey, Type, Port]]:
    """Every address and port a Service is called at, with what kind of address it is."""
    if not service.headless:
        yield from _expand(service, "ClusterIP", service.cluster_ips, (Scope.EXTERNAL,))
    yield from _expand(service, "ExternalIP", service.external_ips, (Scope.EXTERNAL,))
    if service.type == "LoadBalancer":
        yield from _expand(service, "LoadBalancer", service.load_balancer_ips, _scopes(service))


def _expand(
    service: Service, type_: Type, addresses: Iterable[str], scopes: Iterable[Scope]
) -> Iterator[tuple[FrontendKey, Type, Port]]:
    for address in addresses:
        for port in service.ports:
            protocol: Protocol = port.protocol
            for scope in scopes:
                yield FrontendKey(address, port.port, protocol, scope), type_, port


def _scopes(service: Service) -> tuple[Scope, ...]:
    """Calls from inside and from outside differ only where the two policies do."""
    differ = service.internal_policy != service.external_policy
    return (Scope.EXTERNAL, Scope.INTERNAL) if differ else (Scope.EXTERNAL,)
