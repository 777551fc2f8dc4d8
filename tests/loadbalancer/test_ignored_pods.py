"""Which pods are left alone: those of a mesh, those that ask for it, and those of a namespace that asks for it."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.loadbalancer import ignored_pods
from isthmus.loadbalancer.services import Which
from isthmus.model.services import Namespace, Pod
from isthmus.model.tables import IGNORED_PODS, NAMESPACES, PODS
from isthmus.processes.start import tables_of
from isthmus.statedb import Database, Derivations


class Node:
    """The tables of an agent on node n1, as far as this one reads them."""

    def __init__(self, *rows: Pod | Namespace, which: Which = "multicluster") -> None:
        declared = [ignored_pods.derived("n1", which=which)]
        self.db = Database(*tables_of(declared))
        self.derivations = Derivations(self.db, *declared)
        self.put(*rows)

    def put(self, *rows: Pod | Namespace) -> None:
        with self.db.write() as txn:
            for row in rows:
                if isinstance(row, Pod):
                    txn.put(PODS, row)
                else:
                    txn.put(NAMESPACES, row)
        while self.derivations.step():
            pass

    def reasons(self) -> dict[str, str]:
        return {row.name: row.reason for row in self.db.snapshot().all(IGNORED_PODS)}


def pod(name: str = "demo/client", **fields: Any) -> Pod:
    return Pod(name=name, uid=name, **({"node": "n1", "addresses": ("10.1.0.1",), "phase": "Running"} | fields))


@pytest.mark.parametrize(
    ("own", "namespaces", "mesh", "reason"),
    [
        ("", "", "", ""),
        ("", "", "container istio-proxy", "container istio-proxy"),
        ("ignore", "", "", "isthmus.io/datapath of the pod"),
        ("", "ignore", "", "isthmus.io/datapath of its namespace"),
        ("", "ignore", "container istio-proxy", "isthmus.io/datapath of its namespace"),
        ("translate", "ignore", "container istio-proxy", ""),
        ("", "translate", "container istio-proxy", ""),
        ("ignore", "translate", "", "isthmus.io/datapath of the pod"),
    ],
)
def test_the_pod_decides_before_its_namespace_and_both_before_its_mesh(
    own: Any, namespaces: Any, mesh: str, reason: str
) -> None:
    node = Node(pod(datapath=own, mesh=mesh), Namespace("demo", datapath=namespaces))
    assert node.reasons() == ({"demo/client": reason} if reason else {})


def test_a_namespace_that_changes_its_mind_changes_its_pods_and_no_others() -> None:
    node = Node(pod(), pod("other/client"), Namespace("demo"), Namespace("other"))
    node.put(Namespace("demo", datapath="ignore"))
    assert set(node.reasons()) == {"demo/client"}
    node.put(Namespace("demo"))
    assert node.reasons() == {}


def test_pods_that_have_ended_and_those_of_other_nodes_are_no_rows() -> None:
    ended, far = pod(datapath="ignore", phase="Succeeded"), pod("demo/far", datapath="ignore", node="n2")
    assert Node(ended, far).reasons() == {}


def test_where_every_service_is_translated_a_mesh_alone_takes_no_pod_out() -> None:
    node = Node(pod(mesh="container istio-proxy"), pod("demo/asks", datapath="ignore"), which="all")
    assert set(node.reasons()) == {"demo/asks"}
