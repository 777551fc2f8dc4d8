"""Which ports of a node's pods are guarded, and by which ExportPolicy."""

from __future__ import annotations

from typing import Any

import pytest
from rows.derived_world import DerivedWorld

from isthmus.identity import guards
from isthmus.model.export_policies import ExportPolicy
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Endpoint, EndpointSet, ExportMark, Pod, Port, Protocol
from isthmus.model.tables import ENDPOINT_SETS, EXPORT_MARKS, EXPORT_POLICIES, GUARDS, PODS
from isthmus.statedb import Table

C1 = ClusterName("c1")
TABLES: dict[type, Table[Any, Any]] = {
    ExportPolicy: EXPORT_POLICIES,
    ExportMark: EXPORT_MARKS,
    EndpointSet: ENDPOINT_SETS,
    Pod: PODS,
}


class Node(DerivedWorld):
    """The derivation over tables of a node of c1."""

    def __init__(self, *rows: Any) -> None:
        super().__init__([guards.derived(C1)], TABLES, *rows)

    def guards(self) -> dict[str, str]:
        """Guarded ports, as text, each with the name of its policy and what differs from the defaults."""
        return {
            f"{row.address}:{row.port}/{row.protocol}": " ".join(
                [
                    row.policy,
                    *(["audit"] if row.audit else []),
                    *([] if row.require else ["address"]),
                    *(["cut"] if row.cut else []),
                ]
            )
            for row in self.db.snapshot().all(GUARDS)
        }


def policy(name: str = "demo/callers", **fields: Any) -> ExportPolicy:
    return ExportPolicy(name=ServiceName(name), **fields)


def export(name: str = "demo/echo") -> ExportMark:
    return ExportMark(name=ServiceName(name), created="2026-01-01T00:00:00Z")


def pod(name: str = "demo/echo-1", address: str = "10.1.0.1", **fields: Any) -> Pod:
    return Pod(**({"name": name, "uid": name, "addresses": (address,)} | fields))


def endpoints(*addresses: str, service: str = "demo/echo", protocol: Protocol = "TCP", **fields: Any) -> EndpointSet:
    each = tuple(Endpoint(address, (Port("", 8080, protocol),)) for address in addresses or ("10.1.0.1",))
    row = {"cluster": C1, "source": "kubernetes", "part": "slice", "endpoints": each}
    return EndpointSet(service=ServiceName(service), **(row | fields))


WORLD = (export(), pod(), endpoints("10.1.0.1", "10.1.9.9"))
"""An export with a pod of this node and one of another node."""


@pytest.mark.parametrize(
    ("rows", "want"),
    [
        ((), {}),
        ((policy(),), {"10.1.0.1:8080/TCP": "demo/callers"}),
        ((policy(target="echo"),), {"10.1.0.1:8080/TCP": "demo/callers"}),
        ((policy(target="other"),), {}),
        ((policy("other/callers"),), {}),
        ((policy(audit=True, require=False),), {"10.1.0.1:8080/TCP": "demo/callers audit address"}),
        ((policy(cut=True),), {"10.1.0.1:8080/TCP": "demo/callers cut"}),
        ((policy(cut=True, audit=True),), {"10.1.0.1:8080/TCP": "demo/callers audit"}),
        ((policy(invalid="wrong"),), {"10.1.0.1:8080/TCP": "demo/callers"}),
        ((policy(), policy("demo/narrow", target="echo")), {"10.1.0.1:8080/TCP": "demo/narrow"}),
        ((policy(created="2"), policy("demo/older", created="1")), {"10.1.0.1:8080/TCP": "demo/older"}),
        ((policy(), endpoints(protocol="UDP")), {}),
        ((policy(enforce="all"), endpoints(protocol="UDP")), {"10.1.0.1:8080/UDP": "demo/callers"}),
        ((policy(enforce="all"), endpoints(protocol="SCTP")), {}),
        ((policy(), pod(host_network=True)), {}),
        ((policy(), pod(phase="Succeeded")), {}),
    ],
    ids=[
        "no policy",
        "of the namespace",
        "of the export",
        "of another export",
        "of another namespace",
        "its options",
        "cut",
        "cut, by audit not",
        "an invalid policy allows nobody",
        "the export's own comes first",
        "the older comes first",
        "UDP",
        "UDP, by enforce: all",
        "SCTP",
        "a pod of the host's network",
        "a pod that has ended, whose address may be another's",
    ],
)
def test_ports_of_pods_of_exports_are_guarded(rows: tuple[Any, ...], want: dict[str, str]) -> None:
    assert Node(*WORLD, *rows).guards() == want


def test_what_is_not_exported_is_not_guarded() -> None:
    node = Node(*WORLD, policy())
    node.delete(EXPORT_MARKS, "demo/echo")
    assert node.guards() == {}


def test_a_slice_guards_no_pod_of_another_namespace() -> None:
    victim = pod("victim/web", "10.1.0.7")
    node = Node(export(), victim, endpoints("10.1.0.7"), policy())
    assert node.guards() == {}


def test_slices_of_thousands_of_ports_fill_no_map_that_other_namespaces_need() -> None:
    ports = tuple(Port("", 1000 + number, "TCP") for number in range(2 * guards.MAX_PORTS))
    addresses = ("10.1.0.1", "fd00::1")
    many = EndpointSet(
        service=ServiceName("demo/echo"),
        cluster=C1,
        source="kubernetes",
        part="many",
        endpoints=tuple(Endpoint(address, ports) for address in addresses),
    )
    node = Node(policy(), export(), pod(addresses=addresses), many)
    guarded = {row.port for row in node.db.snapshot().all(GUARDS)}
    assert guarded == {*range(1000, 1000 + guards.MAX_PORTS)}, "an entry for an interface and a port"
    assert len(node.guards()) == 2 * guards.MAX_PORTS


def test_endpoints_of_other_clusters_and_of_other_sources_guard_nothing() -> None:
    foreign = endpoints(cluster=ClusterName("c2"), source="c2", part="a")
    assert Node(export(), pod(), foreign, endpoints(source="file"), policy()).guards() == {}


def test_a_port_of_several_exports_has_one_policy_since_a_node_sees_the_pod_that_is_called() -> None:
    again = (export("demo/twin"), endpoints(service="demo/twin"))
    node = Node(
        *WORLD, *again, policy("demo/a", target="twin", created="2"), policy("demo/b", target="echo", created="1")
    )
    assert node.guards() == {"10.1.0.1:8080/TCP": "demo/b"}
    node.delete(EXPORT_MARKS, "demo/echo")
    assert node.guards() == {"10.1.0.1:8080/TCP": "demo/a"}


def test_a_pod_that_gets_the_address_of_another_is_guarded_by_a_row_of_its_own() -> None:
    """Its interface is another one, which is looked up for a row that changes."""
    node = Node(*WORLD, policy())
    assert [row.uid for row in node.db.snapshot().all(GUARDS)] == ["demo/echo-1"]
    node.put(pod(uid="its successor"))
    assert [row.uid for row in node.db.snapshot().all(GUARDS)] == ["its successor"]


def test_guards_follow_each_of_their_inputs() -> None:
    node = Node(*WORLD, policy())
    node.put(endpoints("10.1.0.2"))
    assert node.guards() == {}
    node.put(pod("demo/echo-2", "10.1.0.2"))
    assert node.guards() == {"10.1.0.2:8080/TCP": "demo/callers"}
    node.put(policy(audit=True))
    assert node.guards() == {"10.1.0.2:8080/TCP": "demo/callers audit"}
    node.put(pod("demo/echo-2", "10.1.0.3"))
    assert node.guards() == {}
    node.put(pod("demo/echo-2", "10.1.0.2"))
    node.delete(EXPORT_POLICIES, "demo/callers")
    assert node.guards() == {}


def test_changes_in_a_namespace_without_policies_compute_nothing() -> None:
    node = Node(policy("other/callers"))
    before = node.derivations.stats().units
    node.put(*WORLD)
    assert node.derivations.stats().units == before
