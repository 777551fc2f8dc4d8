"""Invariants of the path while its processes are killed, in a lab of two clusters: c1 exports, c2 calls."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from labs.lab_running import PATIENCE, Running, invoked, lab_name, until
from peers import etcd_rights

from isthmus.clusterset import peers
from isthmus.model.names import ClusterName
from isthmus_lab import pod_exec, removal
from isthmus_lab.apiserver.storage import REGISTRY
from isthmus_lab.demo.stage import IMPORT_NAME, LOCAL_NAME
from isthmus_lab.layout import Lab
from isthmus_lab.own_programs import IN_CONTAINER
from isthmus_lab.supervisor import etcd_access

pytestmark = [pytest.mark.lab, pytest.mark.slow]
EXAMPLES = Path(__file__).parents[2] / "examples" / "echo"
EXPORT = str(EXAMPLES / "export")


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    lab = Running(Lab(lab_name("h"), 2, 1))
    try:
        lab.cli("up", "--clusters", "2", "--from", str(EXAMPLES))
        for cluster in ("c1", "c2"):
            until(partial(ready, lab, cluster), what=f"pods of {cluster} are ready")
        yield lab
    finally:
        removal.remove(lab.lab)


@pytest.fixture
def exported(running: Running) -> Iterator[Running]:
    running.kubectl("apply", "-f", EXPORT, cluster="c1")
    until(lambda: call(running)[-1]["ok"], what="the import is answered")
    yield running
    running.kubectl("delete", "-f", EXPORT, cluster="c1")
    until(lambda: not call(running)[-1]["ok"], what="the import is gone")


def ready(lab: Running, cluster: str) -> bool:
    pods = json.loads(lab.kubectl("get", "pods", "-n", "demo", "-o", "json", cluster=cluster))["items"]
    conditions = [c for pod in pods for c in pod.get("status", {}).get("conditions", [])]
    return len(pods) == 3 and sum(c["type"] == "Ready" and c["status"] == "True" for c in conditions) == 3


def caller(lab: Running, *words: str, name: str = IMPORT_NAME) -> subprocess.Popen[bytes]:
    inside = IN_CONTAINER.command("caller.py", name, "80", "--timeout", "10", *words)
    return pod_exec.run(pod_exec.find(lab.lab.clusters[1], "demo/client"), inside, stdout=subprocess.PIPE)


def finish(calling: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
    out, _ = calling.communicate(timeout=PATIENCE)
    return [json.loads(line) for line in out.splitlines()]


def call(lab: Running, *words: str, name: str = IMPORT_NAME) -> list[dict[str, Any]]:
    return finish(caller(lab, *words, name=name))


def program(lab: Running, name: str) -> dict[str, Any]:
    return next(each for each in lab.status()["programs"] if each["name"] == name)


def kill(lab: Running, name: str) -> int:
    pid = program(lab, name)["pid"]
    os.kill(pid, signal.SIGKILL)
    return int(pid)


def is_back(lab: Running, name: str, before: int) -> bool:
    now = program(lab, name)
    return bool(now["state"] == "ready" and now["pid"] != before)


def failed(calls: list[dict[str, Any]]) -> list[str]:
    return [each["error"] for each in calls if not each["ok"]]


def test_an_import_is_answered_once_it_is_exported_and_not_before(running: Running) -> None:
    calling = caller(running, "--count", "100000", "--pause", "0.005", "--until-ok")
    running.kubectl("get", "ns", "demo")  # the caller is inside by then
    began = time.time()
    running.kubectl("apply", "-f", EXPORT, cluster="c1")
    last = finish(calling)[-1]
    assert last["ok"]
    assert last["at"] + last["took"] > began, "it was answered before the export"
    running.kubectl("delete", "-f", EXPORT, cluster="c1")
    until(lambda: not call(running)[-1]["ok"], what="the import is gone")


def test_no_call_fails_while_the_agent_is_killed_and_comes_back(exported: Running) -> None:
    ids_before = until(lambda: settled(exported), what="what an earlier export left has been swept")
    calling = caller(exported, "--count", "400", "--pause", "0.01")
    pid = kill(exported, "c2/n1/agent")
    calls = finish(calling)
    until(lambda: is_back(exported, "c2/n1/agent", pid), what="the agent is back")

    assert failed(calls) == []
    assert len(calls) == 400
    assert failed(call(exported, "--count", "50")) == []
    until(lambda: maps(exported) == ids_before, what="the maps are as before")


def test_no_call_fails_while_the_operators_are_killed_and_come_back(exported: Running) -> None:
    pids = {name: kill(exported, name) for name in ("c1/operator", "c2/operator")}
    calls = call(exported, "--count", "400", "--pause", "0.01")
    for name, pid in pids.items():
        until(partial(is_back, exported, name, pid), what=f"{name} is back")

    assert failed(calls) == []
    assert failed(call(exported, "--count", "50")) == []


def test_a_killed_name_server_costs_no_name_its_ordinary_answer(running: Running) -> None:
    call(running, name=LOCAL_NAME)
    pid = kill(running, "c2/n1/dns")
    calls = call(running, "--count", "60", "--pause", "0.02", name=LOCAL_NAME)
    until(lambda: is_back(running, "c2/n1/dns", pid), what="the name server is back")

    resolved = [each for each in calls if "gaierror" not in each.get("error", "")]
    assert len(resolved) == len(calls), failed(calls)[:3]


@pytest.mark.parametrize(("away", "left"), [("dns", "dns-second"), ("dns-second", "dns")])
def test_either_name_server_of_a_node_answers_while_the_other_is_away_and_status_says_so(
    exported: Running, away: str, left: str
) -> None:
    degraded = f"names are degraded: {away} is away, {left} answers in its place"
    question = ("dns", "query", f"_http._tcp.{IMPORT_NAME}", "SRV", "--from", "demo/client", "-o", "json")
    exported.cli("kill", f"c2/{away}")
    try:
        found = until(lambda: json.loads(exported.isthmus(*question, cluster="c2")), what="an answer")
        until(lambda: status(exported) == (1, degraded), what=degraded)
    finally:
        exported.cli("start", f"c2/{away}")
    assert (found["answerer"], found["asked"]["rcode"], found["asked"]["answers"]) == (
        "server", "NOERROR", [f"0 100 80 {IMPORT_NAME}."],
    )  # fmt: skip
    until(lambda: status(exported)[0] == 0, what="all is well")


def status(lab: Running) -> tuple[int, str]:
    """Exit status of ``isthmus status`` for c2, and its last line."""
    done = invoked(["status", "--lab", lab.lab.name, "--cluster", "c2"])
    return done.returncode, done.stdout.splitlines()[-1]


def settled(lab: Running) -> dict[str, Any] | None:
    """The maps, once they hold the one import and nothing else."""
    now = maps(lab)
    return now if len(now["services"]) == len(now["plans"]) == 1 and len(now["backends"]) == 2 else None


def maps(lab: Running) -> dict[str, Any]:
    """Maps in the kernel of c2, without counters and what changes by itself."""
    shown: dict[str, Any] = json.loads(
        invoked(["bpf", "maps", "-o", "json", "--pin", str(lab.lab.bpffs / "c2-n1")]).stdout
    )
    return {name: shown[name] for name in ("frontends", "plans", "slots", "backends", "services", "clusters")}


RECORDS, OBJECTS = "cilium/state/", REGISTRY
NO_RIGHTS = ["Denied", "Denied"]


def rights(lab: Running, path: Path, certificate: str, user: list[str]) -> dict[str, list[str]]:
    """Prefixes of c1's etcd that a client with an identity of c2 may read and write."""
    c1, c2 = lab.lab.clusters
    tls = [str(path / "ca.crt"), *(str(path / f"{certificate}.{kind}") for kind in ("crt", "key") if certificate)]
    asked = {"endpoint": c1.etcd, "tls": tls, "user": user, "prefixes": [RECORDS, OBJECTS]}
    script = [sys.executable, str(Path(etcd_rights.__file__)), json.dumps(asked)]
    command = ["ip", "netns", "exec", c2.control_plane, *script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def test_an_etcd_opens_to_each_what_is_theirs_and_nothing_without_certificate_or_password(running: Running) -> None:
    c1, c2 = running.lab.clusters
    keys = etcd_access.folder(c1)
    peer = peers.Directory(str(etcd_access.peers_of(c2)), own=ClusterName("c2")).read()[ClusterName("c1")]
    of_peer = [peer.username, peer.password]
    assert rights(running, keys.path, "peer", of_peer) == {RECORDS: ["ok", "Denied"], OBJECTS: NO_RIGHTS}
    assert rights(running, keys.path, "peer", []) == {RECORDS: NO_RIGHTS, OBJECTS: NO_RIGHTS}
    assert rights(running, keys.path, "apiserver", []) == {RECORDS: NO_RIGHTS, OBJECTS: ["ok", "ok"]}
    unreached = ["Untrusted", "Untrusted"]
    assert rights(running, keys.path, "", of_peer) == {RECORDS: unreached, OBJECTS: unreached}
    theirs = etcd_access.folder(c2).path
    assert rights(running, theirs, "operator", of_peer) == {RECORDS: unreached, OBJECTS: unreached}, "another authority"
    again = ["ip", "netns", "exec", c1.control_plane, sys.executable, "-m", "isthmus_lab.supervisor.etcd_users"]
    subprocess.run([*again, c1.lab.name, c1.name], timeout=PATIENCE, check=True)
    assert rights(running, keys.path, "peer", of_peer) == {RECORDS: ["ok", "Denied"], OBJECTS: NO_RIGHTS}
