"""Karmada's own controllers, scheduler and webhooks over a real kube-apiserver, with small API servers as members.

The definitions of Karmada's kinds are those of its module, with their schemas; Cluster alone, which is served by an
aggregated API server otherwise, is defined without one.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import programs
import yaml
from apiserver_world import TOKEN, serving
from etcd_server import free_ports
from etcd_server import running as running_etcd
from kube_apiserver import KubeApiServer

from isthmus import kube
from isthmus.clusterset import certificates
from isthmus.etcd import binary
from isthmus.kube.access import Access
from isthmus.kube.transport import Transport

CRDS: Final = programs.BUILT / "karmada-crds"
DEFINITIONS: Final = Path(__file__).resolve().parents[1] / "data" / "karmada" / "definitions.yaml"
MUTATED: Final = (
    ("policy.karmada.io", "propagationpolicies"),
    ("policy.karmada.io", "clusterpropagationpolicies"),
    ("policy.karmada.io", "overridepolicies"),
    ("work.karmada.io", "resourcebindings"),
    ("work.karmada.io", "clusterresourcebindings"),
    ("work.karmada.io", "works"),
    ("networking.karmada.io", "multiclusterservices"),
)
VALIDATED: Final = (*MUTATED[:4], MUTATED[6])
SINGULAR: Final = {
    "propagationpolicies": "propagationpolicy",
    "clusterpropagationpolicies": "clusterpropagationpolicy",
    "overridepolicies": "overridepolicy",
    "resourcebindings": "resourcebinding",
    "clusterresourcebindings": "clusterresourcebinding",
    "works": "work",
    "multiclusterservices": "multiclusterservice",
}
"""How the webhooks' paths call them."""


class Target(NamedTuple):
    """A member's API server, and an administrator's access to it."""

    url: str
    ca: bytes
    token: str

    def client(self) -> kube.Client:
        trust = ssl.create_default_context(cadata=self.ca.decode())
        return kube.Client(Transport(Access(server=self.url, tls=trust, token=self.token)))


def of_context(kubeconfig: Path, context: str) -> Target:
    """That of a lab's cluster."""
    read = yaml.safe_load(kubeconfig.read_text())
    [named] = [each["context"] for each in read["contexts"] if each["name"] == context]
    [cluster] = [each["cluster"] for each in read["clusters"] if each["name"] == named["cluster"]]
    [user] = [each["user"] for each in read["users"] if each["name"] == named["user"]]
    ca = base64.b64decode(cluster.get("certificate-authority-data", ""))
    return Target(cluster["server"], ca or Path(cluster["certificate-authority"]).read_bytes(), user["token"])


class Karmada:
    """A control plane that runs."""

    def __init__(self, server: KubeApiServer, folder: Path, members: Mapping[str, Target]) -> None:
        self.server = server
        self.folder = folder
        self.members = members
        self.kubeconfig = str(server.section().kubeconfig)

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """kubectl on Karmada's API server."""
        command = [programs.path("kubectl"), "--kubeconfig", self.kubeconfig, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, input=stdin, check=False)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def apply(self, *objects: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

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

    async def ready(self) -> bool:
        """Whether Karmada finds every member ready."""
        found = json.loads(self.kubectl("get", "clusters", "-o", "json"))["items"]
        conditions = [each for cluster in found for each in cluster.get("status", {}).get("conditions", ())]
        return [each["status"] for each in conditions if each["type"] == "Ready"] == ["True"] * len(self.members)

    def logs(self) -> str:
        return "\n".join(f"== {each.name}\n{each.read_text()[-3000:]}" for each in sorted(self.folder.glob("*.log")))


def configuration(kind: str, verb: str, kinds: tuple[tuple[str, str], ...], *, url: str, ca: bytes) -> dict[str, Any]:
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


@contextmanager
def member_servers(folder: Path, *names: str) -> Iterator[dict[str, Target]]:
    """Small API servers as members, where no pod has to run."""
    with ExitStack() as stack:
        made = {name: stack.enter_context(serving(folder / name)) for name in names}
        yield {name: Target(each.url, each.authority.certificate, TOKEN) for name, each in made.items()}


@contextmanager
def karmada(folder: Path, members: Mapping[str, Target]) -> Iterator[Karmada]:
    """All of it; the members are not registered yet."""
    with ExitStack() as stack:
        etcd = stack.enter_context(running_etcd(binary.find(), folder / "etcd"))
        server = KubeApiServer(Path(programs.path("kube-apiserver")), folder / "apiserver", etcd)
        server.start()
        stack.callback(server.kill)
        made = Karmada(server, folder, members)
        asyncio.run(server.ready())
        stack.callback(lambda: print(made.logs()))
        install(made)
        start(made, stack)
        yield made


def install(made: Karmada) -> None:
    """Karmada's kinds and namespaces."""
    for path in sorted(CRDS.rglob("*.yaml")):
        made.kubectl("apply", "--server-side", "-f", str(path))
    for each in yaml.safe_load_all(DEFINITIONS.read_text()):
        if each["spec"]["names"]["kind"] == "Cluster":
            made.apply(each)
    made.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=180s")
    made.apply(
        *(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"karmada-{each}"}}
            for each in ("system", "cluster")
        )
    )


def start(made: Karmada, stack: ExitStack) -> None:
    """Webhooks, then controllers and scheduler; each ends with the stack."""
    [port] = free_ports(1)
    authority = certificates.authority("karmada-webhook")
    served = certificates.issue(authority, "karmada-webhook", hosts=["127.0.0.1"])
    (made.folder / "tls.crt").write_bytes(served.certificate)
    (made.folder / "tls.key").write_bytes(served.key)
    common = ["--kubeconfig", made.kubeconfig, "--metrics-bind-address=0"]
    alone = ["--leader-elect=false"]
    serve = ["--bind-address=127.0.0.1", f"--secure-port={port}", f"--cert-dir={made.folder}"]
    run(made, stack, "karmada-webhook", *common, *serve)
    url = f"https://127.0.0.1:{port}"
    made.apply(
        configuration("MutatingWebhookConfiguration", "mutate", MUTATED, url=url, ca=authority.certificate),
        configuration("ValidatingWebhookConfiguration", "validate", VALIDATED, url=url, ca=authority.certificate),
    )
    modest = ["--enable-cluster-resource-modeling=false", "--cluster-status-update-frequency=2s"]
    modest += ["--feature-gates=MultiClusterService=true"]
    run(made, stack, "karmada-controller-manager", *common, *alone, *modest)
    run(made, stack, "karmada-scheduler", *common, *alone)


def run(made: Karmada, stack: ExitStack, program: str, *flags: str) -> None:
    [port] = free_ports(1)
    probe = f"--health-probe-bind-address=127.0.0.1:{port}"
    with (made.folder / f"{program}.log").open("ab") as log:
        process = subprocess.Popen([programs.path(program), *flags, probe], stdout=log, stderr=log)
    stack.callback(process.wait)
    stack.callback(process.kill)
