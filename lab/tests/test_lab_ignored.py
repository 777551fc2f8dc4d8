"""Objects that nothing in a lab acts on are listed by name, and no others."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml

from isthmus_lab.ignored import Whole, acted_on, fields, kinds, of_object

CONTAINER = "spec.template.spec.containers[web]"


def of(resource: str, text: str, *, real: bool = False) -> list[str]:
    body: dict[str, Any] = yaml.safe_load(text)
    return sorted(fields(body, acted_on(resource, real=real)))


def deployment(container: str = "", *, pod: str = "", spec: str = "") -> str:
    return f"""
metadata: {{name: web}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: web}}}}
  {spec}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      {pod}
      containers:
      - name: web
        image: nginx
        {container}
"""


@pytest.mark.parametrize(
    ("container", "ignored"),
    [
        ("resources: {limits: {cpu: 1}}", ["resources"]),
        ("resources: {}", []),
        ("securityContext: {runAsUser: 7}", ["securityContext"]),
        ("lifecycle: {preStop: {exec: {command: [sleep, '5']}}}", ["lifecycle"]),
        ("ports: [{name: http, containerPort: 80, hostPort: 80}]", []),
        ("readinessProbe: {grpc: {port: 1}, periodSeconds: 1}", []),
        ("readinessProbe: {httpGet: {path: /, port: http}}", []),
        ("env: [{name: A, valueFrom: {configMapKeyRef: {name: b, key: c}}}]", []),
        ("volumeMounts: [{name: v, mountPath: /v, subPathExpr: $(A)}]", ["volumeMounts[v].subPathExpr"]),
        ("imagePullPolicy: Always", []),
        ("terminationMessagePath: /dev/termination-log", []),
    ],
)
def test_a_field_of_a_container_that_the_node_does_not_read_is_listed(container: str, ignored: list[str]) -> None:
    assert of("deployments", deployment(container)) == [f"{CONTAINER}.{each}" for each in ignored]


@pytest.mark.parametrize(
    ("pod", "ignored"),
    [
        ("affinity: {nodeAffinity: {}}", ["affinity"]),
        ("nodeSelector: {disk: ssd}", []),
        ("dnsPolicy: ClusterFirst", []),
        ("dnsPolicy: Default", ["dnsPolicy"]),
        ("volumes: [{name: v, emptyDir: {medium: PodState}}]", ["volumes[v].emptyDir.medium"]),
        ("volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]", []),
        ("volumes: [{name: v, nfs: {server: s, path: /}}]", ["volumes[v].nfs"]),
        ("volumes: [{name: v, configMap: {name: c, defaultMode: 420}}]", []),
    ],
)
def test_a_field_of_a_pod_that_nothing_reads_is_listed(pod: str, ignored: list[str]) -> None:
    assert of("deployments", deployment(pod=pod)) == [f"spec.template.spec.{each}" for each in ignored]


def test_a_real_controller_manager_acts_on_all_of_a_workload_but_not_of_its_pods() -> None:
    job = deployment("resources: {limits: {cpu: 1}}", spec="podFailurePolicy: {rules: []}")
    assert of("jobs", job) == ["spec.podFailurePolicy", "spec.replicas", f"{CONTAINER}.resources"]
    assert of("jobs", job, real=True) == [f"{CONTAINER}.resources"]


def test_what_no_load_balancer_here_reads_of_a_service_is_listed() -> None:
    text = "spec: {type: LoadBalancer, loadBalancerSourceRanges: [10.0.0.0/8], ports: [{port: 80, nodePort: 30080}]}"
    assert of("services", text) == ["spec.loadBalancerSourceRanges"]


def test_fields_of_an_owner_are_listed_of_the_owner_only() -> None:
    meta = {"name": "web-1", "namespace": "shop", "ownerReferences": [{"kind": "ReplicaSet", "controller": True}]}
    body = {"metadata": meta, "spec": {"affinity": {"podAffinity": {}}}}
    assert of_object("Pod", msgspec.convert(body, Whole), acted_on("pods")) == []
    del meta["ownerReferences"]
    (ignored,) = of_object("Pod", msgspec.convert(body, Whole), acted_on("pods"))
    assert (ignored.kind, ignored.object, ignored.field) == ("Pod", "shop/web-1", "spec.affinity")


def test_a_kind_that_is_only_stored_is_listed_whole() -> None:
    quota = msgspec.convert({"metadata": {"name": "small", "namespace": "shop"}}, Whole)
    assert [each.field for each in of_object("ResourceQuota", quota, {})] == ["(all of it)"]
    assert {"ingresses", "pods"} <= {kind.resource for kind in kinds(real=False)}
    assert {"ingresses", "networkpolicies"} <= {kind.resource for kind in kinds(real=True)}
    assert "roles" not in {kind.resource for kind in kinds(real=True)}


def test_a_partition_and_a_surge_of_daemons_are_listed_unless_they_are_zero() -> None:
    rolling = "updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 2, maxUnavailable: 1, maxSurge: 0}}"
    assert "spec.updateStrategy.rollingUpdate.partition" in of("statefulsets", deployment(spec=rolling))
    assert of(
        "daemonsets", "metadata: {}\nspec: {updateStrategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}}"
    ) == ["spec.updateStrategy.rollingUpdate.maxSurge"]
    assert of("statefulsets", deployment(spec="updateStrategy: {rollingUpdate: {partition: 0}}")) == []
