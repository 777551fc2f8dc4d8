"""Which redirect counts, as rows: for each port of a service in each family, at most one.

Precedence, for each port by itself: local redirects before proxies (a policy that sends calls to the own node means the
node, whatever stands in between), then the older, then the owner. What an owner states of one port comes before what it
states of all. One without a target of the port, protocol and family has no effect: no ready pod, no redirect. All
others wait behind the winner, and the backends of the service behind them: whichever goes, the next one is computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from isthmus.loadbalancer.services import UNKNOWN_AGE, best
from isthmus.model.balancing import PlanKey, Target
from isthmus.model.names import ServiceName
from isthmus.model.redirects import PortRedirect, Redirect, RedirectedPort
from isthmus.model.services import Family, Port
from isthmus.model.tables import IMPORTS, PORT_REDIRECTS, REDIRECTS, SERVICES
from isthmus.statedb import DerivedTogether, Pairs, PendingWrites, Reader, WriteTxn, each

FAMILIES: Final[tuple[Family, ...]] = ("IPv4", "IPv6")


def derived() -> DerivedTogether:
    """The declaration of the table."""
    return DerivedTogether(
        PORT_REDIRECTS,
        renew=renew,
        reads={REDIRECTS: each(by_redirect), SERVICES: by_services, IMPORTS: by_imports},
    )


def renew(txn: WriteTxn, services: Iterable[ServiceName]) -> None:
    """Make the rows of these services what they are computed to be."""
    present, writes = txn.finder(PORT_REDIRECTS, "service"), PendingWrites(txn, PORT_REDIRECTS)
    for service in services:
        writes.rewrite(present(service), list(compute(txn, service)))
    writes.flush()


def compute(reader: Reader, service: ServiceName) -> Iterator[PortRedirect]:
    """Where calls of each port of a service go, in each family; nothing for those that are not redirected."""
    rows = sorted(reader.by(REDIRECTS, "service", service), key=order)
    for port in _ports(reader, service, rows) if rows else ():
        for family in FAMILIES:
            for original in (False, True):
                key = RedirectedPort(service, port.port, port.protocol, family, original)
                if (row := override(rows, key, port_name=port.name)) is not None:
                    yield row


def override(rows: Iterable[Redirect], key: RedirectedPort, *, port_name: str) -> PortRedirect | None:
    """The first of these redirects, in order of precedence, that has a target for such calls."""
    for row in rows:
        if row.kind == "local" and key.original:
            continue
        if targets := targets_of(row, key, port_name=port_name):
            return PortRedirect(key=key, owner=row.owner, kind=row.kind, targets=targets, skip=row.skip)
    return None


def of_plan(reader: Reader, key: PlanKey) -> PortRedirect | None:
    """The redirect that counts for calls of a plan."""
    at = RedirectedPort(key.service, key.port, key.protocol, key.family, key.scope.is_original)
    return reader.get(PORT_REDIRECTS, at)


def by_redirect(reader: Reader, old: Redirect | None, new: Redirect | None) -> Iterator[ServiceName]:
    """A redirect affects its service."""
    row = new or old
    if row is not None:
        yield row.service


def by_services(reader: Reader, changed: Pairs) -> Iterable[ServiceName]:  # hot:
    """A Service affects its own redirects, where it has some."""
    redirected = reader.finder(REDIRECTS, "service")
    return [name for old, new in changed if redirected(name := (new or old).name) is not None]


def by_imports(reader: Reader, changed: Pairs) -> Iterable[ServiceName]:  # hot:
    """An import affects the redirects of what stands for it, where there are some."""
    redirected = reader.finder(REDIRECTS, "service")
    return [name for old, new in changed if redirected(name := (new or old).derived_service) is not None]


def _ports(reader: Reader, service: ServiceName, rows: Iterable[Redirect]) -> Iterable[Port]:
    """The ports that a service has; where there is none, those that a redirect of an address has."""
    if (found := best(reader, service)) is not None:
        return found.ports
    for imported in reader.by(IMPORTS, "service", service):
        return imported.ports
    return [Port("", rule.port, rule.protocol) for row in rows if row.address for rule in row.rules]


def targets_of(row: Redirect, key: RedirectedPort, *, port_name: str) -> tuple[Target, ...]:
    """Where one redirect sends calls of a plan; nowhere where it does not mean them."""
    for number in (key.port, 0):
        for rule in row.rules:
            named = rule.port_name is None or rule.port_name == port_name.lower()
            if rule.port == number and rule.protocol == key.protocol and named:
                found = tuple(target for target in rule.targets if (":" in target.address) == (key.family == "IPv6"))
                if found:
                    return found
    return ()


def order(row: Redirect) -> tuple[bool, str, str]:
    """What decides between redirects of one port: the least wins."""
    return (row.kind != "local", row.created or UNKNOWN_AGE, row.owner)
