"""Cilium's whole readers (1.20.2) follow what our publisher writes, and we follow what Cilium's programs write."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from clusters import kube_apiserver
from machine import programs
from peers import cilium
from peers.clusterset_peers import Peers, following
from peers.etcd_server import EtcdServer, running
from peers.joining_world import clusters

from isthmus.clusterset import joining
from isthmus.clusterset.publishing.publisher import Publisher
from isthmus.clusterset.records import endpoints, exports, slices
from isthmus.config import ClusterSection, PublishedEndpoints
from isthmus.etcd import Session, binary
from isthmus.model import tables
from isthmus.model.mcs import Record
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.services import Endpoint, Export, Port
from isthmus.statedb import Database

C2 = ClusterName("c2")
ECHO, LATE = ServiceName("demo/echo"), ServiceName("demo/late")

pytestmark = pytest.mark.cilium


def records(name: ServiceName, *addresses: str) -> list[Record]:
    published = [Endpoint(address, (Port("http", 8080),), hostname=f"h{address[-1]}") for address in addresses]
    value = endpoints.encode(derived(name), cluster=C2, cluster_id=2, endpoints=published, frontends={})
    export = Export(cluster=C2, name=name, created="2026-01-01T00:00:00Z", ports=(Port("http", 80),))
    return [Record("services", derived(name), value), Record("serviceexports", name, exports.encode(export))]


def put(db: Database, *rows: Record) -> None:
    with db.write() as txn:
        for row in rows:
            txn.put(tables.RECORDS, row)


@asynccontextmanager
async def publishing(session: Session, db: Database, *, as_: PublishedEndpoints = "services") -> AsyncIterator[None]:
    publisher = Publisher(db, session, ClusterSection(name="c2", id=2), publish_endpoints=as_)
    task = asyncio.create_task(publisher.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture
async def etcd(own_etcd: EtcdServer) -> AsyncIterator[Session]:
    async with Session([own_etcd.endpoint]) as session:
        await own_etcd.ready(session)
        yield session


@pytest.fixture
def peers(tmp_path: Path, own_etcd: EtcdServer) -> Peers:
    peers = Peers(tmp_path / "clusters", own_etcd.endpoint)
    peers.add("c2")
    return peers


async def test_its_operator_calls_us_ready_and_follows_what_we_publish_change_and_withdraw(
    etcd: Session, peers: Peers, tmp_path: Path
) -> None:
    db = Database(tables.RECORDS, tables.REFUSALS, tables.DRAINING)
    put(db, *records(ECHO, "10.2.1.1", "fd00::2"))
    async with publishing(etcd, db), cilium.operator(tmp_path, peers.folder) as operator:
        seen = await operator.ready("c2")
        [cluster] = seen["clusters"]
        assert cluster["connected"]
        assert cluster["config"]["cluster-id"] == 2
        assert cluster["config"]["service-exports-enabled"]
        assert cluster["config"]["sync-canaries"]
        assert all(cluster["synced"].values())
        assert (cluster["num-shared-services"], cluster["num-service-exports"]) == (1, 1)
        service = seen["services"][f"c2/{derived(ECHO)}"]
        assert set(service["backends"]) == {"10.2.1.1", "fd00::2"}
        assert service["backends"]["10.2.1.1"] == {"http": {"Protocol": "TCP", "Port": 8080}}
        assert seen["exports"]["c2/demo/echo"]["ports"] == [{"name": "http", "protocol": "TCP", "port": 80}]
        put(db, *records(ECHO, "10.2.1.3"), *records(LATE, "10.2.1.4"))
        await operator.until(lambda seen: set(seen["services"][f"c2/{derived(ECHO)}"]["backends"]) == {"10.2.1.3"})
        await operator.until(lambda seen: "c2/demo/late" in seen["exports"])
        with db.write() as txn:
            for row in records(ECHO):
                txn.delete(tables.RECORDS, tables.RECORDS.key(row))
        await operator.until(lambda seen: list(seen["exports"]) == ["c2/demo/late"] and len(seen["services"]) == 1)


async def test_its_operator_waits_for_our_canaries(etcd: Session, peers: Peers, tmp_path: Path) -> None:
    db = Database(tables.RECORDS, tables.REFUSALS, tables.DRAINING)
    source = db.initializer(tables.RECORDS, "api")
    put(db, *records(ECHO, "10.2.1.1"))
    async with publishing(etcd, db), cilium.operator(tmp_path, peers.folder) as operator:
        seen = await operator.until(
            lambda seen: seen["clusters"] and "retrieved" in seen["clusters"][0].get("config", ())
        )
        assert (seen["clusters"][0].get("ready"), seen["services"], seen["exports"]) == (None, {}, {})
        with db.write() as txn:
            source.complete(txn)
        seen = await operator.ready("c2")
        assert list(seen["exports"]) == ["c2/demo/echo"]


@asynccontextmanager
async def mirrored(folder: Path) -> AsyncIterator[tuple[str, Peers]]:
    """The endpoint of an etcd for copies, and c2 as a peer behind it."""
    with running(binary.find(), folder / "cache") as cache:
        async with Session([cache.endpoint]) as session:
            await cache.ready(session)
        behind = Peers(folder / "behind", cache.endpoint)
        behind.add("c2")
        yield cache.endpoint, behind


async def test_its_mirror_waits_for_every_kind_and_we_follow_its_copies(
    etcd: Session, peers: Peers, tmp_path: Path
) -> None:
    db = Database(tables.RECORDS, tables.REFUSALS, tables.DRAINING)
    put(db, *records(ECHO, "10.2.1.1"))
    async with (
        mirrored(tmp_path) as (cache, behind),
        publishing(etcd, db),
        cilium.kvstoremesh(tmp_path, peers.folder, cache) as ask,
        following(behind) as seen,
    ):
        row = await seen.state("c2", "ready")
        assert row.cached
        assert seen.services() == {f"c2:{derived(ECHO)}": ["10.2.1.1"]}
        assert seen.exports() == ["c2:demo/echo"]
        [cluster] = await asyncio.to_thread(ask)
        assert cluster["ready"]
        assert set(cluster["synced"]) == {"services", "service-exports", "nodes", "identities", "endpoints"}
        assert all(cluster["synced"].values())
        put(db, *records(ECHO, "10.2.1.2"))
        await seen.until(lambda s: seen.services() == {f"c2:{derived(ECHO)}": ["10.2.1.2"]})


def in_slices(name: ServiceName, *addresses: str) -> list[Record]:
    """The records of a service where endpoints are published as slices only."""
    there = [Endpoint(address, (Port("http", 8080),)) for address in addresses]
    parts = slices.encode(derived(name), cluster=C2, cluster_id=2, endpoints=there)
    return [records(name)[1], *(Record("endpointslices", part, value, derived(name)) for part, value in parts)]


async def test_its_operator_that_watches_slices_only_is_synced_with_ours(
    etcd: Session, peers: Peers, tmp_path: Path
) -> None:
    db = Database(tables.RECORDS, tables.REFUSALS, tables.DRAINING)
    put(db, *in_slices(ECHO, "10.2.1.1", "fd00::2"))
    reader = cilium.operator(tmp_path, peers.folder, mode="only-endpointslice")
    async with publishing(etcd, db, as_="endpointslices"), reader as operator:
        [cluster] = (await operator.ready("c2"))["clusters"]
        assert cluster["config"]["endpoint-slices-export-mode"] == "endpointslices-only"
        assert cluster["synced"]["endpoint-slices"]
        assert cluster["num-service-exports"] == 1


async def test_its_mirror_copies_our_slices_and_we_follow_the_copies(
    etcd: Session, peers: Peers, tmp_path: Path
) -> None:
    db = Database(tables.RECORDS, tables.REFUSALS, tables.DRAINING)
    put(db, *in_slices(ECHO, "10.2.1.1"))
    async with (
        mirrored(tmp_path) as (cache, behind),
        publishing(etcd, db, as_="endpointslices"),
        cilium.kvstoremesh(tmp_path, peers.folder, cache),
        following(behind) as seen,
    ):
        assert (await seen.state("c2", "ready")).cached
        assert seen.services() == {f"c2:{derived(ECHO)}": ["10.2.1.1"]}
        put(db, *in_slices(ECHO, "10.2.1.2"))
        await seen.until(lambda s: seen.services() == {f"c2:{derived(ECHO)}": ["10.2.1.2"]})


async def test_it_reads_with_the_certificate_and_rights_of_a_cluster_that_joined(tmp_path: Path) -> None:
    async with clusters(tmp_path) as (c1, c2):
        async with joining.invitation(c2.home, lifetime=60) as invitation, asyncio.TaskGroup() as tasks:
            tasks.create_task(invitation.accepted())
            tasks.create_task(joining.join(c1.home, invitation.word, patience=90))
        db = Database(tables.RECORDS, tables.REFUSALS, tables.DRAINING)
        put(db, *records(ECHO, "10.2.1.1"))
        async with (
            c2.home.session(user="operator") as session,
            publishing(session, db),
            cilium.operator(tmp_path, c1.home.directory) as operator,
        ):
            seen = await operator.ready("c2")
            assert list(seen["exports"]) == ["c2/demo/echo"]


CRDS = {
    "cilium.io/v2": ("CiliumNode", "CiliumIdentity", "CiliumEndpoint"),
    "cilium.io/v2alpha1": ("CiliumEndpointSlice",),
    "multicluster.x-k8s.io/v1beta1": ("ServiceExport",),
}
SCOPES = {"CiliumEndpoint": "Namespaced", "ServiceExport": "Namespaced"}


def kinds() -> list[dict[str, Any]]:
    """The kinds that Cilium's writer waits for, without their schemas."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    found = []
    for api, names in CRDS.items():
        group, version = api.split("/")
        for kind in names:
            plural = f"{kind.lower()[:-1]}ies" if kind.endswith("y") else f"{kind.lower()}s"
            spec = {
                "group": group,
                "scope": SCOPES.get(kind, "Cluster"),
                "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
                "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
            }
            metadata = {"name": f"{plural}.{group}"}
            crd = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
            found.append(crd | {"metadata": metadata, "spec": spec})
    return found


def objects(*addresses: str) -> list[dict[str, Any]]:
    """A global Service of cluster c5, exported too, and where it answers."""
    meta = {"name": "echo", "namespace": "demo"}
    shared = {"annotations": {"service.cilium.io/global": "true"}}
    port = {"name": "http", "port": 80, "protocol": "TCP"}
    labels = {"labels": {"kubernetes.io/service-name": "echo"}}
    slices: dict[str, Any] = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4"}
    slices |= {"metadata": meta | {"name": "echo-1"} | labels, "ports": [port | {"port": 8080}]}
    slices |= {"endpoints": [{"addresses": [each], "conditions": {"ready": True}} for each in addresses]}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "demo"}},
        {"apiVersion": "v1", "kind": "Service", "metadata": meta | shared, "spec": {"ports": [port]}},
        slices,
        {"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport", "metadata": meta},
    ]


@pytest.fixture
async def kubeconfig(tmp_path: Path) -> AsyncIterator[str]:
    """That of an API server of this test alone, which has Cilium's kinds."""
    path = Path(programs.path("kube-apiserver"))
    with running(binary.find(), tmp_path / "objects") as objects:
        server = kube_apiserver.KubeApiServer(path, tmp_path / "api", objects)
        server.start()
        try:
            await server.ready()
            config = server.section().kubeconfig
            await apply(config, kinds())
            yield config
        finally:
            server.kill()


async def apply(kubeconfig: str, objects: list[dict[str, Any]]) -> None:
    """As people do it; again while a kind is so new that it is not served."""
    command = [programs.path("kubectl"), f"--kubeconfig={kubeconfig}", "apply", "-f", "-"]
    async with asyncio.timeout(60):
        while True:
            pipe = subprocess.PIPE
            process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
            _, wrong = await process.communicate(yaml.safe_dump_all(objects).encode())
            if process.returncode == 0:
                return
            assert b"no matches for kind" in wrong or b"not find the requested" in wrong, wrong.decode()


@pytest.mark.kube
@pytest.mark.parametrize("mode", ["prefer-legacy", "only-endpointslice"])
async def test_we_follow_what_its_writer_writes_of_a_real_api_server(
    etcd: Session, peers: Peers, kubeconfig: str, tmp_path: Path, mode: str
) -> None:
    await apply(kubeconfig, objects("10.5.1.1"))
    peers.remove("c2")
    peers.add("c5")
    written = cilium.apiserver(tmp_path, peers.endpoint, kubeconfig, name="c5", number=5, mode=mode)
    async with written, following(peers) as seen:
        async with asyncio.timeout(cilium.PATIENCE):  # it takes its time to look for kinds
            while await etcd.get("cilium/synced/c5/cilium/state/serviceexports/v1") is None:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        row = await seen.state("c5", "ready")
        assert (row.id, row.exports_enabled, row.dropped) == (5, True, 0)
        assert seen.services() == {"c5:demo/echo": ["10.5.1.1"]}
        assert seen.exports() == ["c5:demo/echo"]
        [part] = {row.part for row in seen.db.snapshot().all(tables.ENDPOINT_SETS)}
        assert part == ("record" if mode == "prefer-legacy" else "demo/echo-1")
        await apply(kubeconfig, objects("10.5.1.1", "10.5.1.2"))
        await seen.until(lambda s: seen.services() == {"c5:demo/echo": ["10.5.1.1", "10.5.1.2"]})
        kept = {kv.key for kv in (await etcd.list("cilium/")).kvs if not kv.lease}
        assert not kept, "what Cilium writes is leased, all of it"
        assert json.loads((await etcd.list("cilium/cluster-config/")).kvs[0].value)["id"] == 5
