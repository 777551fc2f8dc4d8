"""What the own cluster publishes, as a derived table: export records, and the endpoints behind them.

The service record of an export is computed from the exported Service's own EndpointSlices, under the name that its
derived Service has everywhere, and only for ports on which the clusterset agrees. A Service that asks for it by
annotation (Cilium's global services) is published under its own name. What peers told us is never read here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Final

from msgspec import structs

from isthmus.clusterset import endpoints, exports
from isthmus.model.exports import agreed_ports, exported, is_global
from isthmus.model.mcs import Merged, Record
from isthmus.model.names import ClusterName, ServiceName, split
from isthmus.model.names import derived as derived_name
from isthmus.model.services import Endpoint, EndpointSet, Export, ExportMark, Namespace, Port, Service
from isthmus.model.sources import KUBERNETES, is_peer
from isthmus.model.tables import ENDPOINT_SETS, EXPORT_MARKS, MERGED, NAMESPACES, RECORDS, SERVICES
from isthmus.statedb import Derived, Reader

GLOBAL: Final = ("service.cilium.io/global", "io.cilium/global-service")
SHARED: Final = ("service.cilium.io/shared", "io.cilium/shared-service")
IMPORT_LABEL: Final = "multicluster.kubernetes.io/service-name"

Unit = tuple[str, ServiceName]


def derived(cluster: ClusterName, cluster_id: int, *, default_global: bool = True) -> Derived[Record]:
    """The table RECORDS of this cluster; ``default_global`` counts for namespaces that say nothing."""

    def compute(reader: Reader, unit: Unit) -> Iterable[Record]:
        kind, name = unit
        publish = export_record if kind == "serviceexports" else service_record
        return publish(reader, name, cluster=cluster, cluster_id=cluster_id, default_global=default_global)

    def of_endpoints(reader: Reader, old: EndpointSet | None, new: EndpointSet | None) -> Iterator[Hashable]:
        for row in (old, new):
            if row is not None and (row.cluster, row.source) == (cluster, KUBERNETES):
                yield from _endpoint_units(row.service)

    return Derived(
        RECORDS,
        compute=compute,
        reads={
            SERVICES: _of_service,
            EXPORT_MARKS: _of_mark,
            NAMESPACES: _of_namespace,
            MERGED: _of_merged,
            ENDPOINT_SETS: of_endpoints,
        },
        # What we publish is whole when our own API server has said all: peers that waited for each other never began.
        awaits=lambda source: not is_peer(source),
    )


def export_record(
    reader: Reader, name: ServiceName, *, cluster: ClusterName, cluster_id: int, default_global: bool = True
) -> Iterator[Record]:
    """The record of our export of this name, where there is one."""
    if (export := exported(reader, name, cluster=cluster, default=default_global)) is not None:
        yield Record("serviceexports", name, exports.encode(export))


def service_record(
    reader: Reader, name: ServiceName, *, cluster: ClusterName, cluster_id: int, default_global: bool = True
) -> Iterator[Record]:
    """Our endpoints of the import whose derived Service has this name, or of the global Service of this name."""
    for merged in reader.by(MERGED, "derived", name):
        export = exported(reader, merged.name, cluster=cluster, default=default_global)
        service = reader.get(SERVICES, (merged.name, KUBERNETES))
        if export is not None and service is not None:
            value = endpoints.encode(
                name,
                cluster=cluster,
                cluster_id=cluster_id,
                endpoints=_agreeing(_own_endpoints(reader, merged.name, cluster), export, merged),
                frontends=_frontends(service),
                labels=((IMPORT_LABEL, split(merged.name)[1]),),
            )
            yield Record("services", name, value)
        return
    service = reader.get(SERVICES, (name, KUBERNETES))
    if service is not None and _is_shared(reader, service, default=default_global):
        value = endpoints.encode(
            name,
            cluster=cluster,
            cluster_id=cluster_id,
            endpoints=_own_endpoints(reader, name, cluster),
            frontends=_frontends(service),
            labels=service.labels,
            selector=service.selector,
        )
        yield Record("services", name, value)


def _own_endpoints(reader: Reader, name: ServiceName, cluster: ClusterName) -> list[Endpoint]:
    """Of all slices of the Service; the ports of an address that several slices name are joined."""
    slices = [
        row for row in reader.by(ENDPOINT_SETS, "service", name) if (row.cluster, row.source) == (cluster, KUBERNETES)
    ]
    by_address: dict[str, Endpoint] = {}
    for row in sorted(slices, key=lambda row: row.part):
        for endpoint in row.endpoints:
            before = by_address.get(endpoint.address)
            if before is None or endpoint.condition < before.condition:
                by_address[endpoint.address] = endpoint
            elif endpoint.condition == before.condition:
                ports = {port.name: port for port in (*before.ports, *endpoint.ports)}
                by_address[endpoint.address] = structs.replace(before, ports=tuple(ports.values()))
    return list(by_address.values())


def _agreeing(own: Iterable[Endpoint], export: Export, merged: Merged) -> Iterator[Endpoint]:
    """Endpoints with the ports that mean here what they mean in the clusterset; those left without any go."""
    agreed = agreed_ports(export, merged)
    for endpoint in own:
        ports = tuple(port for port in endpoint.ports if port.name in agreed)
        if ports or not endpoint.ports:
            yield structs.replace(endpoint, ports=ports)


def _frontends(service: Service) -> dict[str, tuple[Port, ...]]:
    return {} if service.headless else dict.fromkeys(service.cluster_ips, service.ports)


def _is_shared(reader: Reader, service: Service, *, default: bool) -> bool:
    namespace = reader.get(NAMESPACES, split(service.name)[0])
    if service.import_of or namespace is None or not is_global(namespace, default=default):
        return False
    return _annotation(service, GLOBAL, default=False) and _annotation(service, SHARED, default=True)


def _annotation(service: Service, names: tuple[str, str], *, default: bool) -> bool:
    """The first of an annotation and its alias that is there; 'true' in any case is true, all else is not."""
    said = dict(service.annotations)
    values = [said[name] for name in names if name in said]
    return values[0].lower() == "true" if values else default


def _endpoint_units(name: ServiceName) -> Iterator[Unit]:
    yield ("services", derived_name(name))
    yield ("services", name)


def _of_service(reader: Reader, old: Service | None, new: Service | None) -> Iterator[Hashable]:
    row = new or old
    if row is not None and row.source == KUBERNETES:
        yield ("serviceexports", row.name)
        yield from _endpoint_units(row.name)


def _of_mark(reader: Reader, old: ExportMark | None, new: ExportMark | None) -> Iterator[Hashable]:
    row = new or old
    if row is not None:
        yield ("serviceexports", row.name)
        yield ("services", derived_name(row.name))


def _of_namespace(reader: Reader, old: Namespace | None, new: Namespace | None) -> Iterator[Hashable]:
    if old is not None and new is not None and _said(old) == _said(new):
        return
    row = new or old
    if row is not None:
        for mark in reader.by(EXPORT_MARKS, "namespace", row.name):
            yield from _of_mark(reader, None, mark)
        for service in reader.by(SERVICES, "namespace", row.name):
            yield from _of_service(reader, None, service)


def _said(namespace: Namespace) -> tuple[bool, bool]:
    """What a namespace says of being shared, whatever it is by default."""
    return is_global(namespace, default=True), is_global(namespace, default=False)


def _of_merged(reader: Reader, old: Merged | None, new: Merged | None) -> Iterator[Hashable]:
    row = new or old
    if row is not None:
        yield ("services", derived_name(row.name))
