"""A cluster of a real node or more, with etcd, kube-apiserver and its controllers beside it, and CoreDNS in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml
from labs import lab_running
from machine import programs
from nodes.node import Node, flags
from nodes.world import NETWORK, WIRE, World, world

from isthmus.clusterset import certificates
from nodes import images

PATIENCE: Final = 240
"""Seconds after which a command or a wait that hangs is ended."""
USERS: Final = {
    "admin": ("admin", "system:masters"),
    "scheduler": ("system:kube-scheduler", ""),
    "proxy": ("system:kube-proxy", ""),
}
"""User and group by name of the access; a kubelet's is its node's."""
LATER: Final = ("second", "third")
"""Nodes that a cluster may get later; the API server reads the access of their kubelets as it starts."""
PROXY_MODES: Final = {1: "iptables", 2: "nftables"}
COREFILE: Final = """\
.:53 {
    errors
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        ttl 5
    }
}
"""


class Cluster:
    """One cluster; its name is also the context of kubectl and the name of its node's network namespace.

    ``ranges``: the number in the addresses of its pods and Services; ``island``: nobody else has a route to them.
    """

    def __init__(self, world: World, number: int, *, ranges: int, island: bool) -> None:
        self.world = world
        self.number = number
        self.name = f"c{number}"
        self.address = f"{NETWORK}.{10 + number}"
        self.pods = f"10.{ranges}.0.0/24"
        self._all_pods = f"10.{ranges}.0.0/16"
        self.services = f"10.{95 + ranges}.0.0/16"
        self.dns = f"10.{95 + ranges}.0.10"
        self.node = Node(world, self.name, self.address, self.pods, masquerades=island)
        self.nodes = [self.node]
        self._archives: list[Path] = []
        self.folder = world.folder / f"{self.name}-control"
        self.folder.mkdir()
        self._write()

    def _write(self) -> None:
        authority = certificates.authority(self.name)
        hosts = (self.address, "127.0.0.1", f"{self.services.removesuffix('.0/16')}.1", "kubernetes.default.svc")
        pairs = {
            "ca": authority,
            "apiserver": certificates.issue(authority, "kube-apiserver", hosts=hosts),
            "kubelet-client": certificates.issue(authority, "kube-apiserver-kubelet-client"),
            "accounts": certificates.authority("accounts"),
        }
        for name, pair in pairs.items():
            (self.folder / f"{name}.crt").write_bytes(pair.certificate)
            (self.folder / f"{name}.key").write_bytes(pair.key)
        names = [self.name, *(f"{self.name}-{each}" for each in LATER)]
        users = USERS | {name: (f"system:node:{name}", "system:nodes") for name in names}
        lines = [f'{name}-token,{user},{user},"{group}"\n' for name, (user, group) in users.items()]
        (self.folder / "tokens.csv").write_text("".join(lines))
        self.access = {name: self._kubeconfig(name) for name in users}

    def _kubeconfig(self, user: str) -> Path:
        server = {"server": f"https://{self.address}:6443", "certificate-authority": str(self.folder / "ca.crt")}
        path = self.folder / f"{user}.kubeconfig"
        found = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": self.name, "cluster": server}],
            "users": [{"name": self.name, "user": {"token": f"{user}-token"}}],
            "contexts": [{"name": self.name, "context": {"cluster": self.name, "user": self.name}}],
            "current-context": self.name,
        }
        path.write_text(yaml.safe_dump(found))
        return path

    def start(self, archives: list[Path]) -> None:
        """Start everything, and wait until the cluster's own pods are ready.

        The CNI makes its bridge, with the routes of the node's pods, for the first pod that starts: a state that a test
        compares with a later one has to be read after that.
        """
        self._archives = archives
        with ThreadPoolExecutor() as pool:
            importing = pool.submit(self.node.start_containerd, archives)
            self._control()
            until(lambda: self.kubectl("get", "--raw", "/readyz") == "ok", what=f"the API server of {self.name}")
            self._bind_kubelet_client()
            importing.result()
        self._join(self.node)
        self.apply(*coredns(self.dns))
        until(partial(self.pods_ready, "kube-system"), what=f"the cluster DNS of {self.name}")

    def _join(self, node: Node) -> None:
        """Let a node join whose containerd runs, and wait until a pod could be scheduled there."""
        access = {"kubelet": self.access[node.name], "proxy": self.access["proxy"]}
        node.join(access, authority=self.folder / "ca.crt", dns=self.dns, proxy_mode=PROXY_MODES[self.number])
        until(
            lambda: self.kubectl("wait", "--for=condition=Ready", f"node/{node.name}", "--timeout=5s"), what=node.name
        )

    def grow(self, others: Sequence[Cluster], *, name: str) -> None:
        """Add the later nodes, with routes to and from the others' pods. ``name``: another one of our image."""
        for number, suffix in enumerate(LATER, 1):
            address = f"{NETWORK}.{10 * number + 10 + self.number}"
            pods = self._all_pods.replace(".0.0/16", f".{number}.0/24")
            self.nodes.append(Node(self.world, f"{self.name}-{suffix}", address, pods))
        for node in self.nodes:
            for other in (*self.nodes, *(each.node for each in others)):
                if other is not node:
                    self.world.route(node.name, other.pods, other.address)
                    self.world.route(other.name, node.pods, node.address)
        for node in self.nodes[1:]:
            node.start_containerd(self._archives)
            node.tag(images.IMAGE, name)
            self._join(node)

    def _control(self) -> None:
        etcd = {"data-dir": self.folder / "etcd", "unsafe-no-fsync": "true", "name": self.name}
        self._start("etcd", *flags(etcd))
        apiserver = {
            "etcd-servers": "http://127.0.0.1:2379",
            "bind-address": "0.0.0.0",
            "advertise-address": self.address,
            "tls-cert-file": self.folder / "apiserver.crt",
            "tls-private-key-file": self.folder / "apiserver.key",
            "client-ca-file": self.folder / "ca.crt",
            "token-auth-file": self.folder / "tokens.csv",
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction,OwnerReferencesPermissionEnforcement",
            "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
            "service-account-key-file": self.folder / "accounts.crt",
            "service-account-signing-key-file": self.folder / "accounts.key",
            "service-cluster-ip-range": self.services,
            "kubelet-client-certificate": self.folder / "kubelet-client.crt",
            "kubelet-client-key": self.folder / "kubelet-client.key",
            "kubelet-preferred-address-types": "InternalIP",
            "allow-privileged": "true",
            "shutdown-delay-duration": "0s",
        }
        self._start("kube-apiserver", *flags(apiserver))
        controllers = {
            "kubeconfig": self.access["admin"],
            "bind-address": "127.0.0.1",
            "cert-dir": self.folder / "controllers",
            "leader-elect": "false",
            "root-ca-file": self.folder / "ca.crt",
            "service-account-private-key-file": self.folder / "accounts.key",
            "allocate-node-cidrs": "true",
            "cluster-cidr": self._all_pods,
            "node-cidr-mask-size": 24,
        }
        self._start("kube-controller-manager", *flags(controllers))
        scheduler = {
            "kubeconfig": self.access["scheduler"],
            "bind-address": "127.0.0.1",
            "cert-dir": self.folder / "scheduler",
            "leader-elect": "false",
        }
        self._start("kube-scheduler", *flags(scheduler))

    def _start(self, program: str, *options: str) -> None:
        command = [*self.world.inside(self.name), programs.path(program), *options]
        self.world.start(command, group=f"{self.name}-control", log=f"{self.name}-{program}.log")

    def _bind_kubelet_client(self) -> None:
        """Let the API server fetch logs and run commands in pods (`kubectl logs`, `kubectl exec`)."""
        user, role = "--user=kube-apiserver-kubelet-client", "--clusterrole=system:kubelet-api-admin"
        until(lambda: self.kubectl("create", "clusterrolebinding", "kubelet-client", user, role), what="RBAC")

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Run kubectl from where people type."""
        return typed(self.world, programs.path("kubectl"), f"--kubeconfig={self.access['admin']}", *words, stdin=stdin)

    def apply(self, *objects: dict[str, Any]) -> None:
        """Apply objects."""
        self.kubectl("apply", "-f", "-", stdin="\n".join(f"---\n{yaml.safe_dump(each)}" for each in objects))

    def get(self, *words: str) -> dict[str, Any]:
        """Return an object or a list; empty if there is none."""
        found: dict[str, Any] = json.loads(self.kubectl("get", *words, "--ignore-not-found", "-o", "json") or "{}")
        return found

    def balance(self, service: str = "isthmus-etcd-peers") -> None:
        """Do for a Service as a load balancer does that has the node's address (a cloud's controller, servicelb)."""
        status = {"status": {"loadBalancer": {"ingress": [{"ip": self.address}]}}}
        words = ["patch", "service", service, "--subresource=status", f"--patch={json.dumps(status)}"]
        self.kubectl("-n", "isthmus-system", *words)

    def pods_ready(self, namespace: str) -> bool:
        """Return True if the namespace has pods, and each of them is ready and stays."""
        pods = self.get("-n", namespace, "pods")["items"]
        return bool(pods) and all(is_ready(pod) for pod in pods)


def is_ready(pod: dict[str, Any]) -> bool:
    """Return True if a pod is ready and not about to end."""
    conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", ())}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


def typed(
    world: World,
    *command: str,
    stdin: str | None = None,
    check: bool = True,
    environment: dict[str, str] | None = None,
    seconds: float = PATIENCE,
) -> str:
    """Run a command where people type, on the wire beside the nodes; its output."""
    entered = [*world.inside(WIRE), *command]
    environ = os.environ | (environment or {})
    done = subprocess.run(
        entered, capture_output=True, text=True, timeout=seconds, input=stdin, check=False, env=environ
    )
    assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def isthmus(world: World, *words: str, **options: Any) -> str:
    """Run ``isthmus …`` where people type; the contexts of their kubeconfig have the clusters' names."""
    environment = {"KUBECONFIG": str(world.folder / "kubeconfig")}
    return typed(world, sys.executable, "-m", "isthmus", *words, environment=environment, **options)


def copied(world: World, line: str, *, folder: Path, **options: Any) -> str:
    """Run a line of a page as it stands there, in a folder, with the clusters' contexts c1 and c2."""
    return typed(world, *shell(line, folder), environment=shell_environment(world), **options)


def shell(line: str, folder: Path) -> list[str]:
    """Return the command that runs a line of a page in a folder."""
    return ["sh", "-ec", f'cd "$0" && {line}', str(folder)]


def shell_environment(world: World) -> dict[str, str]:
    """Return what a shell where people type has: a kubeconfig, the programs of pages, and an empty home."""
    folders = [Path(sys.executable), Path(programs.path("kubectl")), Path(programs.path("helm"))]
    path = os.pathsep.join([*(str(each.parent) for each in folders), os.environ["PATH"]])
    return {"KUBECONFIG": str(world.folder / "kubeconfig"), "PATH": path, "HOME": str(world.folder)}


def until(holds: Callable[[], Any], *, what: str) -> Any:
    """Return the first true value; a failure means not yet."""
    return lab_running.until(holds, seconds=PATIENCE, what=what)


def coredns(address: str) -> Iterator[dict[str, Any]]:
    """Yield the cluster's DNS as clusters have it: Service kube-dns, and CoreDNS behind it."""
    name = {"name": "coredns", "namespace": "kube-system"}
    labels = {"k8s-app": "kube-dns"}
    rbac = "rbac.authorization.k8s.io"
    watch = ["list", "watch"]
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": name}
    yield {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "system:coredns"},
        "rules": [
            {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": watch},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": watch},
        ],
    }
    yield {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "system:coredns"},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "system:coredns"},
        "subjects": [{"kind": "ServiceAccount", **name}],
    }
    yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": name, "data": {"Corefile": COREFILE}}
    container = {
        "name": "coredns",
        "image": images.COREDNS,
        "args": ["-conf", "/etc/coredns/Corefile"],
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
    }
    volume = {"name": "config", "configMap": {"name": "coredns"}}
    pod = {"serviceAccountName": "coredns", "dnsPolicy": "Default", "containers": [container], "volumes": [volume]}
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    yield {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": name, "spec": spec}
    ports = [{"name": f"dns-{each.lower()}", "port": 53, "protocol": each} for each in ("UDP", "TCP")]
    yield {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": labels},
        "spec": {"selector": labels, "clusterIP": address, "ports": ports},
    }


def _merge_kubeconfigs(clusters: list[Cluster], path: Path) -> None:
    """Write a kubeconfig with a context for each cluster."""
    found = [yaml.safe_load(cluster.access["admin"].read_text()) for cluster in clusters]
    merged = {key: [each for one in found for each in one[key]] for key in ("clusters", "users", "contexts")}
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **merged}))


@contextmanager
def two() -> Iterator[tuple[Cluster, Cluster]]:
    """Two clusters whose pods reach each other, with all images and nothing of Isthmus."""
    archives = images.build()
    with world() as made:
        first, second = (Cluster(made, number, ranges=number, island=False) for number in (1, 2))
        for cluster, other in ((first, second), (second, first)):
            made.route(cluster.name, other.pods, other.address)
        _start(made, [first, second], archives)
        yield first, second


@contextmanager
def islands() -> Iterator[tuple[Cluster, Cluster]]:
    """Two clusters whose pods and Services have the same addresses, so that only their nodes reach each other."""
    archives = images.build(envoy=True)
    with world() as made:
        first, second = (Cluster(made, number, ranges=1, island=True) for number in (1, 2))
        _start(made, [first, second], archives)
        yield first, second


def _start(world: World, clusters: list[Cluster], archives: list[Path]) -> None:
    _merge_kubeconfigs(clusters, world.folder / "kubeconfig")
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda cluster: cluster.start(archives), clusters))
