"""Beside Karmada in one member: what it wrote is never collected, published, mirrored or written, but it is served."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from clusters.fake_apiserver import FakeApiServer, running
from clusters.karmada_world import DATA, Line, Member, recording
from msgspec import structs

from isthmus import kube
from isthmus.clusterset.records import endpoints
from isthmus.desired import ApiTarget
from isthmus.kube.access import Access
from isthmus.kube.objects.meta import Meta
from isthmus.kube.transport import Transport
from isthmus.loadbalancer.explain import explain
from isthmus.loadbalancer.selection import Place
from isthmus.mcs import KINDS, notices
from isthmus.model import tables
from isthmus.model.clusters import UNATTENDED, Cluster, PeerState
from isthmus.model.drains import Drain, Draining
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Endpoint, EndpointSet, Export, Port
from isthmus.sources import karmada

BOOKS = "books.demo.svc.clusterset.local"
OURS = "derived-6le7su2f1r"
IMPORT = "/apis/multicluster.x-k8s.io/v1beta1/namespaces/demo/serviceimports/books"


def exported(member: Member, *clusters: str) -> None:
    for cluster in clusters:
        row = Export(
            cluster=ClusterName(cluster),
            name=ServiceName("demo/books"),
            created="2026-01-01T00:00:00Z",
            ports=(Port("http", 80),),
            families=("IPv4",),
        )
        member.put(tables.EXPORTS, row)


def our_import(**fields: Any) -> dict[str, Any]:
    """The import as the operator had written it before Karmada came."""
    annotations = {
        "isthmus.io/managed-by": "isthmus-operator",
        "clustermesh.cilium.io/supported-ip-families": "IPv4",
        "multicluster.kubernetes.io/derived-service": OURS,
    }
    ports = [{"name": "http", "port": 80, "protocol": "TCP"}]
    return {
        "apiVersion": "multicluster.x-k8s.io/v1beta1",
        "kind": "ServiceImport",
        "metadata": {
            "name": "books",
            "namespace": "demo",
            "uid": "import-uid",
            "resourceVersion": "1000",
            "annotations": annotations,
        },
        "spec": {
            "type": "ClusterSetIP",
            "ips": ["10.96.92.2"],
            "ports": ports,
            "ipFamilies": ["IPv4"],
            "sessionAffinity": "None",
        },
        "status": {"clusters": [{"cluster": "c1"}, {"cluster": "c2"}]},
        **fields,
    }


def our_service() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": OURS,
            "namespace": "demo",
            "uid": "service-uid",
            "resourceVersion": "1001",
            "labels": {"multicluster.kubernetes.io/service-name": "books"},
            "annotations": {"isthmus.io/managed-by": "isthmus-operator"},
            "ownerReferences": [{"kind": "ServiceImport", "name": "books", "uid": "import-uid"}],
        },
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "10.96.92.2",
            "clusterIPs": ["10.96.92.2"],
            "ipFamilies": ["IPv4"],
            "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
        },
    }


class TestAnImportThatBothWant:
    """The recording ``import-meets-ours``: Karmada's ServiceImport upon ours, and 37 rewrites in 0.6 s."""

    def replay(self) -> Member:
        member = Member("c3")
        exported(member, "c1", "c2")
        member.object("ADDED", our_import())
        member.object("ADDED", our_service())
        return member

    def test_the_name_resolves_throughout_to_an_address_with_endpoints(self) -> None:
        member = self.replay()
        assert member.resolved(BOOKS) == ("10.96.92.2",)
        for line in recording("import-meets-ours.c3"):
            if line.event:
                member.object(line.event, line.object)
            assert member.resolved(BOOKS) in (("10.96.92.2",), ("10.96.85.161",))
        assert member.resolved(BOOKS) == ("10.96.85.161",)
        assert member.endpoints("demo/derived-books") == {
            "10.1.1.14": "c1",
            "10.1.1.15": "c1",
            "10.2.1.5": "c2",
            "10.2.1.6": "c2",
        }

    def test_nothing_of_the_import_is_written_once_it_is_karmadas(self) -> None:
        member = self.replay()
        writes = 0
        for line in recording("import-meets-ours.c3"):
            before = member.operator.db.snapshot().get(tables.OBJECTS, ("ServiceImport", ServiceName("demo/books")))
            if line.event:
                member.object(line.event, line.object)
            row = member.operator.db.snapshot().get(tables.OBJECTS, ("ServiceImport", ServiceName("demo/books")))
            assert row is not None, "a row that goes would be removed from the API server"
            writes += row != before and bool(row.body)
        assert writes <= 1
        assert "ServiceImport" not in {row.kind for row in member.wanted()}

    def test_the_service_that_callers_know_stays_and_none_is_made(self) -> None:
        member = self.replay()
        for line in recording("import-meets-ours.c3"):
            if line.event:
                member.object(line.event, line.object)
        assert [row.name for row in member.wanted() if row.kind == "Service"] == [f"demo/{OURS}"]
        member.object("DELETED", our_service())
        assert [row.name for row in member.wanted() if row.kind == "Service"] == []

    def test_it_is_an_event_of_the_import(self) -> None:
        [line] = [line for line in recording("import-meets-ours.c3") if line.object.get("kind") == "ServiceImport"][:1]
        member = self.replay()
        before = member.operator.db.snapshot().get(tables.IMPORTS, ServiceName("demo/books"))
        member.object(line.event, line.object)
        after = member.operator.db.snapshot().get(tables.IMPORTS, ServiceName("demo/books"))
        [event] = notices.about_import_row(before, after)
        assert (event.kind, event.reason) == ("ServiceImport", "LeftToKarmada")
        assert "served" in event.message
        assert "derived-books" in event.message
        assert list(notices.about_import_row(after, after)) == []

    def test_the_own_exports_condition_has_it(self) -> None:
        member = self.replay()
        for line in recording("import-meets-ours.c3"):
            if line.event:
                member.object(line.event, line.object)
        meta = {"name": "books", "namespace": "demo", "uid": "mark", "resourceVersion": "1"}
        body = {"metadata": {**meta, "creationTimestamp": "2026-01-01T00:00:00Z"}}
        member.object("ADDED", {"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport", **body})
        plain = our_service()
        plain["metadata"] = {**meta, "uid": "s"}
        member.object("ADDED", plain)
        [row] = [row for row in member.wanted() if row.kind == "ServiceExport"]
        assert b"ServiceImport demo/books is written by Karmada" in row.status


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with running() as server:
        server.served = {
            "/apis/multicluster.x-k8s.io/v1beta1": ["serviceimports", "serviceexports"],
            "/apis/discovery.k8s.io/v1": ["endpointslices"],
        }
        yield server


async def test_an_import_that_karmada_took_over_is_neither_written_nor_removed_nor_pruned(
    server: FakeApiServer,
) -> None:
    member = Member("c3")
    exported(member, "c1")
    async with kube.Client(Transport(Access(server=server.url))) as client:
        target = ApiTarget(client, KINDS)
        rows = [row for row in member.operator.db.snapshot().all(tables.OBJECTS) if row.kind == "ServiceImport"]
        assert await target.update(rows) == {}
        taken = {**server.objects[IMPORT]["metadata"], "labels": {"karmada.io/managed": "true"}}
        theirs = server.put(IMPORT, metadata=taken, spec={"type": "ClusterSetIP", "ports": []})
        body = {**theirs, "apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceImport"}
        member.object("MODIFIED", body)
        rows = [row for row in member.operator.db.snapshot().all(tables.OBJECTS) if row.kind == "ServiceImport"]
        server.asked.clear()
        assert await target.update(rows) == {}
        assert await target.delete(rows) == {}
        assert await target.prune([]) == "0 pruned"
        assert {request.method for request in server.asked} <= {"GET"}
        assert server.objects[IMPORT] == theirs


class TestAServiceThatBothSpread:
    """The recording ``global-and-mcs``: a Service global by annotation that a MultiClusterService claims."""

    def test_nothing_is_written_beside_it_and_nothing_of_karmadas_is_published(self) -> None:
        member = Member("c2")
        for line in recording("global-and-mcs.c2"):
            if line.event and "isthmus" not in str(line.object["metadata"].get("annotations", "")):
                member.object(line.event, line.object)
            assert [row.name for row in member.wanted() if row.kind == "EndpointSlice"] == []
            for record in member.records().values():
                assert all(address.startswith("10.2.") for address in record.get("backends", ()))

    def test_it_is_an_event_of_the_service(self) -> None:
        member = Member("c2")
        service = next(line for line in recording("global-and-mcs.c2") if line.object.get("kind") == "Service")
        member.object("ADDED", service.object)
        row = member.operator.db.snapshot().get(tables.SERVICES, (ServiceName("demo/shop"), "kubernetes"))
        [event] = notices.about_service_row(None, row)
        assert (event.kind, event.reason) == ("Service", "LeftToKarmada")
        assert "MultiClusterService shop" in event.message
        assert list(notices.about_service_row(row, row)) == []

    def test_at_scale_0_nothing_is_left(self) -> None:
        member = Member("c2")
        for line in recording("global-and-mcs.c2"):
            if line.step == "MultiClusterService deleted":
                break
            ours = "isthmus" in str(line.object.get("metadata", {})) or "046ecf" in str(line.object)
            if line.event and not ours:  # what followed from slices of ours, which are not written any more
                member.object(line.event, line.object)
        assert member.endpoints("demo/shop") == {}


RECORDINGS = sorted(path.stem for path in DATA.glob("*.jsonl"))


def karmadas(name: str) -> Iterator[Line]:
    """A recording without what our own operator had written, which is not part of what Karmada did."""
    for line in recording(name):
        if not line.event or not ("isthmus.io" in str(line.object) or "046ecf" in str(line.object)):
            yield line


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_endpoint_is_one_backend_under_its_provider_at_every_step(name: str) -> None:
    cluster = name.rpartition(".")[2]
    member, seen = Member(cluster), 0
    for line in karmadas(name):
        if not line.event:
            continue
        member.object(line.event, line.object)
        for service in ("demo/shop", "demo/derived-books", "demo/derived-shop"):
            for address, of in member.endpoints(service).items():
                assert address.split(".")[1] == of.removeprefix("c"), f"at {line.time} s"
                seen += 1
    assert seen


@pytest.mark.parametrize("name", RECORDINGS)
def test_no_object_that_karmada_manages_is_ever_written(name: str) -> None:
    """Nor are they with an import, records of peers and a global Service beside them."""
    member = Member(name.rpartition(".")[2])
    exported(member, "c1", "c2")
    managed: set[tuple[str, str]] = set()
    for line in recording(name):
        if not line.event:
            continue
        meta, kind = line.object["metadata"], line.object["kind"]
        managed.discard((kind, f"{meta['namespace']}/{meta['name']}"))
        theirs = line.event != "DELETED" and meta.get("labels", {}).get("karmada.io/managed") == "true"
        if theirs and kind != "ServiceExport":  # conditions of exports are ours to write
            managed.add((kind, f"{meta['namespace']}/{meta['name']}"))
        member.object(line.event, line.object)
        assert not managed & {(row.kind, row.name) for row in member.wanted()}, f"at {line.time} s"


def test_the_name_of_an_import_of_karmadas_resolves_for_as_long_as_it_is_there() -> None:
    member, resolved = Member("c3"), 0
    needed = {("ServiceImport", "books"): False, ("Service", "derived-books"): False}
    for line in karmadas("export-import.c3"):
        if not line.event:
            continue
        member.object(line.event, line.object)
        key = line.object["kind"], line.object["metadata"]["name"]
        if key in needed:
            needed[key] = line.event != "DELETED"
        assert len(member.resolved(BOOKS)) == all(needed.values()), f"at {line.time} s"
        resolved += all(needed.values())
    assert resolved > 5
    assert not any(needed.values())


def test_native_names_follow_the_providers_as_karmada_brings_their_endpoints() -> None:
    member = Member("c3")
    seen: dict[str, dict[str, str]] = {}
    for line in recording("mcs-crosscluster.c3"):
        if line.step:
            seen[line.step] = member.endpoints("demo/shop")
        else:
            member.object(line.event, line.object)
    assert seen["scale Deployment to 6"] == {"10.1.1.5": "c1", "10.1.1.6": "c1", "10.2.1.4": "c2"}
    assert set(seen["back to c1 and c2, 2:1, 3 replicas"].values()) == {"c2"}
    assert set(seen["provider c1 back"].values()) == {"c2"}
    assert seen["consumer c3 back"] == {}
    assert member.endpoints("demo/shop") == {}


@pytest.mark.parametrize(
    ("name", "service", "annotation", "provider"),
    [
        ("c1-shop-g45tp", "shop", "c1", "c1"),
        ("imported-c1-books-hcksr", "derived-books", "", "c1"),
        ("imported-a-books-hcksr", "derived-books", "", "a"),
        ("imported-a-b-books-hcksr", "derived-books", "", "a-b"),
        ("imported-a-b-books-hcksr", "derived-b-books", "", "a"),
        ("imported-a-books-books-hcksr", "derived-books", "", "a-books"),
        ("imported-c1-books", "derived-books", "", "c1"),
        ("imported-books-hcksr", "derived-books", "", None),
        ("somebody-else", "derived-books", "", None),
        ("imported-C1-books-hcksr", "derived-books", "", None),
    ],
)
def test_the_provider_of_a_slice(name: str, service: str, annotation: str, provider: str | None) -> None:
    meta = Meta(
        name=name,
        namespace="demo",
        labels={
            "kubernetes.io/service-name": service,
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.karmada.io",
        },
        annotations={"endpointslice.karmada.io/provision-cluster": annotation} if annotation else None,
    )
    assert karmada.dispatched(meta)
    assert karmada.provider(meta) == provider


def crosscluster(member: Member, *, until: str) -> None:
    for line in recording("mcs-crosscluster.c3"):
        if line.step == until:
            return
        if line.event:
            member.object(line.event, line.object)


def test_a_record_of_a_cluster_is_right_about_all_its_endpoints() -> None:
    member = Member("c3")
    crosscluster(member, until="scale Deployment to 2")
    assert set(member.endpoints("demo/shop").values()) == {"c1", "c2"}
    row = record("c1", "10.1.1.99")
    member.agent.put(tables.ENDPOINT_SETS, row)
    assert [address for address, of in member.endpoints("demo/shop").items() if of == "c1"] == ["10.1.1.99"]
    assert "c2" in member.endpoints("demo/shop").values()
    with member.agent.db.write() as txn:
        txn.delete(tables.ENDPOINT_SETS, tables.ENDPOINT_SETS.key(row))
    member.agent.settle()
    assert len([of for of in member.endpoints("demo/shop").values() if of == "c1"]) == 4


def record(cluster: str, *addresses: str, shared: bool = False) -> EndpointSet:
    """What a cluster publishes of demo/shop, which a MultiClusterService claims there; shared: it is global as well."""
    return EndpointSet(
        service=ServiceName("demo/shop"),
        cluster=ClusterName(cluster),
        source="clusterset",
        part="record",
        endpoints=tuple(Endpoint(address, (Port("http", 8080),)) for address in addresses),
        shared=shared,
    )


def provider_c2() -> Member:
    """c2, when Karmada has just made it a provider of demo/shop, which it calls too."""
    member = Member("c2")
    for line in recording("mcs-crosscluster.c2"):
        if line.step == "scale Deployment to 2":
            break
        if line.event:
            member.object(line.event, line.object)
    return member


def global_shop() -> dict[str, Any]:
    """The Service of a cluster that Karmada has no part in: its owner wants to call those of every cluster."""
    [body] = [line.object for line in recording("global-and-mcs.c2") if line.object.get("kind") == "Service"][:1]
    meta = {"name": "shop", "namespace": "demo", "uid": "c9", "resourceVersion": "1"}
    annotations = {"service.cilium.io/global": "true", "service.cilium.io/global-sync-endpoint-slices": "true"}
    return {**body, "metadata": {**meta, "annotations": annotations}}


def test_what_a_provider_publishes_is_taken_by_claimed_services_and_by_no_global_one() -> None:
    """The claim is Karmada's: whoever owns the Service has not consented to calls of the rest of the clusterset."""
    published = provider_c2().records()["services:demo/shop"]
    assert published["shared"] is False, "Cilium takes none that is not shared"
    value, name = json.dumps(published).encode(), ServiceName("demo/shop")
    row = endpoints.decode(value, cluster=ClusterName("c2"), cluster_id=3, name=name)
    assert row is not None
    outsider, consumer = Member("c9"), Member("c3")
    outsider.object("ADDED", global_shop())
    crosscluster(consumer, until="scale Deployment to 6")
    for member in (outsider, consumer):
        member.put(tables.ENDPOINT_SETS, row)
    assert outsider.endpoints("demo/shop") == {}
    assert [each.name for each in outsider.wanted() if each.kind == "EndpointSlice"] == []
    of_c2 = {address for address, of in consumer.endpoints("demo/shop").items() if of == "c2"}
    assert of_c2 == set(published["backends"])
    outsider.put(tables.ENDPOINT_SETS, structs.replace(row, shared=True))
    assert set(outsider.endpoints("demo/shop")) == of_c2, "those of a Service that is global there"
    assert [each.kind for each in outsider.wanted()] == ["EndpointSlice"]


def test_a_provider_that_declines_to_share_publishes_nothing_of_a_native_name() -> None:
    member = provider_c2()
    [body] = [line.object for line in recording("mcs-crosscluster.c2") if line.object.get("kind") == "Service"][:1]
    meta = body["metadata"]
    claim = {"multiclusterservice.karmada.io/name": "shop"}
    for value, there in (("false", False), ("true", True)):
        changed = {**meta, "annotations": {**claim, "service.cilium.io/shared": value}}
        member.object("MODIFIED", {**body, "metadata": changed})
        assert ("services:demo/shop" in member.records()) == there


def test_a_record_that_is_not_for_a_service_hides_no_slices_from_it() -> None:
    """The consumer's Service is global as well: it takes what is shared, and else what Karmada brought."""
    member = Member("c3")
    crosscluster(member, until="scale Deployment to 6")
    brought = member.endpoints("demo/shop")
    [body] = [line.object for line in recording("mcs-crosscluster.c3") if line.object.get("kind") == "Service"][:1]
    annotations = {"multiclusterservice.karmada.io/name": "shop", "service.cilium.io/global": "true"}
    member.object("MODIFIED", {**body, "metadata": {**body["metadata"], "annotations": annotations}})
    member.agent.put(tables.ENDPOINT_SETS, record("c1", "10.1.1.99"))
    assert member.endpoints("demo/shop") == brought
    member.agent.put(tables.ENDPOINT_SETS, record("c1", "10.1.1.99", shared=True))
    assert "10.1.1.99" in member.endpoints("demo/shop")


def test_a_provider_publishes_its_own_endpoints_of_a_native_name_and_none_that_karmada_brought() -> None:
    member = provider_c2()
    found = member.endpoints("demo/shop")
    assert set(found.values()) == {"c1", "c2"}
    published = member.records()["services:demo/shop"]
    assert set(published["backends"]) == {address for address, of in found.items() if of == "c2"}


def test_a_native_name_follows_the_records_of_those_that_karmada_has_as_its_providers() -> None:
    """From the first slice of a provider to its last: whom the MultiClusterService leaves out is not called."""
    member, dispatched, seen = Member("c3"), {}, set()
    for cluster in ("c1", "c2"):
        member.agent.put(tables.ENDPOINT_SETS, record(cluster, f"10.{cluster[1]}.1.99"))
    for line in recording("mcs-crosscluster.c3"):
        if not line.event:
            continue
        member.object(line.event, line.object)
        meta = line.object["metadata"]
        if provider := meta.get("annotations", {}).get(karmada.PROVIDER):
            dispatched[meta["name"]] = provider
            if line.event == "DELETED":
                del dispatched[meta["name"]]
        found = member.endpoints("demo/shop")
        providers = set(dispatched.values()) if found else set()
        assert found == {f"10.{each[1]}.1.99": each for each in providers}, f"at {line.time} s"
        seen.add(frozenset(providers))
    assert seen == {frozenset(), frozenset({"c1"}), frozenset({"c2"}), frozenset({"c1", "c2"})}


def test_a_service_that_is_global_too_takes_the_records_of_all() -> None:
    member = Member("c3")
    service = next(line for line in recording("global-and-mcs.c2") if line.object.get("kind") == "Service")
    member.object("ADDED", service.object)
    member.agent.put(tables.ENDPOINT_SETS, record("c1", "10.1.1.99", shared=True))
    assert member.endpoints("demo/shop") == {"10.1.1.99": "c1"}


@pytest.mark.parametrize("state", sorted(UNATTENDED))
def test_records_that_may_be_old_give_way_to_karmadas_slices(state: PeerState) -> None:
    """The operator of c1 is down, or its etcd is not reached from here: Karmada may go on to bring what is there."""
    member = Member("c3")
    crosscluster(member, until="scale Deployment to 6")
    brought = member.endpoints("demo/shop")
    member.agent.put(tables.ENDPOINT_SETS, record("c1", "10.1.1.99"))
    assert "10.1.1.99" in member.endpoints("demo/shop")
    ready = Cluster(name=ClusterName("c1"), state="ready")
    member.agent.put(tables.CLUSTERS, structs.replace(ready, state=state))
    assert member.endpoints("demo/shop") == brought
    member.agent.put(tables.CLUSTERS, ready)
    assert "10.1.1.99" in member.endpoints("demo/shop")


def test_explain_says_why_a_record_of_a_native_name_is_not_used() -> None:
    member = Member("c3")
    crosscluster(member, until="scale Deployment to 6")
    member.agent.put(tables.CLUSTERS, Cluster(name=ClusterName("c9"), state="ready"))
    member.agent.put(tables.ENDPOINT_SETS, record("c9", "10.9.1.1"))
    at = Place(ClusterName("c3"), "n1")
    notes = explain(member.agent.db.snapshot(), ServiceName("demo/shop"), place=at).notes
    assert "c9: 1 endpoints are not used: Karmada has it as no provider of the service" in notes


def test_records_bring_back_what_slices_of_one_name_hide_and_hide_the_ghosts() -> None:
    """c1 and c2 have a slice shop-fixed each: Karmada brings one of them, and the other member never gets it."""
    member, step = Member("c3"), ""
    own = {"c1": "10.1.1.77", "c2": "10.2.1.77"}
    for cluster, address in own.items():
        member.agent.put(tables.ENDPOINT_SETS, record(cluster, address))
    collided = False
    for line in recording("mcs-crosscluster.c3"):
        step = line.step or step
        if line.event:
            member.object(line.event, line.object)
            found = member.endpoints("demo/shop")
            assert all(address == own[cluster] for address, cluster in found.items())
            if step.startswith(("slices of one name", "hand-made slices removed")):
                assert set(found) == set(own.values())
                collided = True
    assert collided


def test_a_drain_of_a_node_is_not_of_anothers_node_of_the_same_name() -> None:
    """The nodes of c1 are called as one of c3 that is drained."""
    member = Member("c3")
    drain = Drain(kind="Node", target="c1-n1", reason="Drain isthmus-system/node-c1-n1")
    member.agent.put(tables.DRAINING, Draining(by=ClusterName("c3"), drain=drain))
    crosscluster(member, until="scale Deployment to 6")
    [plan] = member.agent.db.snapshot().by(tables.PLANS, "service", ServiceName("demo/shop"))
    assert {target.address for group in plan.groups for target in group.targets} == {
        "10.1.1.5",
        "10.1.1.6",
        "10.2.1.4",
    }


def test_members_called_a_and_a_b_are_told_apart() -> None:
    member = Member("c3")
    for old, new in (("c1", "a"), ("c2", "a-b")):
        for line in karmadas("export-import.c3"):
            if line.step == "scale to 4":
                break
            if line.event and (line.object["kind"] != "EndpointSlice" or f"-{old}-" in line.object["metadata"]["name"]):
                body = json.dumps(line.object).replace(f"imported-{old}-", f"imported-{new}-")
                member.object(line.event, json.loads(body))
    found = member.endpoints("demo/derived-books")
    assert {(address.split(".")[1], of) for address, of in found.items()} == {("1", "a"), ("2", "a-b")}


def test_members_that_are_no_peers_are_providers_too() -> None:
    member = Member("c3")
    for name in ("c1", "c2"):
        with member.agent.db.write() as txn:
            txn.delete(tables.CLUSTERS, ClusterName(name))
        member.agent.settle()
    crosscluster(member, until="scale Deployment to 6")
    assert member.endpoints("demo/shop") == {"10.1.1.5": "c1", "10.1.1.6": "c1", "10.2.1.4": "c2"}


def test_explain_tells_which_endpoints_only_karmada_vouches_for() -> None:
    member = Member("c3")
    crosscluster(member, until="scale Deployment to 6")
    at = Place(ClusterName("c3"), "n1")
    notes = explain(member.agent.db.snapshot(), ServiceName("demo/shop"), place=at).notes
    assert "c1: 2 endpoints are as Karmada wrote them, which keeps those of a cluster that fails" in notes


def test_what_another_member_knows_of_nodes_and_pods_is_dropped() -> None:
    member = Member("c3")
    crosscluster(member, until="scale Deployment to 6")
    rows = member.agent.db.snapshot().by(tables.BACKENDS, "service", ServiceName("demo/shop"))
    assert {(row.node, row.pod, row.for_zones) for row in rows} == {("", "", ())}
    assert {row.source for row in rows} == {"karmada"}


@pytest.mark.slow
def test_a_change_costs_its_own_service_whatever_others_there_are() -> None:
    member = Member("c3")
    [service, own, dispatched, *_] = [line.object for line in recording("mcs-crosscluster.c3") if line.event]
    address = service["spec"]["clusterIP"]
    for number in range(500):
        for body in (service, own, dispatched):
            renamed = (
                json.dumps(body)
                .replace("shop", f"shop{number}")
                .replace(address, f"10.97.{number // 250}.{number % 250}")
            )
            member.object("ADDED", json.loads(renamed))
    before, synced = member.agent.derivations.units, member.operator.derivations.units
    changed = {**dispatched, "endpoints": dispatched["endpoints"][:1]}
    member.object("MODIFIED", json.loads(json.dumps(changed).replace("shop", "shop7")))
    assert member.endpoints("demo/shop7") == {"10.1.1.5": "c1"}
    assert member.agent.derivations.units - before <= 10
    assert member.operator.derivations.units - synced <= 10
    assert member.wanted() == []


def test_a_provider_that_calls_too_has_all_endpoints_and_publishes_its_own() -> None:
    member = provider_c2()
    meta = {"name": "shop", "namespace": "demo", "uid": "mark", "resourceVersion": "1"}
    body = {"metadata": {**meta, "creationTimestamp": "2026-01-01T00:00:00Z"}}
    member.object("ADDED", {"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport", **body})
    found = member.endpoints("demo/shop")
    assert {address.split(".")[1]: of for address, of in found.items()} == {"1": "c1", "2": "c2"}
    published = json.dumps(member.records())
    for address, of in found.items():
        assert (address in published) == (of == "c2"), published
