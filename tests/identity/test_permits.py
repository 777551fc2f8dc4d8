"""Which identities each ExportPolicy allows, and which policies do not fit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rows.derived_world import DerivedWorld

from isthmus.identity import permits
from isthmus.identity.allow import MAX_POLICIES, identities_allowed
from isthmus.model.clusters import Cluster
from isthmus.model.export_policies import MAX_PERMITS, Allow, ExportPolicy
from isthmus.model.identities import Identity
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Labels
from isthmus.model.tables import CLUSTERS, EXCESS_POLICIES, EXPORT_POLICIES, IDENTITIES, PERMITS
from isthmus.statedb import Table

C1 = ClusterName("c1")
TABLES: dict[type, Table[Any, Any]] = {ExportPolicy: EXPORT_POLICIES, Identity: IDENTITIES, Cluster: CLUSTERS}


class World(DerivedWorld):
    """The derivations over tables of c1."""

    def __init__(self, *rows: Any, room: int = MAX_PERMITS) -> None:
        super().__init__(permits.derived(C1, room=room), TABLES, *rows)

    def permits(self, name: str = "demo/callers") -> list[int]:
        rows = self.db.snapshot().by(PERMITS, "policy", ServiceName(name))
        return sorted(row.identity for row in rows)

    def excess(self) -> dict[str, int]:
        return {row.policy: row.identities for row in self.db.snapshot().all(EXCESS_POLICIES)}


class Counted(dict[ClusterName, Labels]):
    """Labels of clusters that count how often they are looked up."""

    lookups = 0

    def get(self, key: ClusterName, default: Any = None) -> Any:
        self.lookups += 1
        return super().get(key, default)


def policy(*allow: Allow, name: str = "demo/callers", **fields: Any) -> ExportPolicy:
    return ExportPolicy(name=ServiceName(name), allow=allow, **fields)


def rule(cluster: str = "", namespace: str = "", account: str = "", **labels: str) -> Allow:
    return Allow(
        cluster=ClusterName(cluster), namespace=namespace, service_account=account, labels=tuple(labels.items())
    )


def identity(number: int, cluster: str = "c2", namespace: str = "shop", account: str = "web") -> Identity:
    return Identity(cluster=ClusterName(cluster), number=number, namespace=namespace, service_account=account)


CALLERS = (
    identity(10, "c1"),
    identity(20),
    identity(21),  # Cilium numbers sets of labels: several may be of one account
    identity(22, account="jobs"),
    identity(23, namespace="bank"),
    identity(30, "c3"),
    Cluster(name=C1, own=True, labels=(("class", "gold"),)),
    Cluster(name=ClusterName("c2"), labels=(("class", "gold"), ("site", "x"))),
    Cluster(name=ClusterName("c3"), labels=(("class", "tin"),)),
)


@pytest.mark.parametrize(
    ("allow", "want"),
    [
        ((), []),
        ((rule(),), [20, 21, 22, 23, 30]),
        ((rule("c2"),), [20, 21, 22, 23]),
        ((rule("c2", "shop"),), [20, 21, 22]),
        ((rule("c2", "shop", "web"),), [20, 21]),
        ((rule("", "shop", "web"),), [20, 21, 30]),
        ((rule("", "", "jobs"),), [22]),
        ((rule("", **{"class": "gold"}),), [20, 21, 22, 23]),
        ((rule("", **{"class": "gold", "site": "y"}),), []),
        ((rule("c3", **{"class": "gold"}),), []),
        ((rule("c3"), rule("c2", "bank")), [23, 30]),
        ((rule("c1"),), []),
        ((rule("c9"),), []),
    ],
    ids=lambda each: repr(each) if isinstance(each, list) else None,
)
def test_a_caller_is_allowed_that_matches_every_field_of_one_rule(allow: tuple[Allow, ...], want: list[int]) -> None:
    """Callers of the own cluster are not judged, so they need no permit."""
    assert World(*CALLERS, policy(*allow)).permits() == want


def test_accounts_of_equal_names_in_other_clusters_are_others() -> None:
    callers = [identity(number, f"c{number}", "shop", "web") for number in (1, 2, 3, 4)]
    assert World(*callers, policy(rule("c3", "shop", "web"))).permits() == [3]


def test_only_the_policy_in_force_has_permits_and_an_invalid_one_allows_nobody() -> None:
    older, newer = policy(rule("c2"), name="demo/a", created="2"), policy(rule("c3"), name="demo/b", created="1")
    world = World(*CALLERS, older, newer)
    assert (world.permits("demo/a"), world.permits("demo/b")) == ([], [30])
    world.put(policy(name="demo/b", created="1", invalid="spec.allow: missing"))
    assert (world.permits("demo/a"), world.permits("demo/b")) == ([], []), "a mistake opens nothing"
    world.delete(EXPORT_POLICIES, "demo/b")
    assert world.permits("demo/a") == [20, 21, 22, 23]


def test_permits_follow_identities_labels_and_the_target() -> None:
    world = World(*CALLERS, policy(rule("", "shop", "web", **{"class": "gold"})))
    assert world.permits() == [20, 21]
    world.put(identity(21, account="other"), identity(24))
    assert world.permits() == [20, 24]
    world.put(Cluster(name=ClusterName("c2")))
    assert world.permits() == []
    world.put(Cluster(name=ClusterName("c3"), labels=(("class", "gold"),)))
    assert world.permits() == [30]
    world.put(policy(rule("c3"), target="echo"))
    assert world.permits() == [30]
    world.delete(IDENTITIES, (ClusterName("c3"), 30))
    assert world.permits() == []


def test_an_identity_that_no_rule_names_computes_nothing() -> None:
    world = World(*CALLERS, policy(rule("c2", "shop", "web")), policy(rule("", "", "jobs"), name="other/p"))
    before = world.derivations.stats().units
    world.put(identity(40, "c4", "shop", "web"), identity(25, namespace="bank"))
    assert world.derivations.stats().units == before


def many(count: int) -> list[Identity]:
    return [identity(number, account=f"a{number}") for number in range(100, 100 + count)]


def test_a_policy_that_does_not_fit_allows_nobody_and_other_namespaces_keep_theirs() -> None:
    greedy, modest = policy(rule("c2"), name="greedy/all"), policy(rule("c2", "shop", "a100"), name="demo/callers")
    world = World(*many(9), greedy, modest, room=8)
    assert (world.permits("greedy/all"), world.permits()) == ([], [100])
    assert world.excess() == {"greedy/all": 9}
    world.delete(IDENTITIES, (ClusterName("c2"), 108))
    world.delete(IDENTITIES, (ClusterName("c2"), 107))
    assert (world.permits("greedy/all"), world.permits()) == ([100, 101, 102, 103, 104, 105, 106], [100])
    assert world.excess() == {}


def test_a_peer_with_very_many_numbers_has_its_own_callers_refused_and_no_other_ones() -> None:
    bad = [identity(number, "c3", account=f"a{number}") for number in range(1000, 1030)]
    everyone = [policy(rule(), name=f"{namespace}/all") for namespace in ("bank", "demo", "shop")]
    world = World(*many(4), *bad, *everyone, room=60)
    assert [world.permits(each.name) for each in everyone] == [[100, 101, 102, 103]] * 3
    assert world.excess() == {each.name: 30 for each in everyone}
    for row in bad[10:]:
        world.delete(IDENTITIES, (row.cluster, row.number))
    assert [len(world.permits(each.name)) for each in everyone] == [14] * 3
    assert world.excess() == {}


def test_beyond_a_hundred_policies_of_a_namespace_each_allows_nobody() -> None:
    def policy(number: int) -> ExportPolicy:
        name = ServiceName(f"demo/p{number:03}")
        return ExportPolicy(name=name, target=f"t{number}", allow=(Allow(),), created=f"{2100 + number}")

    world = World(Identity(cluster=ClusterName("c2"), number=7, namespace="shop", service_account="web"))
    world.put(*(policy(number) for number in range(MAX_POLICIES + 2)))

    def allowing() -> list[int]:
        return [number for number in range(MAX_POLICIES + 2) if world.permits(f"demo/p{number:03}")]

    assert allowing() == [*range(MAX_POLICIES)]
    world.delete(EXPORT_POLICIES, ServiceName("demo/p000"))
    assert allowing() == [*range(1, MAX_POLICIES + 1)], "the next one follows"
    world.put(policy(0))
    assert allowing() == [*range(MAX_POLICIES)], "and gives way"
    world.put(replace(policy(0), name=ServiceName("other/p0")))
    assert world.permits("other/p0") == [7], "other namespaces have theirs"


def test_within_a_namespace_room_goes_by_precedence() -> None:
    second = policy(rule("c2"), name="demo/a", created="2", target="a")
    first = policy(rule("c2"), name="demo/z", created="1", target="z")
    world = World(*many(4), second, first, room=6)
    assert (world.permits("demo/z"), world.permits("demo/a")) == ([100, 101, 102, 103], [])


RULES = st.builds(
    rule,
    st.sampled_from(["", "c2", "c3"]),
    st.sampled_from(["", "shop", "bank"]),
    st.sampled_from(["", "web", "jobs"]),
)
CHANGES = st.one_of(
    st.builds(
        lambda rules, name, target, created: policy(*rules, name=f"demo/{name}", target=target, created=created),
        st.lists(RULES, max_size=3),
        st.sampled_from("ab"),
        st.sampled_from(["", "echo"]),
        st.sampled_from("12"),
    ),
    st.builds(
        identity,
        st.integers(1, 4),
        st.sampled_from(["c2", "c3"]),
        st.sampled_from(["shop", "bank"]),
        st.sampled_from(["web", "jobs"]),
    ),
)


@settings(max_examples=100)
@given(st.lists(CHANGES, max_size=12), st.integers(0, 6))
def test_changes_one_by_one_come_to_what_their_result_comes_to_at_once(changes: list[Any], room: int) -> None:
    slowly = World(room=room)
    for change in changes:
        slowly.put(change)
    at_once = World(*changes, room=room)
    tables: tuple[Table[Any, Any], ...] = (PERMITS, EXCESS_POLICIES)
    for table in tables:
        assert set(slowly.db.snapshot().all(table)) == set(at_once.db.snapshot().all(table))
    assert slowly.db.snapshot().count(PERMITS) <= room


def test_the_rules_of_a_policy_are_compared_with_clusters_and_not_with_each_identity() -> None:
    """Each new identity computes a policy again on every node, and a tenant may have many policies of 64 rules."""
    labels = Counted({ClusterName("c2"): (("class", "gold"),)})
    rules = [rule(namespace=f"n{number}", **{"class": "gold"}) for number in range(64)]
    identities = [
        Identity(cluster=ClusterName("c2"), number=number, namespace=f"n{number % 128}", service_account="web")
        for number in range(1000)
    ]
    allowed = identities_allowed(policy(*rules), identities, labels, own=C1)
    assert len(allowed[ClusterName("c2")]) == sum(number % 128 < 64 for number in range(1000))
    assert labels.lookups == 64
