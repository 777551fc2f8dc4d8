"""The status of an ExportPolicy: in force or not, and where callers are refused by it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rows.derived_world import DerivedWorld

from isthmus.identity import statuses
from isthmus.model.clusters import Cluster
from isthmus.model.export_policies import NO_EXPORT, Allow, ExcessPolicy, ExportPolicy
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.objects import Observed
from isthmus.model.services import ExportMark
from isthmus.model.tables import (
    CLUSTERS,
    EXCESS_POLICIES,
    EXPORT_MARKS,
    EXPORT_POLICIES,
    EXPORT_POLICY_OBJECTS,
    OBSERVED,
)
from isthmus.statedb import Table

C1 = ClusterName("c1")
TABLES: dict[type, Table[Any, Any]] = {
    ExportPolicy: EXPORT_POLICIES,
    ExportMark: EXPORT_MARKS,
    ExcessPolicy: EXCESS_POLICIES,
    Cluster: CLUSTERS,
    Observed: OBSERVED,
}
C2 = Allow(cluster=ClusterName("c2"))


class Operator(DerivedWorld):
    """The derivation over tables of the operator of c1."""

    def __init__(self, *rows: Any) -> None:
        super().__init__([statuses.derived(C1)], TABLES, *rows)

    def condition(self, kind: str, name: str = "demo/callers") -> tuple[str, str, str]:
        """Status, reason and message of a condition."""
        row = self.db.snapshot().get(EXPORT_POLICY_OBJECTS, ("ExportPolicy", ServiceName(name)))
        assert row is not None
        [found] = [each for each in json.loads(row.status)["conditions"] if each["type"] == kind]
        assert found["observedGeneration"] == json.loads(row.status)["observedGeneration"]
        return found["status"], found["reason"], found.get("message", "")


def policy(*allow: Allow, name: str = "demo/callers", **fields: Any) -> ExportPolicy:
    return ExportPolicy(name=ServiceName(name), allow=allow, generation=2, **fields)


EXPORT = ExportMark(name=ServiceName("demo/echo"), created="2026-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("rows", "want"),
    [
        ((policy(),), ("True", "Accepted", "")),
        ((policy(target="echo"), EXPORT), ("True", "Accepted", "")),
        ((policy(target="echo"),), ("False", "TargetNotFound", "ServiceExport demo/echo does not exist")),
        (
            (policy(invalid="spec.allow: missing"),),
            ("False", "Invalid", "spec.allow: missing; it allows nobody"),
        ),
        (
            (policy(invalid="spec.enforce: wrong", audit=True),),
            ("False", "Invalid", "spec.enforce: wrong; nobody is refused, by audit"),
        ),
        (
            (policy(created="2"), policy(name="demo/older", created="1")),
            ("False", "Conflicted", "ExportPolicy demo/older comes first"),
        ),
        ((policy(), policy(name="demo/narrow", target="echo"), EXPORT), ("True", "Accepted", "")),
    ],
    ids=[
        "of a namespace",
        "of an export",
        "of no export",
        "invalid",
        "invalid, audit",
        "a later one",
        "beside a narrow",
    ],
)
def test_a_policy_is_accepted_or_says_why_not_and_is_ready_as_it_is_accepted(
    rows: tuple[Any, ...], want: tuple[str, str, str]
) -> None:
    operator = Operator(*rows)
    assert operator.condition("Accepted") == want
    assert operator.condition("Ready") == want


GATEWAYS = Cluster(name=C1, own=True, network="one", gateways=("192.0.2.1:15443",))
FLAT = Cluster(name=C1, own=True)
ISLAND, NEIGHBOUR = (Cluster(name=ClusterName("c2"), network=network) for network in ("two", "one"))
NO_ACCOUNT = "unsigned: address: gateways allow callers that prove no account if any of their cluster is allowed"
UDP_BY_CLUSTER = "enforce: all: gateways know of a caller by UDP the cluster only, and allow it for any of its accounts"
EXCESS = ExcessPolicy(ServiceName("demo/callers"), 70_000, 65_536, (ClusterName("c2"),))
UNPROVEN = "TCP callers that prove nothing are judged by address, which is not verified"
UDP = "callers by UDP are judged by address, which is not verified"
AUDIT = "audit: nobody is refused; nodes count whom it would refuse, gateways do not"
SHOP, GOLD = Allow(cluster=ClusterName("c2"), namespace="shop"), Allow(labels=(("class", "gold"),))
ENFORCED = ("True", "Enforced", "")


@pytest.mark.parametrize(
    ("rows", "want"),
    [
        ((policy(C2), GATEWAYS, ISLAND), ENFORCED),
        ((policy(C2), GATEWAYS, NEIGHBOUR), ENFORCED),
        ((policy(SHOP, GOLD), GATEWAYS, NEIGHBOUR), ENFORCED),
        ((policy(SHOP), GATEWAYS, ISLAND), ENFORCED),
        ((policy(SHOP, enforce="all"), GATEWAYS, ISLAND), ("False", "UDPByCluster", UDP_BY_CLUSTER)),
        ((policy(C2, GOLD), GATEWAYS, ISLAND), ENFORCED),
        ((policy(SHOP, GOLD), FLAT, ISLAND), ENFORCED),
        ((policy(C2, require=False, enforce="all"), GATEWAYS, ISLAND), ENFORCED),
        ((policy(C2, require=False), GATEWAYS, NEIGHBOUR), ("True", "ByAddress", UNPROVEN)),
        ((policy(C2, enforce="all"), GATEWAYS, NEIGHBOUR), ("True", "ByAddress", UDP)),
        (
            (policy(SHOP, require=False), GATEWAYS, NEIGHBOUR, Cluster(name=ClusterName("c3"), network="two")),
            ("False", "UnprovenAllowed", NO_ACCOUNT),
        ),
        ((policy(C2, audit=True), GATEWAYS, ISLAND), ("False", "Audit", AUDIT)),
        ((policy(C2, target="echo"), GATEWAYS, ISLAND), ("False", "NotAccepted", "")),
        ((policy(invalid="wrong"), GATEWAYS, ISLAND), ENFORCED),
        (
            (policy(C2), GATEWAYS, ISLAND, EXCESS),
            (
                "False",
                "TooManyCallers",
                "it allows 70000 identities of c2, which do not fit into the 65536 of all policies: "
                "nodes allow none of them",
            ),
        ),
    ],
    ids=[
        "islands alone",
        "a flat network",
        "a flat network, by namespace and labels",
        "an island, by namespace",
        "an island, by namespace, UDP",
        "an island, by labels",
        "an island and no gateways, so that nobody calls",
        "an island, whose UDP is proven too",
        "a flat network, without proof",
        "a flat network, UDP",
        "both",
        "audit",
        "not accepted",
        "invalid, which allows nobody",
        "too many",
    ],
)
def test_a_policy_says_where_callers_are_not_refused_by_it(rows: tuple[Any, ...], want: tuple[str, str, str]) -> None:
    assert Operator(*rows).condition("Enforced") == want


def test_policies_whose_targets_cannot_be_read_have_no_effect_each_by_itself() -> None:
    unread = {"target": NO_EXPORT, "invalid": "spec.target.name: wrong"}
    operator = Operator(policy(**unread), policy(name="demo/another", audit=True, **unread), FLAT, NEIGHBOUR)
    for name in ("demo/callers", "demo/another"):
        assert operator.condition("Accepted", name) == ("False", "Invalid", "spec.target.name: wrong; it has no effect")
        assert operator.condition("Enforced", name) == ("False", "NotAccepted", "")


def test_a_status_follows_exports_clusters_and_policies() -> None:
    operator = Operator(policy(SHOP, target="echo", require=False), GATEWAYS)
    assert operator.condition("Accepted")[1] == "TargetNotFound"
    operator.put(EXPORT)
    assert operator.condition("Accepted")[1] == "Accepted"
    assert operator.condition("Enforced")[1] == "Enforced"
    operator.put(ISLAND)
    assert operator.condition("Enforced")[1] == "UnprovenAllowed"
    operator.put(policy(name="demo/older", target="echo", created="1"))
    assert operator.condition("Accepted")[1] == "Conflicted"


def test_a_status_that_another_writer_changed_is_written_again() -> None:
    operator = Operator(policy(C2), GATEWAYS, ISLAND)
    table = EXPORT_POLICY_OBJECTS
    before = operator.db.snapshot().get(table, ("ExportPolicy", ServiceName("demo/callers")))
    assert before is not None
    body = json.dumps({"status": {"conditions": []}}).encode()
    operator.put(Observed(kind="ExportPolicy", name=ServiceName("demo/callers"), uid="u", version="7", body=body))
    after = operator.db.snapshot().get(table, ("ExportPolicy", ServiceName("demo/callers")))
    assert after is not None
    assert (before.seen, after.seen) == ("", "7")


def test_many_policies_of_a_namespace_have_no_status_beyond_a_number() -> None:
    operator = Operator(*(policy(name=f"demo/p{number}") for number in range(statuses.MAX_STATUSES + 5)))
    assert operator.db.snapshot().count(EXPORT_POLICY_OBJECTS) == statuses.MAX_STATUSES
