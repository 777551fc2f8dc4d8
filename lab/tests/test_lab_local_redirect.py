"""A local redirect policy in a lab: from the API server to the end of a pod's call, and back when it is deleted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from labs.lab_running import PATIENCE, Running, until

pytestmark = [pytest.mark.lab, pytest.mark.slow]

ECHO = Path(__file__).parents[2] / "examples" / "echo"
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "ciliumlocalredirectpolicies.cilium.io"},
    "spec": {
        "group": "cilium.io",
        "scope": "Namespaced",
        "names": {
            "kind": "CiliumLocalRedirectPolicy",
            "plural": "ciliumlocalredirectpolicies",
            "singular": "ciliumlocalredirectpolicy",
        },
        "versions": [
            {
                "name": "v2",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                    }
                },
            }
        ],
    },
}
POLICY: dict[str, Any] = {
    "apiVersion": "cilium.io/v2",
    "kind": "CiliumLocalRedirectPolicy",
    "metadata": {"name": "near", "namespace": "demo"},
    "spec": {
        "redirectFrontend": {"serviceMatcher": {"serviceName": "echo", "namespace": "demo"}},
        "redirectBackend": {
            "localEndpointSelector": {"matchLabels": {"app": "near"}},
            "toPorts": [{"port": "8080", "protocol": "TCP"}],
        },
    },
}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "near", "namespace": "demo", "labels": {"app": "near"}},
    "spec": {
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                "name": "echo",
                "image": "isthmus/echo",
                "ports": [{"name": "http", "containerPort": 8080}],
                "env": [{"name": "POD_NAME", "value": "near"}],
            }
        ],
    },
}


class Echo:
    """The plain Service echo of a lab, and who answers for it."""

    def __init__(self, running: Running) -> None:
        self.running = running
        words = ("get", "service", "echo", "-n", "demo", "-o", "jsonpath={.spec.clusterIP}")
        self.address = running.kubectl(*words)

    def apply(self, *objects: dict[str, Any]) -> None:
        self.running.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))

    def answers(self, caller: str = "demo/client") -> str:
        """The pod that answers a pod's next call."""
        output = self.running.exec(caller, f"curl -sS --max-time 30 http://{self.address}/")
        pod: str = json.loads(output)["pod"]
        return pod

    def isthmus(self, *words: str) -> str:
        where = ("--lab", self.running.lab.name, "--cluster", "c1")
        command = [sys.executable, "-m", "isthmus", *words, *where]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False).stdout


def test_calls_of_a_plain_service_go_to_the_near_pod_and_back_when_the_policy_goes(spare: Running) -> None:
    spare.cli("up", "--clusters", "1", "--from", str(ECHO))
    echo = Echo(spare)
    until(lambda: spare.count_ready() == 3, what="every pod is ready")
    assert echo.answers().startswith("echo-")
    assert "echo" not in echo.isthmus("get", "plans", "-A")
    echo.apply(DEFINITION)
    until(lambda: "ciliumlocal" in spare.kubectl("api-resources"), what="the kind is served")
    spare.cli("kill", "c1/n1/agent")  # it would look again within half a minute; one that starts looks at once
    echo.apply(POLICY, POD)
    spare.cli("start", "c1/n1/agent")
    until(lambda: "near" in echo.isthmus("get", "redirects", "-A"), seconds=60, what="the agent follows the kind")
    until(lambda: [echo.answers() for _ in range(5)] == ["near"] * 5, what="calls go to the near pod")
    explained = echo.isthmus("explain", "demo/echo")
    assert f"at {echo.address}:80/TCP, redirected by CiliumLocalRedirectPolicy demo/near" in explained
    until(lambda: echo.answers("demo/near") == "near", what="the near pod reaches itself")
    echo.apply(POLICY | {"spec": POLICY["spec"] | {"skipRedirectFromBackend": True}})
    until(lambda: echo.answers("demo/near").startswith("echo-"), what="the near pod itself reaches the original")
    assert [echo.answers() for _ in range(5)] == ["near"] * 5
    spare.kubectl("delete", "ciliumlocalredirectpolicy", "near", "-n", "demo")
    until(lambda: echo.isthmus("get", "redirects", "-A").count("near") == 0, what="the redirect is gone")
    until(lambda: echo.answers().startswith("echo-"), what="the original is back")
    echo.apply(POLICY)
    until(lambda: echo.answers() == "near", what="redirected again")
    spare.kubectl("delete", "pod", "near", "-n", "demo")
    until(lambda: echo.answers().startswith("echo-"), what="without a pod the original is back")
