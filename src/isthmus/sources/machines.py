"""Namespaces, nodes and this node's pods of the API server as rows."""

from __future__ import annotations

from typing import Final, cast

from isthmus.kube.objects import core
from isthmus.model.addresses import is_range
from isthmus.model.services import Namespace, Node, Pod, Port, Protocol
from isthmus.sources.normal import PROTOCOLS, addresses, name_of, pairs, port_number

ZONE: Final = "topology.kubernetes.io/zone"
REGION: Final = "topology.kubernetes.io/region"
OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
"""Key of the taint by which an administrator states that a node is shut down (KEP-2268)."""


def namespace(wire: core.Namespace) -> Namespace:
    """The row of a Namespace."""
    terminating = wire.metadata.deletion_timestamp is not None or wire.status.phase == "Terminating"
    return Namespace(wire.metadata.name, annotations=pairs(wire.metadata.annotations), terminating=terminating)


def node(wire: core.Node) -> Node:
    """The row of a Node. Its addresses are those that packets go to; names of it are none."""
    labels = wire.metadata.labels or {}
    found = [a.address for a in wire.status.addresses or () if a.type in ("InternalIP", "ExternalIP")]
    ranges = wire.spec.pod_cidrs or ([wire.spec.pod_cidr] if wire.spec.pod_cidr else [])
    return Node(
        wire.metadata.name,
        addresses=addresses(found, field="status.addresses"),
        zone=labels.get(ZONE, ""),
        region=labels.get(REGION, ""),
        pod_ranges=tuple(each for each in ranges if is_range(each)),
        cordoned=wire.spec.unschedulable,
        deleting=wire.metadata.deletion_timestamp is not None,
        out_of_service=any(each.key == OUT_OF_SERVICE for each in wire.spec.taints or ()),
        uid=wire.metadata.uid,
    )


def pod(wire: core.Pod) -> Pod:
    """The row of a Pod."""
    status = wire.status
    found = [each.ip for each in status.pod_ips or ()] or [status.pod_ip or ""]
    return Pod(
        name=name_of(wire.metadata),
        uid=wire.metadata.uid,
        node=wire.spec.node_name or "",
        addresses=addresses(found, field="status.podIPs"),
        ready=any(c.type == "Ready" and c.status == "True" for c in status.conditions or ()),
        labels=pairs(wire.metadata.labels),
        ports=_ports(wire.spec),
        phase=status.phase or "",
    )


def _ports(spec: core.PodSpec) -> tuple[Port, ...]:
    return tuple(
        Port(
            name=port.name or "",
            port=port_number(port.container_port, field="spec.containers.ports"),
            protocol=cast("Protocol", port.protocol or "TCP"),
        )
        for container in spec.containers or ()
        for port in container.ports or ()
        if (port.protocol or "TCP") in PROTOCOLS
    )
