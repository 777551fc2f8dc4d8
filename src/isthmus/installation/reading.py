"""Facts from objects of a cluster. Pure; a source that contradicts none before it is preferred by its order here."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

import yaml

from isthmus.installation.facts import KUBE_SYSTEM, UNKNOWN, ApiObject, Facts, Installed, Known, Observed
from isthmus.installation.rendering import PART_OF
from isthmus.model.hosts import canonical, family

OLDEST_KERNEL: Final = (5, 10)
"""First kernel that the datapath runs on (docs/datapath.md)."""
MAX_DOCUMENT: Final = 2**16
"""Characters of a document in a ConfigMap: kubeadm's and the kubelet's have some thousand."""
MAX_BRACKETS: Final = 200
"""Lists and maps in brackets in one: yaml's time grows with the square of those that are open."""
NODES_SHOWN: Final = 4
NODE_CIDRS: Final = "spec.podCIDRs of Nodes"
"""Source of pod ranges that agents follow by themselves, as nodes come and go."""
NETWORKS: Final = {
    "cilium": "Cilium", "calico-node": "Calico", "canal": "Canal", "kube-flannel-ds": "Flannel",
    "kube-flannel": "Flannel", "weave-net": "Weave Net", "aws-node": "Amazon VPC CNI", "kindnet": "kindnet",
    "antrea-agent": "Antrea",
    "kube-router": "kube-router", "azure-cns": "Azure CNI", "ovnkube-node": "OVN-Kubernetes",
    "anetd": "GKE Dataplane V2", "netd": "GKE netd", "kube-multus-ds": "Multus",
}  # fmt: skip
"""Network by the name of its DaemonSet."""
MESHES: Final = {
    "istiod": "Istio", "ztunnel": "Istio ambient", "linkerd-destination": "Linkerd", "kuma-control-plane": "Kuma",
}  # fmt: skip
"""Mesh by the name of a Deployment or DaemonSet."""
BALANCERS: Final = {"speaker": "MetalLB", "metallb-speaker": "MetalLB", "kube-vip-ds": "kube-vip"}
"""Load balancers of clusters without a cloud, by the name of their DaemonSet."""
OTHERS: Final = {
    "submariner-operator": "Submariner", "submariner-lighthouse-agent": "Submariner Lighthouse",
    "cloud-map-mcs-controller-manager": "AWS Cloud Map MCS controller",
}  # fmt: skip
"""Other implementations of the MCS API, by the name of a Deployment."""
DEPLOYMENTS: Final = (*MESHES, *OTHERS, "karmada-agent")
DNS_NAMESPACES: Final = (KUBE_SYSTEM, "openshift-dns")
DNS_NAMES: Final = ("kube-dns", "coredns", "rke2-coredns-rke2-coredns", "dns-default")
DNS_CACHE: Final = "node-local-dns"
MAPS: Final = (
    (KUBE_SYSTEM, "kubeadm-config"), (KUBE_SYSTEM, "kubelet-config"), (KUBE_SYSTEM, "kube-proxy"),
    (KUBE_SYSTEM, "cilium-config"), ("kube-flannel", "kube-flannel-cfg"), (KUBE_SYSTEM, "kube-flannel-cfg"),
)  # fmt: skip
"""ConfigMaps that facts are read from."""
EXPORTS: Final = "serviceexports.multicluster.x-k8s.io"
HTTP_ROUTES: Final = "httproutes.gateway.networking.k8s.io"
BUNDLE: Final = "gateway.networking.k8s.io/bundle-version"
KARMADA_CLUSTERS: Final = "clusters.cluster.karmada.io"
GKE_EXPORTS: Final = "serviceexports.net.gke.io"


def read(observed: Observed) -> Facts:
    """Return all facts."""
    cilium = observed.config_maps.get((KUBE_SYSTEM, "cilium-config"), {})
    services, dns = service_ranges(observed), cluster_dns(observed)
    return Facts(
        version=Known((observed.version,), "/version") if observed.version else UNKNOWN,
        uid=observed.uid,
        name=cluster_name(observed, cilium),
        id=_cilium(cilium, "cluster-id", ignore="0"),
        pods=pod_ranges(observed, cilium),
        services=services,
        nodes=_nodes(observed),
        families=_families(services, dns),
        dns=dns,
        dns_cache=_dns_cache(observed),
        domain=_domain(observed),
        proxy=_proxy(observed, cilium),
        network=_by_name(observed.daemon_sets, NETWORKS, "DaemonSet"),
        meshes=_by_name((*observed.deployments, *observed.daemon_sets), MESHES, "workload"),
        implementations=_implementations(observed, cilium),
        definitions=_definitions(observed),
        gateway_api=_gateway_api(observed),
        karmada=_karmada(observed),
        workers=sum(map(_is_worker, observed.nodes)),
        kernels=_kernels(observed),
        old_kernels=tuple(node.metadata.name for node in observed.nodes if _is_old(_kernel(node))),
        load_balancer=_load_balancer(observed),
        socket_lb=bool(cilium) and cilium.get("kube-proxy-replacement") in ("true", "strict", "partial"),
        installed=_installed(observed),
        unread=observed.unread,
    )


def cluster_name(observed: Observed, cilium: Mapping[str, str]) -> Known:
    """Name that the cluster has as a ClusterProperty (KEP-2149), or in Cilium's ClusterMesh."""
    if observed.cluster_property:
        return Known((observed.cluster_property,), "ClusterProperty cluster.clusterset.k8s.io")
    return _cilium(cilium, "cluster-name", ignore="default")


def service_ranges(observed: Observed) -> Known:
    """Ranges of Services: ServiceCIDR objects (Kubernetes 1.33), kube-apiserver's option, kubeadm's configuration."""
    texts = [cidr for each in observed.service_cidrs for cidr in _strings((each.spec or {}).get("cidrs"))]
    if ranges := _cidrs(texts):
        return Known(ranges, "ServiceCIDR objects")
    option = _option(observed.control_plane, "kube-apiserver", "service-cluster-ip-range")
    return _first(option, _kubeadm_ranges(observed, "serviceSubnet"))


def pod_ranges(observed: Observed, cilium: Mapping[str, str]) -> Known:
    """Ranges of pods, by what assigns their addresses: the network plugin, else the controller manager."""
    pools = [
        str((each.spec or {}).get("cidr", "")) for each in observed.ip_pools if not (each.spec or {}).get("disabled")
    ]
    if valid := _cidrs(pools):
        return Known(valid, "Calico's IPPools")
    if cilium.get("ipam", "cluster-pool").startswith("cluster-pool"):
        names = ("cluster-pool-ipv4-cidr", "cluster-pool-ipv6-cidr")
        if valid := _cidrs(part for name in names for part in re.split(r"[,\s]+", cilium.get(name, ""))):
            return Known(valid, "ConfigMap kube-system/cilium-config")
    for namespace in ("kube-flannel", KUBE_SYSTEM):
        text = observed.config_maps.get((namespace, "kube-flannel-cfg"), {}).get("net-conf.json", "")
        prefixes = re.findall(r'"(?:Network|IPv6Network)"\s*:\s*"([^"]+)"', text)
        if valid := _cidrs(prefixes):
            return Known(valid, f"ConfigMap {namespace}/kube-flannel-cfg")
    option = _option(observed.control_plane, "kube-controller-manager", "cluster-cidr")
    return _first(option, _kubeadm_ranges(observed, "podSubnet"), _node_cidrs(observed))


def cluster_dns(observed: Observed) -> Known:
    """Addresses that kubelets write into pods' resolv.conf: their configuration's, else those of the Service."""
    kubelet = _yaml(observed.config_maps.get((KUBE_SYSTEM, "kubelet-config"), {}).get("kubelet", ""))
    service = next(iter(sorted(filter(_is_dns, observed.services), key=_dns_rank)), None)
    spec = (service.spec or {}) if service is not None else {}
    addresses = _addresses(_strings(spec.get("clusterIPs")) or _strings([spec.get("clusterIP")]))
    configured = _addresses(_strings(kubelet.get("clusterDNS")))
    if configured and not set(configured) <= set(addresses):
        return Known(configured, "ConfigMap kube-system/kubelet-config, clusterDNS")
    if service is not None and addresses:
        return Known(addresses, f"Service {service.metadata.namespace}/{service.metadata.name}")
    return UNKNOWN


def _is_dns(service: ApiObject) -> bool:
    return service.metadata.name in DNS_NAMES or (service.metadata.labels or {}).get("k8s-app") == "kube-dns"


def _dns_rank(service: ApiObject) -> int:
    name = service.metadata.name
    return DNS_NAMES.index(name) if name in DNS_NAMES else len(DNS_NAMES)


def _dns_cache(observed: Observed) -> Known:
    """Addresses of a NodeLocal DNSCache that are not the cluster DNS's: its option ``-localip``."""
    caches = [each for each in observed.daemon_sets if each.metadata.name == DNS_CACHE]
    if not caches:
        return Known((), "DaemonSets") if observed.daemon_sets else UNKNOWN
    words = [word for container in containers(caches[0]) for word in _words(container)]
    text = next((after for word, after in pairwise(words) if word.lstrip("-") == "localip"), "")
    text = text or next((w.partition("=")[2] for w in words if w.lstrip("-").startswith("localip=")), "")
    return Known(_addresses(text.split(",")), f"DaemonSet {caches[0].metadata.namespace}/{DNS_CACHE}")


def _domain(observed: Observed) -> Known:
    kubelet = _yaml(observed.config_maps.get((KUBE_SYSTEM, "kubelet-config"), {}).get("kubelet", ""))
    value = kubelet.get("clusterDomain")
    domain = value if isinstance(value, str) else ""
    source = "ConfigMap kube-system/kubelet-config, clusterDomain"
    return _first(Known((domain,), source) if domain else UNKNOWN, _kubeadm(observed, "dnsDomain"))


def _families(services: Known, dns: Known) -> Known:
    addresses = services if services.values else dns
    return Known(tuple(dict.fromkeys(map(family, addresses.values))), addresses.source)


def _proxy(observed: Observed, cilium: Mapping[str, str]) -> Known:
    names = {each.metadata.name for each in observed.daemon_sets}
    if "kube-proxy" in names or any(name.startswith("kube-proxy-") for name in names):
        config = _yaml(observed.config_maps.get((KUBE_SYSTEM, "kube-proxy"), {}).get("config.conf", ""))
        mode = config.get("mode")
        mode = mode if isinstance(mode, str) and mode else "iptables"
        return Known((mode,), "ConfigMap kube-system/kube-proxy" if config else "DaemonSet kube-proxy, its default")
    if cilium.get("kube-proxy-replacement") in ("true", "strict"):
        return Known(("replaced by Cilium",), "ConfigMap kube-system/cilium-config")
    return UNKNOWN


def _implementations(observed: Observed, cilium: Mapping[str, str]) -> Known:
    implementations = list(_by_name(observed.deployments, OTHERS, "Deployment").values)
    if cilium.get("clustermesh-enable-mcs-api") == "true":
        implementations.append("Cilium ClusterMesh (clustermesh-enable-mcs-api)")
    if GKE_EXPORTS in observed.served:
        implementations.append("GKE multi-cluster Services")
    return Known(tuple(implementations), "Deployments, cilium-config, API groups")


def _definitions(observed: Observed) -> Known:
    definition = observed.definitions.get(EXPORTS)
    if definition is None or (definition.metadata.labels or {}).get(PART_OF) == "isthmus":
        return Known((), EXPORTS)
    managers = [each.manager for each in definition.metadata.managed_fields or ()]
    versions = ", ".join(str(each.get("name")) for each in (definition.spec or {}).get("versions") or ())
    return Known((f"{versions}, applied by {managers[0] if managers else 'an unknown manager'}",), EXPORTS)


def _gateway_api(observed: Observed) -> Known:
    definition = observed.definitions.get(HTTP_ROUTES)
    if definition is None:
        return Known((), HTTP_ROUTES)
    return Known(((definition.metadata.annotations or {}).get(BUNDLE, "of an unknown version"),), HTTP_ROUTES)


def _karmada(observed: Observed) -> Known:
    if KARMADA_CLUSTERS in observed.served:
        return Known(("its control plane",), KARMADA_CLUSTERS)
    agents = [each for each in observed.deployments if each.metadata.name == "karmada-agent"]
    return Known(("a member (karmada-agent)",) if agents else (), "Deployments")


def _is_worker(node: ApiObject) -> bool:
    """True if no taint keeps pods without tolerations away, and nobody has cordoned the node."""
    spec = node.spec or {}
    taints = [each for each in spec.get("taints") or () if isinstance(each, Mapping)]
    return not spec.get("unschedulable") and all(each.get("effect") == "PreferNoSchedule" for each in taints)


def _nodes(observed: Observed) -> Known:
    if not observed.nodes:
        return UNKNOWN
    addresses = [address for node in observed.nodes for address in _internal(node)]
    more = len(addresses) - NODES_SHOWN
    shown = [*addresses[:NODES_SHOWN], *([f"and {more} more"] if more > 0 else [])]
    return Known(tuple(shown), "Node objects")


def _kernels(observed: Observed) -> Known:
    counts = Counter(_kernel(node) for node in observed.nodes)
    shown = tuple(f"{kernel or 'unknown'} ({count})" for kernel, count in sorted(counts.items()))
    return Known(shown, "status.nodeInfo of Nodes") if shown else UNKNOWN


def _load_balancer(observed: Observed) -> Known:
    if balancers := _by_name(observed.daemon_sets, BALANCERS, "DaemonSet").values:
        return Known(balancers, "DaemonSets")
    providers = {str((node.spec or {}).get("providerID") or "").partition(":")[0] for node in observed.nodes}
    clouds = tuple(sorted(providers - {"", "kind", "k3s"}))
    return Known(clouds, "spec.providerID of Nodes") if clouds else UNKNOWN


COMPONENTS: Final = {
    "keys": "isthmus-keys", "mirror": "isthmus-mirror", "routes": "isthmus-envoy", "islands": "isthmus-gateway",
}  # fmt: skip
"""Workload by the component that adds it."""
METRICS_PORT: Final = 9967
"""Port of the agent that the component ``monitoring`` adds."""
REPLICAS_SETTING: Final = "ISTHMUS_ETCD_REPLICAS"
"""Variable of containers that the component ``replicated`` adds."""
IMAGES: Final = {"operator": "isthmus", "agent": "isthmus", "envoy": "isthmus-envoy"}
"""Image, as the manifests name it, by container."""


def _installed(observed: Observed) -> Installed | None:
    """The existing installation, by its workloads and the ConfigMap of variables that they refer to."""
    workloads = {each.metadata.name for each in observed.own}
    own = [container for each in observed.own for container in containers(each)]
    sources = [source or {} for each in own for source in each.get("envFrom") or ()]
    names = {(each.get("configMapRef") or {}).get("name") for each in sources}
    variables = next((data for (_, name), data in observed.config_maps.items() if name in names), None)
    if variables is None:
        return None
    ports = {port.get("containerPort") for each in own for port in each.get("ports") or ()}
    components = [name for name, workload in COMPONENTS.items() if workload in workloads]
    images = {IMAGES[name]: str(each.get("image")) for each in own if (name := each.get("name")) in IMAGES}
    components += ["monitoring"] if METRICS_PORT in ports else []
    settings = {setting.get("name") for each in own for setting in each.get("env") or ()}
    components += ["replicated"] if REPLICAS_SETTING in settings else []
    return Installed(variables, tuple(components), images)


def containers(workload: ApiObject) -> list[Mapping[str, Any]]:
    """Containers of a workload's template, or of a pod."""
    template = ((workload.spec or {}).get("template") or {}).get("spec") or (workload.spec or {})
    return [each for each in template.get("containers") or () if isinstance(each, Mapping)]


def _words(container: Mapping[str, Any]) -> list[str]:
    return [*_strings(container.get("command")), *_strings(container.get("args"))]


def _option(pods: Iterable[ApiObject], program: str, option: str) -> Known:
    """CIDRs of an option of a control plane's program that runs as a pod."""
    for pod in pods:
        for container in containers(pod):
            for word in _words(container):
                name, _, value = word.partition("=")
                if container.get("name") == program and name == f"--{option}" and (valid := _cidrs(value.split(","))):
                    return Known(valid, f"Pod {pod.metadata.name}, {name}")
    return UNKNOWN


def _kubeadm(observed: Observed, field: str) -> Known:
    text = observed.config_maps.get((KUBE_SYSTEM, "kubeadm-config"), {}).get("ClusterConfiguration", "")
    networking = _yaml(text).get("networking")
    value = networking.get(field) if isinstance(networking, dict) else None
    if not isinstance(value, str) or not value:
        return UNKNOWN
    return Known((value,), f"ConfigMap kube-system/kubeadm-config, {field}")


def _kubeadm_ranges(observed: Observed, field: str) -> Known:
    lists = _kubeadm(observed, field)
    ranges = _cidrs(text for value in lists.values for text in value.split(","))
    return Known(ranges, lists.source) if ranges else UNKNOWN


def _node_cidrs(observed: Observed) -> Known:
    """Pod CIDRs of Nodes, joined where they are adjacent. Some networks ignore them."""
    texts = [each for node in observed.nodes for each in _strings((node.spec or {}).get("podCIDRs"))]
    networks = [ipaddress.ip_network(each, strict=False) for each in _cidrs(texts)]
    four = [each for each in networks if isinstance(each, ipaddress.IPv4Network)]
    six = [each for each in networks if isinstance(each, ipaddress.IPv6Network)]
    joined = [*ipaddress.collapse_addresses(four), *ipaddress.collapse_addresses(six)]
    return Known(tuple(map(str, joined)), NODE_CIDRS) if joined else UNKNOWN


def _by_name(workloads: Iterable[ApiObject], names: Mapping[str, str], what: str) -> Known:
    matches = [each for each in workloads if each.metadata.name in names]
    products = tuple(dict.fromkeys(names[each.metadata.name] for each in matches))
    places = ", ".join(f"{each.metadata.namespace}/{each.metadata.name}" for each in matches)
    return Known(products, f"{what} {places}" if matches else f"{what}s")


def _cilium(cilium: Mapping[str, str], field: str, *, ignore: str) -> Known:
    value = cilium.get(field, "")
    return Known((value,), "ConfigMap kube-system/cilium-config") if value not in ("", ignore) else UNKNOWN


def _kernel(node: ApiObject) -> str:
    return str(((node.status or {}).get("nodeInfo") or {}).get("kernelVersion") or "")


def _is_old(release: str) -> bool:
    version = tuple(int(part) for part in re.findall(r"\d+", release)[:2])
    return bool(version) and version < OLDEST_KERNEL


def _internal(node: ApiObject) -> Iterator[str]:
    for entry in (node.status or {}).get("addresses") or ():
        if entry.get("type") == "InternalIP":
            yield str(entry.get("address"))


def _first(*candidates: Known) -> Known:
    return next((each for each in candidates if each.values), UNKNOWN)


def _strings(value: Any) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list | tuple) else []


def _addresses(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(each.strip() for each in texts if canonical(each.strip()))


def _cidrs(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(each.strip() for each in texts if _is_cidr(each.strip()))


def _is_cidr(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return "/" in text


def _yaml(text: str) -> dict[str, Any]:
    """A document of a ConfigMap; empty if it cannot be read.

    Beside its own errors yaml raises those of Python's conversions (``2026-13-01``, ``0b2``), and of its stack.
    """
    if len(text) > MAX_DOCUMENT or text.count("[") + text.count("{") > MAX_BRACKETS:
        return {}
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
