"""Faults in a lab: c1 exports demo/echo, c2 calls it; `isthmus diagnose` names hop and object of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from labs.injected_faults import EXAMPLES, FAULTS, GHOST, Diagnosis, applied, cut, diagnose, healthy, is_named
from labs.lab_running import PATIENCE, Running, invoked, lab_name, until
from machine import programs
from machine.ordinary_user import ROOT

from isthmus.config import DatapathSection
from isthmus_lab import removal
from isthmus_lab.layout import Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow]


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    lab = Running(Lab(lab_name("d"), 2, 1))
    try:
        lab.cli("up", "--clusters", "2", "--from", str(EXAMPLES))
        lab.kubectl("apply", "-f", str(EXAMPLES / "export"), cluster="c1")
        yield lab
    finally:
        removal.remove(lab.lab)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_hop_and_the_object_of_a_fault_are_named(running: Running, fault: str) -> None:
    inject, words, named = FAULTS[fault]
    until(lambda: healthy(running), seconds=120, what="the path is healthy before")
    last: list[Diagnosis] = []

    def is_found() -> bool:
        last[:] = [diagnose(running, *words)]
        return is_named(fault, last[0])

    with inject(running):
        try:
            until(is_found, seconds=120, what=f"{named} is named")
        except AssertionError as why:
            pytest.fail(f"{why}\n{last[0].output}")
        lines = [f"{hop['hop']}: {hop['object']}: {hop['text']} → {hop['cure']}" for hop in last[0].hops]
        print(f"\n{fault}, {last[0].seconds:.2f} s", *lines, sep="\n  ")
        assert last[0].code == 1
        for command in fail_too(words[0], {hop for hop, _ in named}, fault):
            until(partial(fails, running, *command), what=f"{command} ends with 1")


def fail_too(service: str, hops: set[str], fault: str) -> Iterator[tuple[str, ...]]:
    """The other commands that may not end with 0, each with what it shows.

    None of them knows a caller or a socket, and an echo that no cluster exports is explained as the plain Service that
    c2 has.
    """
    if not hops & {"hook", "path"} and fault != "never exported":
        yield "explain", service
    if hops & {"process", "peer"}:
        yield ("status",)
    if "peer" in hops:
        yield "clusters", "status"


def fails(lab: Running, *words: str) -> bool:
    """True if a command that asks c2 ends with 1."""
    return invoked([*words, "--lab", lab.lab.name, "--cluster", "c2"]).returncode == 1


def test_a_cluster_that_the_lab_has_not_is_answered_with_those_it_has(running: Running) -> None:
    found = diagnose(running, "demo/echo", cluster="c9")
    assert (found.code, "it has: c1, c2" in found.output) == (1, True)


def test_without_a_service_every_service_is_walked(running: Running) -> None:
    until(lambda: healthy(running), seconds=120, what="the path is healthy before")
    until(lambda: diagnose(running).code == 0, what="every service is well")
    with applied(GHOST)(running):
        until(
            lambda: ("export", "ServiceExport demo/ghost in c1") in diagnose(running).faults, what="the ghost is named"
        )


def pods(lab: Running) -> str:
    """Pods as deploy/ names them, in which ``isthmus`` finds the sockets of the lab's processes, and c2's maps.

    They have the checkout and its interpreter mounted, as /tmp of this host, where both may be, is in no pod.
    """
    run, pin = lab.lab.kubeconfig.parent / "c2", lab.lab.bpffs / Path(DatapathSection().pin).name
    if not pin.is_symlink():
        pin.symlink_to("c2-n1")
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    volumes = {
        "run": (str(run), "/run/isthmus"),
        "bpf": (str(lab.lab.bpffs), "/sys/fs/bpf"),
        "checkout": (str(ROOT), str(ROOT)),
        "python": (sys.base_prefix, sys.base_prefix),
    }

    def pod(app: str, *containers: str) -> dict[str, Any]:
        each = [
            {
                "name": name, "image": "busybox", "command": ["sleep", "100000"],
                "env": [{"name": "PATH", "value": path}],
                "volumeMounts": [{"name": name, "mountPath": path} for name, (_, path) in volumes.items()],
            }
            for name in containers
        ]  # fmt: skip
        labels = {"app.kubernetes.io/name": app}
        paths = [{"name": name, "hostPath": {"path": source}} for name, (source, _) in volumes.items()]
        meta = {"name": f"{app}-1", "namespace": "isthmus-system", "labels": labels}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": each, "volumes": paths}}

    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "isthmus-system"}}
    on_node = [pod("isthmus-agent", "agent"), pod("isthmus-dns", "dns", "dns-second")]
    items = [namespace, *on_node, pod("isthmus-operator", "operator")]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def in_context(lab: Running, *words: str) -> subprocess.CompletedProcess[str]:
    """``isthmus --context c2 …``, as on a laptop."""
    path = f"{Path(programs.path('kubectl')).parent}:{os.environ['PATH']}"
    env = {**os.environ, "KUBECONFIG": str(lab.lab.kubeconfig), "PATH": path}
    command = [sys.executable, "-m", "isthmus", "--context", "c2", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=env)


def unpacked(report: Path) -> dict[str, str]:
    """The files of a bug report, by their paths in it."""
    with tarfile.open(report) as archive:
        return {name.partition("/")[2]: archive.extractfile(name).read().decode() for name in archive.getnames()}  # type: ignore[union-attr]


@pytest.mark.needs("kubectl")
def test_with_a_kubeconfig_context_the_processes_are_asked_in_their_pods(running: Running) -> None:
    until(lambda: healthy(running), seconds=120, what="the path is healthy before")
    running.kubectl("apply", "-f", "-", stdin=pods(running), cluster="c2")

    def answered() -> bool:
        done = in_context(running, "diagnose", "demo/echo", "--from", "demo/client")
        assert "Traceback" not in done.stderr, done.stderr
        shown.append(done.stdout + done.stderr)
        return done.returncode == 0

    shown: list[str] = []
    try:
        until(answered, what="it is answered")
    except AssertionError as why:
        pytest.fail(f"{why}\n{shown[-1]}")
    assert "✓ plan       demo/echo: c1 " in shown[-1]
    until(lambda: in_context(running, "explain", "demo/echo").returncode == 0, what="it is explained")
    status = in_context(running, "status")
    processes = {line.partition(" ")[0] for line in status.stdout.splitlines() if ": ready, up " in line}
    assert (status.returncode, processes) == (0, {"agent", "operator", "dns", "dns-second"})
    assert "echo.demo.svc.clusterset.local" in in_context(running, "get", "names", "-A").stdout


@pytest.mark.needs("kubectl")
def test_the_page_follows_the_processes_of_a_context_in_their_pods(running: Running) -> None:
    until(lambda: healthy(running), seconds=120, what="the path is healthy before")
    running.kubectl("apply", "-f", "-", stdin=pods(running), cluster="c2")
    until(lambda: in_context(running, "status").returncode == 0, what="the processes answer in their pods")
    path = f"{Path(programs.path('kubectl')).parent}:{os.environ['PATH']}"
    env = {**os.environ, "KUBECONFIG": str(running.lab.kubeconfig), "PATH": path}
    command = [sys.executable, "-m", "isthmus", "ui", "c2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env) as page:
        try:
            assert page.stdout is not None
            url, _, token = page.stdout.readline().strip().partition("/#token=")
            request = urllib.request.Request(f"{url}/api/stream", headers={"Authorization": f"Bearer {token}"})

            def view() -> Any:
                with urllib.request.urlopen(request, timeout=PATIENCE) as stream:
                    return json.loads(stream.readline().removeprefix(b"data: "))["put"]

            until(lambda: view()["clusters"]["c2"]["level"] == "ok", what="c2 is asked and well")
            shown = view()
        finally:
            page.terminate()
    assert {each["name"] for each in shown["processes"].values()} == {"agent", "operator"}
    assert {each["error"] for each in shown["processes"].values()} == {""}
    assert (shown["clusters"]["c1"]["asked"], shown["clusters"]["c1"]["level"]) == (False, "ok")
    assert "demo/echo" in shown["services"]


@pytest.mark.needs("kubectl")
def test_a_bug_report_through_a_context_has_the_maps_of_each_node(running: Running, tmp_path: Path) -> None:
    until(lambda: healthy(running), seconds=120, what="the path is healthy before")
    running.kubectl("apply", "-f", "-", stdin=pods(running), cluster="c2")
    until(lambda: in_context(running, "status").returncode == 0, what="the processes answer in their pods")
    done = in_context(running, "gather", "-f", str(tmp_path / "report.tar.gz"))
    assert done.returncode == 0, done.stderr
    found = unpacked(tmp_path / "report.tar.gz")
    assert "kubernetes/errors.txt" not in found, found["kubernetes/errors.txt"]
    maps = json.loads(found["kubernetes/maps/isthmus-agent-1.json"])
    assert {row["cluster"] for row in maps["backends"]} == {"c1"}
    assert json.loads(found["agent/status.json"])["ready"]


def test_every_cluster_verifies_that_it_reaches_every_other_and_nothing_is_left(running: Running) -> None:
    until(lambda: healthy(running), seconds=120, what="the path is healthy before")
    before = running.kubectl("get", "namespaces", "-o", "name")
    done = invoked(["verify", "--lab", running.lab.name, "--timeout", "90", "-o", "json"])
    found = json.loads(done.stdout)
    passed = {"name": "", "tcp": "", "udp": "", "headless": ""}
    assert [(each["from"], each["to"], each["family"], each["checks"], each["path"]) for each in found["calls"]] == [
        (source, target, "IPv4", passed, "local" if source == target else "direct")
        for source in ("c1", "c2")
        for target in ("c1", "c2")
    ]
    assert (done.returncode, found["ok"]) == (0, True)
    assert running.kubectl("get", "namespaces", "-o", "name") == before


def test_clusters_that_are_cut_off_do_not_verify_and_nothing_is_left(running: Running) -> None:
    until(lambda: healthy(running), seconds=120, what="the path is healthy before")
    before = running.kubectl("get", "namespaces", "-o", "name", cluster="c2")
    contexts = [word for name in ("c1", "c2") for word in ("--context", name)]
    path = f"{Path(programs.path('kubectl')).parent}:{os.environ['PATH']}"
    env = {**os.environ, "KUBECONFIG": str(running.lab.kubeconfig), "PATH": path}
    command = [sys.executable, "-m", "isthmus", "verify", *contexts, "--timeout", "30"]
    with cut(running):
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=env)
    assert done.returncode == 1
    rows = [line.split() for line in done.stdout.splitlines()[1:5]]
    assert [row[3:] for row in rows] == [
        [*["ok"] * 4, "local"],
        [*["failed"] * 4, "–"],
        [*["failed"] * 4, "–"],
        [*["ok"] * 4, "local"],
    ]
    assert "✗ c2 → c1 IPv4 name, tcp, udp, headless: Name or service not known" in done.stdout
    assert running.kubectl("get", "namespaces", "-o", "name", cluster="c2") == before


SECRET = "hunter2"
OURS = f"""
apiVersion: v1
kind: Namespace
metadata: {{name: isthmus-system}}
---
apiVersion: v1
kind: Secret
metadata: {{name: etcd, namespace: isthmus-system}}
stringData: {{password: {SECRET}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: isthmus-operator-0, namespace: isthmus-system}}
spec:
  containers:
    - name: operator
      image: busybox
      command: [sh, -c, echo it runs; sleep 100000]
      env: [{{name: PASSWORD, value: {SECRET}}}]
"""


def test_a_bug_report_has_the_objects_of_the_clusterset_and_no_secret(running: Running, tmp_path: Path) -> None:
    until(lambda: healthy(running), seconds=120, what="the path is healthy before")
    running.kubectl("set", "env", "-n", "demo", "deployment/echo", f"PASSWORD={SECRET}", cluster="c1")
    running.kubectl("rollout", "status", "-n", "demo", "deployment/echo", "--timeout=180s", cluster="c1")
    shown = ("get", "pods", "-n", "demo", "-l", "app=echo", "-o", "name")
    until(lambda: len(running.kubectl(*shown, cluster="c1").split()) == 2, what="the pods before have ended")
    until(lambda: healthy(running), seconds=120, what="the path is healthy with them")
    with applied(OURS)(running):
        until(lambda: "it runs" in running.kubectl("logs", "-n", "isthmus-system", "isthmus-operator-0"), what="a line")
        done = invoked(["gather", "--lab", running.lab.name, "--cluster", "c1", "-f", str(tmp_path / "report.tar.gz")])
    assert done.returncode == 0, done.stderr
    found = unpacked(tmp_path / "report.tar.gz")

    def names(kind: str) -> set[str]:
        return {each["metadata"]["name"] for each in json.loads(found[f"kubernetes/{kind}.json"])}

    assert names("serviceexports") == names("serviceimports") == {"echo"}
    assert json.loads(found["kubernetes/version.json"])["serverVersion"]
    assert {each["status"]["phase"] for each in json.loads(found["kubernetes/pods.json"])} == {"Running"}
    assert {name.rpartition("-")[0].rpartition("-")[0] for name in names("pods")} == {"echo"}
    assert any(name.startswith("echo-") for name in names("endpointslices"))
    assert names("own-pods") == {"isthmus-operator-0"}
    assert "it runs" in found["kubernetes/logs/isthmus-operator-0.log"]
    assert json.loads(found["maps.json"])["backends"]
    assert found["logs/c1-operator.log"]
    assert "agent/error.txt" not in found, found["agent/error.txt"] + found["logs/c1-n1-agent.log"][-4000:]
    assert json.loads(found["agent/status.json"])["ready"]
    assert "kubernetes/errors.txt" not in found
    assert [name for name, content in found.items() if SECRET in content] == []
