"""Two clusters as ``deploy/`` makes them: real API servers, etcd with TLS and roles, operators as ServiceAccounts.

There is no node, so what the manifests would run as pods runs as processes here, with the deployed configuration.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import kubectl
import yaml
from certificates import Authority
from etcd_server import EtcdServer, free_ports
from kube_apiserver import KubeApiServer

from isthmus.etcd import binary

DEPLOY: Final = Path(__file__).resolve().parents[2] / "deploy"
SYSTEM: Final = "isthmus-system"
AUDIT: Final = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"]}
PLUGINS: Final = "OwnerReferencesPermissionEnforcement"


def environment(name: str, number: int) -> dict[str, str]:
    """``cluster.env`` with its first two lines changed, as the walk says."""
    lines = (DEPLOY / "cluster.env").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return given | {"ISTHMUS_CLUSTER_NAME": name, "ISTHMUS_CLUSTER_ID": str(number)}


def etcdctl() -> Path | None:
    """The client that comes with an etcd of this machine."""
    for etcd in (binary.in_path(), binary.in_package()):
        for path in (etcd.parent / "etcdctl", etcd.parent / "etcdbin" / "etcdctl") if etcd else ():
            if path.exists():
                return path
    return None


class Cluster:
    """One of the two."""

    def __init__(self, name: str, number: int, folder: Path, server: Path) -> None:
        self.name = name
        self.number = number
        self.folder = folder
        self.authority = Authority(folder / "tls", name=f"{name}-ca")
        self.processes: list[subprocess.Popen[bytes]] = []
        cert, key = self.authority.sign("etcd")
        tls = [f"--cert-file={cert}", f"--key-file={key}", f"--trusted-ca-file={self.authority.cert}"]
        self.etcd = EtcdServer(binary.find(), folder / "etcd", *tls, "--client-cert-auth", scheme="https")
        self.objects = EtcdServer(binary.find(), folder / "objects")
        policy = folder / "audit.yaml"
        policy.write_text(yaml.safe_dump(AUDIT | {"rules": [{"level": "Metadata"}]}))
        audit = [f"--audit-policy-file={policy}", f"--audit-log-path={folder / 'audit.log'}"]
        flags = [*audit, f"--enable-admission-plugins={PLUGINS}", "--allow-privileged=true"]
        self.server = KubeApiServer(server, folder / "api", self.objects, *flags)

    def start(self) -> None:
        self.etcd.start()
        self.objects.start()
        self.server.start()

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
            process.wait(20)
        self.server.kill()
        self.objects.stop()
        self.etcd.stop()

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        config = self.server.section().kubeconfig
        command = [kubectl.program(), "--kubeconfig", config, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, input=stdin, check=False)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def get(self, *words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", *words, "--ignore-not-found", "-o", "json") or "{}")
        return found

    def give_roles(self) -> None:
        """What the Job of the deployment does."""
        program = etcdctl()
        assert program is not None
        cert, key = self.authority.sign("root")
        told = {
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "ISTHMUS_CLUSTER_NAME": self.name,
            "ETCDCTL_API": "3",
            "ETCDCTL_ENDPOINTS": self.etcd.endpoint,
            "ETCDCTL_CACERT": str(self.authority.cert),
            "ETCDCTL_CERT": str(cert),
            "ETCDCTL_KEY": str(key),
        }
        script = ["sh", str(DEPLOY / "etcd" / "roles.sh")]
        done = subprocess.run(script, env=told, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def invite(self, other: Cluster) -> None:
        """Give another cluster what it needs to read our etcd."""
        directory = other.folder / "peers"
        directory.mkdir(exist_ok=True)
        cert, key = self.authority.sign("remote")
        peer = {"endpoints": [self.etcd.endpoint], "trusted-ca-file": str(self.authority.cert)}
        (directory / self.name).write_text(yaml.safe_dump(peer | {"cert-file": str(cert), "key-file": str(key)}))

    def run(self, process: str, *settings: str, account: str) -> subprocess.Popen[bytes]:
        """Run a process as the deployment would, with the token of its ServiceAccount and its configuration."""
        access = self.folder / f"kubeconfig-{process}"
        token = self.kubectl("-n", SYSTEM, "create", "token", account).strip()
        config = yaml.safe_load(Path(self.server.section().kubeconfig).read_text())
        config["users"][0]["user"] = {"token": token}
        access.write_text(yaml.safe_dump(config))
        (self.folder / "peers").mkdir(exist_ok=True)
        given = [
            f"kubernetes.kubeconfig={access}",
            f"clusterset.directory={self.folder / 'peers'}",
            f"admin.socket={self.folder / process}.sock",
            *settings,
        ]
        flags = [word for each in given for word in ("--set", each)]
        command = [sys.executable, "-m", "isthmus", process, "--config", str(DEPLOY / "config" / f"{process}.toml")]
        with (self.folder / f"{process}.log").open("ab") as log:
            told = {**os.environ, **environment(self.name, self.number)}
            started = subprocess.Popen([*command, *flags], env=told, stdout=log, stderr=log)
        self.processes.append(started)
        return started

    def operator(self) -> int:
        """The operator, as it is deployed; the port where it says how it is."""
        cert, key = self.authority.sign("operator")
        [port] = free_ports(1)
        etcd = [f"etcd.endpoints={self.etcd.endpoint}", f"etcd.ca_file={self.authority.cert}"]
        files = [f"etcd.cert_file={cert}", f"etcd.key_file={key}", f"monitor.listen=127.0.0.1:{port}"]
        self.run("operator", *etcd, *files, account="isthmus-operator")
        return port

    def audited(self, account: str) -> list[tuple[str, str, str, int]]:
        """(group, resource, verb, code) of every request of a ServiceAccount for an object, once each."""
        user = f"system:serviceaccount:{SYSTEM}:{account}"
        found: set[tuple[str, str, str, int]] = set()
        for line in (self.folder / "audit.log").read_text().splitlines():
            event = json.loads(line)
            if event["user"]["username"] == user and (what := event.get("objectRef")):
                resource = "/".join(part for part in (what.get("resource"), what.get("subresource")) if part)
                code = event.get("responseStatus", {}).get("code", 0)
                verbs = {event["verb"]} | ({"create"} if code == 201 else set())  # an apply that made it asks for both
                found |= {(what.get("apiGroup", ""), resource, verb, code) for verb in verbs}
        return sorted(found)


@contextmanager
def two(folder: Path, server: Path) -> Iterator[tuple[Cluster, Cluster]]:
    """Both, started."""
    with ExitStack() as stack:
        made = [Cluster(f"c{number}", number, folder / f"c{number}", server) for number in (1, 2)]
        for cluster in made:
            cluster.folder.mkdir(exist_ok=True)
            stack.callback(cluster.stop)
            cluster.start()
        yield made[0], made[1]
