"""Clusters as ``deploy/`` makes them with the component ``keys``: nobody has made a key by hand.

Real API servers that enforce the deployed rights, ``isthmus keys`` and ``isthmus operator`` as their ServiceAccounts,
and an etcd each, whose certificate a kubelet would mount: here it is written as soon as the Secret exists.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import yaml
from clusters.joined import DEPLOY, SYSTEM, Cluster
from labs.lab_running import until
from machine import programs
from peers.etcd_server import free_ports

from isthmus.clusterset import pki

ADMIN: Final = "connector"
"""ServiceAccount of the person who connects clusters."""


class LinkedCluster(Cluster):
    """One of them. ``lifetime``: seconds of its certificates; ``settings``: more options of its keeper of keys."""

    settings: tuple[str, ...] = ()

    def start(self, *, lifetime: float = 7776000.0) -> None:
        self.objects.start()
        self.server.start()
        self.lifetime = lifetime

    def install(self, *, operator: bool = True) -> None:
        """Apply ``deploy/``, run the keeper of keys, the etcd with the certificate that it made, and the operator."""
        self.kubectl("apply", "-k", str(DEPLOY))
        for name in ("clusterlinks.isthmus.io", "serviceexports.multicluster.x-k8s.io"):
            self.kubectl("wait", "--for=condition=Established", f"crd/{name}")
        self.run_keys()
        for name in ("isthmus-etcd-server", "isthmus-etcd-operator"):
            self.mount(name)
        self.etcd.start()
        if operator:
            self.operator()
        self.kubectl("apply", "-f", "-", stdin=json.dumps(_namespace("demo")))
        self.kubectl("-n", SYSTEM, "create", "serviceaccount", ADMIN)
        account = f"--serviceaccount={SYSTEM}:{ADMIN}"
        for kind in ("clusterrole", "role"):
            self.kubectl("-n", SYSTEM, "create", f"{kind}binding", ADMIN, f"--{kind}=isthmus-connect", account)
        self.kubectl("-n", SYSTEM, "create", "rolebinding", f"{ADMIN}-rotate", "--role=isthmus-rotate", account)

    def run_keys(self) -> None:
        """Run the keeper of keys, as it is deployed."""
        [port] = free_ports(1)
        self.keeper = self.run(
            "keys",
            f"monitor.listen=127.0.0.1:{port}",
            f"etcd.ca_file={self.folder}/run/keys/ca.crt",
            f"keys.lifetime={self.lifetime}",
            "clusterset.through_mirror=true",
            f"clusterset.mirror_endpoints={self.etcd.endpoint}",
            "identity.enabled=true",  # so that it uses all of its rights
            *self.settings,
            account="isthmus-keys",
        )

    def secret(self, name: str) -> dict[str, bytes]:
        """Files of a Secret; none if it does not exist."""
        data = self.get("-n", SYSTEM, "secret", name).get("data", {})
        return {file: base64.b64decode(text) for file, text in data.items()}

    def mount(self, name: str) -> None:
        """Write the files of a Secret where processes read their keys, as a kubelet mounts it."""
        until(lambda: self.secret(name), what=f"the Secret {name}")
        self.keys.mkdir(exist_ok=True)
        for file, content in self.secret(name).items():
            if not (self.keys / file).exists() or (self.keys / file).read_bytes() != content:
                pki.save(self.keys / file, content)

    def link(self, peer: str) -> dict[str, Any]:
        return self.get("clusterlink", peer)

    def ready(self, peer: str) -> bool:
        conditions = self.link(peer).get("status", {}).get("conditions", ())
        return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)

    def imported(self) -> list[str]:
        """Addresses of ``demo/echo`` in this cluster's slices of imports."""
        slices = self.get("-n", "demo", "endpointslices", "-l", "multicluster.kubernetes.io/service-name=echo")
        return [
            address
            for each in slices.get("items", ())
            for end in each.get("endpoints") or ()
            for address in end["addresses"]
        ]

    def context(self) -> dict[str, Any]:
        """Its part of a person's kubeconfig, as the one who may connect it and nothing else."""
        known = yaml.safe_load(Path(self.server.section().kubeconfig).read_text())
        known["users"][0]["user"] = {"token": self.kubectl("-n", SYSTEM, "create", "token", ADMIN).strip()}
        return {
            "clusters": [{**known["clusters"][0], "name": self.name}],
            "users": [{**known["users"][0], "name": self.name}],
            "contexts": [{"name": self.name, "context": {"cluster": self.name, "user": self.name}}],
        }


def _namespace(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


class Laptop:
    """Whoever connects clusters: a kubeconfig with a context for each, kubectl, and ``isthmus``."""

    def __init__(self, folder: Path, *clusters: LinkedCluster) -> None:
        parts = [each.context() for each in clusters]
        merged = {key: [item for part in parts for item in part[key]] for key in parts[0]}
        self._kubeconfig = folder / "kubeconfig"
        self._kubeconfig.write_text(yaml.safe_dump(merged))
        tools = f"{Path(programs.path('kubectl')).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**os.environ, "KUBECONFIG": str(self._kubeconfig), "PATH": tools}

    def isthmus(self, *words: str) -> tuple[int, str, str]:
        """Exit code, output and errors of a command."""
        command = [sys.executable, "-m", "isthmus", *words]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=300, check=False)
        return done.returncode, done.stdout, done.stderr

    def can(self, context: str, *words: str) -> bool:
        """What ``kubectl auth can-i`` answers."""
        command = [programs.path("kubectl"), "--context", context, "auth", "can-i", *words]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout.strip() == "yes"


@contextmanager
def linked(
    folder: Path, server: Path, *, lifetime: float = 7776000.0, names: Iterable[str] = ("c1", "c2")
) -> Iterator[tuple[LinkedCluster, ...]]:
    """Clusters of these names, started and not connected. Their ids begin with 1."""
    with ExitStack() as stack:
        made = [LinkedCluster(name, number, folder / name, server) for number, name in enumerate(names, 1)]
        for cluster in made:
            stack.callback(cluster.stop)
            cluster.start(lifetime=lifetime)
        yield tuple(made)
