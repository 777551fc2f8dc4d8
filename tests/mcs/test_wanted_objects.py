"""What the operator of cluster c1 wants of its API server, as what it knows changes.

Whole objects stand in ``expected/`` as JSON; ``ISTHMUS_UPDATE_EXPECTED=1`` writes them anew.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rows.mcs_world import HTTP, World

from isthmus.desired import MANAGED_BY, MANAGER
from isthmus.desired.difference import difference
from isthmus.mcs import KINDS, words
from isthmus.model import tables
from isthmus.model.clusters import Cluster
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.services import GLOBAL, Condition, Endpoint, Family, Namespace, Port

EXPECTED = Path(__file__).parent / "expected"
DERIVED = "demo/derived-qieggqc27v"
POD = Endpoint("10.1.1.5", (Port("http", 8080),), pod="demo/echo-1", node="n1")


def check(world: World, name: str) -> None:
    """Everything wanted is what the file has."""
    found: list[Any] = []
    for row in world.objects:
        each = msgspec.json.decode(row.body) if row.body else {"kind": row.kind, "name": row.name}
        found.append({**each, **({"status": msgspec.json.decode(row.status)} if row.status else {})})
    text = msgspec.json.format(msgspec.json.encode(found, order="sorted"), indent=2).decode() + "\n"
    path = EXPECTED / f"{name}.json"
    if os.environ.get("ISTHMUS_UPDATE_EXPECTED") == "1":
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize(
    ("name", "hashed"),
    [
        ("default/full", "9jo8ljlgl7"),
        ("default/my-svc", "b8s174v3sn"),
        ("test/echo", "h8gu71nsf1"),
        ("my-ns/my-svc", "a2v4k9sqn6"),
    ],
)
def test_a_derived_service_is_called_as_in_every_implementation(name: str, hashed: str) -> None:
    namespace = name.partition("/")[0]
    assert derived(ServiceName(name)) == f"{namespace}/derived-{hashed}"


class TestLifecycle:
    def test_nothing_is_wanted_of_a_service_that_nobody_exports(self, world: World) -> None:
        world.service()
        world.slice("echo-abc", POD)
        assert world.objects == []

    def test_another_clusters_export_makes_an_import_without_a_local_service(self, world: World) -> None:
        world.export("c2", labels=(("team", "red"),), annotations=(("note", "hi"),))
        check(world, "import_only")

    def test_an_own_export_makes_all_objects(self, world: World) -> None:
        world.service(affinity="ClientIP", affinity_timeout=42)
        world.mark(labels=(("team", "red"),))
        world.slice("echo-abc", POD)
        check(world, "own_export")

    def test_the_derived_services_address_becomes_the_imports(self, world: World) -> None:
        world.export()
        world.imported()
        world.derived()
        check(world, "import_ready")

    def test_unexported_everywhere_leaves_nothing(self, world: World) -> None:
        world.service()
        world.mark()
        world.slice("echo-abc", POD)
        world.export("c2")
        world.withdraw("c2")
        assert world.kinds == ["EndpointSlice", "Service", "ServiceExport", "ServiceImport"]
        world.delete(tables.EXPORT_MARKS, ServiceName("demo/echo"))
        assert world.objects == []

    def test_unexported_here_keeps_the_import_of_others_without_own_endpoints(self, world: World) -> None:
        world.service()
        world.mark()
        world.slice("echo-abc", POD)
        world.export("c2")
        world.delete(tables.EXPORT_MARKS, ServiceName("demo/echo"))
        assert world.kinds == ["Service", "ServiceImport"]
        assert world.status("ServiceImport")["clusters"] == [{"cluster": "c2"}]

    def test_a_withdrawn_export_is_as_if_it_had_never_been(self, world: World) -> None:
        world.export("c3", created="2026-01-05T00:00:00Z")
        before = world.objects
        world.export("c2", type="Headless", labels=(("team", "red"),))
        assert world.objects != before
        world.withdraw("c2")
        assert world.objects == before

    def test_an_own_record_coming_back_from_a_peer_is_not_counted_twice(self, world: World) -> None:
        world.export("c1")
        assert world.objects == []

    def test_an_import_stays_while_its_cluster_cannot_be_reached_and_says_so(self, world: World) -> None:
        world.export()
        world.put(tables.CLUSTERS, Cluster(name=ClusterName("c2"), state="ready"))
        assert world.condition("ServiceImport", "Stale") is None
        world.put(tables.CLUSTERS, Cluster(name=ClusterName("c2"), state="stale"))
        stale = world.condition("ServiceImport", "Stale")
        assert stale is not None
        assert stale["status"] == "True"
        assert stale["message"] == "not reachable: c2; what they last published still counts"
        assert "Service" in world.kinds
        world.put(tables.CLUSTERS, Cluster(name=ClusterName("c2"), state="silent"))
        silent = world.condition("ServiceImport", "Stale")
        assert silent is not None
        assert (silent["reason"], silent["message"]) == (
            "ClusterSilent",
            "without a publisher: c2; what they last published still counts",
        )
        world.put(tables.CLUSTERS, Cluster(name=ClusterName("c2"), state="ready"))
        assert world.condition("ServiceImport", "Stale") is None


class TestNamespaces:
    def test_nothing_is_imported_into_a_namespace_that_does_not_exist(self, world: World) -> None:
        world.export(name="later/echo")
        assert world.objects == []

    def test_a_namespace_that_appears_later_gets_its_imports(self, world: World) -> None:
        world.export(name="later/echo")
        world.put(tables.NAMESPACES, Namespace("later"))
        assert world.row("ServiceImport", "later/echo")

    def test_nothing_is_wanted_in_a_namespace_that_ends(self, world: World) -> None:
        world.export()
        world.put(tables.NAMESPACES, Namespace("demo", terminating=True))
        assert world.objects == []

    @pytest.mark.parametrize(("content", "shared"), [("true", True), ("True", True), ("1", False), ("false", False)])
    def test_a_namespace_says_whether_it_takes_part(self, world: World, content: str, shared: bool) -> None:
        world.put(tables.NAMESPACES, Namespace("demo", annotations=(("clustermesh.cilium.io/global", content),)))
        world.export()
        ready = world.condition("ServiceImport", "Ready")
        assert ready is not None
        assert ready["reason"] == ("Pending" if shared else "NamespaceNotGlobal")
        assert ("Service" in world.kinds) == shared

    def test_without_annotation_the_clusters_default_decides(self) -> None:
        world = World(default_global=False)
        world.service()
        world.mark()
        valid = world.condition("ServiceExport", "Valid")
        assert valid is not None
        assert valid["reason"] == "NamespaceNotGlobal"
        assert world.merged is None

    def test_an_export_of_a_namespace_not_global_is_not_merged(self, world: World) -> None:
        world.put(tables.NAMESPACES, Namespace("demo", annotations=(("clustermesh.cilium.io/global", "false"),)))
        world.service()
        world.mark()
        world.export("c2")
        assert world.status("ServiceImport")["clusters"] == [{"cluster": "c2"}]


class TestExportConditions:
    def test_a_valid_export_is_ready_and_without_conflict(self, world: World) -> None:
        world.service()
        world.mark(generation=3)
        assert world.status("ServiceExport")["conditions"] == [
            {"type": "Valid", "status": "True", "reason": "Valid", "message": "", "observedGeneration": 3},
            {"type": "Ready", "status": "True", "reason": "Ready", "message": "", "observedGeneration": 3},
            {"type": "Conflict", "status": "False", "reason": "NoConflicts", "message": "", "observedGeneration": 3},
        ]

    def test_conflicts_are_reported_to_the_winner_too_all_in_one_condition(self, world: World) -> None:
        world.service()
        world.mark(created="2025-01-01T00:00:00Z")
        world.export("c2", type="Headless", ports=(Port("http", 8080),))
        conflict = world.condition("ServiceExport", "Conflict")
        assert conflict == {
            "type": "Conflict",
            "status": "True",
            "reason": "PortConflict,TypeConflict",
            "message": "ports: c2 has http 8080/TCP (in use: http 80/TCP of c1). "
            "type: 1/2 clusters disagree: c2 has Headless; in use: ClusterSetIP of c1, the oldest export",
            "observedGeneration": 1,
        }

    def test_an_export_without_service_is_invalid_and_says_nothing_of_conflicts(self, world: World) -> None:
        world.mark()
        check(world, "export_without_service")

    def test_an_external_name_is_not_exported(self, world: World) -> None:
        world.service(type="ExternalName")
        world.mark()
        assert world.kinds == ["ServiceExport"]
        valid = world.condition("ServiceExport", "Valid")
        assert valid is not None
        assert valid["reason"] == "InvalidServiceType"

    def test_a_dangling_export_does_not_block_the_import_of_others(self, world: World) -> None:
        world.mark()
        world.export("c2")
        assert world.kinds == ["Service", "ServiceExport", "ServiceImport"]
        assert world.status("ServiceImport")["clusters"] == [{"cluster": "c2"}]

    def test_what_is_imported_is_not_exported_again(self, world: World) -> None:
        world.export()
        world.imported()
        world.derived()
        world.mark(DERIVED)
        valid = world.condition("ServiceExport", "Valid", DERIVED)
        assert valid is not None
        assert valid["reason"] == "InvalidServiceType"


class TestTheDerivedService:
    def test_headless_imports_have_no_address_and_are_ready_without(self, world: World) -> None:
        world.export(type="Headless")
        assert world.object("Service", DERIVED)["spec"]["clusterIP"] == "None"
        world.imported(type="Headless")
        world.derived(headless=True, cluster_ips=())
        assert world.object("ServiceImport")["spec"]["ips"] == []
        ready = world.condition("ServiceImport", "Ready")
        assert ready is not None
        assert ready["status"] == "True"

    def test_a_type_that_flips_makes_the_service_anew(self, world: World) -> None:
        world.export()
        world.imported()
        world.derived()
        assert world.row("Service", DERIVED).recreate_uid == ""
        world.export(type="Headless")
        assert world.row("Service", DERIVED).recreate_uid == "service-uid"

    def test_an_import_has_the_type_and_addresses_of_its_service_until_that_is_made_anew(self, world: World) -> None:
        world.export()
        world.imported()
        world.derived()
        world.export(type="Headless")
        spec = world.object("ServiceImport")["spec"]
        assert (spec["type"], spec["ips"]) == ("ClusterSetIP", ["10.96.7.7"])
        ready = world.condition("ServiceImport", "Ready")
        assert ready is not None
        assert (ready["status"], ready["reason"]) == ("False", "Pending")
        world.derived(headless=True, cluster_ips=())
        spec = world.object("ServiceImport")["spec"]
        assert (spec["type"], spec["ips"]) == ("Headless", [])

    def test_somebody_elses_service_of_its_name_gives_no_address(self, world: World) -> None:
        world.export()
        world.service(DERIVED)
        ready = world.condition("ServiceImport", "Ready")
        assert ready is not None
        assert ready["message"] == f"Service {DERIVED} exists and is not managed by isthmus-operator"
        assert world.object("ServiceImport")["spec"]["ips"] == []
        assert words.DERIVED_SERVICE not in world.object("ServiceImport")["metadata"]["annotations"]

    def test_addresses_are_one_of_each_family_in_the_imports_order(self, dual: World) -> None:
        dual.export(families=("IPv6", "IPv4"))
        dual.imported()
        dual.derived(cluster_ips=("10.96.7.7", "fd00::7"))
        assert dual.object("ServiceImport")["spec"]["ips"] == ["fd00::7", "10.96.7.7"]

    def test_families_that_the_cluster_lacks_are_left_out(self, world: World) -> None:
        world.export(families=("IPv6", "IPv4"))
        spec = world.object("ServiceImport")["spec"]
        annotations = world.object("ServiceImport")["metadata"]["annotations"]
        assert spec["ipFamilies"] == ["IPv6", "IPv4"]
        assert annotations[words.SUPPORTED_FAMILIES] == "IPv4"

    def test_an_import_of_no_family_that_the_cluster_has_is_not_called(self, world: World) -> None:
        world.export(families=("IPv6",))
        assert world.kinds == ["ServiceImport"]
        ready = world.condition("ServiceImport", "Ready")
        assert ready is not None
        assert ready["reason"] == "IPFamilyNotSupported"
        assert world.object("ServiceImport")["metadata"]["annotations"][words.SUPPORTED_FAMILIES] == ""

    def test_labels_that_the_api_server_refuses_reach_no_object(self, world: World) -> None:
        """It would refuse the whole object, again and again, and with it the exports of all other clusters."""
        pairs = (("a b", "c"), ("good", "1"), ("sp", "a b"), ("x/y/z", "1"), ("long", "a" * 64), ("\n", ""))
        world.export(labels=pairs, annotations=pairs)
        meta = world.object("Service", DERIVED)["metadata"]
        assert meta["labels"] == {"good": "1", words.SERVICE_NAME: "echo"}
        assert {key for key in meta["annotations"] if "/" not in key} == {"good", "sp", "long"}

    def test_an_import_without_a_port_is_not_called_and_headless_ones_need_none(self, world: World) -> None:
        """A port that is out of bounds is left out of a record, also the only one; a Service must have one."""
        world.export(ports=())
        assert world.kinds == ["ServiceImport"]
        ready = world.condition("ServiceImport", "Ready")
        assert ready is not None
        assert ready["reason"] == "NoPorts"
        world.export(ports=(), type="Headless")
        assert "Service" in world.kinds

    @pytest.mark.parametrize(
        ("exported", "had", "families", "policy", "remade"),
        [
            (("IPv6", "IPv4"), (), ["IPv6", "IPv4"], "PreferDualStack", False),
            (("IPv4",), (), ["IPv4"], "SingleStack", False),
            (("IPv6", "IPv4"), ("IPv4",), ["IPv4", "IPv6"], "PreferDualStack", False),
            (("IPv4", "IPv6"), ("IPv6", "IPv4"), ["IPv6", "IPv4"], "PreferDualStack", False),
            (("IPv6",), ("IPv6", "IPv4"), ["IPv6"], "SingleStack", False),
            (("IPv6",), ("IPv4", "IPv6"), ["IPv6"], "SingleStack", True),
        ],
    )
    def test_the_derived_service_has_the_imports_families_and_keeps_the_address_it_has(
        self,
        dual: World,
        exported: tuple[Family, ...],
        had: tuple[Family, ...],
        families: list[str],
        policy: str,
        remade: bool,
    ) -> None:
        dual.export(families=had or exported)
        dual.imported()
        if had:
            dual.derived(families=had)
        dual.export(families=exported)
        spec = dual.object("Service", DERIVED)["spec"]
        assert (spec["ipFamilies"], spec["ipFamilyPolicy"]) == (families, policy)
        assert bool(dual.row("Service", DERIVED).recreate_uid) == remade

    def test_where_nobody_says_a_family_the_clusters_own_are_taken(self, dual: World) -> None:
        dual.export(families=())
        annotations = dual.object("ServiceImport")["metadata"]["annotations"]
        assert annotations[words.SUPPORTED_FAMILIES] == "IPv4,IPv6"
        assert "ipFamilies" not in dual.object("ServiceImport")["spec"]

    def test_exported_annotations_reach_it_but_never_override_ours(self, world: World) -> None:
        world.export(annotations=(("service.cilium.io/affinity", "local"), (GLOBAL, "false")))
        annotations = world.object("Service", DERIVED)["metadata"]["annotations"]
        assert annotations["service.cilium.io/affinity"] == "local"
        assert annotations[GLOBAL] == "true"

    def test_a_peer_cannot_export_what_others_act_on(self, world: World) -> None:
        annotations = ((words.DERIVED_SERVICE, "kube-dns"), (MANAGED_BY, "me"), ("note", "hi"))
        world.export(labels=((words.HEADLESS, ""), ("team", "red")), annotations=annotations)
        found = world.object("ServiceImport")["metadata"]
        assert found["annotations"] == {
            "note": "hi",
            MANAGED_BY: MANAGER,
            words.SUPPORTED_FAMILIES: "IPv4",
        }
        assert found["labels"] == {"team": "red"}
        assert world.object("Service", DERIVED)["metadata"]["labels"] == {"team": "red", words.SERVICE_NAME: "echo"}

    def test_it_is_controlled_by_its_import(self, world: World) -> None:
        world.export()
        assert world.row("Service", DERIVED).owner == ("ServiceImport", "demo/echo", "")
        world.imported()
        assert world.row("Service", DERIVED).owner == ("ServiceImport", "demo/echo", "import-uid")


class TestMirroredSlices:
    def export_here(self, world: World, **fields: Any) -> None:
        world.service(**fields)
        world.mark()

    def slices(self, world: World) -> dict[str, dict[str, Any]]:
        found = [msgspec.json.decode(row.body) for row in world.objects if row.kind == "EndpointSlice"]
        return {each["metadata"]["name"]: each for each in found}

    def test_each_slice_has_its_mirror(self, world: World) -> None:
        self.export_here(world)
        world.slice("echo-abc", POD)
        world.slice("echo-xyz", Endpoint("10.1.1.6", POD.ports))
        assert list(self.slices(world)) == ["derived-qieggqc27v-abc", "derived-qieggqc27v-xyz"]

    def test_a_changed_endpoint_changes_one_mirror(self, world: World) -> None:
        self.export_here(world)
        world.slice("echo-abc", POD)
        world.slice("echo-xyz", Endpoint("10.1.1.6", POD.ports))
        before = self.slices(world)
        world.slice("echo-xyz", Endpoint("10.1.1.6", POD.ports, Condition.NOT_READY))
        after = self.slices(world)
        assert [name for name in after if after[name] != before[name]] == ["derived-qieggqc27v-xyz"]

    def test_a_slice_that_goes_takes_its_mirror_along(self, world: World) -> None:
        self.export_here(world)
        world.slice("echo-abc", POD)
        world.delete(tables.ENDPOINT_SETS, ("demo/echo", "c1", "kubernetes", "echo-abc"))
        assert self.slices(world) == {}

    def test_conditions_hostname_zone_and_hints_are_kept(self, world: World) -> None:
        self.export_here(world)
        endpoint = Endpoint(
            "10.1.1.5",
            POD.ports,
            Condition.TERMINATING,
            hostname="web-0",
            node="n1",
            zone="z1",
            for_zones=("z1", "z2"),
            pod="demo/web-0",
        )
        world.slice("echo-abc", endpoint)
        [mirror] = self.slices(world).values()
        assert mirror["endpoints"] == [
            {
                "addresses": ["10.1.1.5"],
                "conditions": {"ready": False, "serving": True, "terminating": True},
                "hostname": "web-0",
                "nodeName": "n1",
                "zone": "z1",
                "hints": {"forZones": [{"name": "z1"}, {"name": "z2"}]},
                "targetRef": {"kind": "Pod", "namespace": "demo", "name": "web-0"},
            }
        ]

    def test_a_port_that_disagrees_with_the_import_is_left_out(self, world: World) -> None:
        self.export_here(world, ports=(HTTP, Port("admin", 9000)))
        world.export("c2", ports=(HTTP, Port("admin", 9999)))
        world.slice("echo-abc", Endpoint("10.1.1.5", (Port("admin", 9000), Port("http", 8080))))
        [mirror] = self.slices(world).values()
        assert mirror["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}]

    def test_where_no_port_agrees_there_is_no_mirror(self, world: World) -> None:
        self.export_here(world)
        world.slice("echo-abc", POD)
        world.export("c2", ports=(Port("http", 8080),))
        assert self.slices(world) == {}

    def test_a_renamed_port_keeps_its_mirror_until_the_slice_follows(self, world: World) -> None:
        self.export_here(world, ports=(Port("web", 80),))
        world.slice("echo-abc", POD)
        [mirror] = self.slices(world).values()
        assert mirror["ports"] == [{"name": "web", "port": 8080, "protocol": "TCP"}]

    def test_a_headless_service_without_ports_is_mirrored_for_its_names(self, world: World) -> None:
        self.export_here(world, ports=(), headless=True, cluster_ips=())
        world.slice("echo-abc", Endpoint("10.1.1.5", (), hostname="web-0"))
        [mirror] = self.slices(world).values()
        assert mirror["ports"] == []
        assert mirror["metadata"]["labels"][words.HEADLESS] == ""

    def test_a_family_that_the_import_lacks_is_not_mirrored(self, dual: World) -> None:
        self.export_here(dual)
        dual.slice("echo-v6", Endpoint("fd00::5", POD.ports))
        assert self.slices(dual) == {}

    def test_many_endpoints_are_a_hundred_a_slice(self, world: World) -> None:
        self.export_here(world)
        world.slice("echo-abc", *(Endpoint(f"10.1.{n // 200}.{n % 200}", POD.ports) for n in range(250)))
        sizes = {name: len(each["endpoints"]) for name, each in self.slices(world).items()}
        assert sum(sizes.values()) == 250
        assert max(sizes.values()) <= 100
        assert "derived-qieggqc27v-abc" in sizes

    def test_a_source_that_is_not_called_like_the_service_keeps_its_name(self, world: World) -> None:
        self.export_here(world)
        world.slice("by-hand", POD)
        assert list(self.slices(world)) == ["derived-qieggqc27v-by-hand"]

    def test_a_name_over_the_limit_is_shortened_and_still_tells_sources_apart(self, world: World) -> None:
        self.export_here(world)
        world.slice("x" * 250 + "-a", POD)
        world.slice("x" * 250 + "-b", Endpoint("10.1.1.6", POD.ports))
        names = list(self.slices(world))
        assert len(names) == 2
        assert all(len(name) <= 253 for name in names)

    def test_sources_that_would_give_one_name_give_two(self, world: World) -> None:
        self.export_here(world)
        world.slice("echo-abc", POD)
        world.slice("abc", Endpoint("10.1.1.6", POD.ports))
        assert len(self.slices(world)) == 2


class TestWhatIsSeen:
    def test_every_field_that_is_written_is_also_read(self, dual: World) -> None:
        """Or it would differ for ever: what the server has is compared as our structs read it."""
        dual.service(affinity="ClientIP", affinity_timeout=42, families=("IPv4", "IPv6"), distribution="PreferClose")
        dual.mark(labels=(("team", "red"),))
        where: dict[str, Any] = {
            "hostname": "web-0",
            "node": "n1",
            "zone": "z1",
            "for_zones": ("z1",),
            "pod": "demo/web-0",
        }
        dual.slice("echo-abc", Endpoint("10.1.1.5", (Port("http", 8080, "TCP", "http"),), **where))
        assert {row.kind for row in dual.objects} == set(KINDS)
        for row in dual.objects:
            ownership = KINDS[row.kind]
            body = msgspec.json.decode(row.body) if row.body else {"metadata": {"name": "echo"}}
            body |= {"status": msgspec.json.decode(row.status)} if row.status else {}
            read = msgspec.json.encode(msgspec.convert(body, ownership.kind.struct))
            assert difference(body, msgspec.json.decode(read), ownership) == {}

    def test_an_object_that_is_as_wanted_is_seen_so(self, world: World) -> None:
        world.service()
        world.mark()
        world.slice("echo-abc", POD)
        world.imported()
        world.derived()
        found = world.object("ServiceImport")
        annotations = tuple(sorted({**found["metadata"]["annotations"], "kubectl": "x"}.items()))
        world.imported(ips=("10.96.7.7",), families=("IPv4",), internal_policy="Cluster", annotations=annotations)
        world.slice("derived-qieggqc27v-abc", POD, service=DERIVED)
        assert {row.kind: row.seen for row in world.objects if row.body} == {
            "ServiceImport": "=",
            "Service": "=",
            "EndpointSlice": "=",
        }

    def test_an_edit_of_what_is_ours_changes_the_row(self, world: World) -> None:
        world.export()
        world.imported(families=("IPv4",))
        before = world.row("ServiceImport")
        assert before.seen == "="
        world.imported(families=("IPv4",), ports=(Port("http", 81),))
        after = world.row("ServiceImport")
        assert after.body == before.body
        assert after.seen not in ("", "=")

    def test_an_edit_that_comes_back_before_our_write_was_seen_changes_the_row_again(self, world: World) -> None:
        """The watch shows our write and its revert in one batch: the content is as it was, the version is not."""
        world.export()
        edit: dict[str, Any] = {"families": ("IPv4",), "ports": (Port("http", 81),)}
        world.imported(**edit)
        before = world.row("ServiceImport")
        world.imported(**edit)
        assert world.row("ServiceImport") != before

    def test_a_removed_import_is_wanted_anew(self, world: World) -> None:
        world.export()
        world.imported()
        world.delete(tables.IMPORTS, ServiceName("demo/echo"))
        assert world.row("ServiceImport").seen == ""
