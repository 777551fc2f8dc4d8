"""Whether a node knows its own cluster's ranges well enough to guard ports."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.model.clusters import OwnRanges
from isthmus.model.services import Pod
from isthmus.model.tables import OWN_RANGES, PODS
from isthmus.processes.proving import knows_own_ranges
from isthmus.statedb import Database

RANGES = ("10.1.0.0/16", "fd00:1::/48")


def known(ranges: tuple[str, ...], *pods: Pod) -> bool:
    db = Database(OWN_RANGES, PODS)
    with db.write() as txn:
        txn.put(OWN_RANGES, OwnRanges(ranges=ranges))
        for pod in pods:
            txn.put(PODS, pod)
    return knows_own_ranges(db.snapshot())


def pod(*addresses: str, **fields: Any) -> Pod:
    return Pod(name=f"demo/{addresses[0]}", uid=addresses[0], addresses=addresses, **fields)


@pytest.mark.parametrize(
    ("ranges", "pods", "want"),
    [
        ((), (), False),
        (RANGES, (), True),
        (RANGES, (pod("10.1.0.7"),), True),
        (RANGES, (pod("10.9.0.7"), pod("10.9.0.8", "fd00:1::8")), True),
        (RANGES, (pod("10.9.0.7"), pod("fd00:9::7")), False),
        (RANGES, (pod("172.30.1.11", host_network=True), pod("10.9.0.7", phase="Failed")), True),
    ],
    ids=[
        "none",
        "no pod that says otherwise",
        "a pod inside",
        "a pod outside among others",
        "ranges that the network does not give addresses of, as podCIDRs can be",
        "pods whose addresses are no pods' addresses",
    ],
)
def test_ranges_are_known_unless_every_pod_of_the_node_is_outside(
    ranges: tuple[str, ...], pods: tuple[Pod, ...], want: bool
) -> None:
    assert known(ranges, *pods) is want


def test_they_are_not_known_before_the_pods_are() -> None:
    db = Database(OWN_RANGES, PODS)
    initializer = db.initializer(PODS, "pods")
    with db.write() as txn:
        txn.put(OWN_RANGES, OwnRanges(ranges=RANGES))
    assert not knows_own_ranges(db.snapshot())
    with db.write() as txn:
        initializer.complete(txn)
    assert knows_own_ranges(db.snapshot())
