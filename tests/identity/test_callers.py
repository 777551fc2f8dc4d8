"""Whose calls a node signs, and towards which addresses."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from isthmus.identity import callers
from isthmus.model import tables
from isthmus.model.balancing import Backend, BackendKey
from isthmus.model.clusters import Cluster
from isthmus.model.identities import Identity
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Endpoint, EndpointSet, Pod, Port
from isthmus.model.signing import HostSource, SignedTo, Source
from isthmus.statedb import Database, Derivations

C1, C2, C3 = ClusterName("c1"), ClusterName("c2"), ClusterName("c3")
WEB = Pod(name="demo/web-1", uid="1", node="n1", addresses=("10.1.0.7", "fd00::7"), service_account="web")
ECHO = ServiceName("demo/derived-echo")


class Node:
    """The agent's tables of node n1 in cluster c1; each change is followed by a pass."""

    def __init__(self) -> None:
        inputs = (tables.PODS, tables.IDENTITIES, tables.BACKENDS, tables.ENDPOINT_SETS, tables.CLUSTERS)
        self.db = Database(*inputs, tables.SOURCES, tables.HOST_SOURCES, tables.SIGNED_TO)
        self.derivations = Derivations(self.db, *callers.derived(C1, "n1"))

    def put(self, table: Any, row: Any) -> None:
        with self.db.write() as txn:
            txn.put(table, row)
        self.settle()

    def delete(self, table: Any, key: Any) -> None:
        with self.db.write() as txn:
            txn.delete(table, key)
        self.settle()

    def settle(self) -> None:
        while self.derivations.step():
            pass

    def identity(
        self, number: int, *, cluster: ClusterName = C1, account: str = "web", namespace: str = "demo"
    ) -> None:
        self.put(
            tables.IDENTITIES,
            Identity(cluster=cluster, number=number, namespace=namespace, service_account=account),
        )

    def cluster(self, **fields: Any) -> None:
        given = {"name": C2, "id": 2, "state": "ready", "verifies": True, **fields}
        self.put(tables.CLUSTERS, Cluster(**given))

    def backend(self, address: str, *, service: ServiceName = ECHO, cluster: ClusterName = C2, **fields: Any) -> None:
        self.put(tables.ENDPOINT_SETS, EndpointSet(service=service, cluster=cluster, source="clusterset", part=""))
        self.put(tables.BACKENDS, Backend(BackendKey(service, cluster, address, 80, "TCP"), ("http",), **fields))

    @property
    def sources(self) -> list[Source]:
        return list(self.db.snapshot().all(tables.SOURCES))

    @property
    def host_sources(self) -> list[HostSource]:
        return list(self.db.snapshot().all(tables.HOST_SOURCES))

    @property
    def signed_to(self) -> list[SignedTo]:
        return sorted(self.db.snapshot().all(tables.SIGNED_TO), key=lambda row: (row.address, row.service))


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_pod_of_the_node_has_the_number_of_its_account(node: Node) -> None:
    node.put(tables.PODS, WEB)
    assert node.sources == []
    node.identity(65_800)
    assert node.sources == [Source("demo/web-1", ("10.1.0.7", "fd00::7"), 65_800, WEB.uid)]


def test_a_pod_that_gets_the_name_and_the_address_of_another_is_another_row(node: Node) -> None:
    node.identity(65_800)
    node.put(tables.PODS, WEB)
    node.put(tables.PODS, structs.replace(WEB, uid="2"))
    assert [row.uid for row in node.sources] == ["2"]


@pytest.mark.parametrize(
    "identity",
    [
        {"cluster": C2, "number": 131_400},
        {"number": 65_801, "account": "default"},
        {"number": 65_802, "namespace": "other"},
    ],
)
def test_the_number_of_another_account_is_not_its_own(node: Node, identity: dict[str, Any]) -> None:
    node.put(tables.PODS, WEB)
    node.identity(**identity)
    assert node.sources == []


def test_of_several_numbers_of_an_account_the_smallest_counts_and_the_next_follows(node: Node) -> None:
    node.put(tables.PODS, WEB)
    node.identity(65_900)
    node.identity(65_800)
    assert [row.identity for row in node.sources] == [65_800]
    node.delete(tables.IDENTITIES, (C1, 65_800))
    assert [row.identity for row in node.sources] == [65_900]


@pytest.mark.parametrize(
    "changes",
    [{"node": "n2"}, {"phase": "Succeeded"}, {"host_network": True}, {"addresses": ()}],
)
def test_a_pod_without_an_interface_here_is_no_source(node: Node, changes: dict[str, Any]) -> None:
    node.identity(65_800)
    node.put(tables.PODS, WEB)
    assert len(node.sources) == 1
    node.put(tables.PODS, structs.replace(WEB, **changes))
    assert node.sources == []


def test_calls_are_signed_towards_backends_of_clusters_that_verify(node: Node) -> None:
    node.backend("10.2.0.9")
    assert node.signed_to == []
    node.cluster(verifies=False)
    assert node.signed_to == []
    node.cluster()
    assert node.signed_to == [SignedTo(ECHO, "10.2.0.9", C2, 2)]
    node.cluster(verifies=False)
    assert node.signed_to == []


def test_calls_to_the_own_cluster_and_to_gateways_of_islands_are_not_signed(node: Node) -> None:
    node.cluster(name=C1, id=1, own=True)
    node.cluster()
    node.backend("10.1.0.9", cluster=C1)
    node.backend("127.0.0.1", stands_for=3)
    assert node.signed_to == []


def test_an_address_behind_two_services_is_signed_to_until_both_are_gone(node: Node) -> None:
    other = ServiceName("demo/derived-other")
    node.cluster()
    node.backend("10.2.0.9")
    node.backend("10.2.0.9", service=other)
    assert [row.service for row in node.signed_to] == [ECHO, other]
    node.delete(tables.BACKENDS, BackendKey(ECHO, C2, "10.2.0.9", 80, "TCP"))
    assert [row.service for row in node.signed_to] == [other]


def test_a_tenants_slice_in_karmadas_form_changes_nobodys_signatures(node: Node) -> None:
    node.cluster()
    node.cluster(name=C3, id=3)
    node.backend("10.2.0.1", source="clusterset")
    node.backend("10.2.0.1", service=ServiceName("tenant/own"), cluster=C3, source="karmada")
    assert node.signed_to == [SignedTo(ECHO, "10.2.0.1", C2, 2)]


def test_a_slice_of_karmada_is_signed_to_where_the_clusters_own_record_has_the_address(node: Node) -> None:
    node.cluster(state="stale")
    node.backend("10.2.0.1", source="karmada")
    assert node.signed_to == []
    endpoints = (Endpoint("10.2.0.1", (Port("http", 80),)),)
    node.put(tables.ENDPOINT_SETS, EndpointSet(ECHO, C2, "clusterset", "", endpoints))
    assert node.signed_to == [SignedTo(ECHO, "10.2.0.1", C2, 2)]


def test_a_pod_in_the_network_of_the_node_is_known_by_its_uid(node: Node) -> None:
    node.identity(65_800)
    node.put(tables.PODS, structs.replace(WEB, host_network=True))
    assert node.host_sources == [HostSource("demo/web-1", WEB.uid, 65_800)]
    node.put(tables.PODS, structs.replace(WEB, host_network=True, node="n2"))
    assert node.host_sources == []
    node.put(tables.PODS, WEB)
    assert node.host_sources == [], "one with an interface of its own"
