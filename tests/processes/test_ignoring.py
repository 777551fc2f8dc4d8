"""Pods that are left alone, as status has them."""

from __future__ import annotations

from isthmus.model import tables
from isthmus.model.pods import IgnoredPod
from isthmus.processes.ignoring import sentence
from isthmus.statedb import Database


def shown(count: int, *missing: str) -> str:
    db = Database(tables.IGNORED_PODS)
    with db.write() as txn:
        for n in range(count):
            txn.put(tables.IGNORED_PODS, IgnoredPod(f"demo/p{n}", f"u{n}", "container istio-proxy"))
    return sentence(db.snapshot(), missing=missing)


def test_without_such_pods_status_is_silent() -> None:
    assert shown(0) == ""


def test_pods_are_named_with_the_reason_and_of_many_the_rest_is_a_number() -> None:
    assert shown(1) == "demo/p0 (container istio-proxy)"
    assert shown(7).endswith("demo/p4 (container istio-proxy), 2 more: isthmus get ignored_pods -A")


def test_a_pod_that_is_translated_for_want_of_its_cgroup_is_named() -> None:
    assert shown(1, "demo/p0").endswith("; without a cgroup or an entry, and so translated: demo/p0")
