"""A policy cuts the established connections of known accounts that it does not allow, and no others."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from isthmus.identity.established import cuts, forbidden
from isthmus.model.clusters import OwnRanges
from isthmus.model.export_policies import Allow, ExportPolicy
from isthmus.model.identities import CallerAddress, Identity
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.signing import Guard
from isthmus.model.tables import CALLER_ADDRESSES, EXPORT_POLICIES, GUARDS, IDENTITIES, OWN_RANGES
from isthmus.statedb import Database

C1, C2, C3 = ClusterName("c1"), ClusterName("c2"), ClusterName("c3")
NAME = ServiceName("demo/echo")
NOBODY = ExportPolicy(name=NAME, cut=True)
GUARD = Guard(policy=NAME, address="10.1.0.1", port=80, protocol="TCP", cut=True)
FRONT = Identity(cluster=C2, number=131_372, namespace="demo", service_account="front")
KNOWN = CallerAddress(C2, "10.2.0.7", 131_372)
OWN = OwnRanges(ranges=("10.1.0.0/16",), addresses=frozenset({"192.0.2.1"}))
TABLES: dict[type, Any] = {
    ExportPolicy: EXPORT_POLICIES,
    Guard: GUARDS,
    Identity: IDENTITIES,
    CallerAddress: CALLER_ADDRESSES,
    OwnRanges: OWN_RANGES,
}


def cut(*changed: Any, address: str = "10.1.0.1", port: int = 80, peer: str = "10.2.0.7", without: Any = None) -> bool:
    db = Database(*TABLES.values())
    with db.write() as txn:
        for row in (NOBODY, GUARD, FRONT, KNOWN, OWN, *changed):
            txn.put(TABLES[type(row)], row)
        if without is not None:
            txn.delete(TABLES[type(without)], TABLES[type(without)].key(without))
    snapshot = db.snapshot()
    assert cuts(snapshot) or replace(GUARD, cut=False) in changed
    return forbidden(snapshot, C1)(address, port, peer)


def allowing(**rule: Any) -> ExportPolicy:
    return replace(NOBODY, allow=(Allow(**rule),))


@pytest.mark.parametrize("changed", [(), (allowing(cluster=C3),), (allowing(service_account="back"),)])
def test_a_connection_of_an_account_that_the_policy_does_not_allow_is_cut(changed: tuple[Any, ...]) -> None:
    assert cut(*changed)


@pytest.mark.parametrize(
    "changed",
    [
        (allowing(cluster=C2, namespace="demo"),),
        (allowing(labels=(("class", "gold"),)),),
        (replace(NOBODY, cut=False),),
        (replace(NOBODY, audit=True),),
        (replace(GUARD, cut=False),),
        (CallerAddress(C3, "10.2.0.7", 196_900),),
        (OwnRanges(ranges=("10.0.0.0/8",)),),
        (OwnRanges(ranges=("10.1.0.0/16",), addresses=frozenset({"10.2.0.7"})),),
        (OwnRanges(),),
    ],
    ids=[
        "allowed",
        "allowed by labels, whatever they are",
        "without the option",
        "audit",
        "a guard from before",
        "an address of two clusters",
        "of the own cluster's pods",
        "of an own node",
        "own ranges unknown",
    ],
)
def test_no_other_connection_is_cut(changed: tuple[Any, ...]) -> None:
    assert not cut(*changed)


def test_what_no_record_says_is_not_cut() -> None:
    assert not cut(without=KNOWN)
    assert not cut(without=FRONT)
    assert not cut(without=NOBODY)
    assert not cut(port=81)
    assert not cut(address="10.1.0.2")
    assert not cut(peer="10.2.0.8")


@pytest.mark.parametrize("table", [OWN_RANGES, GUARDS, CALLER_ADDRESSES], ids=lambda table: table.name)
def test_nothing_is_cut_by_an_agent_that_starts_before_all_is_read(table: Any) -> None:
    """Until then an address of two clusters counts as the first one's, and allowed calls were cut."""
    db = Database(*TABLES.values())
    reading = db.initializer(table, "c3")
    with db.write() as txn:
        for row in (NOBODY, GUARD, FRONT, KNOWN, OWN):
            txn.put(TABLES[type(row)], row)
    assert not cuts(db.snapshot())
    with db.write() as txn:
        reading.complete(txn)
    assert cuts(db.snapshot())
