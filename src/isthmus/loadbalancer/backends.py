"""Backends: the addresses that answer for a service, joined over clusters and sources.

Precedence is for the whole set of (service, cluster): the best source that speaks of it is right about all of it, so
a lagging copy brings nothing back that a record withdrew. Ports are matched by name and protocol against those of the
service: what an endpoint offers beyond them is no backend. A headless service has its endpoints' own ports.

The unit is a service. Addresses that are not ready are rows too, with their condition, and so are those that probes
find dead: the plan leaves them out. A probe of what is no backend (any more) means nothing.

What runs on another network cannot be called from here, and its addresses may be those of others: it is no backend.

What a cluster said that has been away too long has lapsed: it stands behind every other source, and of it those are
backends that a probe finds alive now. Who was never probed goes, and who does not answer goes for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from msgspec.structs import replace

from isthmus.loadbalancer.services import Effective, Which, effective, names_for_import, rank
from isthmus.model.balancing import Backend, BackendKey, Probe
from isthmus.model.clusters import Cluster, flat
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Endpoint, EndpointSet, Import, Port, Protocol, Service
from isthmus.model.tables import BACKENDS, CLUSTERS, ENDPOINT_SETS, IMPORTS, PROBES, SERVICES
from isthmus.statedb import Derived, Reader

Sockets = dict[tuple[str, int, Protocol], list[tuple[str, Endpoint]]]
"""What offers an address and port, each with the name its port has there; best first."""


def derived(cluster: ClusterName, *, which: Which) -> Derived[Backend]:
    """The declaration of the table, as the own cluster of this name sees it."""
    return Derived(
        BACKENDS,
        compute=partial(compute, cluster=cluster, which=which),
        reads={
            ENDPOINT_SETS: by_endpoints,
            SERVICES: by_service,
            IMPORTS: by_import,
            PROBES: by_probe,
            CLUSTERS: by_cluster,
        },
        unit="service",
    )


def by_endpoints(reader: Reader, old: EndpointSet | None, new: EndpointSet | None) -> Iterator[ServiceName]:
    """A part of a service's endpoints affects that service."""
    row = new or old
    if row is not None:
        yield row.service


def by_service(reader: Reader, old: Service | None, new: Service | None) -> Iterator[ServiceName]:
    """A Service affects itself, and what stood for its import while it was not there."""
    for row in (old, new):
        if row is not None:
            yield row.name
            if row.import_of:
                yield from names_for_import(reader, reader.get(IMPORTS, row.import_of))


def by_import(reader: Reader, old: Import | None, new: Import | None) -> Iterator[ServiceName]:
    """An import affects the service that stands for it."""
    yield from names_for_import(reader, old, new)


def by_probe(reader: Reader, old: Probe | None, new: Probe | None) -> Iterator[ServiceName]:
    """What a probe found affects the service whose backend it is."""
    row = new or old
    if row is not None:
        yield row.key.service


def by_cluster(reader: Reader, old: Cluster | None, new: Cluster | None) -> Iterator[ServiceName]:
    """A cluster that is on another network than before affects what it has endpoints of; the own one all that is."""
    row = new or old
    if row is not None and not flat(old, new):
        for each in reader.all(ENDPOINT_SETS) if row.own else reader.by(ENDPOINT_SETS, "cluster", row.name):
            yield each.service


def compute(reader: Reader, service: ServiceName, *, cluster: ClusterName, which: Which) -> Iterator[Backend]:
    """Every backend of a service."""
    subject = effective(reader, service, which=which)
    if subject is None:
        return
    own = reader.get(CLUSTERS, cluster)
    alive = {row.key: row.healthy for row in reader.by(PROBES, "service", service)}
    for (of, source), sets in _best_sets(reader.by(ENDPOINT_SETS, "service", service), cluster).items():
        if of != cluster and not (subject.multicluster and flat(own, reader.get(CLUSTERS, of))):
            continue
        found = _backends(subject, of, source, sets, shared=of != cluster)
        if sets[0].lapsed:  # a source lapses as a whole
            yield from (replace(row, lapsed=True) for row in found if alive.get(row.key))
        else:
            yield from (replace(row, healthy=alive.get(row.key, True)) for row in found) if alive else found


def _best_sets(rows: Iterable[EndpointSet], cluster: ClusterName) -> dict[tuple[ClusterName, str], list[EndpointSet]]:
    """The sets of the best source of each cluster, by cluster and source; a source that gives no name is ours."""
    sources: dict[ClusterName, dict[str, list[EndpointSet]]] = {}
    for row in rows:
        sources.setdefault(row.cluster or cluster, {}).setdefault(row.source, []).append(row)
    chosen = {
        of: min(found, key=lambda source: (found[source][0].lapsed, rank(source), source))
        for of, found in sources.items()
    }
    return {(of, source): sources[of][source] for of, source in chosen.items()}


def _backends(
    subject: Effective, cluster: ClusterName, source: str, sets: list[EndpointSet], *, shared: bool
) -> Iterator[Backend]:
    wanted = {(port.name, port.protocol) for port in subject.ports}
    sockets: Sockets = {}
    for part in sorted(sets, key=lambda row: row.part):
        if shared and not part.shared:
            continue
        for endpoint in part.endpoints:
            for port in _ports(subject, endpoint):
                if subject.headless or (port.name, port.protocol) in wanted:
                    at = (endpoint.address, port.port, port.protocol)
                    sockets.setdefault(at, []).append((port.name, endpoint))
    for (address, number, protocol), offers in sockets.items():
        key = BackendKey(subject.name, cluster, address, number, protocol)
        yield _backend(subject, key, source, offers)


def _ports(subject: Effective, endpoint: Endpoint) -> tuple[Port, ...]:
    """A headless service without ports still has addresses: they are backends with no port."""
    return endpoint.ports or ((Port("", 0),) if subject.headless else ())


def _backend(subject: Effective, key: BackendKey, source: str, offers: list[tuple[str, Endpoint]]) -> Backend:
    """One row for what may be offered several times: under two port names, or while it moves between slices."""
    name, best = offers[0]
    port_names: tuple[str, ...] = (name,)
    if len(offers) > 1:
        best = min((endpoint for _, endpoint in offers), key=lambda endpoint: endpoint.condition)
        port_names = tuple(sorted({name for name, _ in offers}))
    return Backend(
        key=key,
        port_names=port_names,
        condition=best.condition,
        source=source,
        hostname=best.hostname,
        node=best.node,
        zone=best.zone,
        for_zones=best.for_zones,
        pod=best.pod,
        import_of=subject.import_of,
    )
