"""What one cluster's exports can do to the services of another, and what they cannot."""

from __future__ import annotations

from typing import Any

import pytest
from rows.mcs_world import HTTP, World

from isthmus.mcs import metrics, notices, words
from isthmus.model import tables
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.services import Endpoint, EndpointSet, Export, Namespace, Port

DERIVED = "demo/derived-qieggqc27v"
OLD = "1970-01-01T00:00:00Z"


@pytest.mark.parametrize(
    "key",
    [
        "service.kubernetes.io/service-proxy-name",
        "service.kubernetes.io/headless",
        "kubernetes.io/service-name",
        "endpointslice.kubernetes.io/managed-by",
        "endpointslice.kubernetes.io/skip-mirror",
        "service.beta.kubernetes.io/aws-load-balancer-type",
        "cloud.google.com/neg",
        "networking.gke.io/load-balancer-type",
        "metallb.universe.tf/loadBalancerIPs",
        "external-dns.alpha.kubernetes.io/hostname",
        "multicluster.kubernetes.io/source-cluster",
        "networking.k8s.io/anything",
        "service.cilium.io/global",
        "service.cilium.io/shared",
        "io.cilium/global-service",
        "isthmus.io/managed-by",
        "karmada.io/managed",
        "resourcetemplate.karmada.io/claimed-by",
        "kubectl.kubernetes.io/last-applied-configuration",
    ],
)
def test_what_steers_other_controllers_never_reaches_an_object_of_ours(world: World, key: str) -> None:
    world.export(annotations=((key, "evil"),), labels=((key, "evil"),))
    world.service()
    world.mark()
    world.slice("echo-abc", Endpoint("10.1.1.5", (Port("http", 8080),)))
    for row in world.objects:
        if row.body:
            metadata = world.object(row.kind, row.name)["metadata"]
            assert "evil" not in {**metadata.get("labels", {}), **metadata["annotations"]}.values()


@pytest.mark.parametrize(
    "key",
    ["team", "example.org/tier", "app.kubernetes.io/name", "service.cilium.io/affinity", words.TOPOLOGY_MODE],
)
def test_what_people_and_load_balancing_use_does(world: World, key: str) -> None:
    world.export(annotations=((key, "fine"),))
    assert world.object("Service", DERIVED)["metadata"]["annotations"][key] == "fine"


class TestTheAddress:
    def test_is_asked_for_again_when_a_type_flips_back(self, world: World) -> None:
        world.export()
        world.imported()
        world.derived()
        world.imported(ips=("10.96.7.7",))
        assert "isthmus.io/cluster-ips" not in world.object("ServiceImport")["metadata"]["annotations"]
        world.export("c9", created=OLD, type="Headless")
        world.derived(headless=True, cluster_ips=())
        assert world.object("ServiceImport")["metadata"]["annotations"]["isthmus.io/cluster-ips"] == "10.96.7.7"
        world.imported(type="Headless")
        world.withdraw("c9")
        assert world.object("ServiceImport")["metadata"]["annotations"]["isthmus.io/cluster-ips"] == "10.96.7.7"
        world.imported()
        row = world.row("Service", DERIVED)
        assert row.recreate_uid == "service-uid"
        assert row.preferred == b'{"spec":{"clusterIP":"10.96.7.7","clusterIPs":["10.96.7.7"]}}'

    def test_is_asked_for_again_when_somebody_deletes_the_service(self, world: World) -> None:
        world.export()
        world.imported()
        world.derived()
        world.imported(ips=("10.96.7.7",))
        world.delete(tables.SERVICES, (ServiceName(DERIVED), "kubernetes"))
        assert b"10.96.7.7" in world.row("Service", DERIVED).preferred

    def test_that_was_never_had_is_not_asked_for(self, world: World) -> None:
        world.export()
        assert world.row("Service", DERIVED).preferred == b""

    @pytest.mark.parametrize("lie", ["10.96.7.7,evil", "fd00::7", "", "127.0.0.1/8"])
    def test_of_an_annotation_that_is_none_or_of_no_family_here_is_not_asked_for(self, world: World, lie: str) -> None:
        world.export()
        body = world.object("ServiceImport")["metadata"]["annotations"]
        world.imported(annotations=tuple(sorted({**body, "isthmus.io/cluster-ips": lie}.items())))
        asked = world.row("Service", DERIVED).preferred
        assert asked in (b"", b'{"spec":{"clusterIP":"10.96.7.7","clusterIPs":["10.96.7.7"]}}')


class TestTheQuota:
    def test_of_derived_services_bounds_what_peers_can_make(self) -> None:
        world = World(max_derived_services=3)
        for number in range(5):
            world.export(name=f"demo/s{number}")
        assert world.kinds.count("Service") == 3
        assert world.kinds.count("ServiceImport") == 5
        ready = world.condition("ServiceImport", "Ready", "demo/s4")
        assert ready is not None
        assert (ready["status"], ready["reason"]) == ("False", "QuotaExceeded")
        assert "clusterset.max_derived_services" in ready["message"]
        [event] = notices.about_object(None, world.row("ServiceImport", "demo/s4"))
        assert event.reason == "QuotaExceeded"

    def test_never_takes_a_service_that_is_there(self) -> None:
        world = World(max_derived_services=2)
        world.export(name="demo/s5")
        world.export(name="demo/s6")
        for name in ("demo/s5", "demo/s6"):
            world.imported(name)
            world.derived(derived(ServiceName(name)), import_of=ServiceName(name))
        world.export(name="demo/s1")
        assert {row.service for row in world.objects if row.kind == "Service"} == {"demo/s5", "demo/s6"}
        ready = world.condition("ServiceImport", "Ready", "demo/s1")
        assert ready is not None
        assert ready["reason"] == "QuotaExceeded"

    def test_gives_what_the_own_cluster_exports_its_service_first(self) -> None:
        world = World(max_derived_services=1)
        world.export(name="demo/a")
        world.service()
        world.mark()
        assert [row.service for row in world.objects if row.kind == "Service"] == ["demo/echo"]

    def flood(self, world: World, cluster: str, *namespaces: str, count: int) -> None:
        """So many exports of a cluster in each of these namespaces, by names that come first."""
        with world.db.write() as txn:
            for namespace in namespaces:
                txn.put(tables.NAMESPACES, Namespace(namespace))
                for number in range(count):
                    name = ServiceName(f"{namespace}/a{number}")
                    row = Export(cluster=ClusterName(cluster), name=name, created=OLD, ports=(HTTP,))
                    txn.put(tables.EXPORTS, row)
        world.settle()

    def test_a_namespace_that_exports_thousands_leaves_every_other_one_its_share(self) -> None:
        world = World(max_derived_services=50)
        self.flood(world, "c2", "aaa", count=2_000)
        world.export(name="demo/db")
        assert "demo/db" in {row.service for row in world.objects if row.kind == "Service"}
        assert world.kinds.count("Service") <= 50

    def test_a_peer_that_exports_into_every_namespace_leaves_other_peers_theirs(self) -> None:
        world = World(max_derived_services=50)
        self.flood(world, "c2", "aaa", "demo", "team", count=300)
        for number in range(10):
            world.export("c3", name=f"demo/db-{number}", created="2026-02-01T00:00:00Z")
        services = {row.service for row in world.objects if row.kind == "Service"}
        assert {f"demo/db-{number}" for number in range(10)} <= services

    def test_a_peer_that_exports_what_another_does_with_an_older_date_costs_it_no_service(self) -> None:
        world = World(max_derived_services=50)
        self.flood(world, "c2", "demo", count=300)
        world.export("c3", name="demo/db")
        world.export("c2", name="demo/db", created=OLD)
        assert "demo/db" in {row.service for row in world.objects if row.kind == "Service"}

    def test_has_room_again_when_an_export_goes(self) -> None:
        world = World(max_derived_services=1)
        world.export(name="demo/a")
        world.export(name="demo/b")
        world.withdraw(name="demo/a")
        assert [row.service for row in world.objects if row.kind == "Service"] == ["demo/b"]


class TestATakeover:
    def takeover(self, world: World, **fields: Any) -> list[str]:
        before = world.merged
        world.export("c9", created=OLD, **fields)
        return [each.message for each in notices.about_merged(before, world.merged, world.db.snapshot())]

    def test_by_an_older_date_is_an_event_of_the_import_and_the_own_export(self, world: World) -> None:
        world.service()
        world.mark()
        world.export()
        before = world.merged
        world.export("c9", created=OLD, type="Headless")
        found = list(notices.about_merged(before, world.merged, world.db.snapshot()))
        assert [(each.kind, each.reason) for each in found] == [
            ("ServiceImport", "FieldsTakenOver"),
            ("ServiceExport", "FieldsTakenOver"),
        ]
        assert found[0].message == (
            "the export of cluster c9, dated 1970-01-01T00:00:00Z, is older than that of c2 and decides now: "
            "type is Headless (was ClusterSetIP)"
        )

    def test_names_every_field(self, world: World) -> None:
        world.export(ports=(HTTP,))
        [message] = self.takeover(world, ports=(Port("http", 8080),), internal_policy="Local")
        assert "ports are http 8080/TCP (were http 80/TCP)" in message
        assert "internalTrafficPolicy is Local (was none)" in message

    def test_that_changes_nothing_is_no_event(self, world: World) -> None:
        world.export()
        assert self.takeover(world) == []

    def test_is_none_where_the_oldest_withdrew(self, world: World) -> None:
        world.export("c2")
        world.export("c3", created="2026-02-01T00:00:00Z", type="Headless")
        before = world.merged
        world.withdraw("c2")
        assert list(notices.about_merged(before, world.merged, world.db.snapshot())) == []

    def test_is_counted_by_cluster(self) -> None:
        counter = metrics.takeovers({ClusterName("c9"): 2})
        assert [(s.name, s.labels, s.value) for s in counter.samples if s.name.endswith("_total")] == [
            ("isthmus_operator_mcsapi_takeovers_total", {"cluster": "c9"}, 2)
        ]


class TestEndpoints:
    def publish(self, world: World, *endpoints: Endpoint, cluster: str = "c2") -> None:
        world.put(
            tables.ENDPOINT_SETS,
            EndpointSet(
                service=ServiceName(DERIVED),
                cluster=ClusterName(cluster),
                source="clusterset",
                part="record",
                endpoints=endpoints,
            ),
        )

    def ready(self, world: World) -> tuple[str, str] | None:
        found = world.condition("ServiceImport", "EndpointsReady")
        return (found["status"], found["reason"]) if found is not None else None

    def called(self, world: World) -> None:
        world.export()
        world.imported()
        world.derived()

    def test_an_import_without_any_ready_endpoint_says_so(self, world: World) -> None:
        self.called(world)
        assert self.ready(world) == ("False", "NoReadyEndpoints")
        self.publish(world, Endpoint("10.2.1.5", (Port("http", 8080),)))
        assert self.ready(world) is None
        self.publish(world)
        assert self.ready(world) == ("False", "NoReadyEndpoints")

    def test_endpoints_of_a_cluster_that_does_not_export_do_not_count(self, world: World) -> None:
        self.called(world)
        self.publish(world, Endpoint("10.3.1.5", (Port("http", 8080),)), cluster="c3")
        assert self.ready(world) == ("False", "NoReadyEndpoints")

    def test_own_endpoints_count_where_the_own_cluster_exports(self, world: World) -> None:
        world.service()
        world.mark()
        world.imported()
        world.derived()
        assert self.ready(world) == ("False", "NoReadyEndpoints")
        world.slice("echo-abc", Endpoint("10.1.1.5", (Port("http", 8080),)))
        assert self.ready(world) is None

    def test_an_import_that_cannot_be_called_yet_says_only_that(self, world: World) -> None:
        world.export()
        assert self.ready(world) is None

    def test_it_is_an_event_once(self, world: World) -> None:
        self.called(world)
        [event] = notices.about_object(None, world.row("ServiceImport"))
        assert event.reason == "NoReadyEndpoints"
        row = world.row("ServiceImport")
        assert list(notices.about_object(row, row)) == []
