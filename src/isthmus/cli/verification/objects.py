"""Objects that ``isthmus verify`` applies in a cluster, and the calls that must succeed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct

from isthmus.cli.diagnosis.hops import Hop
from isthmus.model.hosts import family
from isthmus.model.services import Family

POD: Final = "verify"
IMAGE: Final = "python:3-alpine"
POD_PORT: Final = 8080
"""The port of programs/serve.py."""
PORT: Final = 80
ZONE: Final = "clusterset.local"
CHECKS: Final = ("name", "tcp", "udp", "headless")
PROGRAMS: Final = Path(__file__).parent / "programs"


class Found(Struct, frozen=True):
    """Addresses of a cluster's pod and families of its Services, once the objects are applied."""

    pod_addresses: tuple[str, ...]
    families: tuple[Family, ...]


class Call(Struct, frozen=True):
    """One row of the result: all checks from a cluster's pod to what another exports, in a family."""

    source: str
    target: str
    family: Family


class Result(Struct, frozen=True):
    """Result of a call."""

    checks: dict[str, str]
    """Check → reason why it fails, empty if it passes."""
    path: Literal["local", "direct", "gateway", ""]
    """Path of the call: within its cluster, to the pod's own address, or through gateways; empty if unknown."""
    faults: tuple[Hop, ...] = ()
    """Faulty hops of a failed call, by the diagnosis of the calling cluster."""


def service(number: int) -> str:
    """The name of what the cluster of a number exports; a context's name need not be a DNS label."""
    return f"{POD}-{number}"


def manifests(namespace: str, cluster: str, number: int, *, image: str) -> list[dict[str, Any]]:
    """The objects of a cluster: a pod that serves and calls, two Services of it, and their exports."""
    labels = {"app.kubernetes.io/name": "isthmus-verify"}
    container = {
        "name": POD,
        "image": image,
        "command": ["python3", "-c", program("serve")],
        "env": [{"name": "ANSWER", "value": cluster}],
        "ports": [{"containerPort": POD_PORT, "protocol": each} for each in ("TCP", "UDP")],
        "readinessProbe": {"tcpSocket": {"port": POD_PORT}, "periodSeconds": 1},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "containers": [container],
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"},
        },
    }  # fmt: skip
    manifests = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": _meta(namespace, POD, labels), "spec": spec},
    ]
    for name, headless in ((service(number), False), (f"{service(number)}-headless", True)):
        ports = [
            {"name": each.lower(), "protocol": each, "port": PORT, "targetPort": POD_PORT} for each in ("TCP", "UDP")
        ]
        body = {"selector": labels, "ports": ports, "ipFamilyPolicy": "PreferDualStack"}
        body |= {"clusterIP": "None"} if headless else {}
        manifests += [
            {"apiVersion": "v1", "kind": "Service", "metadata": _meta(namespace, name), "spec": body},
            {
                "apiVersion": "multicluster.x-k8s.io/v1beta1",
                "kind": "ServiceExport",
                "metadata": _meta(namespace, name),
            },
        ]
    return manifests


def calls(observed: Mapping[str, Found]) -> list[Call]:
    """Every pair of clusters, each with itself too, in every family that both have."""
    return [
        Call(source, target, each)
        for source, target in product(observed, observed)
        for each in observed[target].families
        if each in observed[source].families
    ]


def without_family(observed: Mapping[str, Found]) -> list[tuple[str, str]]:
    """Pairs that have no family in common: nothing can be called there."""
    return [
        (source, target)
        for source, target in product(observed, observed)
        if not set(observed[source].families) & set(observed[target].families)
    ]


def targets(namespace: str, observed: Mapping[str, Found], calls: Sequence[Call]) -> list[dict[str, Any]]:
    """Calls as programs/call.py takes them."""
    numbers = {name: number for number, name in enumerate(observed, 1)}
    return [
        {
            "family": call.family,
            "answer": call.target,
            "name": f"{service(numbers[call.target])}.{namespace}.svc.{ZONE}",
            "port": PORT,
            "headless": f"{service(numbers[call.target])}-headless.{namespace}.svc.{ZONE}",
            "pods": [each for each in observed[call.target].pod_addresses if family(each) == call.family],
            "pod_port": POD_PORT,
        }
        for call in calls
    ]


def direct_target(cluster: str, addresses: Sequence[str]) -> dict[str, Any]:
    """The pods' own addresses of one family as programs/call.py takes them."""
    return {
        "family": family(addresses[0]),
        "answer": cluster,
        "checks": ["direct"],
        "pods": list(addresses),
        "pod_port": POD_PORT,
    }


def program(name: str) -> str:
    """The text of one of the pods' programs."""
    return (PROGRAMS / f"{name}.py").read_text()


def _meta(namespace: str, name: str, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    return {"namespace": namespace, "name": name} | ({"labels": dict(labels)} if labels else {})
