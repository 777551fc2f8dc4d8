"""Addresses by which a node's guards may judge callers: none unless a guard does, and never one of two clusters."""

from __future__ import annotations

from typing import Any

from rows.derived_world import DerivedWorld

from isthmus.identity import addresses
from isthmus.model.identities import CallerAddress
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.signing import Guard
from isthmus.model.tables import ADDRESS_IDENTITIES, CALLER_ADDRESSES, GUARDS
from isthmus.statedb import Table

C2, C3 = ClusterName("c2"), ClusterName("c3")
FRONT = CallerAddress(C2, "10.2.0.7", 131_372)
PROVEN = Guard(policy=ServiceName("demo/echo"), address="10.1.0.1", port=80, protocol="TCP")
BY_ADDRESS = Guard(policy=ServiceName("demo/echo"), address="10.1.0.1", port=81, protocol="TCP", require=False)
DATAGRAMS = Guard(policy=ServiceName("demo/echo"), address="10.1.0.1", port=53, protocol="UDP")
TABLES: dict[type, Table[Any, Any]] = {CallerAddress: CALLER_ADDRESSES, Guard: GUARDS}


class Node(DerivedWorld):
    """The derivations over tables of a node."""

    def __init__(self, *rows: Any) -> None:
        super().__init__(addresses.derived(), TABLES, *rows)

    def known(self) -> dict[str, int]:
        return {row.address: row.number for row in self.db.snapshot().all(ADDRESS_IDENTITIES)}


def test_addresses_are_known_while_a_guard_judges_by_them() -> None:
    node = Node(FRONT, PROVEN)
    assert node.known() == {}
    for guard in (BY_ADDRESS, DATAGRAMS):
        node.put(guard)
        assert node.known() == {"10.2.0.7": 131_372}
        node.delete(GUARDS, GUARDS.key(guard))
        assert node.known() == {}


def test_an_address_that_moves_to_another_account_is_that_ones() -> None:
    node = Node(FRONT, BY_ADDRESS)
    node.put(CallerAddress(C2, "10.2.0.7", 131_400), CallerAddress(C2, "10.2.0.8", 131_372))
    assert node.known() == {"10.2.0.7": 131_400, "10.2.0.8": 131_372}


def test_an_address_of_two_clusters_is_nobodys() -> None:
    node = Node(FRONT, BY_ADDRESS)
    claim = CallerAddress(C3, "10.2.0.7", 196_900)
    node.put(claim)
    assert node.known() == {}
    node.delete(CALLER_ADDRESSES, CALLER_ADDRESSES.key(claim))
    assert node.known() == {"10.2.0.7": 131_372}
