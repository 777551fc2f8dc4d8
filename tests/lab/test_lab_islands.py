"""Islands with Isthmus: they know of each other's exports, and call no pod of each other."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_running import Running, lab_name, until

from isthmus_lab import fault_targets, removal
from isthmus_lab.layout import Lab
from isthmus_lab.network.impairments import Cut, Impairments, ruleset

ECHO = Path(__file__).parents[2] / "examples" / "echo"


@pytest.fixture(scope="module")
def islands() -> Iterator[Running]:
    """Three of them; c1 and c2 export echo."""
    running = Running(Lab(lab_name("w"), 3, 1, "island"))
    try:
        running.cli("up", "--clusters", "3", "--network", "island", "--from", str(ECHO))
        for cluster in ("c1", "c2"):
            running.kubectl("apply", "-f", str(ECHO / "export"), cluster=cluster)
        yield running
    finally:
        removal.remove(running.lab)


def isthmus(lab: Lab, *words: str) -> str:
    command = [sys.executable, "-m", "isthmus", *words, "--lab", lab.name]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout


def rows(lab: Lab, table: str, cluster: str) -> Any:
    words = ["-A"] if table == "backends" else []
    return json.loads(isthmus(lab, "get", table, *words, "--cluster", cluster, "-o", "json"))["rows"]


@pytest.mark.lab
@pytest.mark.parametrize("cluster", ["c1", "c2", "c3"])
def test_the_clusters_hear_each_other_through_gateway_nodes(islands: Running, cluster: str) -> None:
    until(lambda: isthmus(islands.lab, "clusters", "status", "--cluster", cluster).count("2/2") == 2)
    at = {each["name"]: each["endpoints"] for each in rows(islands.lab, "clusters", cluster)}
    assert at["c1"] == ([] if cluster == "c1" else ["http://172.30.1.11:2379"])


@pytest.mark.lab
@pytest.mark.parametrize(("cluster", "own"), [("c1", {"c1"}), ("c2", {"c2"}), ("c3", set())])
def test_an_import_is_everywhere_and_has_backends_of_the_own_island_only(
    islands: Running, cluster: str, own: set[str]
) -> None:
    words = ("-n", "demo", "get", "serviceimport", "echo", "-o", "jsonpath={.status.clusters[*].cluster}")
    until(lambda: islands.kubectl(*words, cluster=cluster) == "c1 c2", what="both export")
    until(lambda: "another network" in isthmus(islands.lab, "explain", "demo/echo", "--cluster", cluster))
    assert {row["key"]["cluster"] for row in rows(islands.lab, "backends", cluster)} == own


@pytest.mark.lab
def test_where_only_other_islands_have_it_calls_are_refused_at_once_and_explained(islands: Running) -> None:
    until(
        lambda: "nobody: calls are refused at once" in isthmus(islands.lab, "explain", "demo/echo", "--cluster", "c3")
    )
    output = islands.exec("demo/client", "curl -sm3 http://echo.demo.svc.clusterset.local; echo $?", cluster="c3")
    assert output == "7\n"
    slices = islands.kubectl(
        "-n", "demo", "get", "endpointslices", "-o", "jsonpath={.items[*].metadata.name}", cluster="c3"
    )
    assert "derived-" not in slices


def test_another_islands_etcd_is_cut_off_at_its_gateway_node() -> None:
    lab = Lab("demo", 2, 2, "island")
    cut = Cut(fault_targets.parse(lab, "c1"), fault_targets.parse(lab, "c2/etcd"), one_way=True)
    assert 'fib daddr oifname { "c2-n1" } th dport 2379 drop' in ruleset(lab, Impairments((cut,)))
    own = Cut(fault_targets.parse(lab, "c2/n2"), fault_targets.parse(lab, "c2/etcd"), one_way=True)
    assert 'iifname { "c2-n2" } fib daddr oifname { "c2-cp" } th dport 2379 drop' in ruleset(lab, Impairments((own,)))
