"""The service accounts of callers in a lab, and the ExportPolicy of echo that judges them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml
from labs.lab_running import Running

ECHO: Final = Path(__file__).resolve().parents[3] / "examples" / "echo"
CALL: Final = "curl -s -o /dev/null -w '%{http_code}' --max-time 3 http://echo.demo.svc.clusterset.local"
WEB: Final = """
apiVersion: v1
kind: ServiceAccount
metadata: {name: web, namespace: demo}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: demo}
spec:
  serviceAccountName: web
  terminationGracePeriodSeconds: 5
  containers: [{name: client, image: isthmus/client}]
"""
"""A second calling pod, of an account of its own."""


def policy(lab: Running, **spec: Any) -> None:
    """Apply the ExportPolicy of c1's echo."""
    body = {
        "apiVersion": "isthmus.io/v1alpha1",
        "kind": "ExportPolicy",
        "metadata": {"name": "echo", "namespace": "demo"},
        "spec": {"target": {"name": "echo"}, **spec},
    }
    lab.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(body), cluster="c1")
