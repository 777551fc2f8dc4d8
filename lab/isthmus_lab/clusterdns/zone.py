"""DNS zone of a cluster: Services and EndpointSlices → records, by the DNS specification 1.1. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from typing import Final, NamedTuple

from isthmus.kube.objects.core import Service
from isthmus.kube.objects.discovery import Endpoint, EndpointSlice

SERVICE_OF: Final = "kubernetes.io/service-name"
Zone = dict[str, dict[str, list[str]]]
"""Name, lower case and without the last dot → type → data. A name with no type exists all the same."""


class _Record(NamedTuple):
    name: str
    type: str
    data: str


def zone(services: Iterable[Service], slices: Iterable[EndpointSlice], *, domain: str) -> Zone:
    """All names."""
    by_service: dict[str, list[EndpointSlice]] = {}
    for endpoint_slice in slices:
        if name := (endpoint_slice.metadata.labels or {}).get(SERVICE_OF):
            by_service.setdefault(f"{endpoint_slice.metadata.namespace}/{name}", []).append(endpoint_slice)
    result: Zone = {domain: {}, f"dns-version.{domain}": {"TXT": ['"1.1.0"']}}
    for service in services:
        mine = by_service.get(f"{service.metadata.namespace}/{service.metadata.name}", [])
        for record in _service(service, mine, domain):
            data = result.setdefault(record.name, {}).setdefault(record.type, [])
            if record.data not in data:
                data.append(record.data)
            _parents(result, record.name, domain)
    return result


def _parents(result: Zone, name: str, domain: str) -> None:
    """Names above an existing one exist too, though nothing is known of them."""
    while name.endswith(f".{domain}"):
        name = name.partition(".")[2]
        if name in result and name != domain:
            return
        result.setdefault(name, {})


def _service(service: Service, slices: list[EndpointSlice], domain: str) -> Iterator[_Record]:
    spec = service.spec
    name = f"{service.metadata.name}.{service.metadata.namespace}.svc.{domain}".lower()
    if spec.type == "ExternalName":
        if spec.external_name:
            yield _Record(name, "CNAME", f"{spec.external_name.rstrip('.')}.")
        return
    addresses = [ip for ip in spec.cluster_ips or [spec.cluster_ip] if ip and ip != "None"]
    if not addresses:
        yield from _headless(name, slices, publish=bool(spec.publish_not_ready_addresses))
        return
    for address in addresses:
        yield _address(name, address)
        yield _Record(_pointer(address), "PTR", f"{name}.")
    for port in spec.ports or ():
        if port.name:
            protocol = (port.protocol or "TCP").lower()
            yield _Record(f"_{port.name}._{protocol}.{name}".lower(), "SRV", f"0 100 {port.port} {name}.")


def _headless(name: str, slices: list[EndpointSlice], *, publish: bool) -> Iterator[_Record]:
    for endpoint_slice in slices:
        for endpoint in endpoint_slice.endpoints or ():
            if not (publish or _ready(endpoint)):
                continue
            for address in endpoint.addresses or ():
                host = f"{endpoint.hostname or address.replace('.', '-').replace(':', '-')}.{name}".lower()
                yield _address(name, address)
                yield _address(host, address)
                if endpoint.hostname:
                    yield _Record(_pointer(address), "PTR", f"{host}.")
                for port in endpoint_slice.ports or ():
                    if port.name and port.port:
                        protocol = (port.protocol or "TCP").lower()
                        yield _Record(f"_{port.name}._{protocol}.{name}".lower(), "SRV", f"0 100 {port.port} {host}.")


def _ready(endpoint: Endpoint) -> bool:
    return endpoint.conditions is None or endpoint.conditions.ready is not False


def _address(name: str, address: str) -> _Record:
    return _Record(name, "AAAA" if ":" in address else "A", address)


def _pointer(address: str) -> str:
    return ip_address(address).reverse_pointer
