"""An API server with a node and a cluster DNS, on which ``isthmus install`` and its like run as people run them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clusters.kube_apiserver import KubeApiServer
from machine import programs
from peers.etcd_server import running

from isthmus.etcd import binary

SYSTEM = "isthmus-system"
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n1"},
    "spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]},
}
NODE_STATUS = {
    "addresses": [{"type": "InternalIP", "address": "192.0.2.11"}],
    "nodeInfo": {
        "kernelVersion": "6.1.0-9-amd64", "architecture": "", "bootID": "", "containerRuntimeVersion": "",
        "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "",
        "systemUUID": "",
    },
}  # fmt: skip
DNS = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}},
    "spec": {"clusterIP": "10.96.0.10", "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}]},
}
CACHE = {
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "metadata": {"name": "node-local-dns", "namespace": "kube-system"},
    "spec": {
        "selector": {"matchLabels": {"k8s-app": "node-local-dns"}},
        "template": {
            "metadata": {"labels": {"k8s-app": "node-local-dns"}},
            "spec": {
                "containers": [
                    {"name": "cache", "image": "cache", "args": ["-localip", "169.254.20.10,10.96.0.10", "-conf", "x"]}
                ]
            },
        },
    },
}


class Target:
    """An API server with a node and a cluster DNS, and the commands that work on it."""

    def __init__(self, server: KubeApiServer) -> None:
        self.kubeconfig = server.section().kubeconfig
        for each in (NODE, DNS, CACHE):
            self.kubectl("apply", "-f", "-", stdin=json.dumps(each))
        self.kubectl("patch", "node", "n1", "--subresource=status", "-p", json.dumps({"status": NODE_STATUS}))

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        command = [programs.path("kubectl"), "--kubeconfig", self.kubeconfig, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, input=stdin, check=False)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def isthmus(self, command: str, *words: str, code: int = 0, stdin: str = "") -> str:
        called = [
            sys.executable,
            "-m",
            "isthmus",
            command,
            "--kubeconfig",
            self.kubeconfig,
            "--context",
            "test",
            *words,
        ]
        environ = {**os.environ, "PATH": f"{Path(programs.path('kubectl')).parent}:{os.environ['PATH']}"}
        done = subprocess.run(
            called, capture_output=True, text=True, timeout=240, check=False, env=environ, input=stdin
        )
        assert done.returncode == code, f"{words}: {done.returncode} {done.stdout}{done.stderr}"
        return done.stdout

    def versions(self) -> dict[str, str]:
        """Resource versions of everything that is ours."""
        kinds = (
            "namespaces,crd,clusterroles,clusterrolebindings,roles,rolebindings,serviceaccounts,configmaps,services,"
            "networkpolicies,deployments,daemonsets,statefulsets,poddisruptionbudgets,priorityclasses"
        )
        found = json.loads(self.kubectl("get", kinds, "-A", "-l", "app.kubernetes.io/part-of=isthmus", "-o", "json"))
        return {
            f"{each['kind']}/{each['metadata']['name']}": each["metadata"]["resourceVersion"] for each in found["items"]
        }


@contextmanager
def install_target(tmp_path: Path) -> Iterator[Target]:
    """A real one, for the body of ``with``."""
    with running(binary.find(), tmp_path / "etcd") as etcd:
        server = KubeApiServer(Path(programs.path("kube-apiserver")), tmp_path / "api", etcd, "--allow-privileged=true")
        server.start()
        try:
            asyncio.run(server.ready())
            yield Target(server)
        finally:
            server.kill()
