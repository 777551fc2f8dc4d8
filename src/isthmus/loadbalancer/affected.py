"""Maps changed rows to the services whose frontends, backends or plans may change with them.

Several services may claim one address, so a row that claims it, or did before the change, affects every claimant. All
look-ups use indexes: the cost of a change grows with what it affects, not with the size of the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from isthmus.loadbalancer import backends, plans
from isthmus.loadbalancer.frontends import addresses_of_node
from isthmus.model.names import ServiceName
from isthmus.model.services import Import, Protocol, Service
from isthmus.model.tables import FRONTENDS, IMPORTS, ISLAND_PODS, REDIRECTS, SERVICES
from isthmus.statedb import Pairs, Reader, Rows, rows_of

Names = Iterable[ServiceName]
Find = Callable[[Any], Any]
"""``Reader.finder``: from a value of an index to one row, a dict of several, or None."""


def by_probes(reader: Reader, changed: Pairs) -> Names:
    """A probe's result affects the service of its backend."""
    return [(new or old).key.service for old, new in changed]


def by_port_redirects(reader: Reader, changed: Pairs) -> Names:
    """A port redirect affects its service: it decides whether Isthmus answers the service's addresses."""
    return [(new or old).key.service for old, new in changed]


def by_redirects(reader: Reader, changed: Pairs, *, node: str) -> Iterator[ServiceName]:
    """A redirect of an address affects every claimant of that address."""
    of_node = addresses_of_node(reader, node)
    for row in _rows(changed):
        if row.address:
            yield row.service
            yield from _claimants(reader, row.address)
            if row.address in of_node:
                yield from _on_ports(reader, ((rule.port, rule.protocol) for rule in row.rules))


def by_services_and_imports(reader: Reader, services: Pairs, imports: Pairs, *, node: str) -> list[ServiceName]:  # hot:
    """Return the services affected by changed Services and imports."""
    claims = _claims(reader, node)
    settled: Settled = {}
    affected = _by_services(reader, services, claims, settled)
    for pair in imports:
        for row in pair:
            if row is not None:
                service = settled.get(row.name)  # usually changed together with the import
                if service is None or service.name != row.derived_service or service.cluster_ips != row.ips:
                    affected += _by_import(reader, row, claims)
    return affected


def _by_services(reader: Reader, changed: Pairs, claims: _Claims, settled: Settled) -> list[ServiceName]:  # hot:
    """A Service affects itself, every claimant of its addresses, and the services that represent its import.

    Adds the import to ``settled`` if nothing else claims those addresses.
    """
    services_named, imports = reader.finder(SERVICES, "name"), reader.finder(IMPORTS, "service")
    services_at, imports_at, redirects_at, pods_at, labelled, _, of_node = claims
    affected: list[ServiceName] = []
    for old, new in changed:
        name = (new or old).name
        affected.append(name)
        own_import = imports(name)  # by its derived name, which an unlabelled Service may have too
        for row in (old, new):
            if row is None:
                continue
            addresses = _addresses(row)
            for address in addresses:
                # Usually its only claimant is itself, or none once it is deleted.
                claimant, imported = services_at(address), imports_at(address)
                if (claimant is not None and claimant is not new) or redirects_at(address) or pods_at(address):
                    affected += _claimants(reader, address)
                elif imported is not None and (type(imported) is not Import or imported.name != row.import_of):
                    affected += _claimants(reader, address)  # its own import is handled below
            off_node = of_node.isdisjoint(addresses)
            if row.import_of:
                is_only_service = labelled(row.import_of) is new
                if not is_only_service or not _claims_its_addresses_only(row, own_import):
                    affected += _of_import(reader, row.import_of, claims)
                if is_only_service and off_node:
                    settled[row.import_of] = row
            if row.type != "ClusterIP" or not off_node:
                affected += _on_node(reader, row, of_node)
        if services_named(name) is not new:  # several sources define it, and the best one applies as a whole
            for row in reader.by(SERVICES, "name", name):
                affected += _of_one(reader, row, claims)
        if own_import is None or (new is not None and type(own_import) is Import and own_import.name == new.import_of):
            continue
        for imported in rows_of(own_import):
            if (old is None or old.import_of != imported.name) and (new is None or new.import_of != imported.name):
                affected += _of_import(reader, imported.name, claims)
    return affected


def by_nodes(reader: Reader, changed: Pairs, *, node: str) -> Iterator[ServiceName]:
    """A node's added and removed addresses affect their claimants; this node's, also every Service exposed on nodes."""
    for old, new in changed:
        moved = set(old.addresses if old else ()) ^ set(new.addresses if new else ())
        if moved and (new or old).name == node:
            for service in reader.by(SERVICES, "exposed", True):
                yield service.name
            for address in moved:
                yield from (row.service for row in reader.by(FRONTENDS, "node_address", address))
        for address in moved:
            yield from _claimants(reader, address)
        yield from plans.by_node(reader, old, new, node=node)


def by_island_pods(reader: Reader, changed: Pairs) -> Iterator[ServiceName]:
    """A pod of an island affects itself and every claimant of its addresses."""
    for row in _rows(changed):
        yield row.name
        for address in row.addresses:
            yield from _claimants(reader, address)


def by_clusters(reader: Reader, changed: Pairs) -> Iterator[ServiceName]:
    """A cluster affects the services it has endpoints of if its reachability changes, and services with a policy."""
    for old, new in changed:
        yield from backends.by_cluster(reader, old, new)
        yield from plans.by_cluster(reader, old, new)


def _rows(changed: Pairs) -> Iterator[Any]:
    return (row for pair in changed for row in pair if row is not None)


Settled = dict[ServiceName, Service]
"""For each import, the one Service labelled with it (or deleted last) whose claimants have all been found already.

An import with that Service's name and addresses affects no other service.
"""


class _Claims(NamedTuple):
    """Look-ups of a batch for claims of addresses and for Services of imports. Valid as long as the reader."""

    services: Find
    imports: Find
    redirects: Find
    pods: Find
    labelled: Find
    """Services labelled with an import, by the import's name."""
    named: Find
    """Imports by name."""
    of_node: frozenset[str]


def _claims(reader: Reader, node: str) -> _Claims:
    return _Claims(
        reader.finder(SERVICES, "address"),
        reader.finder(IMPORTS, "address"),
        reader.finder(REDIRECTS, "address"),
        reader.finder(ISLAND_PODS, "address"),
        reader.finder(SERVICES, "import"),
        reader.getter(IMPORTS),
        frozenset(addresses_of_node(reader, node)),
    )


def _addresses(row: Service) -> tuple[str, ...]:
    return row.cluster_ips + row.external_ips + row.load_balancer_ips


def _claimants(reader: Reader, address: str) -> Iterator[ServiceName]:
    """Every claimant that names an address. Node ports do not name addresses: see ``_on_ports``."""
    yield from (row.name for row in reader.by(SERVICES, "address", address))
    yield from (row.derived_service for row in reader.by(IMPORTS, "address", address))
    yield from (row.service for row in reader.by(REDIRECTS, "address", address))
    yield from (row.name for row in reader.by(ISLAND_PODS, "address", address))


def _on_ports(reader: Reader, ports: Iterable[tuple[int, Protocol]]) -> Iterator[ServiceName]:
    """Services that claim these numbers as node ports."""
    for port in ports:
        yield from (row.name for row in reader.by(SERVICES, "node_port", port))


def _of_one(reader: Reader, row: Service, claims: _Claims) -> Iterator[ServiceName]:
    for address in _addresses(row):
        yield from _claimants(reader, address)
    if row.import_of:
        yield from _of_import(reader, row.import_of, claims)
    yield from _on_node(reader, row, claims.of_node)


def _on_node(reader: Reader, row: Service, of_node: frozenset[str]) -> Iterator[ServiceName]:
    """Claimants of this node's addresses and of the port numbers that a Service uses on nodes."""
    numbers = {(number, port.protocol) for port in row.ports for number in (port.port, port.node_port) if number}
    yield from _on_ports(reader, numbers)
    for address in of_node:
        yield from _claimants(reader, address)


def _claims_its_addresses_only(row: Service, imported: Rows) -> bool:
    """True if ``imported`` is the Service's only import and claims no addresses beyond the Service's."""
    return (
        type(imported) is Import
        and imported.name == row.import_of
        and (imported.ips == row.cluster_ips or set(imported.ips) <= set(_addresses(row)))
    )


def _of_import(reader: Reader, name: ServiceName, claims: _Claims) -> list[ServiceName]:
    row = claims.named(name)
    return _by_import(reader, row, claims) if row is not None else []


def _by_import(reader: Reader, row: Import, claims: _Claims) -> list[ServiceName]:  # hot:
    """An import affects its derived Service, Services labelled with it, and every claimant of its addresses."""
    own, labelled = row.derived_service, claims.labelled(row.name)
    affected = [own]
    if labelled is not None and (type(labelled) is dict or labelled.name != own):
        affected += [each.name for each in rows_of(labelled)]
    for address in row.ips:
        service, imported = claims.services(address), claims.imports(address)  # usually its own Service, and itself
        contested = (service is not None and service is not labelled) or (imported is not None and imported is not row)
        if contested or claims.redirects(address) is not None or claims.pods(address) is not None:
            affected += _claimants(reader, address)
        if address in claims.of_node:
            affected += _on_ports(reader, ((port.port, port.protocol) for port in row.ports))
    return affected
