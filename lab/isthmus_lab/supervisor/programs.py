"""Processes of a lab: command, place, dependencies, and readiness check. Pure."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from msgspec import Struct

from isthmus.model.hosts import joined
from isthmus.proxy.supervisor import OWNER
from isthmus_lab.layout import Cluster, Lab, Node
from isthmus_lab.node import calls
from isthmus_lab.realapi import files
from isthmus_lab.supervisor import etcd_access
from isthmus_lab.supervisor.configs import OF_NODES, config_of, gateway_of, kubeconfig_of, proxy_of, socket_of

PYTHON = (sys.executable, "-m")
HEALTH: Final = 2381
"""The port of an etcd for its health, in its own namespace; the other one wants a certificate."""
ISTHMUS: Final = (*PYTHON, "isthmus")
ON_LOOPBACK: Final = (*PYTHON, "isthmus_lab.on_loopback")


class Http(Struct, frozen=True):
    """Ready when a GET is answered with 200."""

    namespace: str
    address: str
    port: int
    path: str


class Admin(Struct, frozen=True):
    """Ready when the admin socket answers a GET with 200."""

    socket: Path
    path: str = "/v1/status"


class Names(Struct, frozen=True):
    """Ready when a question is answered."""

    namespace: str
    address: str
    port: int = 53


class Serving(Struct, frozen=True):
    """Ready when the API server has the namespaces that every cluster has."""

    cluster: str


class NodeReady(Struct, frozen=True):
    """Ready when the API server has the Node."""

    cluster: str
    node: str


class ObjectExists(Struct, frozen=True):
    """Ready when the API server has an object."""

    cluster: str
    api_version: str
    kind: str
    object_namespace: str
    name: str


class Device(Struct, frozen=True):
    """Ready when a network device exists."""

    namespace: str
    name: str


class FileExists(Struct, frozen=True):
    """Ready when a file exists."""

    path: Path


Check = Http | Admin | Names | Serving | NodeReady | Device | ObjectExists | FileExists


class Program(Struct, frozen=True):
    """A process of a lab."""

    name: str
    """``c1/etcd``, ``c1/n1/agent``: what people call it."""
    command: tuple[str, ...]
    namespace: str
    cgroup: str
    """Below the lab's."""
    check: Check
    after: tuple[str, ...] = ()
    """Names of programs that have to be ready first."""
    surge: bool = False
    """Another release of it starts before it ends, as a DaemonSet's pods do with ``maxSurge``."""
    listener: str = ""
    """Cluster whose loopback listeners it inherits; a word with ``{fd}`` is repeated for each descriptor."""


def programs(lab: Lab, *, etcd: str, isthmus: bool = True, envoy: str = "") -> list[Program]:
    """All of them. ``envoy``: what nodes run while they have routes; on loopback addresses, what makes all calls."""
    result: list[Program] = []
    for cluster in lab.clusters:
        result += [_etcd(cluster, etcd), _apiserver(cluster), _clusterdns(cluster)]
        if isthmus:
            result.append(_operator(cluster))
        for node in cluster.nodes:
            result.append(_node(node))
            result += [_isthmus(node, process) for process in OF_NODES] if isthmus else []
            if lab.loopback:
                result.append(_calls(node, envoy))
                continue
            result += [_envoy(node, "envoy", proxy_of(node))] if isthmus and envoy else []
            if isthmus and lab.islands and node.gateway:
                result += [_isthmus(node, "gateway"), _envoy(node, "gateway-envoy", gateway_of(node))]
    return result


def relay(lab: Lab, name: str, options: tuple[str, ...]) -> Program:
    """The relay that delays the packets of a link."""
    return Program(
        name=f"fabric/{name}",
        command=(*PYTHON, "isthmus_lab.network.relay", f"--namespace={lab.fabric}", *options),
        namespace=lab.fabric,
        cgroup="fabric",
        check=Device(lab.fabric, options[0].partition("=")[2] + "1"),
    )


def _etcd(cluster: Cluster, binary: str) -> Program:
    peer = f"http://{joined(cluster.address, 2380)}"
    keys = etcd_access.folder(cluster).path
    health = cluster.address if cluster.lab.loopback else "127.0.0.1"
    options = {
        "name": cluster.name,
        "data-dir": str(cluster.directory / "etcd"),
        "listen-client-urls": cluster.etcd,
        "advertise-client-urls": cluster.etcd,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"{cluster.name}={peer}",
        "cert-file": str(keys / "server.crt"),
        "key-file": str(keys / "server.key"),
        "trusted-ca-file": str(keys / "ca.crt"),
        "client-cert-auth": "true",
        "enable-grpc-gateway": "false",  # it would come with a server certificate, which is no client's
        "listen-metrics-urls": f"http://{joined(health, HEALTH)}",
        "bcrypt-cost": "4",  # the least: the passwords lie in files beside it
        "heartbeat-interval": "50",
        "election-timeout": "500",  # alone in its cluster: it elects itself, and has not long to wait for others
        "unsafe-no-fsync": "true",  # a lab outlives no crash of the machine
        "log-level": "warn",
    }
    return Program(
        name=f"{cluster.name}/etcd",
        command=(binary, *(f"--{name}={value}" for name, value in options.items())),
        namespace=cluster.control_plane,
        cgroup=cluster.cgroup,
        check=Http(cluster.control_plane, health, HEALTH, "/health"),
    )


def etcd_of_apiserver(cluster: Cluster) -> dict[str, str]:
    """Flags by which an API server, of either kind, opens its cluster's etcd."""
    keys = etcd_access.folder(cluster).path
    return {
        "etcd-servers": cluster.etcd,
        "etcd-cafile": str(keys / "ca.crt"),
        "etcd-certfile": str(keys / f"{etcd_access.APISERVER}.crt"),
        "etcd-keyfile": str(keys / f"{etcd_access.APISERVER}.key"),
    }


def _apiserver(cluster: Cluster) -> Program:
    return Program(
        name=f"{cluster.name}/apiserver",
        command=(
            *PYTHON,
            "isthmus_lab.apiserver",
            *(f"--{flag}={value}" for flag, value in etcd_of_apiserver(cluster).items()),
            f"--listen={joined(cluster.address, 6443)}",
            f"--service-cidr={','.join(scheme.service_cidr for scheme in cluster.schemes)}",
            f"--tls-cert-file={cluster.directory / 'apiserver.crt'}",
            f"--tls-private-key-file={cluster.directory / 'apiserver.key'}",
            f"--root-ca-file={files.authority(cluster)}",
            f"--kubelet-certificate-authority={files.authority(cluster)}",
            f"--kubelet-client-certificate={files.kubelet_certificate(cluster)}",
            f"--kubelet-client-key={files.kubelet_key(cluster)}",
            "--fd={fd}",
            f"--token-file={cluster.directory / 'token'}",
        ),
        namespace=cluster.control_plane,
        cgroup=cluster.cgroup,
        check=Serving(cluster.name),
        listener=cluster.name,
    )


def _clusterdns(cluster: Cluster) -> Program:
    return Program(
        name=f"{cluster.name}/clusterdns",
        command=(
            *PYTHON,
            "isthmus_lab.clusterdns",
            f"--kubeconfig={kubeconfig_of(cluster)}",
            *(f"--listen={address}" for address in cluster.addresses),
            f"--port={cluster.lab.port(53)}",
        ),
        namespace=cluster.control_plane,
        cgroup=cluster.cgroup,
        check=Names(cluster.control_plane, cluster.address, cluster.lab.port(53)),
        after=(f"{cluster.name}/apiserver",),
    )


def _operator(cluster: Cluster) -> Program:
    node = cluster.nodes[0]
    return Program(
        name=f"{cluster.name}/operator",
        command=(*_isthmus_in(cluster), "operator", "--config", str(config_of(cluster, "operator"))),
        namespace=node.namespace,
        cgroup=cluster.cgroup,
        check=Admin(socket_of(cluster, "operator")),
        after=(f"{cluster.name}/apiserver",),
    )


def _node(node: Node) -> Program:
    return Program(
        name=f"{node.cluster.name}/{node.short}/node",
        command=(*PYTHON, "isthmus_lab.node", "--config", str(config_of(node, "node"))),
        namespace=node.namespace,
        cgroup=f"{node.cgroup}/node",
        check=NodeReady(node.cluster.name, node.name),
        after=(f"{node.cluster.name}/apiserver",),
    )


def _isthmus(node: Node, process: str) -> Program:
    return Program(
        name=f"{node.cluster.name}/{node.short}/{process}",
        command=(*_isthmus_in(node.cluster), process.partition("-")[0], "--config", str(config_of(node, process))),
        namespace=node.namespace,
        cgroup=f"{node.cgroup}/system",
        check=Admin(socket_of(node, process)),
        after=(f"{node.cluster.name}/apiserver",),
    )


def _isthmus_in(cluster: Cluster) -> tuple[str, ...]:
    """The command line that ``isthmus`` begins with."""
    return ON_LOOPBACK if cluster.lab.loopback else ISTHMUS


def _calls(node: Node, envoy: str) -> Program:
    """The Envoy that makes the calls of a cluster on loopback addresses."""
    return Program(
        name=f"{node.cluster.name}/{node.short}/calls",
        command=(envoy, "-c", str(calls.bootstrap_of(node)), *calls.OPTIONS),
        namespace=node.namespace,
        cgroup=node.envoy_cgroup,
        check=Admin(calls.admin_of(node), "/ready"),
    )


def _envoy(node: Node, name: str, directory: Path) -> Program:
    """Run Envoy in its own group: it outlives the process that starts it, and is killed only with the machine."""
    return Program(
        name=f"{node.cluster.name}/{node.short}/{name}",
        command=(*PYTHON, "isthmus", "envoy", "--config", str(config_of(node, name))),
        namespace=node.namespace,
        cgroup=node.envoy_cgroup if name == "envoy" else node.gateway_cgroup,
        check=FileExists(directory / OWNER),
        surge=True,
    )
