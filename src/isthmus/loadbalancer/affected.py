"""Which services a changed row affects: those whose frontends, backends or plans may follow from it.

A batch of changed rows gives names of services. Since one address may be claimed by several, a row that claims it, or
did, affects every claimant. All of it goes through indexes: a change costs what it affects, whatever else there is.
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
    """What a probe found affects the service whose backend it is."""
    return [(new or old).key.service for old, new in changed]


def by_port_redirects(reader: Reader, changed: Pairs) -> Names:
    """A port that is redirected, or no more, affects its service: Isthmus may answer its addresses now."""
    return [(new or old).key.service for old, new in changed]


def by_redirects(reader: Reader, changed: Pairs, *, node: str) -> Iterator[ServiceName]:
    """A redirect of an address affects all who claim that address."""
    of_node = addresses_of_node(reader, node)
    for row in _rows(changed):
        if row.address:
            yield row.service
            yield from _claimants(reader, row.address)
            if row.address in of_node:
                yield from _on_ports(reader, ((rule.port, rule.protocol) for rule in row.rules))


def by_services_and_imports(reader: Reader, services: Pairs, imports: Pairs, *, node: str) -> list[ServiceName]:  # hot:
    """A Service and an import affect what :func:`_by_services` and :func:`_by_import` have."""
    claims = _claims(reader, node)
    settled: Settled = {}
    found = _by_services(reader, services, claims, settled)
    for pair in imports:
        for row in pair:
            if row is not None:
                service = settled.get(row.name)  # nearly always the one that comes, or goes, with it
                if service is None or service.name != row.derived_service or service.cluster_ips != row.ips:
                    found += _by_import(reader, row, claims)
    return found


def _by_services(reader: Reader, changed: Pairs, claims: _Claims, settled: Settled) -> list[ServiceName]:  # hot:
    """A Service affects itself, all who claim one of its addresses, and what stands for its import, which is added to
    ``settled`` where that is all."""
    named, imports = reader.finder(SERVICES, "name"), reader.finder(IMPORTS, "service")
    at, imports_at, redirects_at, pods_at, standing, _, of_node = claims
    found: list[ServiceName] = []
    for old, new in changed:
        name = (new or old).name
        found.append(name)
        stood_for = imports(name)  # by its hash, though the Service may not say so
        for row in (old, new):
            if row is None:
                continue
            addresses = _addresses(row)
            for address in addresses:
                alone, imported = at(address), imports_at(address)  # nearly always itself, or after its end none
                if (alone is not None and alone is not new) or redirects_at(address) or pods_at(address):
                    found += _claimants(reader, address)
                elif imported is not None and (type(imported) is not Import or imported.name != row.import_of):
                    found += _claimants(reader, address)  # not of the import that it stands for, which is next
            off_node = of_node.isdisjoint(addresses)
            if row.import_of:
                alone = standing(row.import_of) is new
                if not alone or not _claims_its_addresses_only(row, stood_for):
                    found += _of_import(reader, row.import_of, claims)
                if alone and off_node:
                    settled[row.import_of] = row
            if row.type != "ClusterIP" or not off_node:
                found += _on_node(reader, row, of_node)
        if named(name) is not new:  # several sources have it: the best of them counts, for all of it
            for row in reader.by(SERVICES, "name", name):
                found += _of_one(reader, row, claims)
        if stood_for is None or (new is not None and type(stood_for) is Import and stood_for.name == new.import_of):
            continue
        for imported in rows_of(stood_for):
            if (old is None or old.import_of != imported.name) and (new is None or new.import_of != imported.name):
                found += _of_import(reader, imported.name, claims)
    return found


def by_nodes(reader: Reader, changed: Pairs, *, node: str) -> Iterator[ServiceName]:
    """Addresses of a node that come or go affect all who claim them; this node's, every Service that is on nodes."""
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
    """A pod of an island affects itself, and all who claim its addresses."""
    for row in _rows(changed):
        yield row.name
        for address in row.addresses:
            yield from _claimants(reader, address)


def by_clusters(reader: Reader, changed: Pairs) -> Iterator[ServiceName]:
    """A cluster affects what it has endpoints of, where it is reached in another way, and what a policy shares out."""
    for old, new in changed:
        yield from backends.by_cluster(reader, old, new)
        yield from plans.by_cluster(reader, old, new)


def _rows(changed: Pairs) -> Iterator[Any]:
    return (row for pair in changed for row in pair if row is not None)


Settled = dict[ServiceName, Service]
"""By import: the one Service that is labelled as its own, or was, where all who claim an address of that Service were
found with it. An import with the name and the addresses of that Service affects nothing more."""


class _Claims(NamedTuple):
    """Who claims an address, and what stands for an import: functions of a batch, valid as long as its reader."""

    services: Find
    imports: Find
    redirects: Find
    pods: Find
    standing: Find
    """From an import's name to the Services that are labelled as its own."""
    named: Find
    """From an import's name to the import."""
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
    """All who claim an address by its name; node ports of this node's addresses do not name them (``_on_ports``)."""
    yield from (row.name for row in reader.by(SERVICES, "address", address))
    yield from (row.derived_service for row in reader.by(IMPORTS, "address", address))
    yield from (row.service for row in reader.by(REDIRECTS, "address", address))
    yield from (row.name for row in reader.by(ISLAND_PODS, "address", address))


def _on_ports(reader: Reader, ports: Iterable[tuple[int, Protocol]]) -> Iterator[ServiceName]:
    """All who claim these ports of this node's addresses as node ports."""
    for port in ports:
        yield from (row.name for row in reader.by(SERVICES, "node_port", port))


def _of_one(reader: Reader, row: Service, claims: _Claims) -> Iterator[ServiceName]:
    for address in _addresses(row):
        yield from _claimants(reader, address)
    if row.import_of:
        yield from _of_import(reader, row.import_of, claims)
    yield from _on_node(reader, row, claims.of_node)


def _on_node(reader: Reader, row: Service, of_node: frozenset[str]) -> Iterator[ServiceName]:
    """All who claim a port of this node that a Service claims: as a node port, or at an address that is the node's."""
    numbers = {(number, port.protocol) for port in row.ports for number in (port.port, port.node_port) if number}
    yield from _on_ports(reader, numbers)
    for address in of_node:
        yield from _claimants(reader, address)


def _claims_its_addresses_only(row: Service, imported: Rows) -> bool:
    """Whether the import that a Service stands for, found by its hash, claims addresses of that Service alone."""
    return (
        type(imported) is Import
        and imported.name == row.import_of
        and (imported.ips == row.cluster_ips or set(imported.ips) <= set(_addresses(row)))
    )


def _of_import(reader: Reader, name: ServiceName, claims: _Claims) -> list[ServiceName]:
    row = claims.named(name)
    return _by_import(reader, row, claims) if row is not None else []


def _by_import(reader: Reader, row: Import, claims: _Claims) -> list[ServiceName]:  # hot:
    """What stands for an import, by its hash or by its label, and all who claim its addresses."""
    own, standing = row.derived_service, claims.standing(row.name)
    found = [own]
    if standing is not None and (type(standing) is dict or standing.name != own):
        found += [each.name for each in rows_of(standing)]
    for address in row.ips:
        service, imported = claims.services(address), claims.imports(address)  # nearly always of those just named
        others = (service is not None and service is not standing) or (imported is not None and imported is not row)
        if others or claims.redirects(address) is not None or claims.pods(address) is not None:
            found += _claimants(reader, address)
        if address in claims.of_node:
            found += _on_ports(reader, ((port.port, port.protocol) for port in row.ports))
    return found
