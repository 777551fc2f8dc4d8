"""A cluster that does not take what another exports: what the exporter's ServiceExport shows, over real etcds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from clusters.apiserver_world import TOKEN, ApiServer, serving
from clusters.operator_process import Replicas, leading, replicas, until
from rows.mcs_world import World

from isthmus import kube
from isthmus.config import ClusterSection
from isthmus.kube.access import Access
from isthmus.kube.objects.core import NAMESPACE, SERVICE
from isthmus.kube.objects.mcs import SERVICE_EXPORT
from isthmus.kube.objects.meta import Condition
from isthmus.kube.transport import Transport
from isthmus.mcs import notices
from isthmus.model import tables
from isthmus.model.mcs import PeerRefusal, RefusedRecord
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.statedb import Status

NAME = ServiceName("demo/echo")


def refusal(cluster: str, *, name: str = NAME, kind: str = "serviceexports", message: str = "no room") -> PeerRefusal:
    return PeerRefusal(
        cluster=ClusterName(cluster),
        kind=kind,  # type: ignore[arg-type]
        name=ServiceName(name),
        reason="QuotaExceeded" if kind == "serviceexports" else "AddressNotAllowed",
        message=message,
    )


def test_an_export_that_peers_refuse_names_them_with_their_reasons(world: World) -> None:
    world.service()
    world.mark()
    assert world.condition("ServiceExport", "Refused") is None
    world.put(tables.PEER_REFUSALS, refusal("c3"))
    world.put(tables.PEER_REFUSALS, refusal("c2", name=derived(NAME), kind="services", message="10.9.9.9"))
    refused = world.condition("ServiceExport", "Refused")
    assert refused is not None
    assert (refused["status"], refused["reason"]) == ("True", "AddressNotAllowed,QuotaExceeded")
    assert refused["message"] == "cluster c2: 10.9.9.9; cluster c3: no room"
    world.delete(tables.PEER_REFUSALS, (ClusterName("c2"), "services", derived(NAME)))
    world.delete(tables.PEER_REFUSALS, (ClusterName("c3"), "serviceexports", NAME))
    assert world.condition("ServiceExport", "Refused") is None


def failure(kind: str, *, attempts: int = 3, error: str = "database space exceeded") -> Status[tuple[str, ServiceName]]:
    name = NAME if kind == "serviceexports" else derived(NAME)
    return Status((kind, name), f"etcd https://127.0.0.1:2379: {error}", attempts, 1.0)


def test_an_export_that_the_etcd_does_not_take_is_not_ready_and_has_why_and_the_cure(world: World) -> None:
    world.service()
    world.mark()
    before = world.row("ServiceExport")
    world.put(tables.RECORDS_STATUS, failure("serviceexports", attempts=2))
    assert world.condition("ServiceExport", "Unpublished") is None, "an etcd that elects a leader is no news"
    world.put(tables.RECORDS_STATUS, failure("serviceexports"))
    found, ready = (world.condition("ServiceExport", kind) for kind in ("Unpublished", "Ready"))
    assert found is not None
    assert ready is not None
    assert (found["status"], found["reason"]) == ("True", "EtcdFull")
    assert "the last change of the export is not published" in found["message"]
    assert "'isthmus keys' cures" in found["message"]
    assert (ready["status"], ready["reason"]) == ("False", "Pending")
    [event] = [each for each in notices.about_object(before, world.row("ServiceExport")) if each.type == "Warning"]
    assert event.reason == "Unpublished"
    world.delete(tables.RECORDS_STATUS, ("serviceexports", NAME))
    assert world.condition("ServiceExport", "Unpublished") is None
    assert world.row("ServiceExport") == before


def test_an_export_of_which_only_endpoints_are_not_published_stays_ready(world: World) -> None:
    world.service()
    world.mark()
    world.put(tables.RECORDS_STATUS, failure("services", error="failed to connect to all addresses"))
    found, ready = (world.condition("ServiceExport", kind) for kind in ("Unpublished", "Ready"))
    assert found is not None
    assert ready is not None
    assert (found["reason"], ready["status"]) == ("EtcdUnavailable", "True")
    assert "the last change of the endpoints is not published" in found["message"]


def test_a_retry_of_an_unpublished_export_computes_and_writes_nothing(world: World) -> None:
    world.service()
    world.mark()
    world.put(tables.RECORDS_STATUS, failure("serviceexports"))
    before, units = world.row("ServiceExport"), world.derivations.stats().units
    world.put(tables.RECORDS_STATUS, failure("serviceexports", attempts=9))
    assert (world.row("ServiceExport"), world.derivations.stats().units) == (before, units)


def test_an_export_names_its_labels_and_annotations_that_no_cluster_writes(world: World) -> None:
    world.service()
    world.mark(labels=(("team", "red"),), annotations=(("note", "free text"),))
    assert world.condition("ServiceExport", "MetadataOmitted") is None
    labels = (("istio.io/rev", "x"), ("team", "red"), ("text", "two words"))
    world.mark(labels=labels, annotations=(("a b", "x"), ("note", "free text"), ("page", "x" * 250_000)))
    omitted = world.condition("ServiceExport", "MetadataOmitted")
    assert omitted is not None
    assert (omitted["status"], omitted["reason"]) == ("True", "Invalid,Reserved,TooLarge")
    assert omitted["message"] == (
        "Invalid: label 'text', annotation 'a b'; Reserved: label 'istio.io/rev'; TooLarge: annotation 'page'"
    )
    [export] = [row for row in world.objects if row.kind == "ServiceExport"]
    assert ("Warning", "MetadataOmitted") in [(e.type, e.reason) for e in notices.about_object(None, export)]


def test_annotations_beyond_what_one_object_can_have_reach_no_object(world: World) -> None:
    """The API server takes 256 KiB of annotations, ours among them."""
    world.export("c2", annotations=(("a", "x" * 130_000), ("b", "\u00fc" * 64_000), ("c", "kept")))
    for kind, name in (("Service", derived(NAME)), ("ServiceImport", NAME)):
        found = world.object(kind, name)["metadata"]["annotations"]
        assert {"a", "c"} <= found.keys()
        assert "b" not in found


def test_a_refusal_of_an_export_that_does_not_exist_changes_nothing(world: World) -> None:
    world.service()
    world.mark()
    before = [(row.kind, row.name) for row in world.objects]
    world.put(tables.PEER_REFUSALS, refusal("c3", name="demo/other"))
    world.put(tables.PEER_REFUSALS, refusal("c3", name="kube-system/x"))
    world.mark(generation=2)
    world.mark()
    assert [(row.kind, row.name) for row in world.objects] == before
    assert world.condition("ServiceExport", "Refused") is None


def test_a_refusal_is_an_event_once_whatever_its_message_becomes(world: World) -> None:
    world.service()
    world.mark()
    before = world.row("ServiceExport")
    world.put(tables.PEER_REFUSALS, refusal("c3"))
    first = world.row("ServiceExport")
    [event] = notices.about_object(before, first)
    assert (event.type, event.reason, event.message) == ("Warning", "Refused", "QuotaExceeded: cluster c3: no room")
    world.put(tables.PEER_REFUSALS, refusal("c3", message="another"))
    assert list(notices.about_object(first, world.row("ServiceExport"))) == []


def test_an_import_of_which_records_are_refused_names_the_clusters_with_their_reasons(world: World) -> None:
    world.export("c2")
    assert world.condition("ServiceImport", "RecordsRefused") is None
    message = "40 of its 60 endpoints are taken"
    row = RefusedRecord(
        cluster=ClusterName("c2"), kind="services", name=derived(NAME), reason="QuotaExceeded", message=message
    )
    world.put(tables.REFUSED_RECORDS, row)
    found = world.condition("ServiceImport", "RecordsRefused")
    assert found is not None
    assert (found["status"], found["reason"], found["message"]) == ("True", "QuotaExceeded", f"cluster c2: {message}")
    world.delete(tables.REFUSED_RECORDS, tables.REFUSED_RECORDS.key(row))
    assert world.condition("ServiceImport", "RecordsRefused") is None


def test_an_import_over_the_quota_is_published_to_its_exporters() -> None:
    world = World(max_derived_services=1)
    world.export("c2", name="demo/a")
    world.export("c3", name="demo/b", created="2026-02-01T00:00:00Z")
    [row] = world.db.snapshot().all(tables.REFUSALS)
    assert row.cluster == "c3"
    assert b'"name":"demo/b"' in row.value
    assert b"derived Services of cluster c1" in row.value
    world.withdraw("c2", name="demo/a")
    assert list(world.db.snapshot().all(tables.REFUSALS)) == []


class Cluster(NamedTuple):
    """A cluster of its own: an API server, an etcd, and where operators start."""

    section: ClusterSection
    server: ApiServer
    operators: Replicas

    def client(self) -> kube.Client:
        return kube.Client(Transport(Access(server=self.server.url, tls=self.server.trust, token=TOKEN)))

    def joined(self, peer: Cluster, **options: object) -> None:
        file = {"endpoints": [peer.server.etcd.endpoint], "cluster-id": peer.section.id, **options}
        (self.operators.peers / peer.section.name).write_text(yaml.safe_dump(file))


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[tuple[Cluster, Cluster]]:
    """c1 and c2."""
    with serving(tmp_path / "one") as one, serving(tmp_path / "two") as two:
        (tmp_path / "c1").mkdir()
        (tmp_path / "c2").mkdir()
        with (
            replicas(tmp_path / "c1", etcd=one.etcd.endpoint, kubernetes=one.section) as first,
            replicas(tmp_path / "c2", etcd=two.etcd.endpoint, kubernetes=two.section) as second,
        ):
            yield Cluster(ClusterSection("c1", 1), one, first), Cluster(ClusterSection("c2", 2), two, second)


@pytest.mark.slow
async def test_a_peers_refusal_of_an_export_reaches_the_exporter_and_goes_when_the_peer_takes_it(
    clusters: tuple[Cluster, Cluster],
) -> None:
    c1, c2 = clusters
    c1.joined(c2, namespaces=["other"])
    c2.joined(c1)
    async with c1.client() as of_c1, c2.client() as of_c2:
        for client in (of_c1, of_c2):
            await client.create(NAMESPACE, "", {"metadata": {"name": "demo"}})
        spec = {"ports": [{"name": "http", "port": 80}]}
        await of_c2.create(SERVICE, "demo", {"metadata": {"name": "echo"}, "spec": spec})
        await of_c2.create(SERVICE_EXPORT, "demo", {"metadata": {"name": "echo"}})
        for each in clusters:
            await leading(each.operators.start(cluster=each.section))

        async def refused() -> Condition | None:
            export = await of_c2.get(SERVICE_EXPORT, "echo", "demo")
            conditions = (export.status.conditions if export.status is not None else None) or []
            return next((each for each in conditions if each.type == "Refused"), None)

        await until(refused)
        found = await refused()
        assert found is not None
        assert (found.status, found.reason) == ("True", "NamespaceNotAllowed")
        assert found.message == "cluster c1: cluster c2 may not publish in namespace demo"
        c1.joined(c2)

        async def taken() -> bool:
            return await refused() is None

        await until(taken)
