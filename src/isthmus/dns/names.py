"""Names: what the clusterset answers for, as rows. Pure: imports, backends and namespaces in, names out.

Only namespaces of the own cluster have names, and only imports whose name is a DNS label. The unit is an import; the
unit "" is the zone itself. The names of an import and of its ports exist as long as it does: a row without answers is a
name that exists without records (NODATA), since clients cache NXDOMAIN for every type. Hostnames of endpoints are
unique within a cluster only:

    svc.ns.svc.zone                 A, AAAA     addresses of the import, or of each ready endpoint
                                                that is not drained where headless
    host.cluster.svc.ns.svc.zone    A, AAAA     one endpoint of a headless import, drained or not; of an island, the
                                                address that stands for it on this node
    _port._proto.svc.ns.svc.zone    SRV         to the name of the import, or of each endpoint where headless
    svc.ns.svc.zone                 SRV         the same for all ports, named or not
    <address>.in-addr.arpa          PTR         an address of an import that it may claim (loadbalancer/claims.py)
    cluster.svc.ns.svc.zone         A, AAAA     ready endpoints of a ClusterSetIP import in one cluster; by option, with
                                                SRV for their ports
    svc.ns.svc.cluster.local        A, AAAA     the addresses of an import while the cluster has no Service of its name;
                                                by option, with SRV
    dns-version.zone                TXT         the version of this scheme
    ns.dns.zone                     A, AAAA     the zone's name server: what pods know as the cluster DNS
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Final

from msgspec import Struct

from isthmus import bounds
from isthmus.desired import is_our_row
from isthmus.loadbalancer import ClaimRules, drains, islands, refusals
from isthmus.loadbalancer.drains import Drained
from isthmus.loadbalancer.selection import undrained
from isthmus.model import names
from isthmus.model.balancing import Backend
from isthmus.model.dns import Name
from isthmus.model.drains import Draining
from isthmus.model.names import ServiceName
from isthmus.model.services import EXPORTERS, Condition, Import, ImportType, Namespace, Node, Service
from isthmus.model.sources import KUBERNETES, PROXY, is_peer
from isthmus.model.tables import BACKENDS, DRAINING, IMPORTS, ISLAND_PODS, NAMES, NAMESPACES, NODES, SERVICES
from isthmus.sources import karmada
from isthmus.statedb import Derived, Reader, unit_of

SCHEMA: Final = "1.1.0"
SCHEMA_TTL: Final = 28800
APEX: Final = ServiceName("")
"""The unit of the zone's own names."""


class PeersPatience:
    """Which sources make the names incomplete: those of peers only until ``over``.

    Names of a peer's endpoints that an earlier agent left are not removed before the peer was read; but one that is
    away must not hold up every other name. No name is a proxy's, so none waits for one.
    """

    def __init__(self, *, over: bool = False) -> None:
        self.over = over

    def __call__(self, source: str) -> bool:
        return source != PROXY and not (self.over and is_peer(source))


class More(Struct, frozen=True):
    """Names that are there by option. ``native``: the cluster's domain, for imports without a local Service."""

    clusters: bool = False
    native: str = ""


NO_MORE: Final = More()
NO_EXCEPTIONS: Final = ClaimRules()


def derived(
    zone: str,
    *,
    servers: tuple[str, ...] = (),
    more: More = NO_MORE,
    rules: ClaimRules = NO_EXCEPTIONS,
    awaits: Callable[[str], bool] | None = None,
) -> Derived[Name]:
    """The declaration of the table, for a zone such as ``clusterset.local``; ``servers``: of its name server.

    ``rules``: which addresses imports may claim, as for frontends.
    """
    return Derived(
        NAMES,
        compute=partial(compute, zone=zone.strip(".").lower(), servers=servers, more=more, rules=rules),
        reads={
            IMPORTS: by_import,
            SERVICES: partial(by_service, more=more),
            NODES: by_node,
            BACKENDS: partial(by_backend, more=more),
            NAMESPACES: by_namespace,
            DRAINING: partial(by_draining, more=more),
            ISLAND_PODS: unit_of("import_of"),
        },
        unit="service",
        awaits=awaits or PeersPatience(over=True),
    )


def compute(
    reader: Reader,
    unit: ServiceName,
    *,
    zone: str,
    servers: tuple[str, ...] = (),
    more: More = NO_MORE,
    rules: ClaimRules = NO_EXCEPTIONS,
) -> Iterator[Name]:
    """Every name of an import, or of the zone itself."""
    if unit == APEX:
        yield Name(f"dns-version.{zone}", "TXT", (f'"{SCHEMA}"',), ttl=SCHEMA_TTL)
        yield from _addresses(f"ns.dns.{zone}", servers, unit)
        return
    row = effective_import(reader, unit)
    if row is None or not named(reader, row):
        return
    namespace, short = names.split(unit)
    apex = f"{short}.{namespace}.svc.{zone}"
    yield from _with_existence(_of_import(reader, row, apex, more=more, rules=rules), row, apex)
    if more.native and reader.get(SERVICES, (unit, KUBERNETES)) is None:
        native = f"{short}.{namespace}.svc.{more.native}"
        yield from _with_existence(_native(reader, row, native), row, native)


def effective_import(reader: Reader, name: ServiceName) -> Import | None:
    """Return an import; while it is missing, the one that its derived Service was made for.

    A deleted import is written again in a moment, and is still exported meanwhile.
    """
    row = reader.get(IMPORTS, name)
    if row is not None:
        return row
    service = reader.get(SERVICES, (names.derived(name), KUBERNETES))
    if service is None or service.import_of != name or not any(key == EXPORTERS for key, _ in service.annotations):
        return None
    type_: ImportType = "Headless" if service.headless else "ClusterSetIP"
    return Import(name, type_, ports=service.ports, ips=service.cluster_ips, annotations=service.annotations)


def _of_import(reader: Reader, row: Import, apex: str, *, more: More, rules: ClaimRules) -> Iterator[Name]:
    addresses = _called_at(reader, row)
    if _is_headless(reader, row, addresses):
        yield from _headless(reader, row, apex)
        return
    yield from _called(row, apex, addresses)
    yield from _reverse(reader, row, apex, rules=rules)
    if more.clusters:
        yield from _by_cluster(reader, row, apex)


def _is_headless(reader: Reader, row: Import, addresses: tuple[str, ...]) -> bool:
    """True if an import is called at its endpoints, as one without an address is while its Service is headless."""
    if row.type == "Headless" or addresses:
        return row.type == "Headless"
    service = reader.get(SERVICES, (row.derived_service, KUBERNETES))
    return service is not None and service.headless


def _with_existence(rows: Iterable[Name], row: Import, apex: str) -> Iterator[Name]:
    """Yield the rows, and one without answers for each name of the import that none of them has."""
    yielded: set[str] = set()
    for named_row in rows:
        yielded.add(named_row.name)
        yield named_row
    if apex not in yielded:
        yield Name(apex, "A", (), row.name)
    for name in {_port(port.name, port.protocol, apex) for port in row.ports if _is_published(port.name)} - yielded:
        yield Name(name, "SRV", (), row.name)


def named(reader: Reader, row: Import) -> bool:
    """Whether an import has names here: its namespace exists, and its name can be a label."""
    namespace, short = names.split(row.name)
    return reader.get(NAMESPACES, namespace) is not None and names.LABEL.fits(short)


def by_import(reader: Reader, old: Import | None, new: Import | None) -> Iterator[ServiceName]:
    """An import affects its own names, and those of imports that give the same address: it has one PTR."""
    for row in (old, new):
        if row is not None:
            yield row.name
            yield from _sharing(reader, row)


def by_service(
    reader: Reader, old: Service | None, new: Service | None, *, more: More = NO_MORE
) -> Iterator[ServiceName]:
    """A derived Service is where the backends of its import are found; any other has the native name of its import.

    An address that the API server gave to a Service, or takes back, affects the imports that name it: their PTR.
    """
    for row in (old, new):
        if row is not None and row.import_of:
            yield row.import_of
        elif row is not None and more.native and (old is None or new is None):
            yield row.name
    for address in set(old.cluster_ips if old else ()) ^ set(new.cluster_ips if new else ()):
        yield from (row.name for row in reader.by(IMPORTS, "address", address))


def by_node(reader: Reader, old: Node | None, new: Node | None) -> Iterator[ServiceName]:
    """An address that a node gains or loses affects the imports that name it: no import may claim a node's."""
    for address in set(old.addresses if old else ()) ^ set(new.addresses if new else ()):
        yield from (row.name for row in reader.by(IMPORTS, "address", address))


def by_backend(
    reader: Reader, old: Backend | None, new: Backend | None, *, more: More = NO_MORE
) -> Iterator[ServiceName]:
    """A backend affects the names of its import where they show it: of a headless one, or of its clusters."""
    for row in (old, new):
        if row is not None and row.import_of:
            imported = effective_import(reader, row.import_of)
            if imported is not None and (more.clusters or _is_headless(reader, imported, imported.ips)):
                yield row.import_of


def by_draining(
    reader: Reader, old: Draining | None, new: Draining | None, *, more: More = NO_MORE
) -> Iterator[ServiceName]:
    """A drain affects the names of the imports that have a backend which it means, as the backend does."""
    for service in drains.affected(reader, old, new):
        for backend in reader.by(BACKENDS, "service", service)[:1]:
            yield from by_backend(reader, None, backend, more=more)


def by_namespace(reader: Reader, old: Namespace | None, new: Namespace | None) -> Iterator[ServiceName]:
    """A namespace affects its imports when it comes or goes."""
    yield APEX
    row = new or old
    if row is not None and (old is None or new is None):
        for imported in reader.by(IMPORTS, "namespace", row.name):
            yield imported.name
            yield from _sharing(reader, imported)
        yield from (each.import_of for each in reader.by(SERVICES, "namespace", row.name) if each.import_of)


def _sharing(reader: Reader, row: Import) -> Iterator[ServiceName]:
    for address in row.ips:
        yield from (other.name for other in reader.by(IMPORTS, "address", address))


def _addresses(name: str, addresses: Iterable[str], unit: ServiceName) -> Iterator[Name]:
    ordered = sorted(set(addresses))
    four = tuple(address for address in ordered if ":" not in address)
    six = tuple(address for address in ordered if ":" in address)
    if four:
        yield Name(name, "A", four, unit)
    if six:
        yield Name(name, "AAAA", six, unit)


def _called_at(reader: Reader, row: Import) -> tuple[str, ...]:
    """Return the addresses of an import: those of the Service that Karmada makes for it, if Karmada writes the import.

    An import without addresses takes those of its derived Service, which are written to it next. While its derived
    Service is recreated, it keeps the addresses that the Service requests again, unless another Service got them.
    """
    if name := karmada.serves(row):
        service = reader.get(SERVICES, (names.service_name(names.split(row.name)[0], name), KUBERNETES))
        if service is not None and service.cluster_ips:
            return service.cluster_ips
    derived_service = reader.get(SERVICES, (row.derived_service, KUBERNETES))
    if derived_service is not None:
        return row.ips or (derived_service.cluster_ips if derived_service.import_of == row.name else ())
    if not is_our_row(row):
        return row.ips
    return tuple(ip for ip in row.ips if not any(ip in each.cluster_ips for each in reader.by(SERVICES, "address", ip)))


def _called(row: Import, apex: str, addresses: tuple[str, ...]) -> Iterator[Name]:
    """Addresses that are called at the import's ports, under a name."""
    yield from _addresses(apex, addresses, row.name)
    if addresses:
        yield from _ports(row, apex)


def _by_cluster(reader: Reader, row: Import, apex: str) -> Iterator[Name]:
    """One cluster's endpoints, called at their own ports: no address stands for an import in one cluster."""
    addresses: dict[str, list[str]] = {}
    ports: dict[str, set[tuple[int, str]]] = {}
    for backend in _ready(reader, row):
        name = f"{backend.key.cluster}.{apex}"
        addresses.setdefault(name, []).append(backend.key.address)
        for port in filter(_is_published, backend.port_names if backend.key.port else ()):
            ports.setdefault(_port(port, backend.key.protocol, name), set()).add((backend.key.port, name))
    for name, own in addresses.items():
        yield from _addresses(name, own, row.name)
    for name, targets in ports.items():
        yield Name(name, "SRV", _targets(targets, of=len(targets)), row.name)


def _native(reader: Reader, row: Import, name: str) -> Iterator[Name]:
    """The name that a Service of the cluster would have: for callers that know no other."""
    if row.type == "Headless":
        yield from _addresses(name, (each.key.address for each in _called_endpoints(reader, row)), row.name)
    else:
        yield from _called(row, name, _called_at(reader, row))


def _ports(row: Import, apex: str) -> Iterator[Name]:
    """An import is one target, whatever answers behind it."""
    for port in row.ports:
        if _is_published(port.name):
            yield Name(_port(port.name, port.protocol, apex), "SRV", (f"0 100 {port.port} {apex}.",), row.name)
    if row.ports:
        yield Name(apex, "SRV", _targets({(p.port, apex) for p in row.ports}, of=len(row.ports)), row.name)


def _is_published(port_name: str) -> bool:
    """True if a port has a name of its own: it has 63 characters at most with its underscore (RFC 1035, 2.3.4)."""
    return 0 < len(port_name) < 63


def _port(name: str, protocol: str, apex: str) -> str:
    return f"_{name}._{protocol.lower()}.{apex}"


def _targets(targets: set[tuple[int, str]], *, of: int) -> tuple[str, ...]:
    """SRV data of equal weight: its share of 100, one at least. CoreDNS shares before it removes duplicates."""
    return tuple(f"0 {max(1, 100 // of)} {number} {host}." for number, host in sorted(targets))


def _reverse(reader: Reader, row: Import, apex: str, *, rules: ClaimRules) -> Iterator[Name]:
    """A PTR for each address whose calls are this import's."""
    for address in sorted(set(row.ips)):
        claimants = [o for o in reader.by(IMPORTS, "address", address) if _may_claim(reader, o, address, rules=rules)]
        if claimants and min(claimants, key=attrgetter("derived_service")).name == row.name:
            yield Name(bounds.ip(address).reverse_pointer, "PTR", (f"{apex}.",), row.name)


def _may_claim(reader: Reader, row: Import, address: str, *, rules: ClaimRules) -> bool:
    """True if calls of an address may be this import's: frontends are judged by the same function, and what the API
    server allocated to another Service comes before what an import names."""
    if row.type != "ClusterSetIP" or not named(reader, row) or refusals.of_import(reader, row, address, rules=rules):
        return False
    holders = [each for each in reader.by(SERVICES, "address", address) if address in each.cluster_ips]
    return all(each.import_of == row.name or each.name == row.derived_service for each in holders)


def _headless(reader: Reader, row: Import, apex: str) -> Iterator[Name]:
    ready = _ready(reader, row)
    called = {each.key for each in _called_endpoints(reader, row)}
    yield from _addresses(apex, (b.key.address for b in ready if b.key in called), row.name)
    hosts: dict[str, list[str]] = {}
    targets: dict[str, list[tuple[int, str]]] = {}
    for backend in ready:
        host = f"{hostname(backend)}.{backend.key.cluster}.{apex}"
        hosts.setdefault(host, []).append(backend.key.address)
        for name in backend.port_names if backend.key.port and backend.key in called else ():
            targets.setdefault(apex, []).append((backend.key.port, host))
            if _is_published(name):
                targets.setdefault(_port(name, backend.key.protocol, apex), []).append((backend.key.port, host))
    for host, addresses in hosts.items():
        yield from _addresses(host, addresses, row.name)
    for port, found in targets.items():
        yield Name(port, "SRV", _targets(set(found), of=len(found)), row.name)


def _ready(reader: Reader, row: Import) -> list[Backend]:
    return [b for b in _backends(reader, row) if b.condition is Condition.READY]


def _called_endpoints(reader: Reader, row: Import) -> Sequence[Backend]:
    """Those that are ready and not drained, or all that are ready where a drain would leave none."""
    return undrained(_ready(reader, row), Drained(reader.all(DRAINING)))


def _backends(reader: Reader, row: Import) -> Iterator[Backend]:
    """Those of the derived Service, by whichever name it goes, and pods of islands, at the addresses that stand for
    them on this node."""
    services = {row.derived_service, *(service.name for service in reader.by(SERVICES, "import", row.name))}
    for service in services:
        rows = reader.by(BACKENDS, "service", service)
        yield from (b for b in rows if b.import_of == row.name and not b.stands_for)
    yield from (b for pod in reader.by(ISLAND_PODS, "import", row.name) for b in islands.named(pod))


def hostname(backend: Backend) -> str:
    """The label of an endpoint: its hostname where that is a DNS label, else its address."""
    return names.host_label(backend.hostname) or backend.key.address.replace(".", "-").replace(":", "-")
