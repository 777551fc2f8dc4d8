"""The files that the lab's processes are configured with: the ordinary ones, as on a real cluster."""

from __future__ import annotations

import base64
import json
import secrets
from pathlib import Path
from typing import Any, Final

import yaml
from msgspec import structs

from isthmus import config
from isthmus.clusterset import certificates
from isthmus.model.hosts import joined
from isthmus_lab import cgroups, privileges
from isthmus_lab.layout import GATEWAY, Cluster, Lab, Node
from isthmus_lab.node import calls, kubelet, settings, shared_host
from isthmus_lab.realapi import files
from isthmus_lab.supervisor import etcd_access

NAME_SERVERS: Final = {"dns": "first", "dns-second": "second"}
"""Name servers of each node: process name and its ``dns.instance``."""
OF_NODES: Final = ("agent", *NAME_SERVERS)
"""Isthmus' processes of each node."""
PORTS: Final = {"operator": 9963, "agent": 9964, "gateway": 9966, "dns": 9969, "dns-second": 9970}
"""Ports of health and metrics at the process's node, those of deploy/."""


def write(lab: Lab, *, ports: dict[str, int], services: bool = True, envoy: str = "") -> None:
    """Everything, once. ``ports`` are those of the API servers on the host's loopback, by cluster.

    ``services``: whether nodes program plain Services; ``envoy``: the program that they run for routes, if any.
    """
    lab.logs.mkdir(parents=True, exist_ok=True)
    tokens = {cluster.name: secrets.token_urlsafe(24) for cluster in lab.clusters}
    trusted = certificates.authority(f"isthmus lab {lab.name}")
    etcd_access.write(lab, domain=config.GatewaySection().domain if lab.islands else "")
    for cluster in lab.clusters:
        directory = cluster.directory
        for part in ("etcd", "peers"):
            (directory / part).mkdir(parents=True, exist_ok=True)
        _private(directory / "token", tokens[cluster.name])
        _private(kubeconfig_of(cluster), _kubeconfig({cluster.name: cluster.apiserver}, tokens, trusted.certificate))
        served = certificates.issue(trusted, "kube-apiserver", hosts=_hosts(cluster))
        _private(directory / "apiserver.crt", served.certificate.decode())
        _private(directory / "apiserver.key", served.key.decode())
        files.write(cluster, trusted=trusted, token=tokens[cluster.name])
        _private(config_of(cluster, "operator"), config.to_toml(operator(cluster, envoy=envoy)))
        for node in cluster.nodes:
            _node(node, services, envoy)
            shown = certificates.issue(trusted, f"system:node:{node.name}", hosts=(*node.addresses, node.name))
            _private(kubelet.certificate(node), shown.certificate.decode())
            _private(kubelet.key(node), shown.key.decode())
    _private(lab.directory / "clusters.json", json.dumps({each.name: _local(each) for each in lab.clusters}))
    servers = {name: f"https://127.0.0.1:{port}" for name, port in ports.items()}
    _private(lab.kubeconfig, _kubeconfig(servers, tokens, trusted.certificate))


def _local(cluster: Cluster) -> dict[str, Any]:
    """Data for ``isthmus --cluster``: the sockets of a cluster's first node, its pinned maps, and further agents."""
    node, *further = cluster.nodes
    sockets = {"operator": socket_of(cluster, "operator"), **{name: socket_of(node, name) for name in OF_NODES}}
    if config_of(node, "gateway").exists():
        sockets["gateway"] = socket_of(node, "gateway")
    pin = "" if privileges.CONFINED else agent(node).datapath.pin
    agents = {f"n{each.number}": str(socket_of(each, "agent")) for each in further}
    return {"sockets": {name: str(path) for name, path in sockets.items()}, "pin": pin, "agents": agents}


def _node(node: Node, services: bool, envoy: str) -> None:
    for part in ("pods", "peers"):
        (node.directory / part).mkdir(parents=True, exist_ok=True)
    _private(config_of(node, "agent"), config.to_toml(agent(node, envoy=envoy)))
    for process in NAME_SERVERS:
        _private(config_of(node, process), config.to_toml(dns(node, process)))
    if node.cluster.lab.loopback:
        calls.begin(node)
        shared_host.begin(node)
    elif envoy:
        _private(config_of(node, "envoy"), config.to_toml(config.Config(proxy=_proxy(node, envoy))))
    if node.gateway and node.cluster.lab.islands:
        of_gateway = gateway(node, envoy=envoy)
        _private(config_of(node, "gateway"), config.to_toml(of_gateway))
        _private(config_of(node, "gateway-envoy"), config.to_toml(config.Config(proxy=of_gateway.proxy)))
    lab = node.cluster.lab
    of_node = settings.Settings(
        lab=lab.name,
        clusters=lab.size,
        nodes=lab.nodes,
        networks=lab.networks,
        families=lab.families,
        loopback=lab.loopback,
        cluster=node.cluster.name,
        node=node.number,
        kubeconfig=str(kubeconfig_of(node.cluster)),
        services=services,
        plans=str(socket_of(node, "agent")) if privileges.CONFINED else "",
    )
    _private(config_of(node, "node"), settings.dump(of_node))


def config_of(where: Cluster | Node, process: str) -> Path:
    """A process's configuration file."""
    return where.directory / f"{process}.toml"


def kubeconfig_of(cluster: Cluster) -> Path:
    """For the cluster's own processes, inside the lab."""
    return cluster.directory / "kubeconfig"


def socket_of(where: Cluster | Node, process: str) -> Path:
    """A process's admin socket; those of the first node are the cluster's, where people look."""
    if isinstance(where, Node) and where.number == 1:
        where = where.cluster
    return where.directory / f"{process}.sock"


def operator(cluster: Cluster, *, envoy: str = "") -> config.Config:
    """The operator's configuration."""
    gateways = cluster.gateway_endpoints if cluster.lab.islands else ()
    return config.Config(
        cluster=structs.replace(_cluster(cluster), gateways=gateways),
        kubernetes=_kubernetes(cluster),
        etcd=etcd_access.section(cluster),
        clusterset=config.ClustersetSection(directory=str(cluster.directory / "peers")),
        proxy=_proxy(cluster.nodes[0], envoy),
        identity=_identity(cluster),
        admin=config.AdminSection(socket=str(socket_of(cluster, "operator"))),
        monitor=_monitor(cluster.nodes[0], "operator"),
    )


def agent(node: Node, *, envoy: str = "") -> config.Config:
    """A node's agent's configuration."""
    cluster, lab = node.cluster, node.cluster.lab
    return config.Config(
        cluster=_cluster(cluster),
        node=config.NodeSection(name=node.name),
        kubernetes=_kubernetes(cluster),
        clusterset=config.ClustersetSection(
            directory=str(cluster.directory / "peers"), state=str(node.directory / "peers")
        ),
        datapath=_datapath(node),
        proxy=_proxy(node, envoy),
        gateway=_gateway(cluster) if lab.islands else config.GatewaySection(),
        dns=_dns(cluster),
        identity=_identity(cluster, directory=str(etcd_access.pairs_of(cluster)), secret=""),
        admin=config.AdminSection(socket=str(socket_of(node, "agent"))),
        monitor=_monitor(node, "agent"),
    )


def _datapath(node: Node) -> config.DatapathSection:
    lab = node.cluster.lab
    if privileges.CONFINED:
        return config.DatapathSection(substitute=privileges.BY_ENVOY if lab.loopback else privileges.IN_PLACE)
    cgroup = cgroups.root() / lab.prefix / node.pods_cgroup
    return config.DatapathSection(cgroup=str(cgroup), pin=str(lab.bpffs / node.name), flows=1)


def dns(node: Node, process: str) -> config.Config:
    """Configuration of a node's name server, with the agent's datapath section, since they share pinned maps."""
    names = _dns(node.cluster, agent=str(socket_of(node, "agent")))
    return config.Config(
        cluster=_cluster(node.cluster),
        node=config.NodeSection(name=node.name),
        datapath=agent(node).datapath,
        dns=structs.replace(names, instance=NAME_SERVERS[process]),
        admin=config.AdminSection(socket=str(socket_of(node, process))),
        monitor=_monitor(node, process),
    )


def proxy_of(node: Node) -> Path:
    """Directory that a node's agent and its Envoy share."""
    return node.directory / "proxy"


def gateway(node: Node, *, envoy: str) -> config.Config:
    """A gateway's configuration, on one of its island's gateway nodes."""
    cluster = node.cluster
    return config.Config(
        cluster=_cluster(cluster),
        kubernetes=_kubernetes(cluster),
        etcd=config.EtcdSection(endpoints=(cluster.etcd,)),
        clusterset=config.ClustersetSection(directory=str(cluster.directory / "peers")),
        proxy=structs.replace(_proxy(node, envoy), directory=str(gateway_of(node)), uplinks=()),
        gateway=structs.replace(_gateway(cluster), listen=(joined(node.address, GATEWAY),)),
        identity=_identity(cluster),
        admin=config.AdminSection(socket=str(socket_of(node, "gateway"))),
        monitor=_monitor(node, "gateway"),
    )


def monitor_of(node: Node, process: str) -> str:
    """Address and port at which a process serves its health and metrics; an operator runs on the first node."""
    return joined(node.address, PORTS[process])


def _monitor(node: Node, process: str) -> config.MonitorSection:
    """None on loopback addresses, where all nodes are the host."""
    return config.MonitorSection(listen="" if node.cluster.lab.loopback else monitor_of(node, process))


def gateway_of(node: Node) -> Path:
    """The directory of a gateway's Envoy."""
    return node.directory / "gateway"


def _gateway(cluster: Cluster) -> config.GatewaySection:
    """A connect has a second: a lab runs on busy machines, and delays its links."""
    return config.GatewaySection(identity=str(etcd_access.folder(cluster).path), connect_timeout=1.0)


def _identity(cluster: Cluster, **keys: str) -> config.IdentitySection:
    """Nothing without the option, so that the file has no section and the previous release can read it."""
    section = config.IdentitySection(enabled=cluster.lab.identity)
    return structs.replace(section, **keys) if cluster.lab.identity else section


def _proxy(node: Node, envoy: str) -> config.ProxySection:
    if not envoy or node.cluster.lab.loopback:
        return config.ProxySection()
    listen = tuple(scheme.node_local for scheme in node.cluster.schemes)
    return config.ProxySection(directory=str(proxy_of(node)), listen=listen, envoy=envoy, concurrency=1)


def _cluster(cluster: Cluster) -> config.ClusterSection:
    region, zone = cluster.place
    return config.ClusterSection(
        name=cluster.name,
        id=cluster.index,
        network=cluster.network,
        region=region,
        zone=zone,
        families=cluster.families,
    )


def _kubernetes(cluster: Cluster) -> config.KubernetesSection:
    return config.KubernetesSection(kubeconfig=str(kubeconfig_of(cluster)))


def _dns(cluster: Cluster, *, agent: str = "") -> config.DnsSection:
    port = cluster.lab.port(53)
    section = config.DnsSection(
        listen=tuple(joined(scheme.node_local, port) for scheme in cluster.schemes),
        cluster_dns=tuple(scheme.cluster_dns for scheme in cluster.schemes),
        agent=agent,
    )
    if cluster.lab.loopback:
        return structs.replace(section, upstream=joined(cluster.address, port), uplinks=())
    return section


def _hosts(cluster: Cluster) -> list[str]:
    """Host names of an API server: on the host, in the lab, and in pods."""
    inside = [*cluster.addresses, *(scheme.api_service for scheme in cluster.schemes)]
    return ["127.0.0.1", *inside, "kubernetes.default.svc", "kubernetes.default"]


def _kubeconfig(servers: dict[str, str], tokens: dict[str, str], trusted: bytes) -> str:
    first = next(iter(servers))
    authority = base64.b64encode(trusted).decode()
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": first,
        "clusters": [
            {"name": name, "cluster": {"server": server, "certificate-authority-data": authority}}
            for name, server in servers.items()
        ],
        "users": [{"name": name, "user": {"token": tokens[name]}} for name in servers],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}} for name in servers],
    }
    return yaml.safe_dump(body, sort_keys=False)


def _private(path: Path, content: str) -> None:
    path.touch(mode=0o600)
    path.write_text(content)
