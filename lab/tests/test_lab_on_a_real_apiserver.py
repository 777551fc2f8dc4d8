"""The lab on kube-apiserver and kube-controller-manager: the same story, the same pods."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clusters import streams_by_kubectl
from labs.lab_running import Running, assert_story_holds, lab_name, until

from isthmus_lab import removal
from isthmus_lab.layout import Lab
from isthmus_lab.realapi import binaries

pytestmark = [
    pytest.mark.kube,
    pytest.mark.lab,
    pytest.mark.timeout(400),
    pytest.mark.needs("kube-controller-manager"),
]
ECHO = Path(__file__).parents[2] / "examples" / "echo"


@pytest.fixture(scope="module")
def real() -> Iterator[Running]:
    running = Running(Lab(lab_name("r"), 1, 1))
    try:
        running.cli("up", "--clusters", "1", "--apiserver", "real", "--from", str(ECHO))
        yield running
    finally:
        removal.remove(running.lab)


def test_the_whole_story_holds_on_a_real_api_server() -> None:
    lab = Lab(lab_name("q"))
    command = [sys.executable, "-m", "isthmus", "lab", "demo", "--json", "--lab", lab.name, "--apiserver", "real"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    finally:
        removal.remove(lab)

    assert_story_holds(json.loads(done.stdout), 9, done.stderr)
    assert done.returncode == 0


def test_it_is_the_real_server_and_pods_run_on_the_labs_node(real: Running) -> None:
    assert '"gitVersion": "v1.' in real.kubectl("get", "--raw", "/version")
    assert real.kubectl("get", "--raw", "/readyz") == "ok"
    pods = "jsonpath={.items[*].spec.nodeName}"
    until(lambda: real.kubectl("-n", "demo", "get", "pods", "-o", pods).split() == ["c1-n1"] * 3)
    real.kubectl("-n", "demo", "rollout", "status", "deployment/echo", "--timeout=180s")


def test_the_definitions_are_there_with_their_columns(real: Running) -> None:
    real.kubectl("apply", "-f", str(ECHO / "export"))

    def told() -> bool:
        lines = real.kubectl("-n", "demo", "get", "svcim").splitlines()
        return len(lines) == 2 and lines[1].split()[:2] == ["echo", "ClusterSetIP"]

    until(told, what="the import of echo")
    assert real.kubectl("-n", "demo", "get", "svcim").split()[:5] == ["NAME", "TYPE", "IP", "READY", "AGE"]
    until(lambda: "True" in real.kubectl("-n", "demo", "get", "svcex", "echo"))


def test_pods_reach_the_api_server_by_its_service(real: Running) -> None:
    slices = real.kubectl("get", "endpointslices", "kubernetes", "-o", "jsonpath={.endpoints[0].addresses[0]}")
    assert slices == real.lab.clusters[0].address


ASK = """\
import ssl, urllib.request as ask
at = "/var/run/secrets/kubernetes.io/serviceaccount/"
bearer = {"Authorization": "Bearer " + open(at + "token").read()}
trusted = ssl.create_default_context(cafile=at + "ca.crt")
print(ask.urlopen(ask.Request("https://kubernetes.default.svc/api", headers=bearer), context=trusted).status)
"""


def test_a_pods_service_account_is_known_to_the_api_server(real: Running) -> None:
    ready = ("wait", "--for=condition=Ready", "pod/client", "--timeout=180s")
    real.kubectl("-n", "demo", *ready)
    assert real.kubectl("-n", "demo", "exec", "client", "--", "python3", "-c", ASK) == "200\n"
    assert not Path("/run/secrets/kubernetes.io/serviceaccount").exists(), "its token was mounted on the host"


def test_logs_go_through_the_api_server_to_the_node(real: Running) -> None:
    until(lambda: "listening" in real.kubectl("-n", "demo", "logs", "deploy/echo"))


@pytest.fixture(scope="module")
def served(real: Running) -> Running:
    streams_by_kubectl.prepare(real)
    return real


@pytest.mark.parametrize("holds", streams_by_kubectl.ALL, ids=lambda each: each.__name__)
def test_kubectl_reaches_into_a_pod(served: Running, holds: Callable[[Running], None]) -> None:
    holds(served)


def test_what_the_server_says_of_a_pod_is_not_contradicted(real: Running) -> None:
    """A node once reported the pod's QoS class, was refused, and ended without a status for any of its pods."""
    limited = [{"name": "main", "image": "busybox", "command": ["sleep", "99"], "resources": {"limits": {"cpu": "1"}}}]
    meta, spec = {"name": "limited"}, {"containers": limited, "hostNetwork": True, "terminationGracePeriodSeconds": 1}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
    real.kubectl("apply", "-f", "-", stdin=json.dumps(pod))
    real.kubectl("wait", "--for=condition=Ready", "pod/limited", "--timeout=180s")
    assert real.kubectl("get", "pod", "limited", "-o", "jsonpath={.status.qosClass}") == "Burstable"
    programs = real.status()["programs"]
    assert [each["restarts"] for each in programs if each["name"] == "c1/n1/node"] == [0]


def test_scheduling_waits_for_a_node_that_takes_pods(real: Running) -> None:
    real.kubectl("cordon", "c1-n1")
    try:
        real.kubectl("-n", "demo", "scale", "deployment/echo", "--replicas=3")
        until(lambda: "no node yet" in real.cli("status").stdout)
    finally:
        real.kubectl("uncordon", "c1-n1")
    real.kubectl("-n", "demo", "rollout", "status", "deployment/echo", "--timeout=180s")


def test_without_the_programs_one_line_says_how_to_get_them(tmp_path: Path) -> None:
    lines = [binaries.find("kube-apiserver", environment={"PATH": ""}, built=tmp_path)]
    assert lines == [None]
    assert binaries.missing("kube-nothing") == [
        "kube-nothing: not in $KUBEBUILDER_ASSETS, on PATH or in .cache/kube-tools: run `make kube-tools`"
    ]


def test_programs_given_by_the_environment_come_first(tmp_path: Path) -> None:
    given, built = tmp_path / "given", tmp_path / "built"
    for directory in (given, built):
        directory.mkdir()
        (directory / "kube-apiserver").touch(mode=0o755)
    environment = {"PATH": "", "KUBEBUILDER_ASSETS": str(given)}
    assert binaries.find("kube-apiserver", environment=environment, built=built) == given / "kube-apiserver"
    assert binaries.find("kube-apiserver", environment={"PATH": ""}, built=built) == built / "kube-apiserver"
