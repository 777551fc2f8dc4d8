"""Processes that replace the small API server if the real one is requested. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from isthmus.model.hosts import joined
from isthmus_lab.layout import Cluster, Lab
from isthmus_lab.realapi import files
from isthmus_lab.supervisor.configs import kubeconfig_of
from isthmus_lab.supervisor.programs import PYTHON, ObjectExists, Program, Serving, etcd_of_apiserver

ISSUER: Final = "https://kubernetes.default.svc.cluster.local"
DEFAULT: Final = "default"


def instead(programs: Iterable[Program], lab: Lab, *, apiserver: Path, controllers: Path) -> list[Program]:
    """The lab's programs with the real server, its controllers, a scheduler and a relay for the small server."""
    small = {f"{cluster.name}/apiserver": cluster for cluster in lab.clusters}
    result: list[Program] = []
    for program in programs:
        if (cluster := small.get(program.name)) is None:
            result.append(program)
        else:
            result += [_relay(cluster), _apiserver(cluster, apiserver)]
            result += [_controllers(cluster, controllers), _scheduler(cluster)]
    return result


def _apiserver(cluster: Cluster, program: Path) -> Program:
    options: dict[str, str | Path] = {
        **etcd_of_apiserver(cluster),
        "bind-address": cluster.address,
        "advertise-address": cluster.address,
        "secure-port": "6443",
        "tls-cert-file": cluster.directory / "apiserver.crt",
        "tls-private-key-file": cluster.directory / "apiserver.key",
        "client-ca-file": files.authority(cluster),
        "token-auth-file": files.tokens(cluster),
        "authorization-mode": "RBAC",
        "service-account-issuer": ISSUER,
        "service-account-key-file": files.checking_key(cluster),
        "service-account-signing-key-file": files.signing_key(cluster),
        "service-cluster-ip-range": ",".join(scheme.service_cidr for scheme in cluster.schemes),
        "kubelet-client-certificate": files.kubelet_certificate(cluster),
        "kubelet-client-key": files.kubelet_key(cluster),
        "kubelet-preferred-address-types": "InternalIP",
        "allow-privileged": "true",
        "shutdown-delay-duration": "0s",
        # kubectl's WebSockets go through to the node as they are, as SPDY does: translated ones would be slower
        "feature-gates": "TranslateStreamCloseWebsocketRequests=false,PortForwardWebsockets=false",
    }
    return Program(
        name=f"{cluster.name}/apiserver",
        command=(str(program), *_flags(options)),
        namespace=cluster.control_plane,
        cgroup=cluster.cgroup,
        check=Serving(cluster.name),
        after=(f"{cluster.name}/etcd",),
    )


def _controllers(cluster: Cluster, program: Path) -> Program:
    options: dict[str, str | Path] = {
        "kubeconfig": kubeconfig_of(cluster),
        "bind-address": "127.0.0.1",
        "cert-dir": cluster.directory / "controller-manager",
        "leader-elect": "false",  # there is one
        "root-ca-file": files.authority(cluster),
        "service-account-private-key-file": files.signing_key(cluster),
        "concurrent-gc-syncs": "5",
        "concurrent-service-endpoint-syncs": "2",
    }
    return Program(
        name=f"{cluster.name}/controller-manager",
        command=(str(program), *_flags(options)),
        namespace=cluster.control_plane,
        cgroup=cluster.cgroup,
        check=ObjectExists(cluster.name, "v1", "ServiceAccount", DEFAULT, DEFAULT),
        after=(f"{cluster.name}/apiserver",),
    )


def _scheduler(cluster: Cluster) -> Program:
    return Program(
        name=f"{cluster.name}/scheduler",
        command=(*PYTHON, "isthmus_lab.realapi.scheduler", f"--kubeconfig={kubeconfig_of(cluster)}"),
        namespace=cluster.control_plane,
        cgroup=cluster.cgroup,
        check=ObjectExists(cluster.name, "coordination.k8s.io/v1", "Lease", "kube-system", "kube-scheduler"),
        after=(f"{cluster.name}/apiserver",),
    )


def _relay(cluster: Cluster) -> Program:
    return Program(
        name=f"{cluster.name}/relay",
        command=(*PYTHON, "isthmus_lab.realapi.relay", "--fd={fd}", f"--to={joined(cluster.address, 6443)}"),
        namespace=cluster.control_plane,
        cgroup=cluster.cgroup,
        check=Serving(cluster.name),
        listener=cluster.name,
    )


def _flags(options: Mapping[str, str | Path]) -> tuple[str, ...]:
    return tuple(f"--{name}={value}" for name, value in options.items())
