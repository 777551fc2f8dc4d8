"""Objects of tests on real nodes: a server, its export, and pods that call it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from nodes.cluster import Cluster, until
from nodes.walk import SYSTEM

from nodes import images, traffic

IMAGE: Final = images.IMAGE
"""It has a Python; no other image is needed."""
NAMESPACE: Final = "traffic"
"""The pages' own commands have ``demo``."""
EXPORTED: Final = f"{NAMESPACE}/echo"


def base() -> list[dict[str, Any]]:
    """Return the namespace, and the program of its pods."""
    program = Path(traffic.__file__).read_text()
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "traffic", "namespace": NAMESPACE},
            "data": {"traffic.py": program},
        },
    ]


def deployment(name: str, *arguments: str, replicas: int = 1, probe: bool = False) -> dict[str, Any]:
    """Return a Deployment whose pods run the program with these arguments; without any they wait."""
    command = ["python", "/traffic/traffic.py", *arguments] if arguments else ["sleep", "infinity"]
    container: dict[str, Any] = {
        "name": name,
        "image": IMAGE,
        "command": command,
        "volumeMounts": [{"name": "traffic", "mountPath": "/traffic"}],
    }
    if probe:
        container["readinessProbe"] = {"tcpSocket": {"port": traffic.SERVED}, "periodSeconds": 1}
    volumes = [{"name": "traffic", "configMap": {"name": "traffic"}}]
    pod = {"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 1}
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def export(name: str = "echo") -> dict[str, Any]:
    """Return the export of a Service."""
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport", "metadata": metadata}


def service(name: str = "echo") -> dict[str, Any]:
    """Return a Service of the server, to be exported."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "selector": {"app": "echo"},
            "ports": [{"name": "tcp", "port": traffic.PORT, "targetPort": traffic.SERVED}],
        },
    }


def host(name: str) -> str:
    """Return the clusterset name of an exported Service."""
    return f"{name}.{NAMESPACE}.svc.clusterset.local"


def calls(cluster: Cluster, times: int, name: str = "echo") -> int:
    """Make calls from a pod by the clusterset name; how many were answered."""
    program = ["python", "/traffic/traffic.py", "call", host(name), str(times)]
    return int(cluster.kubectl("-n", NAMESPACE, "exec", "deployment/client", "--", *program))


def followed(cluster: Cluster) -> str:
    """Return what an agent has of the clusters that it follows."""
    command = ["isthmus", "get", "clusters", "-o", "json", "--socket", "/run/isthmus/agent.sock"]
    return cluster.kubectl("-n", SYSTEM, "exec", "daemonset/isthmus-agent", "-c", "agent", "--", *command)


LOGS: Final = ("-n", NAMESPACE, "logs", "deployment/load")


def begin_load(cluster: Cluster) -> None:
    """Call from a pod from now on, new calls and held connections."""
    cluster.apply(deployment("load", "load", host("echo")))
    until(lambda: "running" in cluster.kubectl(*LOGS), what="load")


def end_load(cluster: Cluster) -> dict[str, Any]:
    """End the calls, and return their report."""
    cluster.kubectl("-n", NAMESPACE, "exec", "deployment/load", "--", "touch", "/tmp/stop")
    [report] = until(lambda: cluster.kubectl(*LOGS).splitlines()[1:], what="report")
    cluster.kubectl("-n", NAMESPACE, "delete", "deployment", "load", "--wait=true")
    found: dict[str, Any] = json.loads(report)
    return found


def assert_good(report: dict[str, Any]) -> None:
    """Assert that a load made calls, and that none failed and no connection dropped."""
    assert (report["failed"], report["dropped"]) == ([], []), report
    assert report["calls"] > 500
