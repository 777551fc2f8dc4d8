"""EndpointSlices of the API server as rows, one each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from msgspec import structs

from isthmus.kube.objects import discovery
from isthmus.model.names import ClusterName, service_name
from isthmus.model.services import Condition, Endpoint, EndpointSet, Port
from isthmus.model.sources import KARMADA, KUBERNETES
from isthmus.sources import karmada
from isthmus.sources.normal import PROTOCOLS, address, port_of, shared
from isthmus.sources.sink import Malformed

OF_SERVICE: Final = "kubernetes.io/service-name"
OF_CLUSTER: Final = "multicluster.kubernetes.io/source-cluster"
"""Label of slices that stand for another cluster's endpoints."""

READY: Final = Condition.READY


def endpoint_set(
    cluster: ClusterName, *, remote: bool = False
) -> Callable[[discovery.EndpointSlice], EndpointSet | None]:
    """The conversion for a cluster of this name; slices of other clusters are rows only with ``remote``."""

    def convert(wire: discovery.EndpointSlice) -> EndpointSet | None:
        labels = wire.metadata.labels
        service = labels.get(OF_SERVICE) if labels else None
        if not labels or not service or wire.address_type == "FQDN":
            return None
        if karmada.dispatched(wire.metadata):
            return _dispatched(wire, service)
        of = labels.get(OF_CLUSTER) or cluster
        if of != cluster and not remote:
            return None
        name = service_name(wire.metadata.namespace, service)
        return EndpointSet(name, ClusterName(of), KUBERNETES, wire.metadata.name, _endpoints(wire))

    return convert


def _dispatched(wire: discovery.EndpointSlice, service: str) -> EndpointSet:
    """Endpoints that Karmada brought from another member. Nodes, zones' hints and pods are that cluster's affair."""
    provider = karmada.provider(wire.metadata)
    if provider is None:
        raise Malformed(f"metadata: neither {karmada.PROVIDER} nor the name tell whose endpoints these are")
    return EndpointSet(
        service=service_name(wire.metadata.namespace, service),
        cluster=provider,
        source=KARMADA,
        part=wire.metadata.name,
        endpoints=tuple(structs.replace(each, node="", for_zones=(), pod="") for each in _endpoints(wire)),
    )


def condition(wire: discovery.EndpointConditions | None) -> Condition:
    """The three conditions as one (KEP-1669). Missing ones count as ready; ready counts even if terminating."""
    if wire is None or wire.ready is not False:
        return READY
    if not wire.terminating:
        return Condition.NOT_READY
    return Condition.TERMINATING if wire.serving else Condition.GONE


def _endpoints(wire: discovery.EndpointSlice) -> tuple[Endpoint, ...]:
    """Sorted by address; an address that is there twice counts once."""
    ports = _ports(wire.ports)
    namespace = wire.metadata.namespace
    found: dict[str, Endpoint] = {}
    for position, each in enumerate(wire.endpoints or ()):  # hot:
        if not each.addresses:
            raise Malformed(f"endpoints[{position}].addresses: empty")
        try:
            host = address(each.addresses[0], field="addresses")
        except Malformed as why:
            raise Malformed(f"endpoints[{position}].{why}") from None
        if host not in found:
            found[host] = _endpoint(each, host, ports, namespace)
    return tuple(found.values() if len(found) < 2 else [found[host] for host in sorted(found)])


def _endpoint(wire: discovery.Endpoint, host: str, ports: tuple[Port, ...], namespace: str) -> Endpoint:
    target, conditions = wire.target_ref, wire.conditions
    return Endpoint(
        host,
        ports,
        READY if conditions is None or conditions.ready else condition(conditions),
        wire.hostname or "",
        wire.node_name or "",
        wire.zone or "",
        tuple(sorted([each.name for each in wire.hints.for_zones or ()])) if wire.hints else (),
        f"{target.namespace or namespace}/{target.name}" if target and target.kind == "Pod" else "",
    )


def _ports(wire: Iterable[discovery.EndpointPort] | None) -> tuple[Port, ...]:
    """Sorted; a port without a number means all ports, which no Service can refer to."""
    found = [
        port_of(each, "ports") for each in wire or () if each.port is not None and (each.protocol or "TCP") in PROTOCOLS
    ]
    if len(found) > 1:
        found.sort(key=lambda port: (port.name, port.port, port.protocol))
    return shared(tuple(found))
