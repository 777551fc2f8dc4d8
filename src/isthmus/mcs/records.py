"""The table ``records``: what the own cluster publishes, export records and the endpoints behind them.

The service record of an export is computed from the exported Service's own EndpointSlices, under the name that its
derived Service has everywhere, and only for ports on which the clusterset agrees. A Service that asks for it by
annotation (Cilium's global services) is published under its own name. So is one that only a MultiClusterService of
Karmada claims, for Services that one claims: whoever owns it has not consented to more. Rows of peers are never read
here. With ``identities``, the numbers of the own cluster's accounts and the addresses of their pods are published, too.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator
from typing import Any, NamedTuple

from msgspec import structs

from isthmus.clusterset import addresses, endpoints, exports, identities, slices
from isthmus.config import PublishedEndpoints
from isthmus.mcs.exports import agreed_ports, agreeing, gives_endpoints, sharing_changed
from isthmus.mcs.words import SERVICE_NAME
from isthmus.model.addresses import reserved
from isthmus.model.identities import Identity
from isthmus.model.mcs import Merged, OwnExport, Record
from isthmus.model.names import ClusterName, ServiceName, split
from isthmus.model.names import derived as derived_name
from isthmus.model.services import ENDED, Endpoint, EndpointSet, Export, Labels, Pod, Port, Service, is_global
from isthmus.model.sources import KUBERNETES, is_peer
from isthmus.model.tables import ENDPOINT_SETS, IDENTITIES, MERGED, NAMESPACES, OWN_EXPORTS, PODS, RECORDS, SERVICES
from isthmus.statedb import Affected, Derived, Reader, on_change, through, unit_of

Unit = tuple[str, ServiceName]
OF_POD = ("addresses", "phase", "service_account")
"""Fields of a pod in the records of its addresses."""


class Publisher(NamedTuple):
    """The cluster that publishes; ``default_global`` counts for namespaces without the annotation."""

    cluster: ClusterName
    cluster_id: int
    default_global: bool = True
    publish_endpoints: PublishedEndpoints = "services"


def derived(
    cluster: ClusterName,
    cluster_id: int,
    *,
    default_global: bool = True,
    with_identities: bool = False,
    publish_endpoints: PublishedEndpoints = "services",
) -> Derived[Record]:
    """The declaration of ``records`` for a cluster."""
    publisher = Publisher(cluster, cluster_id, default_global, publish_endpoints)

    def compute(reader: Reader, unit: Unit) -> Iterable[Record]:
        kind, name = unit
        if kind == "identities":
            return identity_record(reader, name, cluster)
        if kind == "ip":
            return address_record(reader, name, cluster)
        return export_record(reader, name) if kind == "serviceexports" else service_record(reader, name, publisher)

    def of_endpoints(reader: Reader, old: EndpointSet | None, new: EndpointSet | None) -> Iterator[Hashable]:
        row = new or old
        if row is not None and _is_own(row, cluster):
            yield from _service_units(row.service)

    return Derived(
        RECORDS,
        compute=compute,
        unit="unit",
        reads={
            OWN_EXPORTS: _of_export,
            SERVICES: _of_service,
            # exports of a namespace come as own exports
            NAMESPACES: on_change(
                sharing_changed, through(SERVICES, lambda row: ("services", row.name), index="namespace")
            ),
            MERGED: unit_of(lambda row: ("services", derived_name(row.name))),
            ENDPOINT_SETS: of_endpoints,
            **(
                {IDENTITIES: on_change(("service_account",), _of_identity(cluster)), PODS: on_change(OF_POD, _of_pod)}
                if with_identities
                else {}
            ),
        },
        # Complete when the own API server is: clusters that waited for each other's records would never begin.
        awaits=lambda source: not is_peer(source),
    )


def export_record(reader: Reader, name: ServiceName) -> Iterator[Record]:
    """The record of our export of this name, where there is one."""
    own = reader.get(OWN_EXPORTS, name)
    if own is not None and own.export is not None:
        yield Record("serviceexports", name, exports.encode(own.export))


def identity_record(reader: Reader, name: ServiceName, cluster: ClusterName) -> Iterator[Record]:
    """The record of this number of ours, where there is one."""
    row = reader.get(IDENTITIES, (cluster, identities.parse(name)))
    if row is not None:
        yield Record("identities", name, identities.encode(row))


def address_record(reader: Reader, address: ServiceName, cluster: ClusterName) -> Iterator[Record]:
    """The record of a pod's address, if its account has a number, of several the smallest.

    None while pods of two accounts have the address: a deleted one that has not ended yet, and its successor.
    """
    pods = [pod for pod in reader.by(PODS, "address", address) if not pod.host_network and pod.phase not in ENDED]
    accounts = {(split(ServiceName(pod.name))[0], pod.service_account) for pod in pods}
    if len(accounts) != 1 or reserved(address):
        return
    (account,) = accounts
    if known := reader.by(IDENTITIES, "account", (cluster, *account)):
        number, name = min(row.number for row in known), min(pod.name for pod in pods).partition("/")[2]
        value = addresses.encode(address, number, namespace=account[0], pod=name, service_account=account[1])
        yield Record("ip", address, value)


def service_record(reader: Reader, name: ServiceName, publisher: Publisher) -> Iterator[Record]:
    """Our endpoints of the import whose derived Service has this name, or of the Service of this name."""
    merged = reader.by(MERGED, "derived", name)
    if merged:
        yield from _of_exported(reader, name, merged[0], publisher)
        return
    service, namespace = reader.get(SERVICES, (name, KUBERNETES)), reader.get(NAMESPACES, split(name)[0])
    if service is None or namespace is None:
        return
    if gives_endpoints(service, namespace, default_global=publisher.default_global):
        own = _own_endpoints(reader, name, publisher.cluster)
        labels, selector, shared = service.labels, service.selector, is_global(service)
        yield from _records(name, service, own, publisher, labels=labels, selector=selector, shared=shared)


def _of_exported(reader: Reader, name: ServiceName, merged: Merged, publisher: Publisher) -> Iterator[Record]:
    own, service = reader.get(OWN_EXPORTS, merged.name), reader.get(SERVICES, (merged.name, KUBERNETES))
    if own is not None and own.export is not None and service is not None:
        kept = published_endpoints(reader, merged, own.export, publisher.cluster)
        yield from _records(name, service, kept, publisher, labels=((SERVICE_NAME, split(merged.name)[1]),))


def published_endpoints(reader: Reader, merged: Merged, export: Export, cluster: ClusterName) -> list[Endpoint]:
    """Return the endpoints of the own cluster's export at the ports on which the clusterset agrees."""
    agreed = agreed_ports(export, merged)
    endpoints = (agreeing(each, export, agreed) for each in _own_endpoints(reader, merged.name, cluster))
    return [each for each in endpoints if each is not None]


def _records(
    name: ServiceName,
    service: Service,
    own: Collection[Endpoint],
    publisher: Publisher,
    *,
    labels: Labels,
    shared: bool = True,
    **fields: Any,
) -> Iterator[Record]:
    """The endpoints of a Service as a service record, as slices, or as both. Slices are for all Services alike."""
    of: Any = {"cluster": publisher.cluster, "cluster_id": publisher.cluster_id, "endpoints": own, "labels": labels}
    if publisher.publish_endpoints != "services" and shared:
        for part, value in slices.encode(name, **of):
            yield Record("endpointslices", part, value, name)
    if publisher.publish_endpoints == "endpointslices":
        return
    frontends: dict[str, tuple[Port, ...]] = {}
    if not service.headless:
        frontends = dict.fromkeys(service.cluster_ips, service.ports)
    yield Record("services", name, endpoints.encode(name, frontends=frontends, shared=shared, **of, **fields))


def _is_own(row: EndpointSet, cluster: ClusterName) -> bool:
    return (row.cluster, row.source) == (cluster, KUBERNETES)


def _own_endpoints(reader: Reader, name: ServiceName, cluster: ClusterName) -> list[Endpoint]:
    """Return the endpoints of all slices of the Service, without addresses for which peers would refuse the record.

    An address that several slices list takes the best condition among them, and the ports of all endpoints in that
    condition: two ports of one name are those of two pods in the network of their node.
    """
    slices = [row for row in reader.by(ENDPOINT_SETS, "service", name) if _is_own(row, cluster)]
    by_address: dict[str, Endpoint] = {}
    for row in sorted(slices, key=lambda row: row.part):
        for endpoint in row.endpoints:
            if reserved(endpoint.address):
                continue
            before = by_address.get(endpoint.address)
            if before is None or endpoint.condition < before.condition:
                by_address[endpoint.address] = endpoint
            elif endpoint.condition == before.condition:
                ports = tuple(dict.fromkeys((*before.ports, *endpoint.ports)))
                by_address[endpoint.address] = structs.replace(before, ports=ports)
    return list(by_address.values())


def _service_units(name: ServiceName) -> Iterator[Unit]:
    """The service records that endpoints of this Service may be in."""
    yield ("services", derived_name(name))
    yield ("services", name)


def _of_identity(cluster: ClusterName) -> Affected:
    def affected(reader: Reader, old: Identity | None, new: Identity | None) -> Iterator[Hashable]:
        row = new or old
        if row is not None and row.cluster == cluster:
            yield ("identities", ServiceName(str(row.number)))
            for pod in reader.by(PODS, "account", (row.namespace, row.service_account)):
                yield from (("ip", ServiceName(address)) for address in pod.addresses)

    return affected


def _of_pod(reader: Reader, old: Pod | None, new: Pod | None) -> Iterator[Hashable]:
    for pod in (old, new):
        if pod is not None and not pod.host_network:
            yield from (("ip", ServiceName(address)) for address in pod.addresses)


def _of_export(reader: Reader, old: OwnExport | None, new: OwnExport | None) -> Iterator[Hashable]:
    row = new or old
    if row is not None:
        yield ("serviceexports", row.name)
        yield ("services", derived_name(row.name))


def _of_service(reader: Reader, old: Service | None, new: Service | None) -> Iterator[Hashable]:
    row = new or old
    if row is not None and row.source == KUBERNETES:
        yield from _service_units(row.name)
