"""Faults in a lab: c1 exports demo/echo, c2 calls it; `isthmus diagnose` names hop and object of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import programs
import pytest
from lab_running import PATIENCE, Running, invoked, lab_name, until

from isthmus_lab import cgroups, pod_exec, removal
from isthmus_lab.layout import Lab

pytestmark = pytest.mark.lab
EXAMPLES = Path(__file__).parents[2] / "examples" / "echo"
GHOST = """
apiVersion: multicluster.x-k8s.io/v1beta1
kind: ServiceExport
metadata: {name: ghost, namespace: demo}
"""
ELSEWHERE = """
apiVersion: v1
kind: Namespace
metadata: {name: elsewhere}
---
apiVersion: v1
kind: Service
metadata: {name: echo, namespace: elsewhere}
spec:
  selector: {app: echo}
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: multicluster.x-k8s.io/v1beta1
kind: ServiceExport
metadata: {name: echo, namespace: elsewhere}
"""


class Diagnosis(NamedTuple):
    """What the command printed, and how it ended."""

    code: int
    output: str
    hops: list[dict[str, str]]
    """Those with a fault."""
    seconds: float

    @property
    def faults(self) -> list[tuple[str, str]]:
        return [(hop["hop"], hop["object"]) for hop in self.hops]


def diagnose(lab: Running, *words: str, cluster: str = "c2") -> Diagnosis:
    began = time.monotonic()
    done = invoked(["diagnose", *words, "--lab", lab.lab.name, "--cluster", cluster, "-o", "json"])
    seconds = time.monotonic() - began
    found = json.loads(done.stdout)["services"] if done.stdout else {}
    faults = [hop for hops in found.values() for hop in hops if hop["state"] == "fault"]
    return Diagnosis(done.returncode, done.stdout + done.stderr, faults, seconds)


def healthy(lab: Running) -> bool:
    return diagnose(lab, "demo/echo", "--from", "demo/client").code == 0


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    lab = Running(Lab(lab_name("d"), 2, 1))
    try:
        lab.cli("up", "--clusters", "2", "--from", str(EXAMPLES))
        lab.kubectl("apply", "-f", str(EXAMPLES / "export"), cluster="c1")
        yield lab
    finally:
        removal.remove(lab.lab)


Injected = Callable[[Running], Any]


def killed(thing: str) -> Injected:
    @contextmanager
    def inject(lab: Running) -> Iterator[None]:
        lab.cli("kill", thing)
        try:
            yield
        finally:
            lab.cli("start", thing)

    return inject


def applied(text: str, *, cluster: str = "c1") -> Injected:
    @contextmanager
    def inject(lab: Running) -> Iterator[None]:
        lab.kubectl("apply", "-f", "-", stdin=text, cluster=cluster)
        try:
            yield
        finally:
            lab.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=text, cluster=cluster)

    return inject


def patched(kind: str, patch: dict[str, Any], back: dict[str, Any]) -> Injected:
    @contextmanager
    def inject(lab: Running) -> Iterator[None]:
        lab.kubectl("patch", "-n", "demo", kind, "echo", "--type=merge", "-p", json.dumps(patch))
        try:
            yield
        finally:
            lab.kubectl("patch", "-n", "demo", kind, "echo", "--type=merge", "-p", json.dumps(back))

    return inject


def selecting(app: str) -> dict[str, Any]:
    return {"spec": {"selector": {"app": app}}}


def ports(target: str | int) -> dict[str, Any]:
    return {"spec": {"ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": target}]}}


@contextmanager
def unexported(lab: Running) -> Iterator[None]:
    lab.kubectl("delete", "-f", str(EXAMPLES / "export"), cluster="c1")
    try:
        yield
    finally:
        lab.kubectl("apply", "-f", str(EXAMPLES / "export"), cluster="c1")


@contextmanager
def conflicting(lab: Running) -> Iterator[None]:
    """c2 exports its own echo too, with the affinity that c1's has not."""
    affinity = {"spec": {"sessionAffinity": "ClientIP"}}
    lab.kubectl("patch", "-n", "demo", "service", "echo", "-p", json.dumps(affinity), cluster="c2")
    lab.kubectl("apply", "-f", str(EXAMPLES / "export"), cluster="c2")
    try:
        yield
    finally:
        lab.kubectl("delete", "-f", str(EXAMPLES / "export"), cluster="c2")
        lab.kubectl("patch", "-n", "demo", "service", "echo", "-p", '{"spec":{"sessionAffinity":"None"}}', cluster="c2")


@contextmanager
def other_ports(lab: Running) -> Iterator[None]:
    """c2 exports its own echo too, at another port."""
    before = json.loads(lab.kubectl("get", "-n", "demo", "service", "echo", "-o", "json", cluster="c2"))["spec"][
        "ports"
    ]
    changed = [{**before[0], "port": 81}]
    lab.kubectl(
        "patch",
        "-n",
        "demo",
        "service",
        "echo",
        "--type=merge",
        "-p",
        json.dumps({"spec": {"ports": changed}}),
        cluster="c2",
    )
    lab.kubectl("apply", "-f", str(EXAMPLES / "export"), cluster="c2")
    try:
        yield
    finally:
        lab.kubectl("delete", "-f", str(EXAMPLES / "export"), cluster="c2")
        lab.kubectl(
            "patch",
            "-n",
            "demo",
            "service",
            "echo",
            "--type=merge",
            "-p",
            json.dumps({"spec": {"ports": before}}),
            cluster="c2",
        )


@contextmanager
def cut(lab: Running) -> Iterator[None]:
    lab.cli("cut", "c1", "c2")
    try:
        yield
    finally:
        lab.cli("heal")


@contextmanager
def outside(lab: Running) -> Iterator[None]:
    """The caller's processes run in a control group that the agent has not hooked, as those of a runtime of its own."""
    where = lab.lab.cluster("c2")
    assert where is not None
    group = cgroups.make(cgroups.root() / lab.lab.prefix / "outside")
    client = pod_exec.find(where, "demo/client")
    for pid in cgroups.processes(client.cgroup):
        (group / "cgroup.procs").write_text(str(pid))
    try:
        yield
    finally:
        for pid in cgroups.processes(group):
            (client.cgroup / "cgroup.procs").write_text(str(pid))
        group.rmdir()


@contextmanager
def nothing(lab: Running) -> Iterator[None]:
    yield


ECHO = ("demo/echo",)
PODS = {("pods", "pods of demo/echo in c1")}
FAULTS: dict[str, tuple[Injected, tuple[str, ...], set[tuple[str, str]]]] = {
    "no pod": (patched("deployment", {"spec": {"replicas": 0}}, {"spec": {"replicas": 2}}), ECHO, PODS),
    "selector of no pod": (
        patched("service", selecting("nobody"), selecting("echo")), ECHO, PODS,
    ),
    "target port of no container": (patched("service", ports("nosuch"), ports("http")), ECHO, PODS),
    "cluster cut off": (cut, ECHO, {("peer", "cluster c1")}),
    "export without Service": (applied(GHOST), ("demo/ghost",), {("export", "ServiceExport demo/ghost in c1")}),
    "conflict of affinity": (conflicting, ECHO, {("conflict", "ServiceImport demo/echo")}),
    "conflict of ports": (other_ports, ECHO, {("conflict", "ServiceImport demo/echo")}),
    "caller's agent down": (killed("c2/agent"), ECHO, {("process", "c2/agent")}),
    "caller's name server down": (killed("c2/dns"), ECHO, {("process", "c2/dns")}),
    "caller's operator down": (killed("c2/operator"), ECHO, {("process", "c2/operator")}),
    "exporter's operator down": (killed("c1/operator"), ECHO, {("peer", "c1/operator")}),
    "caller's API server down": (killed("c2/apiserver"), ECHO, {("process", "API server of c2")}),
    "exporter's API server down": (killed("c1/apiserver"), ECHO, {("peer", "API server of c1")}),
    "caller's etcd down": (killed("c2/etcd"), ECHO, {("process", "etcd of c2"), ("process", "API server of c2")}),
    "exporter's etcd down": (
        killed("c1/etcd"), ECHO,
        {("peer", "cluster c1"), ("peer", "etcd of c1"), ("peer", "API server of c1")},
    ),
    "namespace missing": (
        applied(ELSEWHERE), ("elsewhere/echo",),
        {("namespace", "namespace elsewhere in c2"), ("pods", "pods of elsewhere/echo in c1")},  # it has no pods either
    ),
    "pod outside the hooked control group": (
        outside, ("demo/echo", "--from", "demo/client"), {("hook", "pod demo/client")},
    ),
    "pod of another node": (nothing, ("demo/echo", "--from", "demo/nobody"), {("hook", "pod demo/nobody")}),
    "typo": (nothing, ("demo/ecko",), {("export", "demo/ecko")}),
    "never exported": (unexported, ECHO, {("export", "Service demo/echo in c1")}),
}  # fmt: skip


FOLLOWS = {
    "caller's API server down": {("process", "c2/operator")},
    "caller's etcd down": {("process", "c2/operator")},
    "exporter's API server down": {("peer", "c1/operator")},
    "exporter's etcd down": {("peer", "c1/operator")},
}
"""What may be named besides: an operator that cannot renew its lease ends after a while."""


@pytest.mark.parametrize("fault", FAULTS)
def test_the_hop_and_the_object_of_a_fault_are_named(running: Running, fault: str) -> None:
    inject, words, named = FAULTS[fault]
    until(lambda: healthy(running), seconds=120, what="the path is healthy before")
    last: list[Diagnosis] = []

    def is_named() -> bool:
        last[:] = [diagnose(running, *words)]
        found = set(last[0].faults) - FOLLOWS.get(fault, set())
        return bool(found) and found <= named

    with inject(running):
        try:
            until(is_named, seconds=120, what=f"{named} is named")
        except AssertionError as why:
            pytest.fail(f"{why}\n{last[0].output}")
        lines = [f"{hop['hop']}: {hop['object']}: {hop['text']} → {hop['cure']}" for hop in last[0].hops]
        print(f"\n{fault}, {last[0].seconds:.2f} s", *lines, sep="\n  ")
        assert last[0].code == 1
        for command in fail_too(words[0], {hop for hop, _ in named}, fault):
            until(partial(fails, running, *command), what=f"{command} ends with 1")


def fail_too(service: str, hops: set[str], fault: str) -> Iterator[tuple[str, ...]]:
    """The other commands that may not end with 0: each for what it shows.

    None of them knows a caller, and an echo that no cluster exports is explained as the plain Service that c2 has.
    """
    if "hook" not in hops and fault != "never exported":
        yield "explain", service
    if hops & {"process", "peer"}:
        yield ("status",)
    if "peer" in hops:
        yield "clusters", "status"


def fails(lab: Running, *words: str) -> bool:
    """Whether a command that looks at c2 ends with 1."""
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
    """Pods as deploy/ names them, in which ``isthmus relay`` finds the sockets of the lab's processes."""
    run = lab.lab.kubeconfig.parent / "c2"
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"

    def pod(app: str, *containers: str) -> dict[str, Any]:
        each = [
            {
                "name": name, "image": "busybox", "command": ["sleep", "100000"],
                "env": [{"name": "PATH", "value": path}],
                "volumeMounts": [{"name": "run", "mountPath": "/run/isthmus"}],
            }
            for name in containers
        ]  # fmt: skip
        labels = {"app.kubernetes.io/name": app}
        volumes = [{"name": "run", "hostPath": {"path": str(run)}}]
        meta = {"name": f"{app}-1", "namespace": "isthmus-system", "labels": labels}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": each, "volumes": volumes}}

    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "isthmus-system"}}
    items = [namespace, pod("isthmus-agent", "agent", "dns", "dns-second"), pod("isthmus-operator", "operator")]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


@pytest.mark.needs("kubectl")
def test_with_a_kubeconfig_context_the_processes_are_asked_in_their_pods(running: Running) -> None:
    until(lambda: healthy(running), seconds=120, what="the path is healthy before")
    running.kubectl("apply", "-f", "-", stdin=pods(running), cluster="c2")
    path = f"{Path(programs.path('kubectl')).parent}:{os.environ['PATH']}"
    env = {**os.environ, "KUBECONFIG": str(running.lab.kubeconfig), "PATH": path}

    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "isthmus", "--context", "c2", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=env)

    def answered() -> bool:
        done = ask("diagnose", "demo/echo", "--from", "demo/client")
        assert "Traceback" not in done.stderr, done.stderr
        shown.append(done.stdout + done.stderr)
        return done.returncode == 0

    shown: list[str] = []
    try:
        until(answered, what="it is answered")
    except AssertionError as why:
        pytest.fail(f"{why}\n{shown[-1]}")
    assert "✓ plan       demo/echo: c1 " in shown[-1]
    until(lambda: ask("explain", "demo/echo").returncode == 0, what="it is explained")
    status = ask("status")
    processes = {line.partition(" ")[0] for line in status.stdout.splitlines() if ": ready, up " in line}
    assert (status.returncode, processes) == (0, {"agent", "operator", "dns", "dns-second"})
    assert "echo.demo.svc.clusterset.local" in ask("get", "names", "-A").stdout


def test_every_cluster_verifies_that_it_reaches_every_other_and_nothing_is_left(running: Running) -> None:
    until(lambda: healthy(running), seconds=120, what="the path is healthy before")
    before = running.kubectl("get", "namespaces", "-o", "name")
    done = invoked(["verify", "--lab", running.lab.name, "--timeout", "90", "-o", "json"])
    found = json.loads(done.stdout)
    passed = {"name": "", "tcp": "", "udp": "", "headless": ""}
    assert [(each["from"], each["to"], each["family"], each["checks"]) for each in found["calls"]] == [
        (source, target, "IPv4", passed) for source in ("c1", "c2") for target in ("c1", "c2")
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
    assert [row[3:] for row in rows] == [["ok"] * 4, ["failed"] * 4, ["failed"] * 4, ["ok"] * 4]
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
    with tarfile.open(tmp_path / "report.tar.gz") as archive:
        found = {name.partition("/")[2]: archive.extractfile(name).read().decode() for name in archive.getnames()}  # type: ignore[union-attr]

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
