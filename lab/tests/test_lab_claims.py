"""PersistentVolumeClaims in a lab: data outlives the pod, and is deleted with the claim."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from labs.lab_running import Running, until

pytestmark = [pytest.mark.lab, pytest.mark.slow]

WRITE = "cat /data/lines 2>/dev/null; echo $HOSTNAME >> /data/lines; exec sleep 999"
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


def writing(claim: str) -> dict[str, Any]:
    """A pod's spec; its volume is called as its claim."""
    mount = {"name": claim, "mountPath": "/data"}
    container = {"name": "main", "image": "busybox", "command": ["sh", "-c", WRITE], "volumeMounts": [mount]}
    return {"containers": [container], "terminationGracePeriodSeconds": 1}


def test_what_is_written_outlives_a_pod_and_goes_with_its_claim(clusters: Running) -> None:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    spec = {**writing("data"), "volumes": [volume]}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": CLAIM}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "writer"}, "spec": spec}

    def make(*objects: dict[str, Any]) -> None:
        clusters.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))

    make(pod)
    until(lambda: "no claim data is bound in default" in clusters.cli("status").stdout)
    make(claim)
    clusters.kubectl("wait", "--for=condition=Ready", "pod/writer", "--timeout=180s")
    bound = json.loads(clusters.kubectl("get", "pvc", "data", "-o", "json"))
    assert (bound["status"]["phase"], bound["status"]["capacity"]) == ("Bound", {"storage": "1Gi"})
    volume = json.loads(clusters.kubectl("get", "pv", bound["spec"]["volumeName"], "-o", "json"))
    assert volume["spec"]["capacity"] == {"storage": "1Gi"}
    assert volume["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert (volume["spec"]["persistentVolumeReclaimPolicy"], volume["status"]["phase"]) == ("Retain", "Bound")
    clusters.kubectl("delete", "pod", "writer")
    make(pod)
    until(lambda: clusters.kubectl("logs", "writer") == "writer\n")
    clusters.kubectl("delete", "pod/writer", "pvc/data")
    until(lambda: clusters.kubectl("get", "pv", "-o", "name") == "", what="its volume is gone")
    make(claim, pod)
    clusters.kubectl("wait", "--for=condition=Ready", "pod/writer", "--timeout=180s")
    assert clusters.kubectl("logs", "writer") == ""


def test_each_pod_of_a_stateful_set_has_a_claim_of_its_own_that_stays(clusters: Running) -> None:
    template = {"metadata": {"name": "data"}, "spec": CLAIM}
    pods = {"metadata": {"labels": {"app": "db"}}, "spec": writing("data")}
    spec = {"replicas": 2, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}}, "template": pods}
    body = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"}}
    clusters.kubectl("apply", "-f", "-", stdin=json.dumps(body | {"spec": spec | {"volumeClaimTemplates": [template]}}))
    clusters.kubectl("rollout", "status", "statefulset/db", "--timeout=180s")
    clusters.kubectl("scale", "statefulset/db", "--replicas=0")
    until(lambda: clusters.kubectl("get", "pods", "-l", "app=db", "-o", "name") == "")
    clusters.kubectl("scale", "statefulset/db", "--replicas=2")
    until(lambda: _output(clusters, "db-0") == "db-0\n" and _output(clusters, "db-1") == "db-1\n")


def _output(clusters: Running, pod: str) -> str:
    """First line that the pod wrote; empty if it does not run."""
    return clusters.cli("exec", "c1", f"default/{pod}", "--", "head", "-1", "/data/lines", code=None).stdout
