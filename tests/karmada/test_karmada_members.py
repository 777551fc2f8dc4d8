"""Which Clusters are members, their numbers and addresses, and what is wrong with them; what costs a round."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from isthmus.karmada.control import Kept, placement_facts
from isthmus.karmada.evictions import evictions
from isthmus.karmada.members import Member, members
from isthmus.kube.objects.karmada import (
    AggregatedStatus,
    BindingSpec,
    BindingStatus,
    Cluster,
    ClusterSpec,
    ClusterStatus,
    EvictionTask,
    ObjectReference,
    ResourceBinding,
    Taint,
    TargetCluster,
)
from isthmus.kube.objects.meta import Condition, Meta
from isthmus.reflector import Event
from isthmus.times import timestamp


def kept() -> tuple[asyncio.Event, Kept[ResourceBinding]]:
    changed = asyncio.Event()
    return changed, Kept(changed, placement_facts)


def workload(number: int, *, tasks: list[EvictionTask] | None = None, replicas: int = 1) -> Event[ResourceBinding]:
    resource = ObjectReference("apps/v1", "Deployment", "demo", f"app{number}")
    status = BindingStatus([AggregatedStatus(cluster_name="a", status={"replicas": replicas})])
    spec = BindingSpec(resource=resource, clusters=[TargetCluster("a")], graceful_eviction_tasks=tasks)
    meta = Meta(name=f"app{number}-deployment", namespace="demo", resource_version=str(replicas))
    return Event(f"demo/app{number}-deployment", ResourceBinding(metadata=meta, spec=spec, status=status))


def test_placements_of_apps_are_not_kept_and_their_status_costs_no_round() -> None:
    changed, placements = kept()
    placements.apply([Event("isthmus-system/isthmus-etcd-peers-service", placed("a"))])
    assert changed.is_set()
    changed.clear()
    for replicas in (1, 2):
        placements.apply([workload(number, replicas=replicas) for number in range(500)])
    assert not changed.is_set()
    assert len(placements.objects) == 1


def test_an_eviction_costs_a_round_when_it_begins_and_when_it_ends() -> None:
    changed, placements = kept()
    for tasks in ([EvictionTask(from_cluster="a")], None):
        placements.apply([workload(1, tasks=tasks)])
        assert changed.is_set()
        changed.clear()
        placements.apply([workload(1, tasks=tasks, replicas=5)])
        assert not changed.is_set()
    assert placements.objects == {}


ETCD = ObjectReference("v1", "Service", "isthmus-system", "isthmus-etcd-peers")


def cluster(name: str, *, created: str = "2026-01-01T00:00:00Z", **fields: Any) -> Cluster:
    meta = Meta(name=name, creation_timestamp=created, annotations=fields.pop("annotations", None))
    return Cluster(metadata=meta, **fields)


def placed(*names: str, **addresses: dict[str, str]) -> ResourceBinding:
    statuses = [
        AggregatedStatus(cluster_name=name.replace("_", "-"), status={"loadBalancer": {"ingress": [ingress]}})
        for name, ingress in addresses.items()
    ]
    return ResourceBinding(
        metadata=Meta(name="isthmus-etcd-peers-service", namespace="isthmus-system"),
        spec=BindingSpec(resource=ETCD, clusters=[TargetCluster(name) for name in names]),
        status=BindingStatus(statuses),
    )


def by_name(found: list[Member]) -> dict[str, Member]:
    return {str(each.name): each for each in found}


def test_the_address_is_what_the_binding_has_of_the_service_of_that_cluster() -> None:
    binding = placed("a", "a-b", "c", a={"ip": "192.0.2.1"}, a_b={"hostname": "b.example"})
    found = by_name(members([cluster("a"), cluster("a-b"), cluster("c")], [binding], ids={}))
    assert found["a"].endpoints == ("https://192.0.2.1:2379",)
    assert found["a-b"].endpoints == ("https://b.example:2379",)
    assert found["c"].endpoints == ()
    assert found["c"].joins


def test_an_ipv6_address_is_a_url() -> None:
    [found] = members([cluster("a")], [placed("a", a={"ip": "fd00::1"})], ids={})
    assert found.endpoints == ("https://[fd00::1]:2379",)


def test_the_place_is_the_clusters() -> None:
    there = cluster(
        "a",
        spec=ClusterSpec(provider="acme", region="eu", zones=["eu-1", "eu-2"], taints=[Taint("x", "", "NoSchedule")]),
        status=ClusterStatus([Condition("Ready", "True")]),
    )
    [found] = members([there], [placed("a")], ids={})
    assert (found.region, found.zones, found.labels) == ("eu", ("eu-1", "eu-2"), ("provider=acme",))
    assert (found.ready, found.taints) == (True, ("x:NoSchedule",))


def test_numbers_stay_and_a_new_member_takes_none_that_another_has() -> None:
    all_of_them = [cluster("a", created="2026-01-02T00:00:00Z"), cluster("b"), cluster("c")]
    found = by_name(members(all_of_them, [placed("a", "b", "c")], ids={"a": 1, "gone": 2}))
    assert {name: each.id for name, each in found.items()} == {"a": 1, "b": 3, "c": 4}


def test_who_has_the_number_that_two_ask_for_keeps_it_and_the_other_gets_one_with_a_warning() -> None:
    asked = {"isthmus.io/cluster-id": "7"}
    two = [
        cluster("a", annotations=asked),
        cluster("b", annotations=asked),
        cluster("c", annotations={"isthmus.io/cluster-id": "256"}),
    ]
    found = by_name(members(two, [placed("a", "b", "c")], ids={"b": 7}))
    assert found["b"].id == 7
    assert found["a"].joins
    assert found["a"].id not in (0, 7)
    assert found["a"].warning == "annotation isthmus.io/cluster-id: 7 is the id of b"
    assert found["c"].warning == "annotation isthmus.io/cluster-id: '256' is not 1 to 255"
    assert len({each.id for each in found.values()}) == 3


def test_255_members_and_no_more() -> None:
    names = [f"m{number}" for number in range(256)]
    found = members([cluster(name) for name in names], [placed(*names)], ids={})
    assert sorted(each.id for each in found if each.joins) == list(range(1, 256))
    assert [each.problem for each in found if not each.joins] == ["all 255 ids are taken"]


def test_a_name_that_cannot_be_a_clusters_is_out_and_says_why() -> None:
    long = "a" * 40
    found = by_name(members([cluster(long), cluster("b")], [placed(long, "b")], ids={}))
    assert not found[long].joins
    assert "its name cannot be" in found[long].problem
    assert found["b"].joins


def test_a_range_that_is_none_is_a_warning_and_the_others_count() -> None:
    given = {"isthmus.io/pod-ranges": "10.1.0.0/16, 10.2/99"}
    [found] = members([cluster("a", annotations=given)], [placed("a")], ids={})
    assert found.joins
    assert found.pod_ranges == ("10.1.0.0/16",)
    assert found.warning == "annotation isthmus.io/pod-ranges: '10.2/99' is no range of addresses"


def test_without_a_placement_those_with_keys_stay_and_nobody_comes() -> None:
    both = [cluster("a"), cluster("b")]
    for bindings in ([], [placed()]):
        found = by_name(members(both, bindings, ids={"a": 1}))
        assert (found["a"].joins, found["b"].joins) == (True, False)


@pytest.mark.parametrize(
    ("created", "grace", "ends"),
    [
        ("2026-01-01T00:00:00Z", 300, "2026-01-01T00:05:00Z"),
        ("2026-01-01T02:00:00+02:00", None, "2026-01-01T00:10:00Z"),
        (None, 60, "2026-01-01T00:02:00Z"),
        ("yesterday", 300, "2026-01-01T00:06:00Z"),
        ("9999-12-31T23:59:59Z", 300, "2026-01-01T00:06:00Z"),
        ("0001-01-01T00:00:00+14:00", 300, "2026-01-01T00:06:00Z"),
        ("2026-01-01T00:00:00Z", 10**12, "2026-01-01T00:11:00Z"),
    ],
)
def test_a_drain_ends_with_the_grace_period_whatever_times_the_task_has(
    created: str | None, grace: int | None, ends: str
) -> None:
    task = EvictionTask(from_cluster="a", creation_timestamp=created, grace_period_seconds=grace)
    binding = workload(1, tasks=[task]).item
    assert binding is not None
    member = members([cluster("a")], [placed("a")], ids={})
    [found] = evictions([binding], member, now=datetime(2026, 1, 1, 0, 1, tzinfo=UTC))
    assert timestamp(found.ends) == ends
