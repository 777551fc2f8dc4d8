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

import yaml
from clusters.kube_apiserver import KubeApiServer
from machine import programs
from peers.etcd_server import EtcdServer, free_ports

from isthmus.etcd import binary

DEPLOY: Final = Path(__file__).resolve().parents[3] / "deploy"
SYSTEM: Final = "isthmus-system"
AUDIT: Final = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"]}
GRPC_LOG: Final = {"GRPC_VERBOSITY": "INFO"}
"""So that logs have each failed handshake, whatever the environment of the tests has."""
PLUGINS: Final = "OwnerReferencesPermissionEnforcement"


def environment(name: str, number: int) -> dict[str, str]:
    """``cluster.env`` with its first two lines changed, as the guide has it."""
    lines = (DEPLOY / "cluster.env").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return given | {"ISTHMUS_CLUSTER_NAME": name, "ISTHMUS_CLUSTER_ID": str(number)}


class Cluster:
    """One of the two."""

    def __init__(self, name: str, number: int, folder: Path, server: Path) -> None:
        self.name = name
        self.number = number
        self.folder = folder
        (folder / "peers").mkdir(parents=True)
        self.keys = folder / "etcd"
        self.processes: list[subprocess.Popen[bytes]] = []
        tls = [f"--cert-file={self.keys}/server.crt", f"--key-file={self.keys}/server.key"]
        trusted = [f"--trusted-ca-file={self.keys}/ca.crt", "--client-cert-auth"]
        self.etcd = EtcdServer(binary.find(), folder / "data", *tls, *trusted, scheme="https")
        self.config = folder / "operator.toml"
        self.config.write_text(self._configured("operator"))
        self.objects = EtcdServer(binary.find(), folder / "objects")
        policy = folder / "audit.yaml"
        policy.write_text(yaml.safe_dump(AUDIT | {"rules": [{"level": "Metadata"}]}))
        audit = [f"--audit-policy-file={policy}", f"--audit-log-path={folder / 'audit.log'}"]
        flags = [*audit, f"--enable-admission-plugins={PLUGINS}", "--allow-privileged=true"]
        self.server = KubeApiServer(server, folder / "api", self.objects, *flags)

    def start(self) -> None:
        self.clusters("certs", succeeds=False)  # before the etcd runs: its keys
        self.etcd.start()
        self.objects.start()
        self.server.start()

    def _configured(self, process: str) -> str:
        """A deployed configuration with what is elsewhere here: the folders that are mounted there, and the etcd."""
        text = (DEPLOY / "config" / f"{process}.toml").read_text()
        for there in ("etcd", "peers"):
            text = text.replace(f"/etc/isthmus/{there}", str(self.folder / there))
        text = text.replace("/var/lib/isthmus", str(self.folder / "state"))
        return text.replace("https://isthmus-etcd.isthmus-system.svc:2379", self.etcd.endpoint)

    def command(self, *words: str) -> list[str]:
        """``isthmus clusters …`` for this cluster, as people type it."""
        return [sys.executable, "-m", "isthmus", "clusters", *words, "--config", str(self.config)]

    def clusters(self, *words: str, stdin: str | None = None, succeeds: bool = True) -> str:
        """Run it."""
        environ = {**os.environ, **environment(self.name, self.number)}
        done = subprocess.run(
            self.command(*words), env=environ, capture_output=True, text=True, timeout=240, input=stdin, check=False
        )
        assert (done.returncode == 0) == succeeds, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def stop(self) -> None:
        while self.processes:
            self.end()
        self.server.kill()
        self.objects.stop()
        self.etcd.stop()

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        config = self.server.section().kubeconfig
        command = [programs.path("kubectl"), "--kubeconfig", config, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, input=stdin, check=False)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def get(self, *words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", *words, "--ignore-not-found", "-o", "json") or "{}")
        return found

    def join(self, other: Cluster) -> None:
        """Invite here, join there."""
        environ = {**os.environ, **environment(self.name, self.number)}
        with subprocess.Popen(self.command("invite"), env=environ, stdout=subprocess.PIPE, text=True) as inviting:
            assert inviting.stdout is not None
            other.clusters("join", stdin=inviting.stdout.readline())
            assert inviting.wait(240) == 0

    def secrets(self) -> None:
        """Those of the walk."""
        files = {
            "isthmus-etcd-server": [self.keys / name for name in ("ca.crt", "server.crt", "server.key")],
            "isthmus-etcd-operator": [
                self.keys / name for name in ("ca.crt", "operator.crt", "operator.key", "operator.password")
            ],
            "isthmus-peers": [self.folder / "peers"],
        }
        for name, paths in files.items():
            given = [f"--from-file={path}" for path in paths]
            self.kubectl("-n", SYSTEM, "create", "secret", "generic", name, *given)

    def run(self, process: str, *settings: str, account: str = "") -> subprocess.Popen[bytes]:
        """Run a process as the deployment would: with its configuration, and its ServiceAccount's token."""
        config = self.folder / f"{process}.toml"
        config.write_text(self._configured(process))
        given = [f"admin.socket={self.folder / process}.sock", *self._access(account), *settings]
        flags = [word for each in given for word in ("--set", each)]
        command = [sys.executable, "-m", "isthmus", process, "--config", str(config)]
        with (self.folder / f"{process}.log").open("ab") as log:
            environ = {**os.environ, **environment(self.name, self.number), **GRPC_LOG}
            started = subprocess.Popen([*command, *flags], env=environ, stdout=log, stderr=log)
        self.processes.append(started)
        return started

    def _access(self, account: str) -> list[str]:
        if not account:
            return []
        access = self.folder / f"kubeconfig-{account}"
        known = yaml.safe_load(Path(self.server.section().kubeconfig).read_text())
        known["users"][0]["user"] = {"token": self.kubectl("-n", SYSTEM, "create", "token", account).strip()}
        access.write_text(yaml.safe_dump(known))
        return [f"kubernetes.kubeconfig={access}"]

    def operator(self) -> int:
        """The operator, as it is deployed; its port for metrics and health."""
        [port] = free_ports(1)
        settings = [f"monitor.listen=127.0.0.1:{port}", "identity.enabled=true"]  # so that it uses all of its rights
        self.run("operator", *settings, account="isthmus-operator")
        return port

    def end(self) -> None:
        """Stop the process that was started last."""
        process = self.processes.pop()
        process.terminate()
        process.wait(60)

    def mirrored(self, peer: str) -> Path:
        """The peers directory of an agent behind the mirror, as the commands write it."""
        folder = self.folder / "mirrored"
        self.clusters("certs", "--set", f"clusterset.mirrored={folder}")
        assert (folder / peer).is_file()
        return folder

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


ROOMS: Final = {
    "isthmus-operator": "operator",
    "isthmus-agent": "agent",
    "isthmus-gateway": "islands",
    "isthmus-mirror": "mirror",
    "isthmus-keys": "keys",
    "isthmus-keys-issuer": "issuer",
    "isthmus-connect": "keys",
}
"""Folder of ``deploy/`` by the name of its roles, which is that of the ServiceAccount where there is one."""


def unused(name: str, used: list[tuple[str, str, str, int]]) -> set[tuple[str, str, str]]:
    """Rights of deploy/ that no request needed. Those to finalizers are asked for by admission, not by a request."""
    given = {
        (group, resource, verb)
        for role in yaml.safe_load_all((DEPLOY / ROOMS[name] / "rbac.yaml").read_text())
        if role["metadata"]["name"] == name
        for rule in role.get("rules", ())
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if not resource.endswith("/finalizers")
    }
    return given - {(group, resource, verb) for group, resource, verb, _ in used}


@contextmanager
def two(folder: Path, server: Path) -> Iterator[tuple[Cluster, Cluster]]:
    """Both, started."""
    with ExitStack() as stack:
        made = [Cluster(f"c{number}", number, folder / f"c{number}", server) for number in (1, 2)]
        for cluster in made:
            stack.callback(cluster.stop)
            cluster.start()
        yield made[0], made[1]
