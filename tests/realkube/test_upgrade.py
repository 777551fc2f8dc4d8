"""``isthmus upgrade`` on a real API server: what it changes, in which order, and what it makes anew."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from clusters.install_target import Target, install_target
from machine import programs

from nodes import page

pytestmark = pytest.mark.kube

SYSTEM = "isthmus-system"
NEXT = "registry.example/isthmus:0.1.1"
FIRST = "registry.example/isthmus:0.1.0"


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    with install_target(tmp_path) as made:
        made.isthmus("install", "--no-wait", "--name", "c7", "--id", "7", "--image", FIRST)
        yield made


@contextmanager
def controllers(target: Target) -> Iterator[None]:
    """Give every workload the status that controllers and kubelets would: all of it is ready."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(0.2):
            with suppress(AssertionError, subprocess.TimeoutExpired):  # one was deleted meanwhile
                for each in workloads(target):
                    report(target, each)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def workloads(target: Target) -> list[dict[str, Any]]:
    found = target.kubectl("-n", SYSTEM, "get", "deployments,daemonsets,statefulsets", "-o", "json")
    items: list[dict[str, Any]] = json.loads(found)["items"]
    return items


def report(target: Target, workload: dict[str, Any]) -> None:
    generation, count = workload["metadata"]["generation"], workload["spec"].get("replicas", 1)
    if workload.get("status", {}).get("observedGeneration") == generation:
        return
    status = {"observedGeneration": generation}
    if workload["kind"] == "DaemonSet":
        numbers = ("currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady")
        status |= {**dict.fromkeys(numbers, 1), "updatedNumberScheduled": 1, "numberMisscheduled": 0}
    else:
        status |= dict.fromkeys(("replicas", "readyReplicas", "updatedReplicas", "availableReplicas"), count)
    name = f"{workload['kind'].lower()}/{workload['metadata']['name']}"
    target.kubectl("-n", SYSTEM, "patch", name, "--subresource=status", "-p", json.dumps({"status": status}))


def images(target: Target) -> set[str]:
    pods = [each["spec"]["template"]["spec"] for each in workloads(target)]
    return {image for pod in pods for each in pod["containers"] if "isthmus" in (image := each["image"])}


def test_a_dry_run_names_what_would_change_and_changes_nothing(target: Target) -> None:
    before = target.versions()
    out = target.isthmus("upgrade", "--image", NEXT, "--dry-run")
    assert "0.1.0 → 0.1.1" in out
    changes = [line.split()[0] for line in out.splitlines() if line.endswith("will change")]
    assert changes == [
        "deployment/isthmus-operator",
        "daemonset/isthmus-agent",
        "daemonset/isthmus-dns",
        "deployment/isthmus-keys",
        "deployment/isthmus-mirror",
    ]
    assert f"{len(before)} objects, {len(changes)} would change" in out
    assert NEXT in target.isthmus("upgrade", "--image", NEXT, "-o", "yaml")
    shown = json.loads(target.isthmus("upgrade", "--image", NEXT, "-o", "json"))
    assert (shown["upgrade"]["before"], shown["upgrade"]["after"]) == ("0.1.0", "0.1.1")
    assert target.versions() == before


def test_it_goes_there_and_back_stage_by_stage_and_a_second_run_changes_nothing(target: Target) -> None:
    with controllers(target):
        out = target.isthmus("upgrade", "--image", NEXT)
        order = [out.index(f"/isthmus-{name} configured") for name in ("keys", "operator", "agent")]
        assert order == sorted(order)
        assert images(target) == {NEXT}
        before = target.versions()
        assert " 0 changed" in target.isthmus("upgrade", "--image", NEXT)
        assert target.versions() == before
        assert "0.1.1 → 0.1.0" in target.isthmus("upgrade")
    assert images(target) == {FIRST}
    names = [each for each in target.versions() if each.startswith("ConfigMap/isthmus-cluster-")]
    data = json.loads(target.kubectl("-n", SYSTEM, "get", names[0].lower(), "-o", "json"))["data"]
    assert (len(names), data["ISTHMUS_CLUSTER_NAME"]) == (1, "c7")


def test_what_does_not_become_ready_ends_it_before_any_node_has_changed(target: Target) -> None:
    out = target.isthmus("upgrade", "--image", NEXT, "--timeout", "1", code=1)
    assert "isthmus-etcd not ready after 1 s; what follows was not changed" in out
    assert images(target) == {FIRST}


def test_the_etcd_of_an_earlier_release_with_a_volume_is_made_anew(target: Target) -> None:
    etcd = json.loads(target.kubectl("-n", SYSTEM, "get", "statefulset", "isthmus-etcd", "-o", "json"))
    asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    etcd["spec"]["volumeClaimTemplates"] = [{"metadata": {"name": "data"}, "spec": asked}]
    etcd["metadata"] = {field: etcd["metadata"][field] for field in ("name", "namespace", "labels")}
    target.kubectl("-n", SYSTEM, "delete", "statefulset", "isthmus-etcd")
    target.kubectl("apply", "--server-side", "--field-manager=isthmus-install", "-f", "-", stdin=json.dumps(etcd))
    out = target.isthmus("upgrade", "--image", NEXT, "--dry-run")
    assert "statefulset/isthmus-etcd will be deleted and made anew" in out
    with controllers(target):
        assert "statefulset/isthmus-etcd replaced" in target.isthmus("upgrade", "--image", NEXT)
    [made] = [each for each in workloads(target) if each["metadata"]["name"] == "isthmus-etcd"]
    assert "volumeClaimTemplates" not in made["spec"]


def test_what_helm_installed_is_left_to_helm(target: Target) -> None:
    target.kubectl("-n", SYSTEM, "label", "deployment", "isthmus-operator", "app.kubernetes.io/managed-by=Helm")
    before = target.versions()
    assert "helm upgrade" in target.isthmus("upgrade", code=1)
    assert target.versions() == before


@pytest.mark.needs("helm")
def test_the_pages_commands_for_helm_run_as_they_stand(tmp_path: Path) -> None:
    """They name c1, whose context is another one here."""
    with install_target(tmp_path) as target:
        path = os.pathsep.join([str(Path(programs.path("helm")).parent), os.environ["PATH"]])
        environ = {"HOME": str(tmp_path), "KUBECONFIG": target.kubeconfig, "PATH": path}

        def run(line: str) -> None:
            done = subprocess.run(
                ["sh", "-ec", line.replace("context c1", "context test")],
                cwd=page.DOCS.parent, env=environ, capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{line}: {done.stderr}"

        target.kubectl("create", "namespace", SYSTEM)
        settings = f"image={FIRST},cluster.name=c7,cluster.id=7,dns.clusterDns={{10.96.0.10}}"
        run(f"helm --kube-context c1 --namespace {SYSTEM} install isthmus deploy/chart --set '{settings}'")
        for line in page.commands("upgrade.md")["By Helm"]:
            run(line)
        assert images(target) == {NEXT}
