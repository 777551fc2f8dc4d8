"""The merge of exports, behaviour by behaviour. ``a`` is the oldest cluster unless a test gives other dates."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.mcs.exports import agreed_ports
from isthmus.mcs.merge import merge
from isthmus.model.mcs import Merged
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Export, Port

NAME = ServiceName("demo/echo")
HTTP = Port("http", 80)


def export(cluster: str, **fields: Any) -> Export:
    """An export that agrees with every other; clusters are as old as their names are early."""
    age = f"2026-01-01T00:00:{ord(cluster[0]) - ord('a'):02d}Z"
    return Export(**{"cluster": ClusterName(cluster), "name": NAME, "created": age, "ports": (HTTP,), **fields})


def merged(*exports: Export) -> Merged:
    found = merge(exports)
    assert found is not None
    return found


def reasons(*exports: Export) -> list[str]:
    return [conflict.reason for conflict in merged(*exports).conflicts]


def message(*exports: Export) -> str:
    [conflict] = merged(*exports).conflicts
    return conflict.message


def test_nobody_exports_nothing_is_merged() -> None:
    assert merge([]) is None


def test_exports_that_agree_conflict_in_nothing() -> None:
    assert merged(export("b"), export("a")).conflicts == ()


def test_clusters_are_listed_oldest_first() -> None:
    assert merged(export("c"), export("a"), export("b")).clusters == ("a", "b", "c")


def test_of_one_second_the_cluster_of_the_lesser_name_is_the_oldest() -> None:
    same = "2026-01-01T00:00:00Z"
    found = merged(export("b", created=same, type="Headless"), export("a", created=same))
    assert found.type == "ClusterSetIP"
    assert found.clusters == ("a", "b")


class TestPorts:
    def test_a_name_with_two_numbers_keeps_the_oldest_and_conflicts(self) -> None:
        exports = export("a"), export("b", ports=(Port("http", 8080),))
        assert merged(*exports).ports == (HTTP,)
        assert reasons(*exports) == ["PortConflict"]
        assert agreed_ports(exports[1], merged(*exports)) == frozenset()

    def test_a_number_with_two_names_keeps_the_oldest_and_conflicts(self) -> None:
        exports = export("a"), export("b", ports=(Port("web", 80),))
        assert merged(*exports).ports == (HTTP,)
        assert message(*exports) == "ports: b has web 80/TCP (in use: http 80/TCP of a)"
        assert agreed_ports(exports[0], merged(*exports)) == {"http"}
        assert agreed_ports(exports[1], merged(*exports)) == frozenset()

    def test_a_port_more_joins_the_union_and_conflicts(self) -> None:
        exports = export("a"), export("b", ports=(HTTP, Port("metrics", 81)))
        assert merged(*exports).ports == (HTTP, Port("metrics", 81))
        assert message(*exports) == "ports: a lacks metrics 81/TCP"

    def test_a_port_less_conflicts_and_the_union_stays(self) -> None:
        exports = export("a", ports=(HTTP, Port("metrics", 81))), export("b")
        assert merged(*exports).ports == (HTTP, Port("metrics", 81))
        assert message(*exports) == "ports: b lacks metrics 81/TCP"

    def test_the_order_of_ports_is_no_conflict(self) -> None:
        both = (HTTP, Port("metrics", 81))
        found = merged(export("a", ports=both), export("b", ports=both[::-1]))
        assert found.ports == both
        assert found.conflicts == ()

    def test_an_empty_name_is_a_name(self) -> None:
        exports = export("a", ports=(Port("", 80),)), export("b", ports=(Port("", 81),))
        assert merged(*exports).ports == (Port("", 80),)
        assert message(*exports) == "ports: b has (unnamed) 81/TCP (in use: (unnamed) 80/TCP of a)"

    def test_one_number_of_two_protocols_is_two_ports(self) -> None:
        udp, tcp = Port("dns", 53, "UDP"), Port("dns-tcp", 53)
        exports = export("a", ports=(udp,)), export("b", ports=(tcp,))
        assert merged(*exports).ports == (udp, tcp)
        assert message(*exports) == "ports: a lacks dns-tcp 53/TCP; b lacks dns 53/UDP"

    def test_another_application_protocol_conflicts_and_the_oldest_stays(self) -> None:
        exports = export("a"), export("b", ports=(Port("http", 80, app_protocol="h2c"),))
        assert merged(*exports).ports == (HTTP,)
        assert message(*exports) == "ports: b has http 80/TCP h2c (in use: http 80/TCP of a)"

    @pytest.mark.parametrize("oldest", [Port("", 80), HTTP])
    def test_an_unnamed_port_stands_alone(self, oldest: Port) -> None:
        other = Port("metrics", 81) if not oldest.name else Port("", 81)
        exports = export("a", ports=(oldest,)), export("b", ports=(other,))
        assert merged(*exports).ports == (oldest,)
        assert reasons(*exports) == ["PortConflict"]

    def test_many_differences_make_one_message_of_bounded_length(self) -> None:
        many = tuple(Port(f"p{n}", 1000 + n) for n in range(200))
        other = tuple(Port(f"q{n}", 1000 + n) for n in range(200))
        text = message(export("a", ports=many), export("b", ports=other))
        assert text.endswith("; and 195 more")
        assert len(text) < 500


class TestFamilies:
    def test_the_order_is_the_oldests(self) -> None:
        found = merged(export("a", families=("IPv4", "IPv6")), export("b", families=("IPv6", "IPv4")))
        assert found.families == ("IPv4", "IPv6")
        assert found.conflicts == ()

    def test_a_newer_export_with_one_family_takes_the_other_from_nobody(self) -> None:
        exports = export("a", families=("IPv6", "IPv4")), export("b", families=("IPv4",))
        assert merged(*exports).families == ("IPv6", "IPv4")
        assert message(*exports) == "ipFamilies: b has IPv4; in use: IPv6,IPv4"

    def test_a_newer_export_with_more_families_adds_none(self) -> None:
        exports = export("a", families=("IPv4",)), export("b", families=("IPv4", "IPv6"))
        assert merged(*exports).families == ("IPv4",)
        assert reasons(*exports) == []

    def test_nothing_in_common_conflicts_and_the_newer_is_left_out(self) -> None:
        exports = export("a", families=("IPv4",)), export("b", families=("IPv6",))
        assert merged(*exports).families == ("IPv4",)
        assert reasons(*exports) == ["IPFamilyConflict"]
        assert message(*exports) == "ipFamilies: b has IPv6; in use: IPv4"

    def test_as_cilium_does_it_what_all_have_in_common_is_kept(self) -> None:
        exports = [export("a", families=("IPv6", "IPv4")), export("b", families=("IPv4",))]
        found = merge(exports, "common")
        assert found is not None
        assert (found.families, found.conflicts) == (("IPv4",), ())
        narrowed = merge([*exports, export("c", families=("IPv6",))], "common")
        assert narrowed is not None
        assert narrowed.families == ("IPv4",)
        assert [each.message for each in narrowed.conflicts] == ["ipFamilies: c has IPv6; in use: IPv4"]

    def test_who_does_not_say_is_not_asked(self) -> None:
        assert merged(export("a"), export("b", families=("IPv6",))).families == ("IPv6",)

    def test_nobody_says_any(self) -> None:
        assert merged(export("a"), export("b")).families == ()


class TestFields:
    def test_every_conflict_is_reported(self) -> None:
        other = export("b", type="Headless", labels=(("team", "red"),), ports=(Port("http", 81),))
        assert reasons(export("a"), other) == ["PortConflict", "TypeConflict", "LabelsConflict"]
        assert merged(export("a"), other).type == "ClusterSetIP"

    def test_the_message_names_field_cluster_and_the_value_in_use(self) -> None:
        assert message(export("a"), export("b", type="Headless")) == (
            "type: 1/2 clusters disagree: b has Headless; in use: ClusterSetIP of a, the oldest export"
        )

    def test_one_of_three_disagrees(self) -> None:
        text = message(export("a"), export("b"), export("c", labels=(("team", "red"),)))
        assert text == "exportedLabels: 1/3 clusters disagree: c has {team=red}; in use: {} of a, the oldest export"

    def test_two_of_three_disagree(self) -> None:
        text = message(export("a"), export("b", type="Headless"), export("c", type="Headless"))
        assert "2/3 clusters disagree" in text

    def test_different_fields_of_different_clusters_are_all_reported(self) -> None:
        newer = export("b", labels=(("team", "red"),)), export("c", type="Headless")
        assert reasons(export("a"), *newer) == ["TypeConflict", "LabelsConflict"]

    def test_labels_are_the_oldests_as_a_whole(self) -> None:
        found = merged(export("a", labels=(("team", "red"),)), export("b", labels=(("tier", "1"),)))
        assert found.labels == (("team", "red"),)

    @pytest.mark.parametrize(
        ("field", "value", "reason"),
        [
            ("annotations", (("note", "x"),), "AnnotationsConflict"),
            ("internal_policy", "Local", "InternalTrafficPolicyConflict"),
            ("distribution", "PreferClose", "TrafficDistributionConflict"),
            ("affinity", "ClientIP", "SessionAffinityConflict"),
        ],
    )
    def test_a_field_that_differs_conflicts(self, field: str, value: Any, reason: str) -> None:
        assert reasons(export("a"), export("b", **{field: value})) == [reason]

    def test_no_internal_traffic_policy_is_policy_cluster(self) -> None:
        assert reasons(export("a"), export("b", internal_policy="Cluster")) == []

    def test_another_affinity_timeout_conflicts_and_the_message_has_the_number(self) -> None:
        sticky = {"affinity": "ClientIP", "affinity_timeout": 42}
        text = message(export("a", **sticky), export("b", **{**sticky, "affinity_timeout": 66}))
        assert text.startswith(
            "sessionAffinityConfig.clientIP.timeoutSeconds: 1/2 clusters disagree: b has 66; in use: 42"
        )

    def test_an_unset_affinity_timeout_differs_from_a_set_one(self) -> None:
        exports = export("a", affinity="ClientIP", affinity_timeout=42), export("b", affinity="ClientIP")
        assert reasons(*exports) == ["SessionAffinityConfigConflict"]

    def test_the_timeout_of_another_affinity_is_not_compared(self) -> None:
        sticky = export("b", affinity="ClientIP", affinity_timeout=42)
        assert reasons(export("a"), sticky) == ["SessionAffinityConflict"]


ports = st.builds(
    Port,
    name=st.sampled_from(["", "http", "dns", "web"]),
    port=st.sampled_from([53, 80, 81]),
    protocol=st.sampled_from(["TCP", "UDP"]),
    app_protocol=st.sampled_from(["", "h2c"]),
)
any_export = st.builds(
    Export,
    cluster=st.sampled_from([ClusterName(c) for c in "abcd"]),
    name=st.just(NAME),
    created=st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"]),
    type=st.sampled_from(["ClusterSetIP", "Headless"]),
    ports=st.lists(ports, max_size=3).map(tuple),
    affinity=st.sampled_from(["None", "ClientIP"]),
    affinity_timeout=st.sampled_from([None, 42]),
    families=st.sampled_from([(), ("IPv4",), ("IPv6",), ("IPv4", "IPv6"), ("IPv6", "IPv4")]),
    internal_policy=st.sampled_from([None, "Cluster", "Local"]),
    distribution=st.sampled_from([None, "PreferClose"]),
    labels=st.sampled_from([(), (("team", "red"),)]),
)
clusterset = st.lists(any_export, min_size=1, max_size=4, unique_by=lambda each: each.cluster)


@given(clusterset)
def test_the_order_of_reading_changes_nothing(exports: list[Export]) -> None:
    assert len({merge(order) for order in permutations(exports)}) == 1


@given(clusterset)
def test_merging_what_was_merged_changes_nothing(exports: list[Export]) -> None:
    once = merged(*exports)
    as_export = Export(
        cluster=ClusterName("z"),
        **{f: getattr(once, f) for f in Export.__struct_fields__ if f not in ("cluster", "created")},
        created="2027-01-01T00:00:00Z",
    )
    again = merged(as_export)
    compared = [f for f in Merged.__struct_fields__ if f not in ("clusters", "conflicts", "created")]
    assert [getattr(again, f) for f in compared] == [getattr(once, f) for f in compared]
    assert again.conflicts == ()


@given(clusterset)
def test_what_is_merged_can_stand_in_one_service(exports: list[Export]) -> None:
    union = merged(*exports).ports
    assert len({port.name for port in union}) == len(union)
    assert len({(port.port, port.protocol) for port in union}) == len(union)
    assert all(port.name for port in union) or len(union) <= 1


@given(clusterset)
def test_a_conflict_is_reported_exactly_where_some_cluster_differs(exports: list[Export]) -> None:
    found = merged(*exports)
    alike = {
        (e.type, frozenset(e.ports), e.affinity, e.labels, e.internal_policy or "Cluster", e.distribution)
        for e in exports
    }
    reported = {c.reason for c in found.conflicts} - {"IPFamilyConflict", "SessionAffinityConfigConflict"}
    assert bool(reported) == (len(alike) > 1 or any(set(found.ports) != set(e.ports) for e in exports))
