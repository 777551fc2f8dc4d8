"""Two hundred questions to our name server and to CoreDNS' multicluster zone, on one real API server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from labs.lab_running import Running, lab_name, until
from machine import programs

from isthmus_lab import removal
from isthmus_lab.layout import Lab
from isthmus_lab.supervisor.configs import kubeconfig_of

pytestmark = [pytest.mark.kube, pytest.mark.lab, pytest.mark.needs("kube-controller-manager", "coredns")]
ECHO = Path(__file__).parents[2] / "examples" / "echo"
ZONE = "clusterset.local"
HEADLESS: list[dict[str, Any]] = [
    {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "pods", "namespace": "demo"},
        "spec": {"clusterIP": "None", "selector": {"app": "echo"}, "ports": [{"name": "http", "port": 8080}]},
    },
    {
        "apiVersion": "multicluster.x-k8s.io/v1beta1",
        "kind": "ServiceExport",
        "metadata": {"name": "pods", "namespace": "demo"},
    },
]
SUPPORT = Path(__file__).parents[1] / "support"
COREFILE = """\
.:5300 {{
    bind 127.0.0.1
    errors
    kubernetes cluster.local clusterset.local in-addr.arpa ip6.arpa {{
        kubeconfig {kubeconfig}
        multicluster clusterset.local
        ttl 5
    }}
}}
"""
TYPES = ("A", "AAAA", "SRV", "TXT", "PTR", "NS", "SOA", "MX", "CNAME", "HTTPS")

DIFFERENCES = {
    r"NXDOMAIN for NOERROR: \S+ SOA": "theirs has every name below the zone where its SOA is asked",
    r"records: 10-[-0-9]+\.c1\.pods\.demo\.svc SRV": "theirs gives SRV of an endpoint, to itself; the MCS API has none",
    r"records: _http\._tcp\.\S+ A": "theirs has addresses there; a client asks for those of the targets",
    r"NOERROR for NXDOMAIN: _tcp\.echo\.demo\.svc \w+": "a name above others exists (RFC 8020)",
    r"NOERROR for NXDOMAIN: (demo\.svc|svc|clusterset\.local|ns\.dns) (TXT|PTR)": "it exists",
    r"NOERROR for NXDOMAIN: dns-version \w+": "it exists",
    r"records: clusterset\.local NS": "theirs has no address of its own here",
    r"records: ns\.dns A": "theirs has no address of its own here",
    r"records: clusterset\.local SOA": "the serial: ours is constant, since the zone cannot be transferred",
    r"records: reverse PTR": "theirs finds the derived Service of the address first",
}
"""Where the two differ, and why: docs/dns.md has them for people."""


@pytest.fixture(scope="module")
def answers(own_host: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[str, str, Any, Any]]]:
    """(name, type, our answer, CoreDNS' answer) of every question, in the second cluster."""
    running = Running(Lab(lab_name("n"), 2, 1))
    try:
        running.cli("up", "--clusters", "2", "--apiserver", "real", "--from", str(ECHO))
        for cluster in ("c1", "c2"):
            running.kubectl("apply", "-f", str(ECHO / "export"), cluster=cluster)
        for each in HEADLESS:
            running.kubectl("apply", "-f", "-", stdin=json.dumps(each))
        running.kubectl("-n", "demo", "rollout", "status", "deployment/echo", "--timeout=180s")
        yield compared(running, tmp_path_factory.mktemp("coredns"))
    finally:
        removal.remove(running.lab)


def compared(running: Running, directory: Path) -> list[tuple[str, str, Any, Any]]:
    cluster = running.lab.clusters[1]
    corefile = directory / "Corefile"
    corefile.write_text(COREFILE.format(kubeconfig=kubeconfig_of(cluster)))
    within = ["ip", "netns", "exec", cluster.nodes[0].namespace]
    with (directory / "log").open("wb") as log:
        coredns = subprocess.Popen([*within, programs.path("coredns"), f"-conf={corefile}"], stdout=log, stderr=log)
    try:
        ours = cluster.schemes[0].node_local
        command = [*within, sys.executable, str(SUPPORT / "answers" / "dns_compare.py"), ours, "127.0.0.1:5300"]

        def ask(questions: list[tuple[str, str]]) -> Any:
            done = subprocess.run(command, input=json.dumps(questions), capture_output=True, text=True, check=False)
            return json.loads(done.stdout) if not done.returncode else [[{"code": ""}, {"code": ""}]] * len(questions)

        watched = [(f"{name}.demo.svc.{ZONE}", "A") for name in ("echo", "pods")]

        def both_know() -> bool:
            return all(one["code"] == other["code"] == "NOERROR" and one["records"] == other["records"]
                       for one, other in ask(watched))  # fmt: skip

        until(both_know, seconds=120, what="both servers know both imports")
        questions = asked_of(running)
        return [(*question, *pair) for question, pair in zip(questions, ask(questions), strict=True)]
    finally:
        coredns.kill()
        coredns.wait()


def asked_of(running: Running) -> list[tuple[str, str]]:
    """Every name of an import, next to one, and below one, with every type."""
    imported = json.loads(running.kubectl("-n", "demo", "get", "svcim", "echo", "-o", "json", cluster="c2"))
    [address] = imported["spec"]["ips"]
    slices = json.loads(running.kubectl("-n", "demo", "get", "endpointslices", "-o", "json", cluster="c2"))["items"]
    pods = sorted(
        address
        for each in slices
        if each["metadata"]["labels"].get("multicluster.kubernetes.io/service-name") == "pods"
        for endpoint in each["endpoints"]
        for address in endpoint["addresses"]
    )
    echo, headless = f"echo.demo.svc.{ZONE}", f"pods.demo.svc.{ZONE}"
    names = [
        echo, echo.upper(), headless, f"{pods[0].replace('.', '-')}.c1.{headless}", f"absent.c1.{headless}",
        f"c1.{headless}", f"c1.{echo}", f"_http._tcp.{echo}", f"_http._tcp.{headless}", f"_http._udp.{echo}",
        f"_absent._tcp.{echo}", f"_tcp.{echo}", f"x.{echo}", f"absent.demo.svc.{ZONE}", f"echo.absent.svc.{ZONE}",
        f"demo.svc.{ZONE}", f"svc.{ZONE}", ZONE, f"dns-version.{ZONE}", f"ns.dns.{ZONE}",
    ]  # fmt: skip
    reverse = ".".join([*reversed(address.split(".")), "in-addr.arpa"])  # of its other types neither is the judge
    return [*((name, type_) for name in names for type_ in TYPES), (reverse, "PTR")]


def kind(name: str, type_: str, ours: Any, theirs: Any) -> str:
    """What differs, in words that DIFFERENCES explains; empty where nothing does."""
    if ours == theirs:
        return ""
    if ours["code"] != theirs["code"]:
        return f"{ours['code']} for {theirs['code']}: {shape(name)} {type_}"
    if ours["records"] != theirs["records"]:
        return f"records: {shape(name)} {type_}"
    return f"sections: {shape(name)} {type_}"


def shape(name: str) -> str:
    """The name without what differs between labs."""
    return "reverse" if name.endswith("arpa") else name.lower().removesuffix(f".{ZONE}")


def test_every_difference_from_coredns_has_a_reason(answers: list[tuple[str, str, Any, Any]]) -> None:
    assert len(answers) >= 200
    found = {kind(*each) for each in answers} - {""}
    reasons = {what: [rule for rule in DIFFERENCES if re.fullmatch(rule, what)] for what in found}
    assert [what for what, rules in reasons.items() if not rules] == []
    assert {rule for rules in reasons.values() for rule in rules} == set(DIFFERENCES), "a reason without a difference"


def test_what_an_import_is_called_by_is_the_same_in_both(answers: list[tuple[str, str, Any, Any]]) -> None:
    names = {f"{name}.demo.svc.{ZONE}" for name in ("echo", "pods", "_http._tcp.echo", "_http._tcp.pods")}
    compared = [each for each in answers if each[0].lower() in names and each[1] in ("A", "AAAA", "SRV")]
    different = [each[:2] for each in compared if each[2] != each[3] and not each[0].startswith("_")]
    assert len(compared) == 15
    assert different == []
