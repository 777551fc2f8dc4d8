"""core/v1: services, namespaces, nodes, pods, events."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Final

from msgspec import field

from isthmus.kube.kind import Kind
from isthmus.kube.objects.meta import Condition, ManagedMeta, Meta, Wire


class ServicePort(Wire, frozen=True):
    """A port of a Service."""

    port: int
    name: str | None = None
    protocol: str | None = None
    app_protocol: str | None = None
    node_port: int | None = None
    target_port: int | str | None = None


class ClientIP(Wire, frozen=True):
    """Duration of session affinity."""

    timeout_seconds: int | None = None


class SessionAffinityConfig(Wire, frozen=True):
    """Settings of session affinity."""

    client_ip: ClientIP | None = field(default=None, name="clientIP")


class ServiceSpec(Wire, frozen=True):
    """Desired state of a Service."""

    type: str = field(default_factory=lambda: "ClusterIP")  # never left out of JSON, as a default would be
    ports: list[ServicePort] | None = None
    cluster_ip: str = field(default="", name="clusterIP")
    cluster_ips: list[str] | None = field(default=None, name="clusterIPs")
    external_ips: list[str] | None = field(default=None, name="externalIPs")
    external_name: str | None = None
    ip_families: list[str] | None = None
    ip_family_policy: str | None = None
    selector: dict[str, str] | None = None
    session_affinity: str | None = None
    session_affinity_config: SessionAffinityConfig | None = None
    internal_traffic_policy: str | None = None
    external_traffic_policy: str | None = None
    traffic_distribution: str | None = None
    publish_not_ready_addresses: bool | None = None
    load_balancer_class: str | None = None


class LoadBalancerIngress(Wire, frozen=True):
    """An address that a load balancer gave."""

    ip: str | None = None
    hostname: str | None = None
    ip_mode: str | None = None


class LoadBalancerStatus(Wire, frozen=True):
    """Addresses that a load balancer gave."""

    ingress: list[LoadBalancerIngress] | None = None


class ServiceStatus(Wire, frozen=True):
    """Observed state of a Service."""

    load_balancer: LoadBalancerStatus | None = None


class Service(Wire, frozen=True):
    """A Service."""

    metadata: ManagedMeta
    spec: ServiceSpec = ServiceSpec()
    status: ServiceStatus = ServiceStatus()


class NamespaceStatus(Wire, frozen=True):
    """Observed state of a Namespace."""

    phase: str | None = None


class Namespace(Wire, frozen=True):
    """A Namespace."""

    metadata: Meta
    status: NamespaceStatus = NamespaceStatus()


class NodeAddress(Wire, frozen=True):
    """An address of a Node, by type."""

    type: str
    address: str


class NodeStatus(Wire, frozen=True):
    """Observed state of a Node."""

    addresses: list[NodeAddress] | None = None


class Taint(Wire, frozen=True):
    """A taint that keeps pods off a Node."""

    key: str = ""


class NodeSpec(Wire, frozen=True):
    """Desired state of a Node."""

    pod_cidr: str | None = field(default=None, name="podCIDR")
    pod_cidrs: list[str] | None = field(default=None, name="podCIDRs")
    unschedulable: bool = False
    taints: list[Taint] | None = None


class Node(Wire, frozen=True):
    """A Node."""

    metadata: Meta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class ContainerPort(Wire, frozen=True):
    """A port that a container declares."""

    container_port: int
    name: str | None = None
    protocol: str | None = None
    host_port: int | None = None
    host_ip: str | None = field(default=None, name="hostIP")


class Container(Wire, frozen=True):
    """A container of a Pod."""

    name: str = ""
    ports: list[ContainerPort] | None = None


class PodSpec(Wire, frozen=True):
    """Desired state of a Pod."""

    node_name: str | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    host_network: bool = False
    service_account_name: str | None = None


class PodIP(Wire, frozen=True):
    """An address of a Pod."""

    ip: str = ""


class PodStatus(Wire, frozen=True):
    """Observed state of a Pod."""

    phase: str | None = None
    pod_ip: str | None = field(default=None, name="podIP")
    pod_ips: list[PodIP] | None = field(default=None, name="podIPs")
    conditions: list[Condition] | None = None


class Pod(Wire, frozen=True):
    """A Pod."""

    metadata: Meta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Event(Wire, frozen=True):
    """An Event, as the recorder needs it."""

    metadata: Meta
    count: int | None = None


SERVICE: Final = Kind("", "v1", "services", "Service", Service)
NAMESPACE: Final = Kind("", "v1", "namespaces", "Namespace", Namespace, namespaced=False)
NODE: Final = Kind("", "v1", "nodes", "Node", Node, namespaced=False)
POD: Final = Kind("", "v1", "pods", "Pod", Pod)
EVENT: Final = Kind("", "v1", "events", "Event", Event)


class ConfigMap(Wire, frozen=True):
    """Named texts."""

    metadata: Meta
    data: dict[str, str] | None = None


class Secret(Wire, frozen=True):
    """Named bytes, as base64."""

    metadata: Meta
    data: dict[str, str] | None = None


def encoded_files(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return files as the ``data`` of a Secret."""
    return {name: base64.b64encode(content).decode() for name, content in sorted(files.items())}


def decoded_files(data: Mapping[str, str] | None) -> dict[str, bytes]:
    """Return the files in the ``data`` of a Secret; ValueError names the one that is not valid base64."""
    files = {}
    for name, text in (data or {}).items():
        try:
            files[name] = base64.b64decode(text, validate=True)
        except ValueError:
            raise ValueError(f"{name}: is not valid base64") from None
    return files


CONFIG_MAP: Final = Kind("", "v1", "configmaps", "ConfigMap", ConfigMap)
SECRET: Final = Kind("", "v1", "secrets", "Secret", Secret)
