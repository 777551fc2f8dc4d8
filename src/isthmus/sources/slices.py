"""EndpointSlices of the API server as rows, one each."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Final

from msgspec import structs

from isthmus.bounds import address, packed_ipv4
from isthmus.kube.objects import discovery
from isthmus.model.names import ClusterName, service_name
from isthmus.model.services import Condition, Endpoint, EndpointSet
from isthmus.model.sources import KARMADA, KUBERNETES
from isthmus.sources import karmada
from isthmus.sources.normal import ports_of_endpoints
from isthmus.sources.sink import Malformed

OF_SERVICE: Final = "kubernetes.io/service-name"
OF_CLUSTER: Final = "multicluster.kubernetes.io/source-cluster"
"""Label of slices that hold another cluster's endpoints."""

READY: Final = Condition.READY

_address = attrgetter("address")


def endpoint_set(
    cluster: ClusterName, *, remote: bool = False
) -> Callable[[discovery.EndpointSlice], EndpointSet | None]:
    """Return the conversion for the own cluster's name. ``remote`` includes slices of other clusters."""

    def convert(wire: discovery.EndpointSlice) -> EndpointSet | None:
        labels = wire.metadata.labels
        service = labels.get(OF_SERVICE) if labels else None
        if not labels or not service or wire.address_type == "FQDN":
            return None
        if karmada.dispatched(wire.metadata):
            return _dispatched(wire, service)
        owner = labels.get(OF_CLUSTER) or cluster
        if owner != cluster and not remote:
            return None
        name = service_name(wire.metadata.namespace, service)
        return EndpointSet(name, ClusterName(owner), KUBERNETES, wire.metadata.name, _endpoints(wire))

    return convert


def _dispatched(wire: discovery.EndpointSlice, service: str) -> EndpointSet:
    """Return endpoints that Karmada copied from another member, without nodes, zone hints and pods of that cluster."""
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
    """Join the three conditions (KEP-1669). A missing ``ready`` is true, and ready wins over terminating."""
    if wire is None or wire.ready is not False:
        return READY
    if not wire.terminating:
        return Condition.NOT_READY
    return Condition.TERMINATING if wire.serving else Condition.GONE


def _endpoints(wire: discovery.EndpointSlice) -> tuple[Endpoint, ...]:
    """Return the endpoints, sorted by address. An address that is listed twice has its best condition.

    That is a pod that has ended and its successor with the same address (kubernetes#135266).
    """
    ports = ports_of_endpoints(wire.ports)
    namespace = wire.metadata.namespace
    endpoints: dict[str, Endpoint] = {}
    for endpoint in wire.endpoints or ():  # hot:
        if not endpoint.addresses:
            raise Malformed(f"endpoints[{_position(wire, endpoint)}].addresses: empty")
        host = endpoint.addresses[0]
        try:
            packed_ipv4(host)
        except (OSError, ValueError):
            host = address(host, field=f"endpoints[{_position(wire, endpoint)}].addresses")
        target, conditions, hints = endpoint.target_ref, endpoint.conditions, endpoint.hints
        state = READY if conditions is None or conditions.ready else condition(conditions)
        if host in endpoints and endpoints[host].condition <= state:
            continue
        endpoints[host] = Endpoint(
            host,
            ports,
            state,
            endpoint.hostname or "",
            endpoint.node_name or "",
            endpoint.zone or "",
            tuple(sorted([zone.name for zone in hints.for_zones or ()])) if hints else (),
            f"{target.namespace or namespace}/{target.name}" if target and target.kind == "Pod" else "",
        )
    return tuple(endpoints.values() if len(endpoints) < 2 else sorted(endpoints.values(), key=_address))


def _position(wire: discovery.EndpointSlice, endpoint: discovery.Endpoint) -> int:
    return next(n for n, each in enumerate(wire.endpoints or ()) if each is endpoint)
