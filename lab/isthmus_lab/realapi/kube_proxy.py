"""A cluster without Isthmus's datapath: calls by kube-proxy, names by CoreDNS, of Isthmus the operator only. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from isthmus_lab.layout import Cluster, Lab, Node
from isthmus_lab.realapi import files
from isthmus_lab.supervisor.configs import OF_NODES, kubeconfig_of
from isthmus_lab.supervisor.programs import Http, Names, Program

HEALTH: Final = 10256


def without_ours(programs: Iterable[Program], lab: Lab, *, proxy: Path, coredns: Path) -> list[Program]:
    """The lab's programs without agents and name servers of ours, with kube-proxy and CoreDNS in their stead."""
    names = {f"{cluster.name}/clusterdns": cluster for cluster in lab.clusters}
    replaced = {f"{n.cluster.name}/{n.short}/{part}" for c in lab.clusters for n in c.nodes for part in OF_NODES}
    result: list[Program] = []
    for program in programs:
        if (cluster := names.get(program.name)) is not None:
            result.append(_coredns(cluster, coredns))
        elif program.name not in replaced:
            result.append(program)
    return result + [_proxy(node, proxy) for cluster in lab.clusters for node in cluster.nodes]


def _coredns(cluster: Cluster, program: Path) -> Program:
    return Program(
        name=f"{cluster.name}/clusterdns",
        command=(str(program), f"-conf={files.corefile(cluster)}"),
        namespace=cluster.control_plane,
        cgroup=cluster.cgroup,
        check=Names(cluster.control_plane, cluster.address),
        after=(f"{cluster.name}/apiserver",),
    )


def _proxy(node: Node, program: Path) -> Program:
    options = {
        "kubeconfig": str(kubeconfig_of(node.cluster)),
        "hostname-override": node.name,
        "proxy-mode": "nftables",
        "cluster-cidr": ",".join(node.cluster.pod_cidrs),
        "healthz-bind-address": f"127.0.0.1:{HEALTH}",
        "metrics-bind-address": "127.0.0.1:10249",
        "conntrack-max-per-core": "0",  # limits of connection tracking are the machine's, and are left as they are
        "conntrack-tcp-timeout-established": "0s",
        "conntrack-tcp-timeout-close-wait": "0s",
    }
    return Program(
        name=f"{node.cluster.name}/{node.short}/kube-proxy",
        command=(str(program), *(f"--{name}={value}" for name, value in options.items())),
        namespace=node.namespace,
        cgroup=f"{node.cgroup}/system",
        check=Http(node.namespace, "127.0.0.1", HEALTH, "/healthz"),
        after=(f"{node.cluster.name}/{node.short}/node",),
    )
