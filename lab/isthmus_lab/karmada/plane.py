"""A Karmada control plane on loopback: its controllers, scheduler and webhooks over a kube-apiserver of its own, and of
kube-controller-manager what Karmada needs: objects that follow from a deleted one, and namespaces, are deleted.

The definitions of Karmada's kinds are those of its module, with their schemas; Cluster alone, which is served by an
aggregated API server otherwise, is defined without one.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from isthmus import kube
from isthmus.clusterset import certificates
from isthmus.kube.access import Access
from isthmus.kube.transport import Transport
from isthmus_lab import cgroups, etcd_program
from isthmus_lab.karmada import autoscaling
from isthmus_lab.realapi import binaries

PROGRAMS: Final = ("karmada-controller-manager", "karmada-scheduler", "karmada-webhook")
CRDS: Final = binaries.BUILT / "karmada-crds"
TOKEN: Final = "karmada"
"""Token of its administrator; the server listens on loopback only."""
PORTS: Final = range(20_000, 32_768)
"""Below the ports that the kernel gives to clients, one of which could else come between asking and listening."""
PATIENCE: Final = 180.0
"""Seconds until a control plane serves and has its kinds."""
DELETING: Final = ("--controllers=garbage-collector-controller,namespace-controller", "--secure-port=0")
"""Flags of kube-controller-manager, as Karmada's installation runs it beside its API server."""
CLUSTER_KIND: Final[dict[str, Any]] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "clusters.cluster.karmada.io"},
    "spec": {
        "group": "cluster.karmada.io",
        "scope": "Cluster",
        "names": {"kind": "Cluster", "plural": "clusters", "singular": "cluster"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
MUTATED: Final = (
    ("policy.karmada.io", "propagationpolicies"),
    ("policy.karmada.io", "clusterpropagationpolicies"),
    ("policy.karmada.io", "overridepolicies"),
    ("work.karmada.io", "resourcebindings"),
    ("work.karmada.io", "clusterresourcebindings"),
    ("work.karmada.io", "works"),
    ("networking.karmada.io", "multiclusterservices"),
    ("autoscaling.karmada.io", "federatedhpas"),
)
VALIDATED: Final = (*MUTATED[:4], *MUTATED[6:])
SINGULAR: Final = {
    "propagationpolicies": "propagationpolicy",
    "clusterpropagationpolicies": "clusterpropagationpolicy",
    "overridepolicies": "overridepolicy",
    "resourcebindings": "resourcebinding",
    "clusterresourcebindings": "clusterresourcebinding",
    "works": "work",
    "multiclusterservices": "multiclusterservice",
    "federatedhpas": "federatedhpa",
}
"""Names in the webhooks' paths."""


class NoKarmada(Exception):  # noqa: N818
    """The control plane does not come up, or refuses what it is given; the message has why."""


class MemberServer(NamedTuple):
    """A member's API server, and an administrator's access to it."""

    url: str
    ca: bytes
    token: str

    def client(self) -> kube.Client:
        trust = ssl.create_default_context(cadata=self.ca.decode())
        return kube.Client(Transport(Access(server=self.url, tls=trust, token=self.token)))


def missing() -> list[str]:
    """One sentence about all missing programs, including those of ``autoscaling``."""
    required = (*PROGRAMS, binaries.SERVER, binaries.CONTROLLERS, "kubectl")
    lacks = [name for name in required if binaries.find(name) is None]
    return [f"no {', '.join(lacks)} here: make karmada-tools builds them (needs Go)"] if lacks else []


def of_context(kubeconfig: Path, context: str) -> MemberServer:
    """A member by its context in a lab's kubeconfig."""
    read = yaml.safe_load(kubeconfig.read_text())
    [named] = [each["context"] for each in read["contexts"] if each["name"] == context]
    [cluster] = [each["cluster"] for each in read["clusters"] if each["name"] == named["cluster"]]
    [user] = [each["user"] for each in read["users"] if each["name"] == named["user"]]
    ca = base64.b64decode(cluster.get("certificate-authority-data", ""))
    return MemberServer(cluster["server"], ca or Path(cluster["certificate-authority"]).read_bytes(), user["token"])


class Karmada:
    """A control plane. ``cgroup``: where its processes are, so that whoever removes that ends them.

    ``definitions``: files of further CustomResourceDefinitions, there before the controllers start. These look for new
    kinds then, and every 30 s.
    """

    def __init__(
        self,
        folder: Path,
        members: Mapping[str, MemberServer],
        *,
        definitions: Sequence[Path] = (),
        cgroup: Path | None = None,
    ) -> None:
        self.folder = folder
        self.members = members
        self.kubeconfig = str(folder / "kubeconfig")
        self._definitions = definitions
        self._cgroup = cgroup
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start it and wait until it has its kinds; the members are not registered yet. NoKarmada where it fails."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._serve()
        for path in (*sorted(CRDS.rglob("*.yaml")), *self._definitions):
            self.kubectl("apply", "--server-side", "-f", str(path))
        self.apply(CLUSTER_KIND)
        self.kubectl("wait", "--for=condition=Established", "crd", "--all", f"--timeout={PATIENCE:.0f}s")
        names = ("karmada-system", "karmada-cluster")
        self.apply(*({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in names))
        self._control()

    def stop(self) -> None:
        """Kill all of it."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """kubectl on Karmada's API server."""
        command = [str(binaries.find("kubectl")), "--kubeconfig", self.kubeconfig, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, input=stdin, check=False)
        if done.returncode:
            raise NoKarmada(f"kubectl {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def apply(self, *objects: dict[str, Any]) -> None:
        """Objects that are no file's."""
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def get(self, *words: str) -> Any:
        """Parsed output of ``kubectl get -o json``."""
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def member(self, name: str) -> kube.Client:
        """A client of a member."""
        return self.members[name].client()

    def register(self, name: str, **spec: Any) -> None:
        """``karmadactl join``, in push mode."""
        url, ca, token = self.members[name]
        reference = {"namespace": "karmada-cluster", "name": name}
        secret = {"metadata": reference, "stringData": {"token": token, "caBundle": ca.decode()}}
        access = {"apiEndpoint": url, "secretRef": reference, "syncMode": "Push", "id": f"id-{name}"}
        cluster = {"metadata": {"name": name}, "spec": {**access, **spec}}
        self.apply(
            {"apiVersion": "v1", "kind": "Secret", **secret},
            {"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", **cluster},
        )

    def readiness(self) -> dict[str, str]:
        """Condition Ready of each member in Karmada: ``True``, ``False`` or ``Unknown``."""
        return {
            cluster["metadata"]["name"]: condition["status"]
            for cluster in self.get("clusters")["items"]
            for condition in cluster.get("status", {}).get("conditions", ())
            if condition["type"] == "Ready"
        }

    async def ready(self) -> bool:
        """True if every member is ready in Karmada."""
        readiness = await asyncio.to_thread(self.readiness)
        return readiness == dict.fromkeys(self.members, "True")

    def logs(self) -> str:
        """The end of each program's log."""
        return "\n".join(f"== {each.name}\n{each.read_text()[-3000:]}" for each in sorted(self.folder.glob("*.log")))

    def _serve(self) -> None:
        """etcd and kube-apiserver."""
        client, peer, port = free_ports(3)
        etcd, peers = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
        self._run(
            etcd_program.find(),
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            name="etcd",
        )
        accounts = certificates.authority("service accounts")
        authority = certificates.authority("karmada-apiserver")
        served = certificates.issue(authority, "karmada-apiserver", hosts=["127.0.0.1"])
        self._write("accounts.key", accounts.key)
        self._write("accounts.crt", accounts.certificate)
        self._write("apiserver.key", served.key)
        self._write("apiserver.crt", served.certificate)
        self._write("tokens.csv", f'{TOKEN},{TOKEN},{TOKEN},"system:masters"\n'.encode())
        url = f"https://127.0.0.1:{port}"
        self._write("kubeconfig", yaml.safe_dump(_kubeconfig(url, authority.certificate)).encode())
        self._run(
            str(binaries.find(binaries.SERVER)),
            f"--etcd-servers={etcd}",
            f"--secure-port={port}",
            "--bind-address=127.0.0.1",
            f"--tls-cert-file={self.folder / 'apiserver.crt'}",
            f"--tls-private-key-file={self.folder / 'apiserver.key'}",
            f"--service-account-key-file={self.folder / 'accounts.crt'}",
            f"--service-account-signing-key-file={self.folder / 'accounts.key'}",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--disable-admission-plugins=ServiceAccount",
            "--endpoint-reconciler-type=none",
            "--shutdown-delay-duration=0",
        )
        self._until("kube-apiserver serves", lambda: self.kubectl("get", "--raw", "/readyz") == "ok")

    def _control(self) -> None:
        """Webhooks, then controllers and scheduler."""
        [port] = free_ports(1)
        authority = certificates.authority("karmada-webhook")
        served = certificates.issue(authority, "karmada-webhook", hosts=["127.0.0.1"])
        self._write("tls.crt", served.certificate)
        self._write("tls.key", served.key)
        common = [f"--kubeconfig={self.kubeconfig}", "--metrics-bind-address=0"]
        serve = ["--bind-address=127.0.0.1", f"--secure-port={port}", f"--cert-dir={self.folder}"]
        controllers, scheduler, webhook = (str(binaries.find(name)) for name in PROGRAMS)
        self._run(webhook, *common, *serve, _probes())
        self._until("the webhooks listen", lambda: _listens(port))  # without them every object of Karmada's is refused
        url = f"https://127.0.0.1:{port}"
        self.apply(
            _hooks("MutatingWebhookConfiguration", "mutate", MUTATED, url=url, ca=authority.certificate),
            _hooks("ValidatingWebhookConfiguration", "validate", VALIDATED, url=url, ca=authority.certificate),
        )
        no_election = "--leader-elect=false"
        modest = ["--enable-cluster-resource-modeling=false", "--feature-gates=MultiClusterService=true"]
        self._run(controllers, *common, no_election, *modest, *autoscaling.PACE, _probes())
        self._run(scheduler, *common, no_election, _probes())
        self._run(str(binaries.find(binaries.CONTROLLERS)), common[0], no_election, *DELETING)

    def _run(self, program: str, *flags: str, name: str = "") -> None:
        name = name or Path(program).name
        cgroup = self._cgroup
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    [program, *flags],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=(lambda: cgroups.enter(cgroup)) if cgroup is not None else None,
                )
            )

    def _until(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait for a condition; what fails meanwhile has not come to be so yet. NoKarmada after ``PATIENCE``."""
        end, last = time.monotonic() + PATIENCE, "not so"
        while time.monotonic() < end:
            try:
                if holds():
                    return
            except NoKarmada as error:
                last = str(error)
            if any(each.poll() is not None for each in self._processes):
                raise NoKarmada(f"a program ended: {self.logs()[-500:]}")
            time.sleep(0.2)
        raise NoKarmada(f"waited {PATIENCE:.0f} s for: {what}: {last}")

    def _write(self, name: str, content: bytes) -> None:
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_bytes(content)


def free_ports(count: int) -> list[int]:
    """Ports of loopback without a listener."""
    ports: set[int] = set()
    while len(ports) < count:
        port = random.choice(PORTS)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        ports.add(port)
    return sorted(ports)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


def _probes() -> str:
    return f"--health-probe-bind-address=127.0.0.1:{free_ports(1)[0]}"


def _kubeconfig(url: str, ca: bytes) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "karmada",
        "contexts": [{"name": "karmada", "context": {"cluster": "karmada", "user": "karmada"}}],
        "clusters": [
            {
                "name": "karmada",
                "cluster": {"server": url, "certificate-authority-data": base64.b64encode(ca).decode()},
            }
        ],
        "users": [{"name": "karmada", "user": {"token": TOKEN}}],
    }


def _hooks(kind: str, verb: str, kinds: tuple[tuple[str, str], ...], *, url: str, ca: bytes) -> dict[str, Any]:
    """One of both configurations of webhooks."""
    creating = ("resourcebindings", "clusterresourcebindings")
    hooks = [
        {
            "name": f"{plural}.{group}",
            "rules": [
                {
                    "operations": ["CREATE"] if verb == "mutate" and plural in creating else ["CREATE", "UPDATE"],
                    "apiGroups": [group],
                    "apiVersions": ["*"],
                    "resources": [plural],
                }
            ],
            "clientConfig": {"url": f"{url}/{verb}-{SINGULAR[plural]}", "caBundle": base64.b64encode(ca).decode()},
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 10,
        }
        for group, plural in kinds
    ]
    metadata = {"name": f"karmada-{verb}"}
    return {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": metadata, "webhooks": hooks}
