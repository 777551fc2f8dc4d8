"""Events and metrics of exports and imports."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from rows.mcs_world import World

from isthmus import metrics as catalogue
from isthmus.desired.drafts import conditions
from isthmus.mcs import events, metrics, notices
from isthmus.mcs.notices import Notice
from isthmus.model import tables
from isthmus.model.clusters import Cluster
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.objects import Object
from isthmus.model.services import Port
from isthmus.statedb import Database, Status

DERIVED = "demo/derived-qieggqc27v"


class Kept:
    """A recorder that keeps events: kind, name, uid, type, reason, message."""

    def __init__(self) -> None:
        self.events: list[tuple[str, ...]] = []

    def record(
        self, kind: Any, *, namespace: str, name: str, uid: str, reason: str, message: str, type: str = ""
    ) -> None:
        self.events.append((kind.kind, f"{namespace}/{name}", uid, type, reason, message))

    @property
    def reasons(self) -> list[str]:
        return [event[4] for event in self.events]


def noticed(world: World, *, after: Callable[[], None]) -> list[tuple[str, str]]:
    """Reason and message of the notices that a change gives, each object's last state known before."""
    before = {(row.kind, row.name): row for row in world.objects}
    after()
    found = [each for row in world.objects for each in notices.about_object(before.get((row.kind, row.name)), row)]
    return [(each.reason, each.message) for each in found]


class TestEvents:
    def test_an_export_is_reported_once(self, world: World) -> None:
        world.service()
        assert noticed(world, after=world.mark) == [("Exported", "Service demo/echo is offered to the clusterset")]
        assert noticed(world, after=lambda: world.mark(generation=2)) == []

    def test_an_invalid_export_has_its_reason(self, world: World) -> None:
        assert noticed(world, after=world.mark) == [("NoService", "there is no Service demo/echo")]

    def test_a_conflict_is_reported_when_it_comes_when_it_changes_and_when_it_goes(self, world: World) -> None:
        world.service()
        world.mark()
        [(reason, message)] = noticed(world, after=lambda: world.export("c2", type="Headless"))
        assert (reason, message[:22]) == ("Conflict", "TypeConflict: type: 1/")
        [(_, changed)] = noticed(world, after=lambda: world.export("c2", type="Headless", ports=(Port("http", 81),)))
        assert changed.startswith("PortConflict,TypeConflict: ")
        assert noticed(world, after=lambda: world.export("c2")) == [("NoConflicts", "all exporting clusters agree")]

    def test_an_import_that_only_waits_for_its_address_gives_none(self, world: World) -> None:
        assert noticed(world, after=world.export) == []

    def test_an_import_of_a_family_that_is_not_here_gives_one(self, world: World) -> None:
        found = noticed(world, after=lambda: world.export(families=("IPv6",)))
        assert found == [("IPFamilyNotSupported", "this cluster has IPv4 only")]

    def test_an_import_whose_services_name_is_taken_gives_one(self, world: World) -> None:
        world.export()
        [(reason, message)] = noticed(world, after=lambda: world.service(DERIVED))
        assert reason == "ServiceNameTaken"
        assert message == f"Service {DERIVED} exists and is not managed by isthmus-operator"

    def test_an_import_whose_cluster_is_away_gives_one(self, world: World) -> None:
        world.export()
        stale = Cluster(name=ClusterName("c2"), state="stale")
        [(reason, _)] = noticed(world, after=lambda: world.put(tables.CLUSTERS, stale))
        assert reason == "ClusterUnreachable"

    def test_a_write_that_fails_is_reported_at_the_third_time_and_then_only_if_it_fails_otherwise(
        self, world: World
    ) -> None:
        world.export()
        key = ("Service", ServiceName(DERIVED))

        def failing(attempts: int, error: str = "no") -> Status[tuple[str, ServiceName]]:
            return Status(key, error, attempts, 0.0)

        now = world.db.snapshot()
        assert list(notices.about_failure(now, None, failing(1))) == []
        [found] = notices.about_failure(now, failing(2), failing(3))
        assert found == Notice("ServiceImport", ServiceName("demo/echo"), "Warning", "NotWritten", "no")
        assert list(notices.about_failure(now, failing(3), failing(4))) == []
        [found] = notices.about_failure(now, failing(4), failing(5, "never"))
        assert found.message == "never"

    def test_what_an_earlier_process_wrote_into_the_status_is_not_reported_again(self, world: World) -> None:
        world.service()
        world.mark()
        world.export("c2", type="Headless", created="2020-01-01T00:00:00Z")
        row = world.row("ServiceExport")
        found = conditions(row.status)
        assert [each.reason for each in notices.about_object(None, row)] == ["Exported", "Conflict"]
        assert list(notices.about_object(None, row, conditions=found)) == []
        world.withdraw("c2")
        [notice] = notices.about_object(None, world.row("ServiceExport"), conditions=found)
        assert notice.reason == "NoConflicts"

    async def test_an_event_names_the_object_and_waits_for_its_import(self, world: World) -> None:
        recorder = Kept()
        recording = asyncio.ensure_future(events.Notifier(world.db, recorder, Counter()).run())
        world.service()
        world.mark()
        world.export("c2", families=("IPv6",), created="2020-01-01T00:00:00Z")
        await until(lambda: len(recorder.events) == 2)
        assert sorted(recorder.reasons) == ["Conflict", "Exported"]
        assert {found[:3] for found in recorder.events} == {("ServiceExport", "demo/echo", "mark-uid")}
        world.imported()
        await until(lambda: len(recorder.events) == 3)
        assert recorder.events[-1][:5] == (
            "ServiceImport",
            "demo/echo",
            "import-uid",
            "Warning",
            "IPFamilyNotSupported",
        )
        recording.cancel()
        with pytest.raises(asyncio.CancelledError):
            await recording


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


def test_metrics_show_exports_imports_their_conditions_and_clusters(world: World) -> None:
    world.service()
    world.mark()
    world.export("c2")
    world.export("c2", name="demo/other")
    samples = {
        (sample.name.removeprefix("isthmus_operator_mcsapi_"), *sample.labels.values()): sample.value
        for family in metrics.families(world.db.snapshot())
        for sample in family.samples
    }
    assert samples == {
        ("serviceexport_info", "echo", "demo"): 1,
        ("serviceexport_status_condition", "echo", "demo", "Valid", "True", "Valid"): 1,
        ("serviceexport_status_condition", "echo", "demo", "Ready", "True", "Ready"): 1,
        ("serviceexport_status_condition", "echo", "demo", "Conflict", "False", "NoConflicts"): 1,
        ("serviceimport_info", "echo", "demo"): 1,
        ("serviceimport_info", "other", "demo"): 1,
        ("serviceimport_status_condition", "echo", "demo", "Ready", "False", "Pending"): 1,
        ("serviceimport_status_condition", "other", "demo", "Ready", "False", "Pending"): 1,
        ("serviceimport_status_clusters", "echo", "demo"): 2,
        ("serviceimport_status_clusters", "other", "demo"): 1,
    }


def test_a_namespace_with_ever_more_exports_has_bounded_series_and_leaves_those_of_others() -> None:
    count, status = 3 * catalogue.SERIES, b'{"conditions":[{"type":"Valid","status":"False","reason":"NoService"}]}'
    names = [f"a-tenant/{n}" for n in range(count)] + [f"demo/{n}" for n in range(5)]
    db = Database(tables.OBJECTS)
    with db.write() as txn:
        for kind in ("ServiceExport", "ServiceImport"):
            txn.put_all(
                tables.OBJECTS, [Object(kind=kind, name=ServiceName(n), body=b"", status=status) for n in names]
            )
    for family in metrics.families(db.snapshot()):
        assert len(family.samples) <= catalogue.SERIES + 1
        shown = {each.labels["namespace"]: 0.0 for each in family.samples}
        for each in family.samples:
            shown[each.labels["namespace"]] += 1
        assert shown["demo"] == 5
        if not family.name.endswith("status_clusters"):
            assert sum(each.value for each in family.samples) == len(names), "others are counted"
