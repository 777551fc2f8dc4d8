"""Backends: the addresses that answer for a service, joined over clusters and sources.

Precedence is for the whole set of (service, cluster): the best source that has one replaces all others, so that a
lagging copy brings nothing back that a record withdrew. Ports are matched by name and protocol against those of the
service: what an endpoint offers beyond them is no backend. A headless service has its endpoints' own ports.

The unit is a service. Addresses that are not ready are rows too, with their condition, and so are those that probes
find dead: the plan leaves them out. A probe of what is no backend (any more) means nothing.

Endpoints on another network cannot be called from here, and their addresses may be in use here: they are no backends.
Where that cluster has gateways, this node's Envoy is a backend in their place (:mod:`.islands`).
Of a peer's records those count that are of a service which it exports, at addresses that are not the own cluster's.
Of a Service that a MultiClusterService of Karmada claims, they count in place of the slices that Karmada brought of the
same peer: without one Karmada has it as no provider, and while its records may be old the slices may be newer. No other
Service takes those that a peer publishes for claimed ones alone.

Endpoints of a cluster that has been unreachable for longer than the cache lifetime have lapsed: they rank behind every
other source, and survive only while a probe passes. Those that were never probed are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from isthmus.loadbalancer import islands, own_ranges
from isthmus.loadbalancer.services import ResolvedService, Which, names_for_import, resolve
from isthmus.model.balancing import Backend, BackendKey, Probe
from isthmus.model.clusters import UNATTENDED, Cluster, OwnRanges, Reachability, reachability, reachability_changed
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Endpoint, EndpointSet, Import, Port, Service
from isthmus.model.sources import CLUSTERSET, KARMADA, rank
from isthmus.model.tables import CLUSTERS, ENDPOINT_SETS, IMPORTS, ISLAND_PODS, OWN_RANGES, PROBES
from isthmus.statedb import Reader, rows_of

Rows = dict[BackendKey, Backend]

NO_PORTS: Final = (Port("", 0),)
"""A headless service without ports still has addresses: they are backends with no port."""


def by_endpoints(reader: Reader, old: EndpointSet | None, new: EndpointSet | None) -> Iterable[ServiceName]:  # hot:
    """A part of a service's endpoints affects that service."""
    row = new or old
    return (row.service,) if row is not None else ()


def by_service(reader: Reader, old: Service | None, new: Service | None) -> Iterable[ServiceName]:  # hot:
    """A Service affects itself, and what stood for its import while it was not there."""
    names = [row.name for row in (new or old,) if row is not None]
    for imported in dict.fromkeys([row.import_of for row in (old, new) if row is not None and row.import_of]):
        names += names_for_import(reader, reader.get(IMPORTS, imported))
    return names


def by_import(reader: Reader, old: Import | None, new: Import | None) -> Iterator[ServiceName]:
    """An import affects the service that stands for it."""
    yield from names_for_import(reader, old, new)


def by_probe(reader: Reader, old: Probe | None, new: Probe | None) -> Iterator[ServiceName]:
    """What a probe found affects the service whose backend it is."""
    row = new or old
    if row is not None:
        yield row.key.service


def by_cluster(reader: Reader, old: Cluster | None, new: Cluster | None) -> Iterator[ServiceName]:
    """A cluster that is reached in another way affects what it has endpoints of; the own one all that is."""
    row = new or old
    if row is None:
        return
    if reachability_changed(old, new):
        for each in reader.all(ENDPOINT_SETS) if row.own else reader.by(ENDPOINT_SETS, "cluster", row.name):
            yield each.service
    elif _is_attended(old) != _is_attended(new):
        yield from (each.service for each in reader.by(ENDPOINT_SETS, "cluster", row.name) if each.source == KARMADA)


def by_own_ranges(reader: Reader, old: OwnRanges | None, new: OwnRanges | None) -> Iterator[ServiceName]:
    """Addresses that have become ours, or are so no longer, affect the services that peers name them for."""
    before, after = old or own_ranges.NONE, new or own_ranges.NONE
    changed = OwnRanges(tuple(set(before.ranges) ^ set(after.ranges)), before.addresses ^ after.addresses)
    for each in reader.all(ENDPOINT_SETS):
        if each.source == CLUSTERSET and any(own_ranges.inside(e.address, changed) for e in each.endpoints):
            yield each.service


Look = Callable[[ServiceName], Any]
"""From a service to the row of a table that it has, to a dict of several by key, or None (``Reader.finder``)."""


class Viewpoint(NamedTuple):
    """What backends follow from beside their service's own rows, the own cluster and its addresses; and how those rows
    are looked up. Valid as long as the reader it was made of."""

    cluster: ClusterName
    own: Cluster | None
    ranges: OwnRanges
    sets: Look
    probes: Look
    ways: dict[ClusterName, Reachability]
    """How pods of a cluster are reached, of those that were asked for."""


def viewpoint(reader: Reader, cluster: ClusterName) -> Viewpoint:
    """The same for all services of a batch."""
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
    """Every backend of a service; ``lapsed``: also of what has lapsed and no probe finds alive."""
    subject = resolve(reader, service, which=which)
    if subject is None:
        cache.pop(service, None)
        return ()
    return of_service(reader, subject, at=viewpoint(reader, cluster), cache=cache, lapsed=lapsed)


def of_service(  # hot:
    reader: Reader, subject: ResolvedService, *, at: Viewpoint, cache: PartCache, lapsed: bool = False
) -> Collection[Backend]:
    """Every backend of a service that was resolved."""
    service, cluster = subject.name, at.cluster
    before = cache.pop(service, {}) if cache else {}
    there, probed = at.sets(service), at.probes(service)
    if type(there) is EndpointSet and probed is None and not there.lapsed and not subject.claimed:  # nearly every one
        of = there.cluster or cluster
        if of == cluster:
            return _of_endpoints(subject, there.endpoints, there.source, of).values()
        if (way := _way(reader, subject, there, of, at)) != "direct":
            return list(islands.backends(reader, subject, of, [there])) if way == "gateway" else ()
        return of_endpoints(subject, there, there.endpoints, at=at).values() if there.shared else ()
    if subject.alone:
        pod = reader.get(ISLAND_PODS, service)
        return list(islands.of_pod(reader, pod)) if pod is not None else ()
    alive = {row.key: row.healthy for row in rows_of(probed)}
    found: list[Backend] = []
    parts: dict[tuple[str, ...], Part] = {}
    rows_there = [row for row in rows_of(there) if is_for(subject, row, cluster)]
    if subject.claimed:
        rows_there = [row for row in rows_there if not unused_beside_karmada(reader, row, rows_there, cluster)]
    for of, sets in _best_sets(rows_there, cluster):
        if of != cluster and (way := _way(reader, subject, sets[0], of, at)) != "direct":
            found += islands.backends(reader, subject, of, sets) if way == "gateway" else ()
            continue
        for each in sets:
            part = (of, each.source, each.part)
            parts[part] = _part(before.get(part), subject, each, at)
        rows = _joined([part.backends for (at_, *_), part in parts.items() if at_ == of])
        if sets[0].lapsed:  # a source lapses as a whole
            found += [replace(row, lapsed=True) for row in rows if lapsed or alive.get(row.key)]
        elif alive:
            found += [row if alive.get(row.key, True) else replace(row, healthy=False) for row in rows]
        else:
            found += rows
    if len(parts) > 1:
        cache[service] = parts
    return found


def _way(reader: Reader, subject: ResolvedService, row: EndpointSet, of: ClusterName, at: Viewpoint) -> Reachability:
    """How endpoints that a source has of another cluster are reached, where they can be backends of a service."""
    if not subject.multicluster or (row.source == CLUSTERSET and not exports(subject, of)):
        return "none"
    way = at.ways.get(of)
    if way is None:
        way = at.ways[of] = reachability(at.own, reader.get(CLUSTERS, of))
    return "none" if way == "gateway" and subject.headless else way


def exports(subject: ResolvedService, cluster: ClusterName) -> bool:
    """Whether endpoints that a peer names for a service count: for an import, those of the clusters that export it.

    A global Service takes those of every cluster's Service of its name: its annotation is the consent.
    """
    return subject.exporters is None or cluster in subject.exporters


def is_for(subject: ResolvedService, row: EndpointSet, cluster: ClusterName) -> bool:  # hot:
    """Whether whoever published a set means it for this service of a cluster."""
    return row.shared or subject.claimed or (row.cluster or cluster) == cluster


def unused_beside_karmada(
    reader: Reader, row: EndpointSet, of_service: Iterable[EndpointSet], cluster: ClusterName
) -> str:
    """Why a set of a Service that a MultiClusterService claims does not count; empty where it does.

    ``of_service``: all its sets. A peer's record counts only beside slices that Karmada brought of the same peer.
    """
    if row.source != CLUSTERSET or row.cluster == cluster:
        return ""
    if not any(each.source == KARMADA and each.cluster == row.cluster for each in of_service):
        return "Karmada has it as no provider of the service"
    return "" if _is_attended(reader.get(CLUSTERS, row.cluster)) else "its records may be old, Karmada's slices count"


def _is_attended(cluster: Cluster | None) -> bool:
    """Whether a cluster's records are known to be as it is."""
    return cluster is None or cluster.state not in UNATTENDED


def of_endpoints(
    of: ResolvedService, part: EndpointSet, endpoints: Sequence[Endpoint], *, at: Viewpoint
) -> Rows:  # hot:
    """The backends of endpoints of a part: of a peer's, without those at the own cluster's addresses."""
    cluster = part.cluster or at.cluster
    if part.source == CLUSTERSET and cluster != at.cluster:
        endpoints = own_ranges.without_own(endpoints, at.ranges)
    return _of_endpoints(of, endpoints, part.source, cluster)


def _best_sets(rows: list[EndpointSet], cluster: ClusterName) -> Iterable[tuple[ClusterName, list[EndpointSet]]]:
    """The sets of the best source of each cluster, in order; a source that names no cluster means the own one."""
    if len(rows) == 1:
        return ((rows[0].cluster or cluster, rows),)
    sources: dict[ClusterName, dict[str, list[EndpointSet]]] = {}
    for row in sorted(rows, key=lambda row: row.part):
        sources.setdefault(row.cluster or cluster, {}).setdefault(row.source, []).append(row)
    return [
        (of, found[min(found, key=lambda source: (found[source][0].lapsed, rank(source), source))])
        for of, found in sources.items()
    ]


class Part(Struct, frozen=True, gc=False):
    """The backends of a part of a service, and what they follow from."""

    of: ResolvedService
    endpoints: EndpointSet
    ranges: OwnRanges
    backends: Rows


PartCache = dict[ServiceName, dict[tuple[str, ...], Part]]
"""Parts of services that have several: when one changes the others need not be computed again."""


def _part(before: Part | None, of: ResolvedService, endpoints: EndpointSet, at: Viewpoint) -> Part:
    """A part, as it was computed before where it follows from the same."""
    if before is None:
        return Part(of, endpoints, at.ranges, of_endpoints(of, endpoints, endpoints.endpoints, at=at))
    was = before.of
    if (before.endpoints is endpoints and before.ranges == at.ranges) and (
        (was.ports, was.headless, was.import_of) == (of.ports, of.headless, of.import_of)
    ):
        return before
    # equal rows as the same objects, which compare faster
    rows = of_endpoints(of, endpoints, endpoints.endpoints, at=at)
    same = {key: old if (old := before.backends.get(key)) == row else row for key, row in rows.items()}
    return Part(of, endpoints, at.ranges, same)


def _joined(parts: list[Rows]) -> Iterable[Backend]:
    """The backends of all parts, each once."""
    if len(parts) == 1:
        return parts[0].values()
    found: Rows = {}
    for part in parts:
        found.update(part)
    if len(found) == sum(map(len, parts)):
        return found.values()
    found = {}
    for part in parts:
        for key, row in part.items():
            found[key] = _join(found[key], row) if key in found else row
    return found.values()


def _join(one: Backend, other: Backend) -> Backend:
    """One row for what is offered twice: under two port names, or while it moves between slices."""
    best = other if other.condition < one.condition else one
    return replace(best, port_names=tuple(sorted({*one.port_names, *other.port_names})))


def _of_endpoints(  # hot:
    of: ResolvedService, endpoints: Iterable[Endpoint], source: str, cluster: ClusterName
) -> Rows:
    name, import_of = of.name, of.import_of
    found: Rows = {}
    ports: tuple[Port, ...] | None = None
    serving: Sequence[Port] = ()
    for endpoint in endpoints:  # hot:
        if endpoint.ports is not ports:  # those of a slice have the same
            ports = endpoint.ports
            serving = _serving(ports, of)
        for port in serving:
            key = BackendKey(name, cluster, endpoint.address, port.port, port.protocol)
            row = Backend(
                key,
                _alone(port.name),
                endpoint.condition,
                source,
                endpoint.hostname,
                endpoint.node,
                endpoint.zone,
                endpoint.for_zones,
                endpoint.pod,
                True,  # healthy: the caller has the probes
                False,  # nor lapsed
                import_of,
            )
            if found.setdefault(key, row) is not row:
                found[key] = _join(found[key], row)
    return found


def _serving(ports: tuple[Port, ...], of: ResolvedService) -> Sequence[Port]:  # hot:
    """The ports of endpoints that agree with a service's in name and protocol; those of a headless one are its own."""
    if of.headless:
        return ports or NO_PORTS
    wanted = of.ports
    if len(wanted) == 1:
        one = wanted[0]
        if len(ports) == 1:
            return ports if ports[0].name == one.name and ports[0].protocol == one.protocol else ()
        return [port for port in ports if port.name == one.name and port.protocol == one.protocol]
    return [port for port in ports if _is_among(port, wanted)]


@lru_cache(1024)
def _alone(name: str) -> tuple[str, ...]:
    """A tuple of one name, shared between rows: most backends have one port name."""
    return (name,)


def _is_among(port: Port, wanted: Iterable[Port]) -> bool:
    """Whether a service has a port of this name and protocol."""
    return (port.name, port.protocol) in [(each.name, each.protocol) for each in wanted]
