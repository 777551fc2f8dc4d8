"""Other clusters' endpoints as slices: which, behind what, and how few are written when something changes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows.mcs_world import HTTP, World

from isthmus.mcs import slices, words
from isthmus.model import tables
from isthmus.model.clusters import Cluster
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import GLOBAL, Endpoint, EndpointSet, Namespace, Port

DERIVED = "demo/derived-qieggqc27v"
PORTS = (Port("http", 8080),)
POD = Endpoint("10.2.1.5", PORTS)
IS_GLOBAL = (GLOBAL, "true")


def record(
    world: World, *endpoints: Endpoint, cluster: str = "c2", service: str = DERIVED, shared: bool = True
) -> None:
    """A peer's record of the endpoints of a service."""
    row = EndpointSet(
        service=ServiceName(service),
        cluster=ClusterName(cluster),
        source="clusterset",
        part="record",
        endpoints=endpoints,
        shared=shared,
    )
    world.put(tables.ENDPOINT_SETS, row)


def wanted(world: World) -> dict[str, dict[str, Any]]:
    found = [msgspec.json.decode(row.body) for row in world.objects if row.kind == "EndpointSlice"]
    return {each["metadata"]["name"]: each for each in found}


def addresses(world: World) -> set[str]:
    return {each["addresses"][0] for found in wanted(world).values() for each in found["endpoints"]}


class TestBehindAnImport:
    def test_a_peers_endpoints_are_a_slice_labelled_for_mcs_consumers_and_kube_proxy(self, world: World) -> None:
        world.export("c2", labels=(("team", "red"),))
        record(world, Endpoint("10.2.1.5", PORTS, hostname="web-0", zone="z2"))
        [(name, found)] = wanted(world).items()
        assert name.startswith("derived-qieggqc27v-c2-")
        assert found["metadata"]["labels"] == {
            "team": "red",
            "endpointslice.kubernetes.io/managed-by": "endpointslice-mcs-controller.isthmus.io",
            "kubernetes.io/service-name": "derived-qieggqc27v",
            "multicluster.kubernetes.io/service-name": "echo",
            "multicluster.kubernetes.io/source-cluster": "c2",
        }
        assert found["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}]
        assert found["endpoints"] == [
            {
                "addresses": ["10.2.1.5"],
                "conditions": {"ready": True, "serving": True, "terminating": False},
                "hostname": "web-0",
                "zone": "z2",
            }
        ]
        [row] = [row for row in world.objects if row.kind == "EndpointSlice"]
        assert row.owner == ("Service", DERIVED, "")

    def test_each_cluster_has_its_own_slices(self, world: World) -> None:
        world.export("c2")
        world.export("c3")
        record(world, POD)
        record(world, Endpoint("10.3.1.5", PORTS), cluster="c3")
        sources = [each["metadata"]["labels"][words.SOURCE_CLUSTER] for each in wanted(world).values()]
        assert sorted(sources) == ["c2", "c3"]

    def test_a_record_without_an_export_counts_for_nothing(self, world: World) -> None:
        world.export("c2")
        record(world, POD)
        record(world, Endpoint("10.3.1.5", PORTS), cluster="c3")
        assert addresses(world) == {"10.2.1.5"}

    def test_a_record_that_comes_before_its_export_is_taken_when_that_comes(self, world: World) -> None:
        record(world, POD)
        assert wanted(world) == {}
        world.export("c2")
        assert addresses(world) == {"10.2.1.5"}

    def test_a_record_that_goes_takes_its_slices_along(self, world: World) -> None:
        world.export("c2")
        record(world, POD)
        world.delete(tables.ENDPOINT_SETS, (ServiceName(DERIVED), ClusterName("c2"), "clusterset", "record"))
        assert wanted(world) == {}

    def test_a_port_on_which_clusters_disagree_is_the_oldest_ones_alone(self, world: World) -> None:
        world.export("c2", created="2025-01-01T00:00:00Z")
        world.export("c3", ports=(Port("http", 8000),))
        record(world, POD)
        record(world, Endpoint("10.3.1.5", PORTS), cluster="c3")
        assert addresses(world) == {"10.2.1.5"}

    def test_a_cluster_that_comes_to_agree_on_a_port_is_called_though_others_still_do_not(self, world: World) -> None:
        world.export("c2", created="2025-01-01T00:00:00Z")
        world.export("c3", ports=(Port("http", 8000),))
        world.export("c4", ports=(Port("http", 8000),))
        record(world, POD)
        record(world, Endpoint("10.3.1.5", PORTS), cluster="c3")
        world.export("c3")
        assert addresses(world) == {"10.2.1.5", "10.3.1.5"}

    def test_endpoints_that_a_cluster_keeps_for_itself_are_left_out(self, world: World) -> None:
        world.export("c2")
        record(world, POD, shared=False)
        assert wanted(world) == {}

    def test_annotated_so_an_import_has_no_slices_of_others(self, world: World) -> None:
        world.export("c2", annotations=((words.SYNC_SLICES, "false"),))
        record(world, POD)
        assert wanted(world) == {}

    def test_an_islands_addresses_are_never_written_though_another_cluster_has_the_same(self, world: World) -> None:
        world.put(tables.CLUSTERS, Cluster(name=ClusterName("c1"), own=True, network="here"))
        world.put(tables.CLUSTERS, Cluster(name=ClusterName("c2"), network="there"))
        world.put(tables.CLUSTERS, Cluster(name=ClusterName("c3"), network="here"))
        world.export("c2")
        world.export("c3")
        record(world, POD, cluster="c2")
        record(world, POD, cluster="c3")
        [found] = wanted(world).values()
        assert found["metadata"]["labels"][words.SOURCE_CLUSTER] == "c3"

    def test_a_cluster_that_says_it_is_an_island_loses_its_slices(self, world: World) -> None:
        world.export("c2")
        record(world, POD)
        assert addresses(world) == {"10.2.1.5"}
        world.put(tables.CLUSTERS, Cluster(name=ClusterName("c2"), network="there"))
        assert wanted(world) == {}
        world.put(tables.CLUSTERS, Cluster(name=ClusterName("c1"), own=True, network="there"))
        assert addresses(world) == {"10.2.1.5"}

    def test_a_peers_endpoints_at_our_own_addresses_are_never_written(self, world: World) -> None:
        world.put(tables.CLUSTERS, Cluster(name=ClusterName("c2")))
        world.export("c2")
        record(world, POD, Endpoint("10.1.7.7", PORTS))
        assert addresses(world) == {"10.2.1.5", "10.1.7.7"}
        own = Cluster(name=ClusterName("c1"), own=True, own_ranges=("10.1.0.0/16",))
        world.put(tables.CLUSTERS, own)
        assert addresses(world) == {"10.2.1.5"}

    def test_a_slice_found_as_it_should_be_is_seen_so(self, world: World) -> None:
        world.export("c2")
        record(world, POD)
        [name] = wanted(world)
        row = EndpointSet(
            service=ServiceName(DERIVED), cluster=ClusterName("c2"), source="kubernetes", part=name, endpoints=(POD,)
        )
        world.put(tables.ENDPOINT_SETS, row)
        assert world.row("EndpointSlice", f"demo/{name}").seen == "="

    def test_one_address_with_two_numbers_of_a_port_is_in_two_slices(self, world: World) -> None:
        """A slice has a port name once."""
        world.export("c2")
        record(world, Endpoint("172.30.2.7", (Port("http", 8080), Port("http", 9090))))
        ports = [[(port["name"], port["port"]) for port in found["ports"]] for found in wanted(world).values()]
        assert sorted(ports) == [[("http", 8080)], [("http", 9090)]]
        assert addresses(world) == {"172.30.2.7"}

    def test_a_renamed_port_keeps_its_slice_until_the_peers_endpoints_follow(self, world: World) -> None:
        world.export("c2")
        record(world, POD)
        world.export("c2", ports=(Port("web", 80),))
        [found] = wanted(world).values()
        assert found["ports"] == [{"name": "web", "port": 8080, "protocol": "TCP"}]


class TestBehindAGlobalService:
    def test_a_headless_one_has_slices_of_every_service_of_its_name(self, world: World) -> None:
        world.service(annotations=(IS_GLOBAL,), labels=(("app", "echo"),), headless=True, cluster_ips=(), uid="own-uid")
        record(world, POD, service="demo/echo")
        [(name, found)] = wanted(world).items()
        assert name.startswith("echo-c2-")
        assert found["metadata"]["labels"] == {
            "app": "echo",
            "endpointslice.kubernetes.io/managed-by": "endpointslice-mcs-controller.isthmus.io",
            "kubernetes.io/service-name": "echo",
            "multicluster.kubernetes.io/source-cluster": "c2",
            "service.kubernetes.io/headless": "",
        }
        assert world.row("EndpointSlice", f"demo/{name}").owner == ("Service", "demo/echo", "own-uid")

    @pytest.mark.parametrize(
        ("annotations", "headless", "synchronised"),
        [
            ((IS_GLOBAL,), False, False),
            ((IS_GLOBAL, (words.SYNC_SLICES, "True")), False, True),
            ((IS_GLOBAL, (words.SYNC_SLICES, "false")), True, False),
            ((("io.cilium/global-service", "TRUE"),), True, True),
            (((GLOBAL, "yes"),), True, False),
            ((("io.cilium/global-service", "true"), (GLOBAL, "false")), True, False),
            ((), True, False),
        ],
    )
    def test_annotations_decide(
        self, world: World, annotations: tuple[tuple[str, str], ...], headless: bool, synchronised: bool
    ) -> None:
        world.service(annotations=annotations, headless=headless)
        record(world, POD, service="demo/echo")
        assert bool(wanted(world)) == synchronised

    def test_a_namespace_that_is_not_global_takes_nothing(self, world: World) -> None:
        world.service(annotations=(IS_GLOBAL,), headless=True)
        record(world, POD, service="demo/echo")
        world.put(tables.NAMESPACES, Namespace("demo", annotations=(("clustermesh.cilium.io/global", "false"),)))
        assert wanted(world) == {}
        world.put(tables.NAMESPACES, Namespace("demo"))
        assert addresses(world) == {"10.2.1.5"}

    def test_an_annotation_that_goes_takes_the_slices_along(self, world: World) -> None:
        world.service(annotations=(IS_GLOBAL,), headless=True)
        record(world, POD, service="demo/echo")
        world.service(headless=True)
        assert wanted(world) == {}

    def test_one_that_is_exported_too_has_both(self, world: World) -> None:
        world.service(annotations=(IS_GLOBAL,), headless=True)
        world.mark()
        world.export("c2", type="Headless")
        record(world, POD, service="demo/echo")
        record(world, POD)
        assert sorted(name.rpartition("-c2-")[0] for name in wanted(world)) == ["derived-qieggqc27v", "echo"]


def endpoints(count: int) -> list[Endpoint]:
    return [Endpoint(f"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}", (HTTP,)) for n in range(count)]


def cut(many: list[Endpoint]) -> dict[str, list[Endpoint]]:
    found = list(slices.parts(many))
    assert len(dict(found)) == len(found), "two parts of one name"
    return dict(found)


class TestParts:
    @pytest.mark.parametrize("count", [0, 1, 100, 101, 250, 5000])
    def test_every_endpoint_is_in_one_part_of_a_hundred_at_most(self, count: int) -> None:
        parts = cut(endpoints(count))
        assert sorted(e.address for part in parts.values() for e in part) == sorted(e.address for e in endpoints(count))
        assert all(0 < len(part) <= slices.SLICE_SIZE for part in parts.values())

    def test_parts_are_not_many_more_than_needed(self) -> None:
        assert len(cut(endpoints(5000))) <= 2 * 5000 / slices.SLICE_SIZE

    def test_up_to_a_hundred_there_is_one_part_without_a_suffix(self) -> None:
        assert list(cut(endpoints(100))) == [""]

    @given(st.integers(1, 1200), st.data())
    @settings(max_examples=60, deadline=None)
    def test_one_endpoint_less_changes_its_part_alone_or_joins_two(self, count: int, data: st.DataObject) -> None:
        many = endpoints(count)
        gone = data.draw(st.integers(0, count - 1))
        before, after = cut(many), cut(many[:gone] + many[gone + 1 :])
        changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
        assert len(changed) <= 2 or len(after) < len(before)

    def test_the_order_of_endpoints_changes_no_parts(self) -> None:
        many = endpoints(300)
        one, other = cut(many), cut(many[::-1])
        assert {n: set(p) for n, p in one.items()} == {n: set(p) for n, p in other.items()}
