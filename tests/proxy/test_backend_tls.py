"""BackendTLSPolicies: TLS from the node's Envoy to backends, and what the policy's status says."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from clusters.apiserver_world import serving
from machine import certificates
from meshes.route_definitions import define_routes
from meshes.route_world import CREATED, RouteWorld, route
from meshes.routed_envoy import TO_ECHO, Both, routed_envoy

from isthmus import kube
from isthmus.config import KubernetesSection
from isthmus.desired import ApiTarget
from isthmus.kube.objects import core, gateway
from isthmus.kube.objects.meta import Meta
from isthmus.model.backend_tls import MAX_CERTIFICATES, Authority, BackendTls
from isthmus.model.names import ServiceName
from isthmus.model.objects import Object
from isthmus.model.services import Port, Service
from isthmus.model.tables import AUTHORITIES, BACKEND_TLS, BACKEND_TLS_OBJECTS, SERVICES, XDS
from isthmus.processes.start import tables_of
from isthmus.proxy import backend_tls_objects
from isthmus.proxy.backend_tls import of_port
from isthmus.proxy.explain import explain, parse
from isthmus.proxy.messages import message
from isthmus.sources.backend_tls import Authorities, authority, policy
from isthmus.statedb import Database, Derivations

TARGET = "{group: '', kind: Service, name: safe}"
CA = "[{group: '', kind: ConfigMap, name: ca}]"
TO_SAFE = TO_ECHO + "rules: [{backendRefs: [{name: safe, port: 80}]}]"
ACCEPTED = ("Accepted", "True", "Accepted")
RESOLVED = ("ResolvedRefs", "True", "ResolvedRefs")


def tls(
    validation: str = f"{{caCertificateRefs: {CA}, hostname: safe.example}}",
    *,
    name: str = "demo/policy",
    created: str = CREATED,
    target: str = TARGET,
    more: str = "",
) -> BackendTls:
    """The row of a policy for a Service."""
    namespace, _, short = name.partition("/")
    meta = {"namespace": namespace, "name": short, "creationTimestamp": created, "generation": 1}
    spec = yaml.safe_load(f"{{targetRefs: [{target}], validation: {validation}{more}}}")
    wire = msgspec.json.encode({"metadata": meta, "spec": spec})
    return policy(msgspec.json.decode(wire, type=gateway.BackendTlsPolicy))


def ca(folder: Path, name: str = "ca") -> tuple[certificates.Authority, Authority]:
    signer = certificates.Authority(folder, name)
    return signer, Authority(name=ServiceName("demo/ca"), certificates=signer.cert.read_text())


class Statuses:
    """The operator's table of policies, with the Service ``demo/safe``."""

    def __init__(self, *rows: Any) -> None:
        declared = backend_tls_objects.derived()
        self.db = Database(*tables_of([declared]))
        self.derivations = Derivations(self.db, declared)
        ports = (Port("http", 80, app_protocol="http"),)
        self.put(Service(name=ServiceName("demo/safe"), source="kubernetes", ports=ports), *rows)

    def put(self, *rows: Any) -> None:
        into: dict[type, Any] = {BackendTls: BACKEND_TLS, Authority: AUTHORITIES, Service: SERVICES}
        with self.db.write() as txn:
            for row in rows:
                txn.put(into[type(row)], row)
        while self.derivations.step():
            pass

    def row(self, name: str) -> Object:
        row = self.db.snapshot().get(BACKEND_TLS_OBJECTS, ("BackendTLSPolicy", ServiceName(name)))
        assert row is not None
        return row

    def ancestors(self, name: str = "demo/policy") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = yaml.safe_load(self.row(name).status)["ancestors"]
        return found

    def conditions(self, name: str = "demo/policy") -> list[tuple[str, str, str]]:
        """Of the only ancestor."""
        [ancestor] = self.ancestors(name)
        return [(each["type"], each["status"], each["reason"]) for each in ancestor["conditions"]]


GIVEN = Authority(name=ServiceName("demo/ca"), certificates="-----BEGIN…")


def cluster(world: RouteWorld, name: str) -> Any:
    row = world.db.snapshot().get(XDS, ("cluster", name))
    assert row is not None
    return message("envoy.config.cluster.v3.Cluster").FromString(row.body)


def endpoints(world: RouteWorld, name: str) -> int:
    row = world.db.snapshot().get(XDS, ("endpoints", name))
    assert row is not None
    return len(message("envoy.config.endpoint.v3.ClusterLoadAssignment").FromString(row.body).endpoints)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Both]:
    async with routed_envoy(tmp_path) as made:
        yield made


@pytest.mark.needs("envoy")
async def test_envoy_calls_a_policys_target_by_tls_and_fails_calls_whose_certificate_it_does_not_trust(
    world: Both, tmp_path: Path
) -> None:
    signer, trusted = ca(tmp_path / "mine")
    _, other = ca(tmp_path / "other")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*signer.sign("safe", hosts=("safe.example", "spiffe.example")))
    seen: list[Any] = []
    await world.serve("demo/safe", "safe", seen=seen, ssl=context)
    rows = world.rows
    rows.routes(route(TO_SAFE)).put(BACKEND_TLS, tls()).put(AUTHORITIES, trusted)
    port = await world.answers("safe")
    assert seen

    async def answer(*, after: BackendTls | Authority) -> int:
        """The status once Envoy uses the changed configuration."""
        rows.put(BACKEND_TLS if isinstance(after, BackendTls) else AUTHORITIES, after)
        want = 200 if after in good else 503
        async with asyncio.timeout(60):
            while (status := (await world.envoy.get(port))[0]) != want:  # noqa: ASYNC110 of another process
                await asyncio.sleep(0.02)
        return status

    names = "[{type: Hostname, hostname: '*.example'}]"
    by_san = tls(f"{{caCertificateRefs: {CA}, hostname: no.example, subjectAltNames: {names}}}")
    good = (tls(), trusted, by_san)
    assert await answer(after=tls(f"{{caCertificateRefs: {CA}, hostname: no.example}}")) == 503
    assert await answer(after=by_san) == 200
    assert await answer(after=other) == 503
    assert await answer(after=trusted) == 200
    assert await answer(after=Authority(name=trusted.name, problem="ConfigMap demo/ca does not exist")) == 503
    calls = len(seen)
    assert [(await world.envoy.get(port))[0] for _ in range(4)] == [503] * 4
    assert len(seen) == calls
    assert not world.envoy.refused()


def test_a_policy_without_an_authority_closes_its_target_alone() -> None:
    world = RouteWorld().service("demo/echo", "127.0.0.1:8080").service("demo/safe", "127.0.0.1:8081")
    world.routes(route(TO_SAFE)).put(BACKEND_TLS, tls())
    assert (endpoints(world, "demo/safe:80"), endpoints(world, "demo/echo:80")) == (0, 1)
    request, _ = parse("GET /")
    [explained] = explain(world.db.snapshot(), ServiceName("demo/echo"), request)
    [part] = explained.backends
    assert part.problem == "503: BackendTLSPolicy demo/policy: ConfigMap demo/ca has not been read yet"
    world.put(AUTHORITIES, GIVEN)
    assert (endpoints(world, "demo/safe:80"), endpoints(world, "demo/echo:80")) == (1, 1)
    assert cluster(world, "demo/safe:80").HasField("transport_socket")
    assert not cluster(world, "demo/echo:80").HasField("transport_socket")
    world.delete(BACKEND_TLS, tls())
    assert not cluster(world, "demo/safe:80").HasField("transport_socket")


@pytest.mark.parametrize(
    "validation",
    [
        "{wellKnownCACertificates: System, hostname: safe.example}",
        "{hostname: safe.example}",
        f"{{caCertificateRefs: {CA}, hostname: ''}}",
        f"{{caCertificateRefs: {CA}, hostname: a.example, subjectAltNames: [{{type: Email}}]}}",
    ],
)
def test_a_policy_that_cannot_be_followed_closes_its_target_too(validation: str) -> None:
    world = RouteWorld().service("demo/echo", "127.0.0.1:8080").service("demo/safe", "127.0.0.1:8081")
    world.routes(route(TO_SAFE)).put(AUTHORITIES, GIVEN).put(BACKEND_TLS, tls(validation))
    assert endpoints(world, "demo/safe:80") == 0
    assert Statuses(GIVEN, tls(validation)).conditions() == [("Accepted", "False", "Invalid")]


def test_an_import_is_a_target_of_its_own_kind() -> None:
    target = "{group: multicluster.x-k8s.io, kind: ServiceImport, name: far}"
    world = RouteWorld().service("demo/echo", "127.0.0.1:8080")
    world.imported("demo/far", app_protocol="http", c1=["127.0.0.1:8081"], c2=["127.0.0.1:8082"])
    to_far = "rules: [{backendRefs: [{group: multicluster.x-k8s.io, kind: ServiceImport, name: far, port: 80}]}]"
    world.routes(route(TO_ECHO + to_far)).put(AUTHORITIES, GIVEN).put(BACKEND_TLS, tls(target=target))
    [name] = [row.name for row in world.rows(XDS) if row.type == "cluster" and row.owner == "ServiceImport demo/far"]
    assert cluster(world, name).HasField("transport_socket")


def test_a_policy_that_is_followed_is_accepted_for_its_target() -> None:
    world = Statuses(GIVEN, tls())
    [ancestor] = world.ancestors()
    assert ancestor["ancestorRef"] == {"group": "", "kind": "Service", "name": "safe"}
    assert ancestor["controllerName"] == "isthmus.io/mesh"
    assert world.conditions() == [ACCEPTED, RESOLVED]
    world.put(tls(more=", options: {a/b: c}"))
    assert world.conditions()[2:] == [("isthmus.io/Effective", "False", "UnsupportedValue")]


def test_references_to_authorities_that_cannot_be_used_are_named_and_one_that_can_suffices() -> None:
    none = [("Accepted", "False", "NoValidCACertificate"), ("ResolvedRefs", "False", "InvalidCACertificateRef")]
    world = Statuses(tls())
    assert world.conditions() == none
    world.put(GIVEN)
    assert world.conditions() == [ACCEPTED, RESOLVED]
    world.put(Authority(name=GIVEN.name, problem="ConfigMap demo/ca does not exist"))
    assert world.conditions() == none
    secret = "{group: '', kind: Secret, name: ca}"
    world.put(tls(f"{{caCertificateRefs: [{secret}], hostname: safe.example}}"))
    assert world.conditions() == [none[0], ("ResolvedRefs", "False", "InvalidKind")]
    world.put(GIVEN, tls(f"{{caCertificateRefs: [{secret}, {CA[1:-1]}], hostname: safe.example}}"))
    assert world.conditions() == [ACCEPTED, ("ResolvedRefs", "False", "InvalidKind")]


def test_certificates_of_a_policy_are_bounded_together_and_those_named_first_are_used() -> None:
    """Each port of each target has a copy of them in every node's agent and Envoy."""
    second = f"[{CA[1:-1]}, {{group: '', kind: ConfigMap, name: second}}]"
    large = Authority(name=ServiceName("demo/second"), certificates="x" * MAX_CERTIFICATES)
    world = Statuses(GIVEN, large, tls(f"{{caCertificateRefs: {second}, hostname: safe.example}}"))
    assert world.conditions() == [ACCEPTED, ("ResolvedRefs", "False", "InvalidCACertificateRef")]
    found = of_port(world.db.snapshot(), ServiceName("demo/safe"), Port("http", 80))
    assert found is not None
    assert (found.certificates, found.problem) == (GIVEN.certificates, "")


def test_of_policies_for_one_target_the_oldest_applies_and_then_the_first_by_name() -> None:
    older = tls(name="demo/z", created="2025-01-01T00:00:00Z")
    world = Statuses(GIVEN, tls(name="demo/a"), tls(name="demo/b"), older)
    conflicted = ("Accepted", "False", "Conflicted")
    assert [world.conditions(name)[0] for name in ("demo/a", "demo/b", "demo/z")] == [conflicted, conflicted, ACCEPTED]
    with world.db.write() as txn:
        txn.delete(BACKEND_TLS, older.name)
    world.put()
    assert [world.conditions(name)[0] for name in ("demo/a", "demo/b")] == [ACCEPTED, conflicted]


def test_a_policy_for_a_port_precedes_an_older_one_for_its_service_and_both_are_accepted() -> None:
    section = tls(name="demo/port", created="2026-02-01T00:00:00Z", target=TARGET[:-1] + ", sectionName: http}")
    world = Statuses(GIVEN, tls(), section)
    assert [world.conditions(name)[0] for name in ("demo/policy", "demo/port")] == [ACCEPTED, ACCEPTED]
    assert world.ancestors("demo/port")[0]["ancestorRef"]["sectionName"] == "http"


@pytest.mark.parametrize("target", [TARGET.replace("safe", "gone"), TARGET[:-1] + ", sectionName: gone}"])
def test_a_target_that_does_not_exist_is_in_the_status(target: str) -> None:
    assert Statuses(GIVEN, tls(target=target)).conditions()[0] == ("Accepted", "False", "TargetNotFound")


async def test_the_status_is_written_beside_that_of_another_controller(tmp_path: Path) -> None:
    accepted = {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "observedGeneration": 1}
    theirs = {
        "ancestorRef": {"group": gateway.GROUP, "kind": "Gateway", "name": "edge"},
        "controllerName": "example.com/other",
        "conditions": [{**accepted, "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    }
    row = Statuses(GIVEN, tls(name="default/policy", target=TARGET)).row("default/policy")
    with serving(tmp_path / "kubernetes") as server:
        async with await kube.connect(KubernetesSection(kubeconfig=str(server.kubeconfig))) as client:
            kind = gateway.BACKEND_TLS_POLICY
            await define_routes(client, kind)
            await client.create(kind, "default", {"metadata": {"name": "policy"}, "spec": {}})
            await client.patch(kind, "default", "policy", {"status": {"ancestors": [theirs]}}, subresource="status")
            target = ApiTarget(client, backend_tls_objects.KINDS)
            for _ in range(2):  # what is written already is as wanted
                assert await target.update([row]) == {}
                status = (await client.get(kind, "policy", "default")).status
                assert status is not None
                assert status.ancestors is not None
                first, ours = status.ancestors
                assert first == theirs
                assert (ours["controllerName"], ours["ancestorRef"]["name"]) == ("isthmus.io/mesh", "safe")
                assert all(each["lastTransitionTime"] for each in ours["conditions"])


def test_a_config_map_without_certificates_names_what_it_lacks(tmp_path: Path) -> None:
    _, row = ca(tmp_path)
    name = row.name

    def read(data: dict[str, str] | None) -> Authority:
        return authority(name, core.ConfigMap(metadata=Meta(), data=data))

    assert read({"ca.crt": row.certificates}) == row
    assert "want certificates in the key ca.crt" in read(None).problem
    assert read({"ca.crt": "x"}).problem == "ConfigMap demo/ca: the key ca.crt is no PEM of certificates"
    assert read({"ca.crt": "x" * 100_000}).problem


class ConfigMaps:
    """An API server with ConfigMaps, which can be away."""

    def __init__(self, **found: str) -> None:
        self.found = found
        self.away = False
        self.reads: list[str] = []

    async def get(self, kind: Any, name: str, namespace: str) -> core.ConfigMap:
        self.reads.append(name)
        if self.away:
            raise kube.Unreachable("away")
        if name not in self.found:
            raise kube.NotFound("none")
        return core.ConfigMap(metadata=Meta(name=name, namespace=namespace), data={"ca.crt": self.found[name]})


async def test_a_change_of_a_policy_reads_the_config_maps_that_it_newly_names_and_no_other(tmp_path: Path) -> None:
    """Tenants decide how often policies change, and every node reads."""
    _, row = ca(tmp_path)
    db, server = Database(BACKEND_TLS, AUTHORITIES), ConfigMaps(ca=row.certificates, second=row.certificates)
    reading = asyncio.create_task(Authorities(db, server).run())  # type: ignore[arg-type]
    with db.write() as txn:
        txn.put(BACKEND_TLS, tls())
    await db.until(lambda now: now.count(AUTHORITIES) == 1)
    second = CA.replace("ca}", "second}")
    for number in range(10):
        with db.write() as txn:
            txn.put(BACKEND_TLS, tls(more=f", options: {{a: '{number}'}}", created=f"2026-01-01T00:00:{number:02}Z"))
        await asyncio.sleep(0)
    with db.write() as txn:
        txn.put(BACKEND_TLS, tls(f"{{caCertificateRefs: {second}, hostname: a.b}}", name="demo/other"))
    await db.until(lambda now: now.count(AUTHORITIES) == 2)
    assert server.reads == ["ca", "second"]
    reading.cancel()


async def test_more_config_maps_are_read_less_often() -> None:
    authorities = Authorities(Database(BACKEND_TLS, AUTHORITIES), ConfigMaps(), read_every=60.0)  # type: ignore[arg-type]
    assert [authorities.period(each) for each in (0, 1, 60, 6_000)] == [60.0, 60.0, 60.0, 6_000.0]


async def test_config_maps_that_policies_name_are_read_and_kept_while_the_api_server_is_away(tmp_path: Path) -> None:
    _, row = ca(tmp_path)
    db, server = Database(BACKEND_TLS, AUTHORITIES), ConfigMaps(ca=row.certificates, unnamed="x")
    server.away = True
    reading = asyncio.create_task(Authorities(db, server, read_every=0.01).run())  # type: ignore[arg-type]
    with db.write() as txn:
        txn.put(BACKEND_TLS, tls())
    await asyncio.sleep(0.05)
    assert not db.snapshot().initialized(AUTHORITIES)
    server.away = False
    await db.until(lambda now: now.initialized(AUTHORITIES) and [*now.all(AUTHORITIES)] == [row])
    server.away = True
    await asyncio.sleep(0.05)
    assert [*db.snapshot().all(AUTHORITIES)] == [row]
    server.away, server.found = False, {}
    await db.until(lambda now: [each.problem for each in now.all(AUTHORITIES)] == ["ConfigMap demo/ca does not exist"])
    with db.write() as txn:
        txn.delete(BACKEND_TLS, ServiceName("demo/policy"))
    await db.until(lambda now: not now.count(AUTHORITIES))
    reading.cancel()
