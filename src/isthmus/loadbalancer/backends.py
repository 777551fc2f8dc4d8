"""Backends: the addresses that answer for a service, joined over clusters and sources.

Precedence applies to the whole set of (service, cluster): the best source that has one replaces all others, so that a
lagging copy cannot restore an endpoint that a record withdrew. Ports are matched with the service's by name and
protocol; other ports of an endpoint are no backends, unless they are a port of an import under another name, since
import and endpoints arrive one after the other. A headless service has its endpoints' own ports.

The unit is a service. Endpoints that are not ready, and those that fail their probes, are rows too: the plan leaves
them out. A probe of an address that is no backend has no effect.

Endpoints on another network cannot be called from here, and their addresses may be in use here: they are no backends.
If that cluster has gateways, this node's Envoy is a backend in their place (:mod:`.islands`).

A peer's record is used if the peer exports the service, without endpoints at addresses of the own cluster. For a
Service that a MultiClusterService of Karmada claims, a peer's records replace the slices that Karmada copied from that
peer. They are ignored if there is no such slice (the peer is no provider) and while the peer is unattended (the slices
may be newer). Records that a peer publishes for claimed Services alone are used for no other Service.

Endpoints of a cluster that has been unreachable for longer than the cache lifetime have lapsed: they rank behind every
other source, and survive only while a probe passes. Lapsed endpoints that were never probed are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from isthmus.loadbalancer import islands, own_ranges
from isthmus.loadbalancer.services import ResolvedService, Which, names_for_import, resolve
from isthmus.model.balancing import Backend, BackendKey
from isthmus.model.clusters import UNATTENDED, Cluster, OwnRanges, Reachability, reachability, reachability_changed
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Endpoint, EndpointSet, Port, Service, named_as
from isthmus.model.sources import CLUSTERSET, KARMADA, rank
from isthmus.model.tables import CLUSTERS, ENDPOINT_SETS, IMPORTS, ISLAND_PODS, OWN_RANGES, PROBES
from isthmus.statedb import Reader, rows_of, unit_of

Rows = dict[BackendKey, Backend]

NO_PORTS: Final = (Port("", 0),)
"""A headless service without ports still has addresses: they are backends with no port."""


def by_endpoints(reader: Reader, old: EndpointSet | None, new: EndpointSet | None) -> Iterable[ServiceName]:  # hot:
    """A set of endpoints affects its service."""
    row = new or old
    return (row.service,) if row is not None else ()


def by_service(reader: Reader, old: Service | None, new: Service | None) -> Iterable[ServiceName]:  # hot:
    """A Service affects itself and the placeholder that served its import before it existed."""
    names = [row.name for row in (new or old,) if row is not None]
    for imported in dict.fromkeys([row.import_of for row in (old, new) if row is not None and row.import_of]):
        names += names_for_import(reader, reader.get(IMPORTS, imported))
    return names


by_probe = unit_of("key.service")
"""A probe's result affects the service of its backend."""


def by_cluster(reader: Reader, old: Cluster | None, new: Cluster | None) -> Iterator[ServiceName]:
    """A change of a cluster's reachability affects every service it has endpoints of; of the own one, all services."""
    row = new or old
    if row is None:
        return
    if reachability_changed(old, new):
        for endpoints in reader.all(ENDPOINT_SETS) if row.own else reader.by(ENDPOINT_SETS, "cluster", row.name):
            yield endpoints.service
    elif _is_attended(old) != _is_attended(new):
        yield from (
            endpoints.service
            for endpoints in reader.by(ENDPOINT_SETS, "cluster", row.name)
            if endpoints.source == KARMADA
        )


def by_own_ranges(reader: Reader, old: OwnRanges | None, new: OwnRanges | None) -> Iterator[ServiceName]:
    """Added and removed addresses of the own cluster affect services for which peers publish them."""
    before, after = old or own_ranges.NONE, new or own_ranges.NONE
    changed = OwnRanges(tuple(set(before.ranges) ^ set(after.ranges)), before.addresses ^ after.addresses)
    for row in reader.all(ENDPOINT_SETS):
        if row.source == CLUSTERSET and any(own_ranges.inside(e.address, changed) for e in row.endpoints):
            yield row.service


Lookup = Callable[[ServiceName], Any]
"""``Reader.finder``: from a service to its row of a table, a dict of several by key, or ``None``."""


class Viewpoint(NamedTuple):
    """Inputs of backends that all services of a batch share. Valid as long as the reader that it was made from."""

    cluster: ClusterName
    own: Cluster | None
    ranges: OwnRanges
    sets: Lookup
    probes: Lookup
    reachability: dict[ClusterName, Reachability]
    """Cache, filled on demand."""


def viewpoint(reader: Reader, cluster: ClusterName) -> Viewpoint:
    """Collect the inputs that all services of a batch share."""
    return Viewpoint(
        cluster,
        reader.get(CLUSTERS, cluster),
        reader.get(OWN_RANGES, "own") or own_ranges.NONE,
        reader.finder(ENDPOINT_SETS, "service"),
        reader.finder(PROBES, "service"),
        {},
    )


def compute(
    reader: Reader, service: ServiceName, *, cluster: ClusterName, which: Which, cache: PartCache, lapsed: bool = False
) -> Iterable[Backend]:
    """Return every backend of a service. ``lapsed``: include lapsed endpoints that no probe finds alive."""
    subject = resolve(reader, service, which=which)
    if subject is None:
        cache.pop(service, None)
        return ()
    return of_service(reader, subject, view=viewpoint(reader, cluster), cache=cache, lapsed=lapsed)


def of_service(  # hot:
    reader: Reader, subject: ResolvedService, *, view: Viewpoint, cache: PartCache, lapsed: bool = False
) -> Collection[Backend]:
    """Return every backend of a resolved service."""
    service, cluster = subject.name, view.cluster
    before = cache.pop(service, {}) if cache else {}
    stored, probed = view.sets(service), view.probes(service)
    if type(stored) is EndpointSet and probed is None and not stored.lapsed and not subject.claimed:  # nearly every one
        row_cluster = stored.cluster or cluster
        if row_cluster == cluster:
            return _of_endpoints(subject, stored.endpoints, stored, row_cluster).values()
        if (way := _reachability(reader, subject, stored, row_cluster, view)) != "direct":
            return list(islands.backends(reader, subject, row_cluster, [stored])) if way == "gateway" else ()
        return of_endpoints(subject, stored, stored.endpoints, view=view).values() if stored.shared else ()
    if subject.is_pod:
        pod = reader.get(ISLAND_PODS, service)
        return list(islands.of_pod(reader, pod)) if pod is not None else ()
    alive = {row.key: row.healthy for row in rows_of(probed)}
    backends: list[Backend] = []
    parts: dict[tuple[str, ...], Part] = {}
    candidates = [row for row in rows_of(stored) if is_for(subject, row, cluster)]
    if subject.claimed:
        candidates = [row for row in candidates if not unused_beside_karmada(reader, row, candidates, cluster)]
    for row_cluster, best in _best_sets(candidates, cluster):
        if row_cluster != cluster and (way := _reachability(reader, subject, best[0], row_cluster, view)) != "direct":
            backends += islands.backends(reader, subject, row_cluster, best) if way == "gateway" else ()
            continue
        for endpoint_set in best:
            part = (row_cluster, endpoint_set.source, endpoint_set.part)
            parts[part] = _part(before.get(part), subject, endpoint_set, view)
        rows = _joined([part.backends for (part_cluster, *_), part in parts.items() if part_cluster == row_cluster])
        if best[0].lapsed:  # a source lapses as a whole
            backends += [replace(row, lapsed=True) for row in rows if lapsed or alive.get(row.key)]
        elif alive:
            backends += [row if alive.get(row.key, True) else replace(row, healthy=False) for row in rows]
        else:
            backends += rows
    if len(parts) > 1:
        cache[service] = parts
    return backends


def _reachability(
    reader: Reader, subject: ResolvedService, row: EndpointSet, row_cluster: ClusterName, view: Viewpoint
) -> Reachability:
    """Reachability of another cluster's endpoints; 'none' if they cannot be backends of the service."""
    if not subject.multicluster or (row.source == CLUSTERSET and not exports(subject, row_cluster)):
        return "none"
    way = view.reachability.get(row_cluster)
    if way is None:
        way = view.reachability[row_cluster] = reachability(view.own, reader.get(CLUSTERS, row_cluster))
    return "none" if way == "gateway" and subject.headless else way


def exports(subject: ResolvedService, cluster: ClusterName) -> bool:
    """True if a peer's endpoints are used for a service: for an import, the peer must export it.

    A global Service uses those of every cluster's Service of its name: its annotation is the consent.
    """
    return subject.exporters is None or cluster in subject.exporters


def is_for(subject: ResolvedService, row: EndpointSet, cluster: ClusterName) -> bool:  # hot:
    """True if a set's publisher shares it with this cluster's service."""
    return row.shared or subject.claimed or (row.cluster or cluster) == cluster


def unused_beside_karmada(
    reader: Reader, row: EndpointSet, of_service: Iterable[EndpointSet], cluster: ClusterName
) -> str:
    """Reason why a set of a Service that a MultiClusterService claims is ignored; empty if it is used.

    ``of_service``: all sets of the Service. A peer's record is used only if Karmada copied slices from that peer too.
    """
    if row.source != CLUSTERSET or row.cluster == cluster:
        return ""
    if not any(each.source == KARMADA and each.cluster == row.cluster for each in of_service):
        return "Karmada has it as no provider of the service"
    return "" if _is_attended(reader.get(CLUSTERS, row.cluster)) else "its records may be old, Karmada's slices count"


def _is_attended(cluster: Cluster | None) -> bool:
    """True if a cluster's records are known to be current."""
    return cluster is None or cluster.state not in UNATTENDED


def of_endpoints(
    subject: ResolvedService, part: EndpointSet, endpoints: Sequence[Endpoint], *, view: Viewpoint
) -> Rows:  # hot:
    """Return the backends of a set's endpoints; of a peer's, without those at addresses of the own cluster."""
    cluster = part.cluster or view.cluster
    if part.source == CLUSTERSET and cluster != view.cluster:
        endpoints = own_ranges.without_own(endpoints, view.ranges)
    return _of_endpoints(subject, endpoints, part, cluster)


def _best_sets(rows: list[EndpointSet], cluster: ClusterName) -> Iterable[tuple[ClusterName, list[EndpointSet]]]:
    """Return the sets of each cluster's best source, in order of parts. A set without a cluster is the own one's."""
    if len(rows) == 1:
        return ((rows[0].cluster or cluster, rows),)
    sources: dict[ClusterName, dict[str, list[EndpointSet]]] = {}
    for row in sorted(rows, key=lambda row: row.part):
        sources.setdefault(row.cluster or cluster, {}).setdefault(row.source, []).append(row)
    return [
        (
            cluster_name,
            by_source[min(by_source, key=lambda source: (by_source[source][0].lapsed, rank(source), source))],
        )
        for cluster_name, by_source in sources.items()
    ]


class Part(Struct, frozen=True, gc=False):
    """Cached backends of one endpoint set, and the inputs that they were computed from."""

    service: ResolvedService
    endpoints: EndpointSet
    ranges: OwnRanges
    backends: Rows


PartCache = dict[ServiceName, dict[tuple[str, ...], Part]]
"""Parts of services with several sets: when one changes, the others are not computed again."""


def _part(before: Part | None, subject: ResolvedService, endpoint_set: EndpointSet, view: Viewpoint) -> Part:
    """Return the cached part if its inputs are unchanged, else compute it."""
    if before is None:
        return Part(
            subject, endpoint_set, view.ranges, of_endpoints(subject, endpoint_set, endpoint_set.endpoints, view=view)
        )
    was = before.service
    if (before.endpoints is endpoint_set and before.ranges == view.ranges) and (
        (was.ports, was.headless, was.import_of) == (subject.ports, subject.headless, subject.import_of)
    ):
        return before
    # Keep equal rows as the same objects, which compare faster.
    rows = of_endpoints(subject, endpoint_set, endpoint_set.endpoints, view=view)
    same = {key: old if (old := before.backends.get(key)) == row else row for key, row in rows.items()}
    return Part(subject, endpoint_set, view.ranges, same)


def _joined(parts: list[Rows]) -> Iterable[Backend]:
    """Merge the backends of all parts."""
    if len(parts) == 1:
        return parts[0].values()
    joined: Rows = {}
    for part in parts:
        joined.update(part)
    if len(joined) == sum(map(len, parts)):
        return joined.values()
    joined = {}
    for part in parts:
        for key, row in part.items():
            joined[key] = _join(joined[key], row) if key in joined else row
    return joined.values()


def _join(first: Backend, second: Backend) -> Backend:
    """Merge two rows of one backend: one with two port names, or one that moves between slices."""
    best = second if second.condition < first.condition else first
    return replace(best, port_names=tuple(sorted({*first.port_names, *second.port_names})))


def _of_endpoints(  # hot:
    subject: ResolvedService, endpoints: Iterable[Endpoint], part: EndpointSet, cluster: ClusterName
) -> Rows:
    name, import_of, source = subject.name, subject.import_of, part.source
    rows: Rows = {}
    ports: tuple[Port, ...] | None = None
    serving: Sequence[Port] = ()
    for endpoint in endpoints:  # hot:
        if endpoint.ports is not ports:  # endpoints of a slice share one tuple
            ports = endpoint.ports
            serving = _serving(ports, subject)
            if import_of and len(serving) < len(ports):
                serving = _serving(_named_as_import(ports, part, subject), subject)
        for port in serving:
            key = BackendKey(name, cluster, endpoint.address, port.port, port.protocol)
            row = Backend(
                key,
                _single_name(port.name),
                endpoint.condition,
                source,
                endpoint.hostname,
                endpoint.node,
                endpoint.zone,
                endpoint.for_zones,
                endpoint.pod,
                True,  # healthy: the caller applies probes
                False,  # lapsed: as well
                import_of,
            )
            if rows.setdefault(key, row) is not row:
                rows[key] = _join(rows[key], row)
    return rows


def _serving(ports: tuple[Port, ...], subject: ResolvedService) -> Sequence[Port]:  # hot:
    """Return the endpoint ports that match a service's by name and protocol; for a headless service, all."""
    if subject.headless:
        return ports or NO_PORTS
    service_ports = subject.ports
    if len(service_ports) == 1:
        only = service_ports[0]
        if len(ports) == 1:
            return ports if ports[0].name == only.name and ports[0].protocol == only.protocol else ()
        return [port for port in ports if port.name == only.name and port.protocol == only.protocol]
    return [port for port in ports if _is_among(port, service_ports)]


def _named_as_import(ports: tuple[Port, ...], part: EndpointSet, subject: ResolvedService) -> tuple[Port, ...]:
    """Return the ports of an endpoint under the names of its import, while a port is renamed.

    A peer's port is that of the import with the number that the peer's Service gives it; of sets without these numbers,
    which the own operator writes, see :func:`.named_as`.
    """
    if part.source != CLUSTERSET:
        return named_as(ports, subject.ports)
    imported = {(port.port, port.protocol): port.name for port in subject.ports}
    peers = {(port.name, port.protocol): port.port for port in part.service_ports}
    own = {port.name for port in subject.ports}
    names = [
        port.name if port.name in own else imported.get((peers.get((port.name, port.protocol), 0), port.protocol))
        for port in ports
    ]
    return tuple(replace(port, name=name) for port, name in zip(ports, names, strict=True) if name is not None)


@lru_cache(1024)
def _single_name(name: str) -> tuple[str, ...]:
    """A tuple of one name, shared between rows: most backends have one port name."""
    return (name,)


def _is_among(port: Port, service_ports: Iterable[Port]) -> bool:
    """True if a service has a port of this name and protocol."""
    return (port.name, port.protocol) in [(each.name, each.protocol) for each in service_ports]
