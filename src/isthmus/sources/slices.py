"""EndpointSlices as the API server tells them: one row each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, cast

from isthmus.kube.objects import discovery
from isthmus.model.names import ClusterName, service_name
from isthmus.model.services import Condition, Endpoint, EndpointSet, Port, Protocol
from isthmus.sources.normal import PROTOCOLS, address, port_number
from isthmus.sources.services import SOURCE
from isthmus.sources.sink import Malformed

OF_SERVICE: Final = "kubernetes.io/service-name"
OF_CLUSTER: Final = "multicluster.kubernetes.io/source-cluster"
"""Label of slices that stand for another cluster's endpoints."""


def endpoint_set(
    cluster: ClusterName, *, remote: bool = False
) -> Callable[[discovery.EndpointSlice], EndpointSet | None]:
    """The conversion for a cluster of this name; slices of other clusters are rows only where ``remote`` says so."""

    def convert(wire: discovery.EndpointSlice) -> EndpointSet | None:
        labels = wire.metadata.labels or {}
        service = labels.get(OF_SERVICE, "")
        of = ClusterName(labels.get(OF_CLUSTER) or cluster)
        if not service or wire.address_type == "FQDN" or (of != cluster and not remote):
            return None
        return EndpointSet(
            service=service_name(wire.metadata.namespace, service),
            cluster=of,
            source=SOURCE,
            part=wire.metadata.name,
            endpoints=_endpoints(wire),
        )

    return convert


def condition(wire: discovery.EndpointConditions | None) -> Condition:
    """What the three flags say together (KEP-1669). Missing ones count as ready; ready counts even if terminating."""
    if wire is None or wire.ready is None or wire.ready:
        return Condition.READY
    if not wire.terminating:
        return Condition.NOT_READY
    return Condition.TERMINATING if wire.serving else Condition.GONE


def _endpoints(wire: discovery.EndpointSlice) -> tuple[Endpoint, ...]:
    """Sorted by address; an address that is there twice counts once."""
    ports = _ports(wire.ports)
    found: dict[str, Endpoint] = {}
    for position, each in enumerate(wire.endpoints or ()):
        if not each.addresses:
            raise Malformed(f"endpoints[{position}].addresses: empty")
        host = address(each.addresses[0], field=f"endpoints[{position}].addresses")
        found.setdefault(host, _endpoint(each, host, ports, wire.metadata.namespace))
    return tuple(found[host] for host in sorted(found))


def _endpoint(wire: discovery.Endpoint, host: str, ports: tuple[Port, ...], namespace: str) -> Endpoint:
    zones = (wire.hints.for_zones or ()) if wire.hints else ()
    target = wire.target_ref
    return Endpoint(
        address=host,
        ports=ports,
        condition=condition(wire.conditions),
        hostname=wire.hostname or "",
        node=wire.node_name or "",
        zone=wire.zone or "",
        for_zones=tuple(sorted(each.name for each in zones)),
        pod=f"{target.namespace or namespace}/{target.name}" if target and target.kind == "Pod" else "",
    )


def _ports(wire: Iterable[discovery.EndpointPort] | None) -> tuple[Port, ...]:
    """Sorted; a port without a number means all ports, which no Service can refer to."""
    return tuple(
        sorted(
            (
                Port(
                    name=each.name or "",
                    port=port_number(each.port, field="ports"),
                    protocol=cast("Protocol", each.protocol or "TCP"),
                    app_protocol=each.app_protocol or "",
                )
                for each in wire or ()
                if each.port is not None and (each.protocol or "TCP") in PROTOCOLS
            ),
            key=lambda port: (port.name, port.port, port.protocol),
        )
    )
