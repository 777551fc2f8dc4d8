"""Namespaces, nodes and this node's pods of the API server as rows."""

from __future__ import annotations

from typing import Final, cast

from isthmus import bounds
from isthmus.kube.objects import core
from isthmus.kube.objects.meta import Meta
from isthmus.model.addresses import is_range
from isthmus.model.names import SUBDOMAIN
from isthmus.model.pods import DatapathChoice
from isthmus.model.services import Namespace, Node, Pod, Port, Protocol
from isthmus.sources.normal import PROTOCOLS, addresses, name_of, pairs

ZONE: Final = "topology.kubernetes.io/zone"
REGION: Final = "topology.kubernetes.io/region"
DATAPATH: Final = "isthmus.io/datapath"
"""Annotation or label of a pod or a namespace: one of CHOICES."""
CHOICES: Final[tuple[DatapathChoice, ...]] = ("ignore", "translate")
SIDECARS: Final = frozenset({"istio-proxy", "linkerd-proxy", "kuma-sidecar"})
"""Names of containers, native sidecars included, whose pod redirects what it sends to them: Istio, Linkerd, Kuma."""
AMBIENT: Final = "ambient.istio.io/redirection"
"""Annotation that Istio's node agent sets to "enabled" on a pod whose calls it redirects to ztunnel (ambient mode)."""
OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
"""Key of the taint by which an administrator states that a node is shut down (KEP-2268)."""


def namespace(wire: core.Namespace) -> Namespace:
    """The row of a Namespace."""
    terminating = wire.metadata.deletion_timestamp is not None or wire.status.phase == "Terminating"
    return Namespace(
        wire.metadata.name,
        annotations=pairs(wire.metadata.annotations),
        terminating=terminating,
        datapath=_datapath(wire.metadata),
    )


def node(wire: core.Node) -> Node:
    """Return the row of a Node. Its addresses are its internal and external IPs, without host names."""
    labels = wire.metadata.labels or {}
    listed = [a.address for a in wire.status.addresses or () if a.type in ("InternalIP", "ExternalIP")]
    ranges = wire.spec.pod_cidrs or ([wire.spec.pod_cidr] if wire.spec.pod_cidr else [])
    return Node(
        wire.metadata.name,
        addresses=addresses(listed, field="status.addresses"),
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
    listed = [each.ip for each in status.pod_ips or ()] or [status.pod_ip or ""]
    return Pod(
        name=name_of(wire.metadata),
        uid=wire.metadata.uid,
        node=wire.spec.node_name or "",
        addresses=addresses(listed, field="status.podIPs"),
        ready=any(c.type == "Ready" and c.status == "True" for c in status.conditions or ()),
        labels=pairs(wire.metadata.labels),
        ports=_ports(wire.spec),
        phase=status.phase or "",
        datapath=_datapath(wire.metadata),
        mesh=_mesh(wire),
        host_network=wire.spec.host_network,
        service_account=_service_account(wire.spec),
    )


def caller(wire: core.Pod) -> Pod:
    """The row of a Pod of any node, with what the operator reads of it: its account, addresses and phase."""
    whole = pod(wire)
    return Pod(
        name=whole.name,
        uid=whole.uid,
        node=whole.node,
        addresses=whole.addresses,
        phase=whole.phase,
        host_network=whole.host_network,
        service_account=whole.service_account,
    )


def _datapath(meta: Meta) -> DatapathChoice:
    """Return the choice in the annotation of an object, else in its label; empty for any other value."""
    for choices in (meta.annotations or {}, meta.labels or {}):
        for choice in CHOICES:
            if choices.get(DATAPATH) == choice:
                return choice
    return ""


def _mesh(wire: core.Pod) -> str:
    """Return what shows that a mesh redirects the pod's own calls; empty if nothing does."""
    names = {each.name for each in (*(wire.spec.containers or ()), *(wire.spec.init_containers or ()))}
    sidecars = sorted(names & SIDECARS)
    if sidecars:
        return f"container {sidecars[0]}"
    ambient = (wire.metadata.annotations or {}).get(AMBIENT) == "enabled"
    return f"annotation {AMBIENT}" if ambient else ""


def _service_account(spec: core.PodSpec) -> str:
    """Return the name of the pod's account; empty for one that is no object's name, which no API server stores."""
    name = spec.service_account_name or ""
    return name if SUBDOMAIN.fits(name) else ""


def _ports(spec: core.PodSpec) -> tuple[Port, ...]:
    return tuple(
        Port(
            name=port.name or "",
            port=bounds.port(port.container_port, field="spec.containers.ports"),
            protocol=cast("Protocol", port.protocol or "TCP"),
        )
        for container in spec.containers or ()
        for port in container.ports or ()
        if (port.protocol or "TCP") in PROTOCOLS
    )
