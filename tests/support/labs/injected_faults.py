"""Faults in a lab in which c1 exports demo/echo and c2 calls it, and what `isthmus diagnose` should name of each."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from labs.lab_running import Running, invoked

from isthmus_lab import cgroups, pod_exec

EXAMPLES = Path(__file__).parents[3] / "examples" / "echo"
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
    echo = json.loads(lab.kubectl("get", "-n", "demo", "service", "echo", "-o", "json", cluster="c2"))
    before = echo["spec"]["ports"]
    _set_ports(lab, [{**before[0], "port": 81}])
    lab.kubectl("apply", "-f", str(EXAMPLES / "export"), cluster="c2")
    try:
        yield
    finally:
        lab.kubectl("delete", "-f", str(EXAMPLES / "export"), cluster="c2")
        _set_ports(lab, before)


def _set_ports(lab: Running, ports: list[dict[str, Any]]) -> None:
    """The ports of c2's echo."""
    patch = json.dumps({"spec": {"ports": ports}})
    lab.kubectl("patch", "-n", "demo", "service", "echo", "--type=merge", "-p", patch, cluster="c2")


@contextmanager
def cut(lab: Running) -> Iterator[None]:
    lab.cli("cut", "c1", "c2")
    try:
        yield
    finally:
        lab.cli("heal")


@contextmanager
def black_hole(lab: Running) -> Iterator[None]:
    """Packets of more than 1,300 bytes from c2's nodes to c1's vanish, and c2's client sends some."""
    caller, called = lab.lab.cluster("c2"), lab.lab.cluster("c1")
    assert caller is not None
    assert called is not None
    wires = [f"{{ {', '.join(node.wire for node in each.nodes)} }}" for each in (caller, called)]
    rules = "add table inet narrow; add chain inet narrow forward { type filter hook forward priority 0; }; "
    rules += f"add rule inet narrow forward iifname {wires[0]} oifname {wires[1]} meta length > 1300 drop"
    fabric = ["ip", "netns", "exec", lab.lab.fabric, "nft"]
    subprocess.run([*fabric, rules], check=True)
    header = "$(head -c 4000 /dev/zero | tr '\\0' x)"
    script = f'while :; do curl -s -m 20 -H "X: {header}" http://echo.demo.svc.clusterset.local; done'
    client = pod_exec.find(caller, "demo/client")
    child = pod_exec.run(client, ["sh", "-c", script], stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        child.kill()
        child.wait()
        subprocess.run([*fabric, "delete table inet narrow"], check=True)


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
    "large packets vanish": (black_hole, ECHO, {("path", "calls of demo/echo to c1")}),
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


def is_named(fault: str, found: Diagnosis) -> bool:
    """Whether a diagnosis names the hop and the object of a fault, and nothing else."""
    names = set(found.faults) - FOLLOWS.get(fault, set())
    return bool(names) and names <= FAULTS[fault][2]
