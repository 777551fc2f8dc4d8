"""``isthmus install`` on a real API server: it finds out, applies, changes nothing the second time, and adopts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from clusters.install_target import Target, install_target
from machine import programs

from isthmus.installation import shipped

pytestmark = pytest.mark.kube

SYSTEM = "isthmus-system"


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    with install_target(tmp_path) as made:
        yield made


def test_install_finds_out_applies_and_changes_nothing_the_second_time(target: Target) -> None:
    shown = json.loads(target.isthmus("install", "-o", "json"))
    facts, variables = shown["facts"], {each["variable"]: each["value"] for each in shown["plan"]["choices"]}
    assert facts["services"]["values"] == ["10.96.0.0/16", "fd00:10:96::/112"]
    assert facts["services"]["source"] == "ServiceCIDR objects"
    assert facts["kernels"]["values"] == ["6.1.0-9-amd64 (1)"]
    assert facts["pods"] == {"values": ["10.1.0.0/24"], "source": "spec.podCIDRs of Nodes"}
    assert variables["ISTHMUS_CLUSTER_NAME"] == "test"
    assert 1 <= int(variables["ISTHMUS_CLUSTER_ID"]) <= 255
    assert variables["ISTHMUS_DNS_CLUSTER_DNS"] == "10.96.0.10"
    assert variables["ISTHMUS_DNS_RESOLVERS"] == "169.254.20.10"
    assert variables["ISTHMUS_CLUSTER_FAMILIES"] == "IPv4,IPv6"
    assert target.versions() == {}, "-o json changes nothing"

    first = target.isthmus("install", "--no-wait", "--name", "c7", "--id", "7")
    assert "daemonset/isthmus-agent created" in first
    before = target.versions()
    again = target.isthmus("install", "--no-wait")
    applied = [line for line in again.splitlines() if line.startswith("  ") and "/" in line and line.endswith("ed")]
    assert [line for line in applied if not line.endswith(" unchanged")] == []
    assert len(applied) == len(before)
    assert target.versions() == before
    name = next(each for each in before if each.startswith("ConfigMap/isthmus-cluster-")).partition("/")[2]
    data = json.loads(target.kubectl("-n", SYSTEM, "get", "configmap", name, "-o", "json"))["data"]
    assert (data["ISTHMUS_CLUSTER_NAME"], data["ISTHMUS_CLUSTER_ID"]) == ("c7", "7")


def test_what_a_later_installation_has_no_more_is_deleted(target: Target) -> None:
    target.isthmus("install", "--no-wait")
    changed = target.isthmus("install", "--no-wait", "--without", "mirror", "--set", "log.level=debug")
    assert "deployment/isthmus-mirror deleted" in changed
    assert "daemonset/isthmus-agent configured" in changed
    assert len([each for each in target.versions() if each.startswith("ConfigMap/isthmus-cluster-")]) == 1
    again = json.loads(target.isthmus("install", "-o", "json"))
    variables = {each["variable"]: each["value"] for each in again["plan"]["choices"]}
    assert (variables["ISTHMUS_LOG_LEVEL"], again["plan"]["components"]) == ("debug", ["keys"])


def test_what_is_not_ready_in_time_is_named_with_its_reason(target: Target) -> None:
    out = target.isthmus("install", "--timeout", "1", code=1)
    assert "✗ isthmus-agent: no controller has seen it yet" in out
    target.kubectl(
        "-n", SYSTEM, "apply", "-f", "-",
        stdin=json.dumps({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "isthmus-etcd-0", "namespace": SYSTEM},
            "spec": {"containers": [{"name": "etcd", "image": "etcd"}]},
        }),
    )  # fmt: skip
    message = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims"
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    status = json.dumps({"status": {"conditions": [scheduled]}})
    target.kubectl("-n", SYSTEM, "patch", "pod", "isthmus-etcd-0", "--subresource=status", "-p", status)
    out = target.isthmus("install", "--timeout", "1", code=1)
    assert f"✗ pod isthmus-etcd-0: not scheduled: {message}" in out


def test_another_implementation_of_the_api_stops_an_installation_unless_it_is_forced(target: Target) -> None:
    target.kubectl("create", "namespace", "submariner-operator")
    target.kubectl("-n", "submariner-operator", "create", "deployment", "submariner-operator", "--image=x")
    out = target.isthmus("install", code=1)
    assert "✗ Submariner implements the MCS API here" in out
    assert target.versions() == {}
    target.isthmus("install", "--no-wait", "--force")
    assert "DaemonSet/isthmus-agent" in target.versions()


def test_what_kubectl_applied_is_taken_over_and_kubectl_changes_nothing_twice(target: Target) -> None:
    deploy = str(shipped.directory("deploy"))
    target.kubectl("apply", "-k", deploy)
    before = target.versions()
    again = target.kubectl("apply", "-k", deploy)
    changed = [line for line in again.splitlines() if not line.endswith(" unchanged")]
    # kubectl replaces the whole spec of a PodDisruptionBudget (patchStrategy in policy/v1) and calls that a change.
    assert [line for line in changed if not line.startswith("poddisruptionbudget.policy/")] == []
    assert target.versions() == before
    plan: dict[str, Any] = json.loads(target.isthmus("install", "-o", "json"))["plan"]
    variables = {each["variable"]: (each["value"], each["origin"]) for each in plan["choices"]}
    assert variables["ISTHMUS_CLUSTER_NAME"] == ("c1", "installed")
    target.isthmus("install", "--no-wait")
    assert before.keys() - target.versions().keys() <= {
        each for each in before if each.startswith("ConfigMap/isthmus-cluster-")
    }


@pytest.mark.needs("helm")
def test_what_helm_installed_is_upgraded_by_it_and_taken_over_by_install(target: Target, tmp_path: Path) -> None:
    options = ("--namespace", SYSTEM, "--kubeconfig", target.kubeconfig)
    chart = (str(shipped.directory("deploy") / "chart"), *options, "--set=cluster.name=c7,cluster.id=7")

    def helm(*words: str) -> None:
        command = [programs.path("helm"), *words]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, env={"HOME": str(tmp_path)}, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"

    target.kubectl("create", "namespace", SYSTEM)
    helm("install", "isthmus", *chart, "--set=dns.clusterDns={10.96.0.10}")
    before = target.versions()
    objects = yaml.safe_load_all(target.isthmus("install", "-o", "yaml"))
    expected = {f"{each['kind']}/{each['metadata']['name']}" for each in objects} - {f"Namespace/{SYSTEM}"}
    assert {name for name in before if not name.startswith("ConfigMap/isthmus-cluster-")} == {
        name for name in expected if not name.startswith("ConfigMap/isthmus-cluster-")
    }
    helm("upgrade", "isthmus", *chart, "--set=dns.clusterDns={10.96.0.10}")
    assert target.versions() == before

    helm("upgrade", "isthmus", *chart, "--set=dns.clusterDns={10.96.0.11},components.mirror=false")
    after = target.versions()
    assert "Deployment/isthmus-mirror" not in after
    assert len([each for each in after if each.startswith("ConfigMap/isthmus-cluster-")]) == 1
    plan = json.loads(target.isthmus("install", "-o", "json"))["plan"]
    variables = {each["variable"]: (each["value"], each["origin"]) for each in plan["choices"]}
    assert variables["ISTHMUS_CLUSTER_NAME"] == ("c7", "installed")
    assert variables["ISTHMUS_DNS_CLUSTER_DNS"] == ("10.96.0.11", "installed")
    assert plan["components"] == ["keys"]
    target.isthmus("install", "--no-wait")

    helm("uninstall", "isthmus", *options)
    left = {name for name in target.versions() if not name.startswith(("CustomResourceDefinition/", "ConfigMap/"))}
    assert left == {f"Namespace/{SYSTEM}"}


def test_the_objects_for_gitops_are_those_that_are_applied(target: Target) -> None:
    objects = list(yaml.safe_load_all(target.isthmus("install", "-o", "yaml", "--name", "c3", "--id", "3")))
    assert target.versions() == {}
    target.isthmus("install", "--no-wait", "--name", "c3", "--id", "3")
    assert {f"{each['kind']}/{each['metadata']['name']}" for each in objects} == target.versions().keys()


def test_check_names_missing_rights_of_an_account_and_is_fine_otherwise(target: Target) -> None:
    before = json.loads(target.isthmus("check", "--no-pods", "-o", "json"))
    states = {(each["check"], each["text"].partition(" ")[0]): each["state"] for each in before["checks"]}
    assert states["installed", "not"] == "warning"
    assert states["rights", "this"] == "ok"
    assert states["clocks", "this"] == "ok"
    assert before["ok"]

    target.isthmus("install", "--no-wait", "--name", "c1", "--id", "1")
    after = json.loads(target.isthmus("check", "--no-pods", "-o", "json"))
    rights = {each["text"].partition(" ")[0]: each["state"] for each in after["checks"] if each["check"] == "rights"}
    assert {"isthmus-agent", "isthmus-operator", "isthmus-keys"} <= rights.keys()
    assert set(rights.values()) == {"ok"}, after["checks"]
    target.kubectl("delete", "clusterrolebinding", "isthmus-agent")
    out = target.isthmus("check", "--no-pods", code=1)
    assert "isthmus-agent lacks " in out
    assert "✗ 1 faults" in out


def test_check_says_what_a_user_with_few_rights_lacks(target: Target) -> None:
    known = yaml.safe_load(Path(target.kubeconfig).read_text())
    known["users"][0]["user"] = {"token": "nobody"}
    Path(target.kubeconfig).write_text(yaml.safe_dump(known))
    out = target.isthmus("check", "--no-pods", code=1)
    assert "this user lacks " in out
    assert "ask for the role cluster-admin" in out
    assert "not read: " in out


def test_an_object_whose_immutable_fields_differ_is_made_anew(target: Target) -> None:
    target.kubectl("create", "namespace", SYSTEM)
    old = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "isthmus-etcd", "namespace": SYSTEM},
        "spec": {
            "serviceName": "another",
            "selector": {"matchLabels": {"app.kubernetes.io/name": "another"}},
            "template": {
                "metadata": {"labels": {"app.kubernetes.io/name": "another"}},
                "spec": {"containers": [{"name": "etcd", "image": "etcd"}]},
            },
        },
    }
    target.kubectl("apply", "-f", "-", stdin=json.dumps(old))
    assert "statefulset/isthmus-etcd replaced" in target.isthmus("install", "--no-wait")
    assert " 0 changed" in target.isthmus("install", "--no-wait")
