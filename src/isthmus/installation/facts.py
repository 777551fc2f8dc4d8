"""Facts of a cluster that an installation depends on, each with the object that it was read from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from isthmus.kube import Kind
from isthmus.kube.objects.meta import ManagedMeta, Wire

KUBE_SYSTEM: Final = "kube-system"


class ApiObject(Wire, frozen=True):
    """An object of any kind: what facts are read from has few fields in common."""

    metadata: ManagedMeta
    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None
    data: dict[str, str] | None = None


def kind(group: str, version: str, resource: str, name: str, *, namespaced: bool = True) -> Kind[ApiObject]:
    """A kind whose objects are decoded as :class:`ApiObject`."""
    return Kind(group, version, resource, name, ApiObject, namespaced=namespaced)


class Observed(Struct, frozen=True, kw_only=True):
    """Objects of a cluster that facts are read from."""

    version: str = ""
    """Git version of the API server."""
    uid: str = ""
    """UID of the namespace kube-system, which identifies the cluster."""
    nodes: tuple[ApiObject, ...] = ()
    daemon_sets: tuple[ApiObject, ...] = ()
    """DaemonSets of all namespaces."""
    deployments: tuple[ApiObject, ...] = ()
    """Deployments of meshes and other products, by their names."""
    services: tuple[ApiObject, ...] = ()
    """Services of the namespaces in which a cluster DNS runs."""
    config_maps: Mapping[tuple[str, str], Mapping[str, str]] = {}
    """Data by namespace and name, of those that networks and kubeadm write."""
    control_plane: tuple[ApiObject, ...] = ()
    """Pods of kube-apiserver and kube-controller-manager, where they run as pods."""
    service_cidrs: tuple[ApiObject, ...] = ()
    ip_pools: tuple[ApiObject, ...] = ()
    """Calico's."""
    definitions: Mapping[str, ApiObject] = {}
    """CustomResourceDefinitions by name: those of MCS and of the Gateway API."""
    served: frozenset[str] = frozenset()
    """Resources of other products that the API server serves, as ``plural.group``."""
    cluster_property: str = ""
    """Value of the ClusterProperty cluster.clusterset.k8s.io."""
    own: tuple[ApiObject, ...] = ()
    """Workloads of an existing installation."""
    unread: tuple[str, ...] = ()
    """Reasons why something could not be read, a sentence each."""


class Known(Struct, frozen=True):
    """Values of a fact and where they were read; no values and no source: unknown."""

    values: tuple[str, ...] = ()
    source: str = ""

    def __str__(self) -> str:
        return ", ".join(self.values) or ("none" if self.source else "unknown")


UNKNOWN: Final = Known()


class Installed(Struct, frozen=True):
    """An existing installation."""

    variables: Mapping[str, str]
    components: tuple[str, ...]
    images: Mapping[str, str]
    """Image by the name that the manifests have."""


class Facts(Struct, frozen=True, kw_only=True):
    """Facts of a cluster."""

    version: Known = UNKNOWN
    uid: str = ""
    name: Known = UNKNOWN
    """Name in the clusterset that another product gave the cluster."""
    id: Known = UNKNOWN
    pods: Known = UNKNOWN
    """CIDRs of pods, as of the other two."""
    services: Known = UNKNOWN
    nodes: Known = UNKNOWN
    """Addresses of nodes."""
    families: Known = UNKNOWN
    """Address families of Services, the preferred one first."""
    dns: Known = UNKNOWN
    """Addresses that pods have as nameservers."""
    dns_cache: Known = UNKNOWN
    """Addresses of a NodeLocal DNSCache."""
    domain: Known = UNKNOWN
    """Domain of the cluster."""
    proxy: Known = UNKNOWN
    """Mode of kube-proxy, or what replaces it."""
    network: Known = UNKNOWN
    """CNI plugins."""
    meshes: Known = UNKNOWN
    implementations: Known = UNKNOWN
    """Other implementations of the MCS API."""
    definitions: Known = UNKNOWN
    """Owner of the definitions of ServiceExport and ServiceImport, if they exist and are not ours."""
    gateway_api: Known = UNKNOWN
    """Version of the Gateway API's definitions."""
    karmada: Known = UNKNOWN
    workers: int = 0
    """Number of nodes on which any pod may be placed."""
    kernels: Known = UNKNOWN
    """Kernel versions with the number of nodes."""
    old_kernels: tuple[str, ...] = ()
    """Nodes whose kernel has no datapath."""
    load_balancer: Known = UNKNOWN
    """Products that assign addresses to Services of type LoadBalancer."""
    socket_lb: bool = False
    """``True`` if Cilium translates pods' connects itself."""
    installed: Installed | None = None
    unread: tuple[str, ...] = ()


ROWS: Final = {
    "version": "Kubernetes", "nodes": "nodes", "kernels": "kernels", "pods": "pod ranges", "services": "Service ranges",
    "families": "families", "dns": "cluster DNS", "dns_cache": "NodeLocal DNSCache", "domain": "cluster domain",
    "proxy": "kube-proxy", "network": "network", "load_balancer": "load balancers", "meshes": "meshes",
    "karmada": "Karmada", "implementations": "other MCS", "definitions": "MCS definitions",
    "gateway_api": "Gateway API",
}  # fmt: skip
"""Names of the facts that are shown, in this order."""
