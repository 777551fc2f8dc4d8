"""Islands with Isthmus: they know of each other's exports, and call them through gateways."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from labs.lab_running import PATIENCE, Running, invoked, running_islands, until

from isthmus.clusterset import certificates, pki
from isthmus.clusterset.certificates import Pair
from isthmus.config import GatewaySection
from isthmus.gateway import naming
from isthmus.mcs.words import IMPORTERS
from isthmus.model.names import ClusterName
from isthmus_lab import fault_targets
from isthmus_lab.layout import Lab
from isthmus_lab.network.impairments import Cut, Impairments, ruleset

ECHO = Path(__file__).parents[2] / "examples" / "echo"


@pytest.fixture(scope="module")
def islands() -> Iterator[Running]:
    """Three of them; c1 and c2 export echo."""
    with running_islands("w", 3, ECHO, "c1", "c2") as running:
        yield running


def isthmus(lab: Lab, *words: str) -> str:
    command = [sys.executable, "-m", "isthmus", *words, "--lab", lab.name]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False).stdout


def rows(lab: Lab, table: str, cluster: str) -> Any:
    words = ["-A"] if table == "backends" else []
    return json.loads(isthmus(lab, "get", table, *words, "--cluster", cluster, "-o", "json"))["rows"]


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["c1", "c2", "c3"])
def test_the_clusters_follow_each_other_through_gateways(islands: Running, cluster: str) -> None:
    until(lambda: isthmus(islands.lab, "clusters", "status", "--cluster", cluster).count("2/2") == 2)
    at = until(lambda: {each["name"]: each["endpoints"] for each in rows(islands.lab, "clusters", cluster)})
    assert at["c1"] == ([] if cluster == "c1" else ["https://172.30.1.11:15443"])


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.needs("envoy")
@pytest.mark.parametrize("cluster", ["c1", "c2", "c3"])
def test_calls_are_answered_by_both_islands_that_export(islands: Running, cluster: str) -> None:
    words = ("-n", "demo", "get", "serviceimport", "echo", "-o", "jsonpath={.status.clusters[*].cluster}")
    until(lambda: islands.kubectl(*words, cluster=cluster) == "c1 c2", what="both export")
    until(lambda: len(answers(islands, cluster, 20)) == 2, what="both answer")
    until(lambda: answers(islands, cluster, 20).total() == 20, what="every call is answered")


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.needs("envoy")
def test_the_pods_of_other_islands_are_nowhere(islands: Running) -> None:
    until(lambda: "and its gateways" in isthmus(islands.lab, "explain", "demo/echo", "--cluster", "c3"))
    addresses = until(lambda: {row["key"]["address"] for row in rows(islands.lab, "backends", "c3")}, what="backends")
    assert addresses == {"169.254.7.1"}
    slices = islands.kubectl(
        "-n", "demo", "get", "endpointslices", "-o", "jsonpath={.items[*].metadata.name}", cluster="c3"
    )
    assert "derived-" not in slices


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.needs("envoy")
def test_an_island_whose_gateway_is_cut_off_is_not_called_until_it_is_back(islands: Running) -> None:
    until(lambda: len(answers(islands, "c3", 20)) == 2, what="both answer")
    islands.cli("kill", "c2/n1/gateway-envoy")
    try:
        until(lambda: answers(islands, "c3", 10).keys() == {"c1"}, what="c1 alone")
        until(lambda: checks(islands) == {"c1": True, "c2": False}, what="c2's gateway alone fails its check")
    finally:
        islands.cli("start", "c2/n1/gateway-envoy")
    until(lambda: len(answers(islands, "c3", 20)) == 2, what="both answer again")


@pytest.mark.lab
@pytest.mark.needs("envoy")
@pytest.mark.slow
def test_while_a_nodes_envoy_hangs_own_pods_answer_and_calls_that_have_none_are_refused_at_once(
    islands: Running,
) -> None:
    until(lambda: all(len(answers(islands, each, 20)) == 2 for each in ("c1", "c3")), what="both answer")
    stopped = [pid for cluster in ("c1", "c3") for pid in islands.envoys(cluster)]
    try:
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        until(lambda: answers(islands, "c1", 20) == {"c1": 20}, what="c1's own pods answer every call")
        call = "curl -sm5 http://echo.demo.svc.clusterset.local; echo $?"
        refused = "7\n"  # CURLE_COULDNT_CONNECT; 28 is a time-out
        until(lambda: islands.exec("demo/client", call, cluster="c3") == refused, what="c3's calls are refused")
        assert [each[:2] for each in faults(islands)] == [("process", "Envoy of the node of c3/agent")]
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    until(lambda: all(len(answers(islands, each, 20)) == 2 for each in ("c1", "c3")), what="both answer again")


def checks(islands: Running) -> dict[str, bool]:
    """Health of the gateways of each island, as c3 checks it."""
    return {row["cluster"]: row["healthy"] for row in rows(islands.lab, "gateway_checks", "c3")}


def faults(islands: Running) -> list[tuple[str, str, str]]:
    """Faults that `isthmus diagnose` in c3 names on the way to c1 and c2."""
    done = invoked(["diagnose", "demo/echo", "--lab", islands.lab.name, "--cluster", "c3", "-o", "json"])
    hops = [hop for hops in json.loads(done.stdout)["services"].values() for hop in hops]
    return [(hop["hop"], hop["object"], hop["text"]) for hop in hops if hop["state"] == "fault"]


@contextmanager
def gateway_down(islands: Running) -> Iterator[None]:
    islands.cli("kill", "c2/n1/gateway-envoy")
    try:
        yield
    finally:
        islands.cli("start", "c2/n1/gateway-envoy")


@contextmanager
def replaced(path: Path, content: bytes | None) -> Iterator[None]:
    """Give the file this content, or delete it if ``None``, for the body."""
    before = path.read_bytes()
    if content is None:
        path.unlink()
    else:
        pki.save(path, content)
    try:
        yield
    finally:
        pki.save(path, before)


@contextmanager
def expired(islands: Running) -> Iterator[None]:
    """c2's gateway has a certificate that has ended, of the same authority."""
    folder = islands.lab.clusters[1].directory / "pki"
    authority = Pair((folder / "ca.crt").read_bytes(), (folder / "ca.key").read_bytes())
    domain = GatewaySection().domain
    pair = certificates.issue(
        authority,
        "gateway",
        hosts=(f"c2.{domain}",),
        identity=naming.gateway_identity(ClusterName("c2"), domain),
        days=1,
        now=datetime.now(UTC) - timedelta(days=3),
    )
    with replaced(folder / "gateway.key", pair.key), replaced(folder / "gateway.crt", pair.certificate):
        yield


def unknown_authority(islands: Running) -> AbstractContextManager[None]:
    """c2 has no authority of c3."""
    return replaced(islands.lab.clusters[1].directory / "peers" / "c3.ca.crt", None)


@contextmanager
def not_allowed(islands: Running) -> Iterator[None]:
    """Both export it for each other alone."""
    annotation = {"spec": {"exportedAnnotations": {IMPORTERS: "c1,c2"}}}
    for cluster in ("c1", "c2"):
        patch(islands, annotation, cluster=cluster)
    try:
        yield
    finally:
        for cluster in ("c1", "c2"):
            patch(islands, {"spec": {"exportedAnnotations": None}}, cluster=cluster)


def patch(islands: Running, body: dict[str, Any], *, cluster: str) -> None:
    words = ("-n", "demo", "patch", "serviceexport", "echo", "--type=merge", "-p", json.dumps(body))
    islands.kubectl(*words, cluster=cluster)


FAULTS: dict[str, tuple[Callable[[Running], AbstractContextManager[None]], str, str, str]] = {
    "gateway down": (gateway_down, "gateway", "gateway 172.30.2.11:15443 of c2", "its checks fail"),
    "certificate ended": (expired, "gateway", "certificate of c2/gateway", "it ended at"),
    "authority not known": (unknown_authority, "gateway", "c2/gateway", "has no authority of c3"),
    "export not allowed": (not_allowed, "export", "export of c2", "for c1, c2 only"),
}


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.needs("envoy")
@pytest.mark.parametrize(
    "fault", [pytest.param(name, marks=[] if name == "gateway down" else pytest.mark.failover) for name in FAULTS]
)
def test_diagnose_names_the_hop_that_fails_on_the_way_to_an_island(islands: Running, fault: str) -> None:
    inject, hop, subject, text = FAULTS[fault]
    until(lambda: not faults(islands), seconds=PATIENCE, what="nothing is wrong before")
    with inject(islands):
        until(
            lambda: any(found[:2] == (hop, subject) and text in found[2] for found in faults(islands)),
            seconds=PATIENCE,
            what=f"{subject} is named",
        )
    until(lambda: not faults(islands), seconds=PATIENCE, what="nothing is wrong after")


def answers(islands: Running, cluster: str, count: int) -> Counter[str]:
    """Number of calls that each cluster answers; failed calls are left out."""
    each = f"for i in $(seq {count}); do curl -sm5 http://echo.demo.svc.clusterset.local; echo; done"
    output = islands.exec("demo/client", each, cluster=cluster)
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return Counter(each["cluster"] for each in found)


@pytest.mark.parametrize("target", ["c2/etcd", "c2/gateway"])
def test_another_islands_etcd_is_cut_off_at_its_gateways(target: str) -> None:
    lab = Lab("demo", 2, 3, ("island",), gateways=2)
    cut = Cut(fault_targets.parse(lab, "c1"), fault_targets.parse(lab, target), one_way=True)
    assert 'fib daddr oifname { "c2-n1", "c2-n2" } th dport 15443 drop' in ruleset(lab, Impairments((cut,)))


def test_an_islands_own_nodes_are_cut_off_from_its_etcd_itself() -> None:
    lab = Lab("demo", 2, 2, ("island",))
    own = Cut(fault_targets.parse(lab, "c2/n2"), fault_targets.parse(lab, "c2/etcd"), one_way=True)
    assert 'iifname { "c2-n2" } fib daddr oifname { "c2-cp" } th dport 2379 drop' in ruleset(lab, Impairments((own,)))
