"""Chooses the redirect in effect, as rows: at most one for each port of a service in each family.

Precedence for each port: local redirects before proxies (a policy that keeps calls on the node applies whatever proxy
is configured), and proxies before TCPRoutes and UDPRoutes, which the kernel follows; then the older, then the owner's
name. An owner's rule for one port precedes its rule for all ports. A redirect without a target of the port, protocol
and family has no effect: without a ready pod there is no redirect. When the winner is deleted the next one takes
effect, and at last the service's own backends.

A redirect for callers of one namespace applies to them instead of the redirect for all callers, unless that one is a
local redirect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from isthmus.loadbalancer.services import UNKNOWN_AGE, best
from isthmus.model.balancing import Consumer, PlanKey, Target
from isthmus.model.l4_routes import RoutedPort
from isthmus.model.names import ServiceName
from isthmus.model.redirects import PortRedirect, Redirect, RedirectedPort, Rule
from isthmus.model.services import Family, Port, Protocol
from isthmus.model.tables import IMPORTS, PORT_REDIRECTS, REDIRECTS, ROUTED_PORTS, SERVICES
from isthmus.statedb import DerivedTogether, Pairs, PendingWrites, Reader, WriteTxn, per_row, unit_of

FAMILIES: Final[tuple[Family, ...]] = ("IPv4", "IPv6")


def derived() -> DerivedTogether:
    """Declare the table."""
    return DerivedTogether(
        PORT_REDIRECTS,
        renew=renew,
        reads={
            REDIRECTS: per_row(unit_of("service")),
            ROUTED_PORTS: per_row(unit_of("key.service")),
            SERVICES: by_services,
            IMPORTS: by_imports,
        },
    )


def renew(txn: WriteTxn, services: Iterable[ServiceName]) -> None:
    """Compute these services and write the rows that differ."""
    current, writes = txn.finder(PORT_REDIRECTS, "service"), PendingWrites(txn, PORT_REDIRECTS)
    for service in services:
        writes.rewrite(current(service), list(compute(txn, service)))
    writes.flush()


def compute(reader: Reader, service: ServiceName) -> Iterator[PortRedirect]:
    """Yield the redirect of each redirected port of a service, in each family."""
    rows = sorted(reader.by(REDIRECTS, "service", service), key=order)
    ruled = [Ruled(row, _by_port(row)) for row in rows]
    routed = {row.key: row for row in reader.by(ROUTED_PORTS, "service", service)}
    for port in _ports(reader, service, rows) if rows or routed else ():
        for family in FAMILIES:
            for original in (False, True):
                key = RedirectedPort(service, port.port, port.protocol, family, original)
                of_route = routed.get(replace(key, original=False)) if routed else None
                if (redirect := override(ruled, key, port_name=port.name, of_route=of_route)) is not None:
                    yield redirect


class Ruled(NamedTuple):
    """A redirect with its rules indexed by port and protocol: service and redirect may have thousands of ports."""

    row: Redirect
    rules: Mapping[tuple[int, Protocol], Sequence[Rule]]


def _by_port(row: Redirect) -> dict[tuple[int, Protocol], Sequence[Rule]]:
    by_port: dict[tuple[int, Protocol], list[Rule]] = {}
    for rule in row.rules:
        by_port.setdefault((rule.port, rule.protocol), []).append(rule)
    return {**by_port}


def override(
    redirects: Iterable[Ruled], key: RedirectedPort, *, port_name: str, of_route: RoutedPort | None = None
) -> PortRedirect | None:
    """Return the first redirect, in order of precedence, with a target for these calls, and redirects of consumers.

    ``of_route`` is what the port's TCPRoute or UDPRoute makes of it.
    """
    consumers: dict[str, tuple[Redirect, Target]] = {}
    unrestricted: PortRedirect | None = None
    for redirect in redirects:
        row = redirect.row
        if (row.kind == "local" and key.original) or (not row.callers and unrestricted is not None):
            continue
        if targets := targets_of(redirect, key, port_name=port_name):
            if row.callers:
                consumers.setdefault(row.callers, (row, targets[0]))
            else:
                unrestricted = PortRedirect(key=key, owner=row.owner, kind=row.kind, targets=targets, skip=row.skip)
    if unrestricted is None and of_route is not None:
        unrestricted = PortRedirect(key=key, owner=of_route.owner, kind="route", targets=(), groups=of_route.groups)
    if not consumers or (unrestricted is not None and unrestricted.kind == "local"):
        return unrestricted
    targets_by_namespace = tuple(Consumer(name, target) for name, (_, target) in sorted(consumers.items()))
    if unrestricted is not None:
        return replace(unrestricted, consumers=targets_by_namespace)
    oldest, _ = next(iter(consumers.values()))
    return PortRedirect(key=key, owner=oldest.owner, kind="proxy", targets=(), consumers=targets_by_namespace)


def of_plan(reader: Reader, key: PlanKey) -> PortRedirect | None:
    """Return the redirect in effect for calls of a plan."""
    if key.family == "any":
        return None  # a plan of Envoy, which no redirect applies to
    redirected_port = RedirectedPort(key.service, key.port, key.protocol, key.family, key.scope.is_original)
    return reader.get(PORT_REDIRECTS, redirected_port)


def by_services(reader: Reader, changed: Pairs) -> Iterable[ServiceName]:  # hot:
    """A Service affects its redirects, if any."""
    redirected = reader.finder(REDIRECTS, "service")
    return [name for old, new in changed if redirected(name := (new or old).name) is not None]


def by_imports(reader: Reader, changed: Pairs) -> Iterable[ServiceName]:  # hot:
    """An import affects the redirects of its derived Service, if any."""
    redirected = reader.finder(REDIRECTS, "service")
    return [name for old, new in changed if redirected(name := (new or old).derived_service) is not None]


def _ports(reader: Reader, service: ServiceName, rows: Iterable[Redirect]) -> Iterable[Port]:
    """Return the ports of a service or its import; without either, those of redirects of an address."""
    if (service_row := best(reader, service)) is not None:
        return service_row.ports
    for imported in reader.by(IMPORTS, "service", service):
        return imported.ports
    return [Port("", rule.port, rule.protocol) for row in rows if row.address for rule in row.rules]


def targets_of(redirect: Ruled, key: RedirectedPort, *, port_name: str) -> tuple[Target, ...]:
    """Return the targets to which one redirect sends calls of a port; empty if it does not apply."""
    for number in (key.port, 0):
        for rule in redirect.rules.get((number, key.protocol), ()):
            if rule.port_name is None or rule.port_name == port_name.lower():
                targets = tuple(target for target in rule.targets if (":" in target.address) == (key.family == "IPv6"))
                if targets:
                    return targets
    return ()


def order(row: Redirect) -> tuple[bool, str, str]:
    """Sort key of redirects of one port: the smallest wins."""
    return (row.kind != "local", row.created or UNKNOWN_AGE, row.owner)
