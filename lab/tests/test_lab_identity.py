"""Callers prove who they are, and an ExportPolicy says who may call: on a flat network, without a proxy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import pytest
from labs.accounts import CALL, ECHO, WEB, policy
from labs.lab_running import Running, invoked, lab_name, until

from isthmus_lab import removal
from isthmus_lab.layout import Lab

pytestmark = [pytest.mark.lab, pytest.mark.bpf, pytest.mark.slow]


@pytest.fixture(scope="module")
def lab() -> Iterator[Running]:
    """c1 exports echo. Each cluster has the pods client, of the account default, and web, of the account web."""
    running = Running(Lab(lab_name("i"), 2, 1))
    try:
        running.cli("up", "--clusters", "2", "--identity", f"--from={ECHO}")
        for cluster in ("c1", "c2"):
            running.kubectl("apply", "-f", "-", stdin=WEB, cluster=cluster)
        running.kubectl("apply", "-f", str(ECHO / "export"), cluster="c1")
        for caller in product(("c1", "c2"), ("client", "web")):
            until(partial(answers, running, *caller), what=f"calls of {caller}")
        until(lambda: len(rows(running, "identities", cluster="c1")) >= 4, what="identities of both clusters")
        until(lambda: signs(running, "c2"), what="signed calls of c2's pods")
        yield running
    finally:
        removal.remove(running.lab)


def rows(lab: Running, table: str, *, cluster: str) -> list[dict[str, Any]]:
    """Rows of a cluster's agent."""
    found: list[dict[str, Any]] = json.loads(lab.isthmus("get", table, "-A", "-o", "json", cluster=cluster))["rows"]
    return found


def code(lab: Running, cluster: str, pod: str) -> str:
    """Status of a call of echo; 000 if it was not answered."""
    return lab.exec(f"demo/{pod}", CALL, cluster=cluster, code=None)


def answers(lab: Running, cluster: str, pod: str) -> bool:
    return code(lab, cluster, pod) == "200"


def codes(lab: Running, cluster: str, pod: str, count: int) -> set[str]:
    return {code(lab, cluster, pod) for _ in range(count)}


def proving(lab: Running, cluster: str) -> dict[str, Any]:
    """The part of a node's status about proven callers."""
    status = invoked(["status", "-o", "json", "--lab", lab.lab.name, "--cluster", cluster]).stdout
    found: dict[str, Any] = json.loads(status)["processes"]["agent"]["proving"]
    return found


def signs(lab: Running, cluster: str) -> bool:
    """True if the calls of all pods are signed."""
    sources = proving(lab, cluster)["sources"]
    return len(rows(lab, "sources", cluster=cluster)) == 4 and not sources["waiting"] + sources["failing"]


def refused(lab: Running) -> dict[str, int]:
    """Refusals that c1's node has counted, by reason."""
    counts: dict[str, int] = {}
    for row in rows(lab, "caller_refusals", cluster="c1"):
        counts[row["reason"]] = counts.get(row["reason"], 0) + row["count"]
    return counts


def denied(lab: Running) -> int:
    """Connects of c2's pod client that were denied, as its node has noted them."""
    noted = [row for row in rows(lab, "denials", cluster="c2") if row["pod"] == "demo/client"]
    return sum(row["connects"] for row in noted)


def test_accounts_of_one_name_have_another_number_in_each_cluster(lab: Running) -> None:
    def numbers() -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for row in rows(lab, "identities", cluster="c1"):
            if (row["namespace"], row["service_account"]) == ("demo", "web"):
                found.setdefault(row["cluster"], set()).add(row["number"])
        return found

    found = until(lambda: numbers() if len(numbers()) == 2 else None, what="web of both clusters")
    assert {number >> 16 for number in found["c1"]} == {1}
    assert {number >> 16 for number in found["c2"]} == {2}


def test_who_is_named_calls_and_who_is_not_is_refused(lab: Running) -> None:
    policy(lab, allow=[{"cluster": "c2", "namespace": "demo", "serviceAccount": "web"}])
    until(lambda: code(lab, "c2", "client") == "000", what="the refusal of another account")
    assert codes(lab, "c2", "web", 10) == {"200"}
    assert codes(lab, "c2", "client", 5) == {"000"}
    assert codes(lab, "c1", "client", 5) == {"200"}, "callers of the own cluster are never judged"
    until(lambda: refused(lab).get("not-allowed", 0) >= 5, what="five noted refusals")
    assert {(row["caller"], row["reason"]) for row in rows(lab, "caller_refusals", cluster="c1")} == {
        ("c2 demo/default", "not-allowed")
    }
    until(lambda: denied(lab) >= 5, what="five noted denials")
    assert rows(lab, "failures", cluster="c2") == [], "a refusal is no failure of a backend"
    words = ["diagnose", "demo/echo", "--from", "demo/client", "--lab", lab.lab.name, "--cluster", "c2"]
    assert "refused by c1, ExportPolicy demo/echo: it does not allow this caller" in invoked(words).stdout


def test_a_policy_that_is_tried_out_refuses_nobody_and_counts(lab: Running) -> None:
    policy(lab, allow=[], audit=True)
    until(lambda: code(lab, "c2", "client") == "200", what="the end of the refusals")
    before = refused(lab)["not-allowed"]
    assert codes(lab, "c2", "web", 3) == {"200"}
    until(lambda: refused(lab)["not-allowed"] >= before + 3, what="three more noted refusals")


def test_without_the_policy_everybody_calls(lab: Running) -> None:
    policy(lab, allow=[])
    until(lambda: code(lab, "c2", "web") == "000", what="the refusal of everybody")
    lab.kubectl("-n", "demo", "delete", "exportpolicy", "echo", cluster="c1")
    until(lambda: code(lab, "c2", "web") == "200", what="the end of the refusals")
    assert codes(lab, "c2", "client", 5) == {"200"}
