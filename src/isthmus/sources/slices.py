"""EndpointSlices of the API server as rows, one each."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from socket import AF_INET, inet_pton
from typing import Final

from msgspec import structs

from isthmus.kube.objects import discovery
from isthmus.model.names import ClusterName, service_name
from isthmus.model.services import Condition, Endpoint, EndpointSet
from isthmus.model.sources import KARMADA, KUBERNETES
from isthmus.sources import karmada
from isthmus.sources.normal import address, ports_of_endpoints
from isthmus.sources.sink import Malformed

OF_SERVICE: Final = "kubernetes.io/service-name"
OF_CLUSTER: Final = "multicluster.kubernetes.io/source-cluster"
"""Label of slices that stand for another cluster's endpoints."""

READY: Final = Condition.READY

_address = attrgetter("address")


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
    ports = ports_of_endpoints(wire.ports)
    namespace = wire.metadata.namespace
    found: dict[str, Endpoint] = {}
    for each in wire.endpoints or ():  # hot:
        if not each.addresses:
            raise Malformed(f"endpoints[{_position(wire, each)}].addresses: empty")
        host = each.addresses[0]
        try:
            inet_pton(AF_INET, host)  # nearly all: canonical as they are (sources/normal.py)
        except (OSError, ValueError):
            try:
                host = address(host, field="addresses")
            except Malformed as why:
                raise Malformed(f"endpoints[{_position(wire, each)}].{why}") from None
        if host in found:
            continue
        target, conditions, hints = each.target_ref, each.conditions, each.hints
        found[host] = Endpoint(
            host,
            ports,
            READY if conditions is None or conditions.ready else condition(conditions),
            each.hostname or "",
            each.node_name or "",
            each.zone or "",
            tuple(sorted([zone.name for zone in hints.for_zones or ()])) if hints else (),
            f"{target.namespace or namespace}/{target.name}" if target and target.kind == "Pod" else "",
        )
    return tuple(found.values() if len(found) < 2 else sorted(found.values(), key=_address))


def _position(wire: discovery.EndpointSlice, endpoint: discovery.Endpoint) -> int:
    return next(n for n, each in enumerate(wire.endpoints or ()) if each is endpoint)
