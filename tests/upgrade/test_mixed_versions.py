"""Clusters, and parts of one, of two releases beside each other: there and back, under load. ``make test-upgrade``.

Both releases run for seconds in each mixture and for minutes in all, not for hours: what a mixture can break is what
one release writes and the other reads, and each step has something new written by each side and used by the other.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from labs.lab_running import PATIENCE, Running, invoked, lab_name, until
from machine import previous_release

from isthmus.cli import local
from isthmus_lab import pod_exec, removal
from isthmus_lab.images import IDLE
from isthmus_lab.layout import Lab, Network
from isthmus_lab.own_programs import IN_CONTAINER
from isthmus_lab.supervisor.configs import config_of

pytestmark = [pytest.mark.upgrade, pytest.mark.lab, pytest.mark.timeout(560), pytest.mark.needs("envoy")]

HERE: Final = Path(__file__).parent
TRAFFIC: Final = [sys.executable, "-I", "-S", str(HERE.parent / "support" / "nodes" / "traffic.py")]
NAME: Final = "{}.demo.svc.clusterset.local"
OLD, NEW = str(previous_release.previous().python), sys.executable
CALLS, HELD, ROUTED = 200, 1000, 20
"""New calls a second over TCP, connections held meanwhile, and HTTP requests a second by way of the node's Envoy."""
PARTS: Final = ("operator", "n1/agent", "n1/dns", "n1/dns-second", "n1/envoy")
OTHER_SIZE: Final = "max_entries = 32768"
GATEWAY: Final = ("n1/gateway",)
SECOND: Final = ("c1/n1/dns-second", "c2/n1/dns-second")
NODE: Final = "172.30.1.11"
"""Caller that a server sees where c1's Envoy called it."""
ROUTE: Final = {
    "apiVersion": "gateway.networking.k8s.io/v1",
    "kind": "HTTPRoute",
    "metadata": {"name": "web", "namespace": "demo"},
    "spec": {
        "parentRefs": [{"group": "multicluster.x-k8s.io", "kind": "ServiceImport", "name": "web"}],
        "rules": [
            {"backendRefs": [{"group": "multicluster.x-k8s.io", "kind": "ServiceImport", "name": "web", "port": 80}]}
        ],
    },
}


@contextmanager
def previous(letter: str, network: Network, *parts: str) -> Iterator[Running]:
    """Two clusters of the previous release, whose service, name and route work."""
    running = Running(Lab(lab_name(letter), 2, 1, (network,)))
    images = (
        *("--image", f"upgrade/server={shlex.join([*TRAFFIC, 'serve'])}"),
        *("--image", f"upgrade/client={shlex.join(['/bin/sh', '-c', IDLE, *TRAFFIC])}"),
    )
    try:
        running.cli("up", "--clusters", "2", "--network", network, f"--from={HERE / 'manifests'}", *images)
        replace(running, OLD, *(f"{cluster}/{part}" for cluster in ("c1", "c2") for part in parts))
        running.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(ROUTE))
        until(lambda: called(running, "echo"), what="an answer")
        until(lambda: running.envoys(), what="the node's Envoy")
        until(lambda: NODE in running.exec("demo/client", f"curl -sS {NAME.format('web')}"), what="an answer by Envoy")
        yield running
    finally:
        removal.remove(running.lab)


@pytest.fixture
def lab() -> Iterator[Running]:
    with previous("u", "flat", *PARTS) as running:
        yield running


@pytest.fixture
def islands() -> Iterator[Running]:
    with previous("v", "island", *PARTS, *GATEWAY) as running:
        yield running


def replace(lab: Running, python: str, *names: str) -> None:
    """Roll a release out to some programs at once, of two name servers first one, and see that they run it."""
    for batch in ([each for each in names if each not in SECOND], [each for each in names if each in SECOND]):
        before = {name: program(lab, name)["pid"] for name in batch}
        for name in batch:
            done = invoked(["lab", "start", "--lab", lab.lab.name, "--python", python, name])
            assert done.returncode == 0, done.stdout + done.stderr
        for name in batch:
            until(partial(runs, lab, name, python, before[name]), what=f"{name} by {python}")


def program(lab: Running, name: str) -> dict[str, Any]:
    return next(each for each in lab.status()["programs"] if each["name"] == name)


def runs(lab: Running, name: str, python: str, before: int | None) -> bool:
    now = program(lab, name)
    try:
        command = Path(f"/proc/{now['pid']}/cmdline").read_text()
    except FileNotFoundError:  # it has just ended, or does not run yet
        return False
    # The zygote's children have their command line as one word.
    return now["state"] == "ready" and now["pid"] != before and command.replace("\0", " ").startswith(f"{python} ")


def called(lab: Running, service: str, *, cluster: str = "c1") -> bool:
    """True if a service answers by its name in a cluster's client."""
    script = shlex.join([*TRAFFIC, "call", NAME.format(service), "1"])
    return lab.exec("demo/client", script, cluster=cluster).strip() == "1"


def exported_anew(lab: Running, name: str, *, source: str, caller: str) -> None:
    """Export another service in one cluster, and call it in the other: operator, records, plans and names of both."""
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "demo"},
        "spec": {"selector": {"app": "echo"}, "ports": [{"name": "tcp", "port": 80, "targetPort": 8080}]},
    }
    export = {
        "apiVersion": "multicluster.x-k8s.io/v1alpha1",
        "kind": "ServiceExport",
        "metadata": {"name": name, "namespace": "demo"},
    }
    lab.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([service, export]), cluster=source)
    until(lambda: called(lab, name, cluster=caller), what=f"{name} of {source} answers in {caller}")
    lab.kubectl("-n", "demo", "delete", "serviceexport", name, cluster=source)
    until(lambda: not imported(lab, name, caller), what=f"{name} has gone from {caller}")


def imported(lab: Running, name: str, cluster: str) -> bool:
    found = lab.kubectl("-n", "demo", "get", "serviceimports", "-o", "name", cluster=cluster)
    return name in [line.rpartition("/")[2] for line in found.split()]


def resize(lab: Running, line: str) -> None:
    """Let c1's next agent have maps of another size: these stand for another layout, and take over in the same way."""
    file = config_of(lab.lab.clusters[0].nodes[0], "agent")
    lines = [each for each in file.read_text().splitlines() if each != OTHER_SIZE]
    lines.insert(lines.index("[datapath]") + 1, line)
    file.write_text("\n".join(lines) + "\n")


class Load:
    """Calls of c1's client from now on until ``end``: new ones, held ones, and routed ones."""

    def __init__(self, lab: Running, *, calls: int = CALLS, held: int = HELD) -> None:
        self._lab = lab
        self._tcp = self._run([*TRAFFIC, "load", NAME.format("echo"), str(calls), str(held)])
        http = IN_CONTAINER.command("tcp_load.py", NAME.format("web"), "80", "--http", "/", "--timeout", "30")
        self._http = self._run([*http, "--rate", str(ROUTED), "--until-eof"])
        assert self._tcp.stdout is not None
        assert self._tcp.stdout.readline() == b"running\n"

    def _run(self, command: list[str]) -> subprocess.Popen[bytes]:
        pod = pod_exec.find(self._lab.lab.clusters[0], "demo/client")
        return pod_exec.run(pod, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def end(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """End the calls; what became of those over TCP, and of those by the Envoy."""
        self._lab.exec("demo/client", "touch /tmp/stop")
        reports = [each.communicate(timeout=PATIENCE)[0].splitlines()[-1] for each in (self._tcp, self._http)]
        tcp, http = map(json.loads, reports)
        return tcp, http


def layouts(lab: Running, cluster: str) -> set[str]:
    """Directories of maps that are pinned on a cluster's node."""
    return {path.name for path in Path(local.clusters(lab.lab.name)[cluster].pin).glob("v*-*")}


STEPS: Final = [
    ("c2 is new", NEW, [f"c2/{part}" for part in PARTS]),
    ("c1's operator is new, its nodes are old", NEW, ["c1/operator"]),
    ("c1's agent and names are new, its Envoy's supervisor is old", NEW, [f"c1/{part}" for part in PARTS[1:4]]),
    ("both are new", NEW, ["c1/n1/envoy"]),
    ("c1's nodes are old again, its operator is new", OLD, [f"c1/{part}" for part in PARTS[1:]]),
    ("c1 is old again", OLD, ["c1/operator"]),
    ("both are old again", OLD, [f"c2/{part}" for part in PARTS]),
]
"""Mixtures: what is rolled out to which programs. After each, either side uses something new of the other."""


def test_no_call_fails_and_no_connection_drops_while_two_releases_are_mixed_there_and_back(lab: Running) -> None:
    load, began = Load(lab), time.monotonic()
    try:
        for number, (mixture, python, names) in enumerate(STEPS):
            if "c1/n1/agent" in names:
                resize(lab, OTHER_SIZE if python == NEW else "")
            replace(lab, python, *names)
            for source, caller in (("c1", "c2"), ("c2", "c1")):
                exported_anew(lab, f"new-{number}-{source}", source=source, caller=caller)
            print(f"{mixture}: maps of c1 {sorted(layouts(lab, 'c1'))}", flush=True)
            if "c1/n1/agent" in names:
                wanted = {"-32768" if python == NEW else "-65536"}
                until(lambda: {each[-6:] for each in layouts(lab, "c1")} == wanted, what="maps that took over alone")  # noqa: B023
    finally:
        tcp, http = load.end()
    print(f"{tcp['calls'] / (time.monotonic() - began):.0f} calls/s and {HELD} held connections")
    for report in (tcp, http):
        print({name: len(value) if isinstance(value, list) else value for name, value in report.items()})
    assert (tcp["failed"], tcp["dropped"]) == ([], [])
    assert (http["connects_failed"], http["answers_failed"]) == (0, 0), http["first_failure"]
    assert tcp["calls"] > 1000
    assert tcp["exchanges"] > 5 * HELD
    assert all(len(layouts(lab, cluster)) == 1 for cluster in ("c1", "c2"))


def test_no_call_to_another_island_fails_while_nodes_and_gateways_are_of_two_releases(islands: Running) -> None:
    """Nodes' Envoys are taken over by the other release's supervisor. Connections are not held across it.

    0.1.0rc1 ends an Envoy that was taken over after its drain time, also one with connections. The gateway's Envoy
    stays: in a cluster its pod drains beside another gateway, and this lab has one.
    """
    load = Load(islands, calls=50, held=0)
    try:
        for number, (python, cluster) in enumerate(((NEW, "c2"), (NEW, "c1"), (OLD, "c2"), (OLD, "c1"))):
            replace(islands, python, *(f"{cluster}/{part}" for part in (*PARTS, *GATEWAY)))
            for source, caller in (("c1", "c2"), ("c2", "c1")):
                exported_anew(islands, f"new-{number}-{source}", source=source, caller=caller)
    finally:
        tcp, http = load.end()
    assert tcp["failed"] == []
    assert tcp["calls"] > 500
    assert (http["connects_failed"], http["answers_failed"]) == (0, 0), http["first_failure"]
    assert http["by"].keys() == {"c1", "c2"}, "calls go to the other island, too"
