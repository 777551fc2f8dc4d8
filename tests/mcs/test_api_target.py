"""What the target asks of an API server: how often, in which order, and what it leaves alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from clusters.fake_apiserver import FakeApiServer, running, status
from rows.mcs_world import World

from isthmus import kube
from isthmus.desired import MANAGED_BY, MANAGER, ApiTarget
from isthmus.kube.access import Access
from isthmus.kube.transport import Transport
from isthmus.mcs import KINDS
from isthmus.model import tables
from isthmus.model.names import ServiceName
from isthmus.model.objects import Object
from isthmus.model.services import Endpoint, Port
from isthmus.statedb import NotPruned

ROOT = "/apis/multicluster.x-k8s.io/v1beta1"
IMPORT = f"{ROOT}/namespaces/demo/serviceimports/echo"
EXPORT = f"{ROOT}/namespaces/demo/serviceexports/echo"
SERVICE = "/api/v1/namespaces/demo/services/derived-qieggqc27v"
SLICE = "/apis/discovery.k8s.io/v1/namespaces/demo/endpointslices/derived-qieggqc27v-abc"
DERIVED = "demo/derived-qieggqc27v"
OURS = {"annotations": {MANAGED_BY: MANAGER}}


class Clock:
    def __init__(self) -> None:
        self.time = "2026-01-01T00:00:00Z"

    def __call__(self) -> str:
        return self.time


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with running() as server:
        server.served = {
            ROOT: ["serviceimports", "serviceexports"],
            "/apis/discovery.k8s.io/v1": ["endpointslices"],
        }
        yield server


@pytest.fixture
async def client(server: FakeApiServer) -> AsyncIterator[kube.Client]:
    async with kube.Client(Transport(Access(server=server.url))) as client:
        yield client


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def target(client: kube.Client, clock: Clock) -> ApiTarget:
    return ApiTarget(client, KINDS, timestamp=clock)


def exported(world: World) -> list[Object]:
    """All objects of an own export with one endpoint."""
    world.service()
    world.mark()
    world.slice("echo-abc", Endpoint("10.1.1.5", (Port("http", 8080),)))
    return world.objects


def asked(server: FakeApiServer) -> list[str]:
    """Verbs and the last of each path, without what the client asks once about versions."""
    content = [verb for verb in server.verbs() if not verb.endswith("v1beta1")]
    server.asked.clear()
    return [f"{verb.split()[0]} {verb.removesuffix('/status').rpartition('/')[2]}" for verb in content]


def condition(server: FakeApiServer, path: str, type: str) -> dict[str, Any]:
    [found] = [c for c in server.objects[path]["status"]["conditions"] if c["type"] == type]
    return dict(found)


async def test_all_objects_of_an_export_are_made_owner_before_owned(
    server: FakeApiServer, target: ApiTarget, world: World
) -> None:
    server.put(EXPORT)
    assert await target.update(exported(world)) == {}
    assert asked(server) == [
        "PATCH echo",
        "PATCH echo",
        "PATCH derived-qieggqc27v",
        "PATCH derived-qieggqc27v-abc",
        "GET echo",
        "PATCH echo",
    ]
    [owner] = server.objects[SERVICE]["metadata"]["ownerReferences"]
    assert owner == {
        "apiVersion": "multicluster.x-k8s.io/v1beta1",
        "kind": "ServiceImport",
        "name": "echo",
        "uid": server.objects[IMPORT]["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    [owner] = server.objects[SLICE]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Service", server.objects[SERVICE]["metadata"]["uid"])


async def test_requests_name_us_as_field_manager(server: FakeApiServer, target: ApiTarget, world: World) -> None:
    world.export()
    await target.update(world.objects)
    patches = [request for request in server.asked if request.method == "PATCH"]
    assert {request.query["fieldManager"] for request in patches} == {"isthmus-operator"}
    assert {request.headers["content-type"] for request in patches} == {"application/apply-patch+yaml"}


async def test_an_object_seen_as_it_was_written_costs_no_request(
    server: FakeApiServer, target: ApiTarget, world: World
) -> None:
    world.export()
    await target.update(world.objects)
    asked(server)
    world.imported(families=("IPv4",), uid=server.objects[IMPORT]["metadata"]["uid"])
    assert world.row("ServiceImport").seen == "="
    assert await target.update(world.objects) == {}
    assert [verb for verb in asked(server) if verb.endswith(" echo")] == []


async def test_what_an_earlier_process_wrote_and_is_as_it_should_be_costs_no_request(
    server: FakeApiServer, client: kube.Client, target: ApiTarget, world: World
) -> None:
    world.export()
    await target.update(world.objects)
    asked(server)
    world.imported(families=("IPv4",), uid=server.objects[IMPORT]["metadata"]["uid"])
    again = ApiTarget(client, KINDS)
    assert await again.update([world.row("ServiceImport")]) == {}
    assert asked(server) == []
    world.export(ports=(Port("http", 80), Port("more", 81)))
    assert await again.update([world.row("ServiceImport")]) == {}
    assert asked(server) == ["GET echo", "PATCH echo"]


async def test_an_edited_object_is_written_again(server: FakeApiServer, target: ApiTarget, world: World) -> None:
    world.export()
    await target.update(world.objects)
    asked(server)
    world.imported(families=("IPv4",), ports=(Port("http", 81),))
    await target.update([world.row("ServiceImport")])
    assert asked(server) == ["PATCH echo"]


async def test_an_older_api_is_written_where_the_server_has_no_newer(
    server: FakeApiServer, target: ApiTarget, world: World
) -> None:
    old = "/apis/multicluster.x-k8s.io/v1alpha1"
    server.served = {old: ["serviceimports", "serviceexports"]}
    world.export()
    assert await target.update(world.objects) == {}
    assert f"{old}/namespaces/demo/serviceimports/echo" in server.objects
    assert server.objects[SERVICE]["metadata"]["ownerReferences"][0]["apiVersion"] == "multicluster.x-k8s.io/v1alpha1"


class TestForeignObjects:
    async def test_somebody_elses_import_is_left_and_nothing_is_built_on_it(
        self, server: FakeApiServer, target: ApiTarget, world: World
    ) -> None:
        server.put(IMPORT, spec={"type": "Headless"})
        world.export()
        assert await target.update(world.objects) == {
            ("ServiceImport", "demo/echo"): "ServiceImport demo/echo exists and is not managed by isthmus-operator: "
            "left as it is",
            ("Service", DERIVED): "waits for ServiceImport demo/echo, which is not managed by isthmus-operator",
        }
        assert server.objects[IMPORT]["spec"] == {"type": "Headless"}
        assert SERVICE not in server.objects

    async def test_somebody_elses_service_of_the_derived_name_is_left(
        self, server: FakeApiServer, target: ApiTarget, world: World
    ) -> None:
        server.put(SERVICE, spec={"clusterIP": "10.96.0.1"})
        world.export()
        failures = await target.update(world.objects)
        assert failures == {
            ("Service", DERIVED): f"Service {DERIVED} exists and is not managed by isthmus-operator: left as it is"
        }
        assert server.objects[SERVICE]["spec"] == {"clusterIP": "10.96.0.1"}

    async def test_one_made_in_the_place_of_ours_is_left(
        self, server: FakeApiServer, target: ApiTarget, world: World
    ) -> None:
        world.export()
        await target.update(world.objects)
        server.remove(SERVICE)
        server.put(SERVICE, spec={"clusterIP": "10.96.0.1"})
        assert ("Service", DERIVED) in await target.update(world.objects)
        await target.delete(world.objects)
        assert server.objects[SERVICE]["spec"] == {"clusterIP": "10.96.0.1"}


class TestStatus:
    async def test_a_condition_keeps_its_time_while_its_status_stays(
        self, server: FakeApiServer, target: ApiTarget, world: World, clock: Clock
    ) -> None:
        server.put(EXPORT)
        await target.update(exported(world))
        clock.time = "2026-01-02T00:00:00Z"
        world.export("c2", type="Headless", created="2027-01-01T00:00:00Z")
        await target.update(world.objects)
        assert condition(server, EXPORT, "Valid")["lastTransitionTime"] == "2026-01-01T00:00:00Z"
        assert condition(server, EXPORT, "Conflict")["lastTransitionTime"] == "2026-01-02T00:00:00Z"
        assert condition(server, EXPORT, "Conflict")["reason"] == "TypeConflict"

    async def test_another_process_keeps_the_times_too(
        self, server: FakeApiServer, client: kube.Client, target: ApiTarget, world: World, clock: Clock
    ) -> None:
        server.put(EXPORT)
        await target.update(exported(world))
        clock.time = "2026-01-02T00:00:00Z"
        await ApiTarget(client, KINDS, timestamp=clock).update(world.objects)
        assert condition(server, EXPORT, "Valid")["lastTransitionTime"] == "2026-01-01T00:00:00Z"
        assert condition(server, IMPORT, "Ready")["lastTransitionTime"] == "2026-01-01T00:00:00Z"

    async def test_the_status_of_an_export_that_went_is_no_failure(self, target: ApiTarget, world: World) -> None:
        world.service()
        world.mark()
        assert await target.update([world.row("ServiceExport")]) == {}

    async def test_an_export_made_anew_is_reported_anew(
        self, server: FakeApiServer, target: ApiTarget, world: World
    ) -> None:
        server.put(EXPORT)
        world.service()
        world.mark(uid=server.objects[EXPORT]["metadata"]["uid"])
        await target.update([world.row("ServiceExport")])
        server.remove(EXPORT)
        server.put(EXPORT)
        world.mark(uid=server.objects[EXPORT]["metadata"]["uid"])
        await target.update([world.row("ServiceExport")])
        assert condition(server, EXPORT, "Valid")["status"] == "True"

    async def test_an_export_is_never_deleted(self, server: FakeApiServer, target: ApiTarget, world: World) -> None:
        server.put(EXPORT)
        world.mark()
        row = world.row("ServiceExport")
        await target.update([row])
        assert await target.delete([row]) == {}
        assert EXPORT in server.objects


class TestRemoval:
    async def test_all_goes_owned_before_owner(self, server: FakeApiServer, target: ApiTarget, world: World) -> None:
        server.put(EXPORT)
        rows = exported(world)
        await target.update(rows)
        asked(server)
        assert await target.delete(rows) == {}
        assert asked(server) == ["DELETE derived-qieggqc27v-abc", "DELETE derived-qieggqc27v", "DELETE echo"]
        assert list(server.objects) == [EXPORT]

    async def test_what_another_process_wrote_is_found_and_removed(
        self, server: FakeApiServer, client: kube.Client, target: ApiTarget, world: World
    ) -> None:
        world.export()
        await target.update(world.objects)
        assert await ApiTarget(client, KINDS).delete(world.objects) == {}
        assert server.objects == {}

    async def test_what_is_gone_is_no_failure(self, target: ApiTarget, world: World) -> None:
        world.export()
        assert await target.delete(world.objects) == {}

    async def test_pruning_removes_what_an_earlier_process_left_and_nothing_of_others(
        self, server: FakeApiServer, client: kube.Client, target: ApiTarget, world: World
    ) -> None:
        world.export()
        await target.update(world.objects)
        left = f"{ROOT}/namespaces/demo/serviceimports/left"
        server.put(left, metadata=OURS)
        server.put(f"{ROOT}/namespaces/demo/serviceimports/foreign")
        server.put("/api/v1/namespaces/demo/services/echo")
        assert await ApiTarget(client, KINDS).prune(world.objects) == "1 pruned"
        assert left not in server.objects
        assert len(server.objects) == 4

    async def test_pruning_asks_to_be_tried_again_where_the_server_is_away(
        self, server: FakeApiServer, client: kube.Client
    ) -> None:
        left = f"{ROOT}/namespaces/demo/serviceimports/left"
        server.put(left, metadata=OURS)
        server.fail(status(503, "ServiceUnavailable"), on=lambda r: r.path.endswith("/serviceimports"))
        with pytest.raises(NotPruned, match="0 pruned, then: list serviceimports: 503 ServiceUnavailable"):
            await ApiTarget(client, KINDS).prune([])
        assert await ApiTarget(client, KINDS).prune([]) == "1 pruned"


class TestTrouble:
    async def test_one_name_that_fails_does_not_stop_another(
        self, server: FakeApiServer, target: ApiTarget, world: World
    ) -> None:
        world.export()
        world.export(name="demo/other")
        server.fail(status(500, "InternalError"), on=lambda r: r.method == "PATCH" and r.path == IMPORT)
        failures = await target.update(world.objects)
        assert [kind for kind, _ in failures] == ["ServiceImport", "Service"]
        assert "500 InternalError" in str(failures)
        assert f"{ROOT}/namespaces/demo/serviceimports/other" in server.objects
        assert await target.update(world.objects) == {}
        assert SERVICE in server.objects

    async def test_a_value_that_an_older_api_server_does_not_know_costs_the_field_and_not_the_object(
        self, server: FakeApiServer, target: ApiTarget, world: World
    ) -> None:
        world.export(distribution="PreferSameNode")
        refusal = 'Service is invalid: spec.trafficDistribution: Unsupported value: "PreferSameNode"'
        server.fail(status(422, "Invalid", refusal), on=lambda r: b"PreferSameNode" in r.body and r.path == SERVICE)
        assert "Unsupported value" in str(await target.update(world.objects))
        assert await target.update(world.objects) == {}
        assert "trafficDistribution" not in server.objects[SERVICE]["spec"]
        assert server.objects[IMPORT]["spec"]["trafficDistribution"] == "PreferSameNode"
        server.asked.clear()
        assert await target.update(world.objects) == {}
        assert {request.method for request in server.asked} == {"GET"}, "it is as wanted, as far as it can be here"

    @pytest.mark.parametrize(("refusals", "given"), [(0, True), (4, True), (9, False)])
    async def test_an_address_that_is_released_a_moment_later_is_asked_for_again(
        self, server: FakeApiServer, target: ApiTarget, world: World, refusals: int, given: bool
    ) -> None:
        world.export()
        world.imported()
        world.derived()
        world.imported(ips=("10.96.7.7",))
        world.delete(tables.SERVICES, (ServiceName(DERIVED), "kubernetes"))
        refusal = 'spec.clusterIPs: Invalid value: ["10.96.7.7"]: provided IP is already allocated'
        for _ in range(refusals):
            server.fail(status(422, "Invalid", refusal), on=lambda r: r.path == SERVICE and b"10.96.7.7" in r.body)
        assert await target.update(world.objects) == {}
        assert (server.objects[SERVICE]["spec"].get("clusterIP") == "10.96.7.7") == given

    async def test_a_namespace_that_is_ending_is_no_failure(
        self, server: FakeApiServer, target: ApiTarget, world: World
    ) -> None:
        world.export()
        why = "unable to create new content in namespace demo because it is being terminated"
        for _ in range(2):
            server.fail(status(403, "Forbidden", why), on=lambda r: r.method == "PATCH")
        assert await target.update([world.row("ServiceImport")]) == {}

    async def test_other_refusals_are(self, server: FakeApiServer, target: ApiTarget, world: World) -> None:
        world.export()
        server.fail(status(403, "Forbidden", "no"), on=lambda r: r.method == "PATCH")
        assert "403 Forbidden: no" in str(await target.update([world.row("ServiceImport")]))

    async def test_a_type_that_flips_removes_the_service_and_makes_it_anew(
        self, server: FakeApiServer, target: ApiTarget, world: World
    ) -> None:
        world.export()
        await target.update(world.objects)
        uid = server.objects[SERVICE]["metadata"]["uid"]
        world.imported()
        world.derived(uid=uid)
        world.export(type="Headless")
        asked(server)
        await target.update([world.row("Service", DERIVED)])
        assert asked(server) == ["DELETE derived-qieggqc27v", "PATCH derived-qieggqc27v"]
        assert server.objects[SERVICE]["metadata"]["uid"] != uid
        assert server.objects[SERVICE]["spec"]["clusterIP"] == "None"

    async def test_an_import_removed_by_hand_comes_back_and_its_service_follows_it(
        self, server: FakeApiServer, target: ApiTarget, world: World
    ) -> None:
        world.export()
        await target.update(world.objects)
        world.imported(uid=server.objects[IMPORT]["metadata"]["uid"])
        await target.update(world.objects)
        server.remove(IMPORT)
        world.delete(tables.IMPORTS, ServiceName("demo/echo"))
        await target.update(world.objects)
        uid = server.objects[IMPORT]["metadata"]["uid"]
        assert [each["uid"] for each in server.objects[SERVICE]["metadata"]["ownerReferences"]] == [uid]


@pytest.mark.parametrize("count", [40])
async def test_a_batch_is_written_side_by_side_but_each_name_in_order(
    server: FakeApiServer, client: kube.Client, world: World, count: int
) -> None:
    for number in range(count):
        world.export(name=f"demo/s{number}")
    assert await ApiTarget(client, KINDS, at_once=8).update(world.objects) == {}
    assert len(server.connections) <= 8
    for row in world.objects:
        path = (
            f"{ROOT}/namespaces/demo/serviceimports/"
            if row.kind == "ServiceImport"
            else "/api/v1/namespaces/demo/services/"
        )
        name = row.name.partition("/")[2]
        stored = server.objects[path + name]
        assert stored["metadata"]["name"] == name
        assert stored["kind"] == msgspec.json.decode(row.body)["kind"]
