"""Local redirect policies and host ports from the API server: what is read, what is refused, what may be missing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from clusters.fake_apiserver import FakeApiServer, running, status

from isthmus import kube
from isthmus.bounds import OutOfBounds
from isthmus.kube.access import Access
from isthmus.kube.objects import cilium, core
from isthmus.kube.objects.policies import EXPORT_POLICY
from isthmus.kube.transport import Transport
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.redirects import LocalRedirect, Requirement
from isthmus.model.services import Endpoint, Port
from isthmus.model.tables import ENDPOINT_SETS, EXPORT_POLICIES, FAULTS, LOCAL_REDIRECTS, NODES, PODS, SERVICES
from isthmus.reflector import Event, Reflector, Unreadable
from isthmus.sources import host_ports as host_ports_module
from isthmus.sources import kubernetes
from isthmus.sources.host_ports import PodSink, host_ports
from isthmus.sources.local_redirects import local_redirect
from isthmus.sources.machines import pod
from isthmus.sources.optional import Optional
from isthmus.sources.sink import Malformed, TableSink
from isthmus.statedb import Database, Snapshot

HTTP = {"port": "80", "protocol": "TCP", "name": "http"}
DNS = {"port": "53", "protocol": "UDP", "name": "DNS"}
SERVICE = {"serviceMatcher": {"serviceName": "echo", "namespace": "demo"}}
NEAR = {"localEndpointSelector": {"matchLabels": {"app": "near"}}, "toPorts": [{"port": "8080", "protocol": "TCP"}]}


def policy(frontend: Any = SERVICE, backend: Any = NEAR, **more: Any) -> LocalRedirect:
    spec = {"redirectFrontend": frontend, "redirectBackend": backend, **more}
    meta = {"name": "near", "namespace": "demo", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return local_redirect(msgspec.convert({"metadata": meta, "spec": spec}, cilium.LocalRedirectPolicy))


def address(*ports: Any, ip: str = "169.254.169.254") -> dict[str, Any]:
    return {"addressMatcher": {"ip": ip, "toPorts": list(ports)}}


def test_a_policy_of_a_service_is_read_whole() -> None:
    assert policy(skipRedirectFromBackend=True) == LocalRedirect(
        name=ServiceName("demo/near"),
        service=ServiceName("demo/echo"),
        selector=(Requirement("app", "In", ("near",)),),
        backend_ports=(Port("", 8080),),
        skip_from_backend=True,
        created="2026-01-01T00:00:00Z",
    )


def test_a_policy_of_an_address_is_read_whole() -> None:
    row = policy(address(HTTP, DNS, ip="FD00:0::1"), {**NEAR, "toPorts": [HTTP, DNS]})
    assert (row.service, row.address) == ("", "fd00::1")
    assert row.ports == row.backend_ports == (Port("http", 80), Port("dns", 53, "UDP"))


def test_labels_may_say_where_they_come_from() -> None:
    selector = {
        "matchLabels": {"k8s:app": "x", "any:tier": "y"},
        "matchExpressions": [{"key": "old", "operator": "DoesNotExist"}],
    }
    assert policy(backend={**NEAR, "localEndpointSelector": selector}).selector == (
        Requirement("app", "In", ("x",)),
        Requirement("old", "DoesNotExist"),
        Requirement("tier", "In", ("y",)),
    )


@pytest.mark.parametrize(
    ("frontend", "backend", "why"),
    [
        ({}, NEAR, "spec.redirectFrontend: want exactly one of addressMatcher and serviceMatcher"),
        ({**SERVICE, **address(HTTP)}, NEAR, "exactly one of"),
        ({"serviceMatcher": {"namespace": "demo"}}, NEAR, "serviceName: empty"),
        ({"serviceMatcher": {"serviceName": "echo", "namespace": "x"}}, NEAR, "'x' is not the policy's own, 'demo'"),
        (address(), NEAR, "addressMatcher.toPorts: want at least one port"),
        (address(HTTP, ip="nowhere"), NEAR, "addressMatcher.ip: 'nowhere' is not an IP address"),
        (address({"port": "web"}), NEAR, r"toPorts\[0\].port: 'web' is not a port"),
        (address({"port": "70000"}), NEAR, "'70000' is not a port"),
        (address({**HTTP, "protocol": "ICMP"}), NEAR, "protocol: 'ICMP' is not one of SCTP, TCP, UDP"),
        (address(HTTP, {"port": "81"}), NEAR, "several ports, so each wants a name"),
        (SERVICE, {**NEAR, "toPorts": []}, "redirectBackend.toPorts: want at least one port"),
        (address(DNS), NEAR, r"redirectBackend.toPorts\[0\].protocol: the port that is called has UDP"),
        (
            SERVICE,
            {**NEAR, "localEndpointSelector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}},
            "operator: 'Like' is not one of In, NotIn, Exists, DoesNotExist",
        ),
    ],
)
def test_what_is_wrong_with_a_policy_is_said_by_field(frontend: Any, backend: Any, why: str) -> None:
    with pytest.raises((Malformed, OutOfBounds), match=why):
        policy(frontend, backend)


# host ports


def wire(name: str = "web", *ports: dict[str, Any], uid: str = "u1", phase: str = "Running", **spec: Any) -> core.Pod:
    listed = list(ports) or [{"containerPort": 80, "hostPort": 8080}]
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": "demo", "uid": uid},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "ports": listed}], **spec},
            "status": {"phase": phase, "podIPs": [{"ip": "10.1.1.9"}]},
        },
        core.Pod,
    )


def test_a_host_port_is_a_service_of_its_own_with_its_pod_as_endpoint() -> None:
    [found] = host_ports(wire())
    assert found.service.name == found.endpoints.service == "demo/web:host-port:8080"
    assert (found.service.type, found.service.ports) == ("HostPort", (Port("", 8080, node_port=8080),))
    assert found.endpoints.endpoints == (Endpoint("10.1.1.9", (Port("", 80),), node="n1", pod="demo/web"),)


def test_one_number_of_two_protocols_is_one_service() -> None:
    two = [{"containerPort": 53, "hostPort": 53, "protocol": p} for p in ("TCP", "UDP")]
    [found] = host_ports(wire("web", *two))
    assert found.service.ports == (Port("", 53, node_port=53), Port("", 53, "UDP", node_port=53))


@pytest.mark.parametrize(
    ("host_ip", "addresses"),
    [("172.30.1.11", [("172.30.1.11",)]), ("0.0.0.0", [()]), ("::", [()]), ("127.0.0.1", []), ("::1", [])],
)
def test_a_host_ip_says_at_which_address_of_the_node(host_ip: str, addresses: list[tuple[str, ...]]) -> None:
    found = host_ports(wire("web", {"containerPort": 80, "hostPort": 8080, "hostIP": host_ip}))
    assert [each.service.external_ips for each in found] == addresses


@pytest.mark.parametrize("fields", [{"phase": "Failed"}, {"phase": "Succeeded"}, {"hostNetwork": True}])
def test_a_pod_that_has_ended_or_is_on_the_nodes_network_has_no_host_port(fields: dict[str, Any]) -> None:
    assert list(host_ports(wire(**fields))) == []


async def test_host_ports_come_and_go_with_their_pods_whatever_uid_they_have() -> None:
    db = Database(PODS, SERVICES, ENDPOINT_SETS)
    sink = PodSink(db, TableSink(db, PODS, "kubernetes", pod))

    def seen() -> list[tuple[str, str]]:
        snapshot = db.snapshot()
        assert snapshot.count(ENDPOINT_SETS) == snapshot.count(SERVICES)
        return sorted((row.name, row.uid) for row in snapshot.all(SERVICES))

    assert db.snapshot().pending(SERVICES) == {"pods"}
    await sink.replace({"demo/web": wire(), "demo/plain": wire("plain", {"containerPort": 80})}, partial=False)
    assert db.snapshot().initialized(SERVICES, ENDPOINT_SETS, PODS)
    assert seen() == [("demo/web:host-port:8080", "u1")]
    sink.apply([Event("demo/web", wire(uid="u2"))])
    assert seen() == [("demo/web:host-port:8080", "u2")]
    sink.apply([Event("demo/web", wire("web", {"containerPort": 80, "hostPort": 8081}, uid="u2"))])
    assert seen() == [("demo/web:host-port:8081", "u2")]
    sink.apply([Event("demo/web", wire(phase="Failed"))])
    assert seen() == []
    await sink.replace({"demo/web": wire()}, partial=True)
    await sink.replace({"demo/other": wire("other", {"containerPort": 1, "hostPort": 9})}, partial=True)
    assert len(seen()) == 2
    await sink.replace({}, partial=False)
    assert seen() == []


async def test_a_pod_that_cannot_be_read_keeps_its_host_ports_and_is_a_fault_until_it_can_or_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    db = Database(PODS, SERVICES, ENDPOINT_SETS, FAULTS)
    sink = PodSink(db, TableSink(db, PODS, "kubernetes", pod, kind="pods"))
    await sink.replace({"demo/web": wire(), "demo/other": wire("other")}, partial=False)

    def seen() -> tuple[list[str], set[tuple[str, ...]]]:
        faults: set[tuple[str, ...]] = {(row.part, row.kind, row.name, row.cause) for row in db.snapshot().all(FAULTS)}
        return sorted(row.name for row in db.snapshot().all(SERVICES)), faults

    both = ["demo/other:host-port:8080", "demo/web:host-port:8080"]
    unreadable: Any = Unreadable("at `$.spec`")
    sink.apply([Event("demo/web", unreadable)])
    assert seen() == (both, {("pods", "pods", "demo/web", "unreadable")})
    sink.apply([Event("demo/web", wire("web", {"containerPort": 80, "hostPort": 99_999}))])
    assert seen() == (both, {("services", "host ports of pods", "demo/web", "malformed")})
    grouped = host_ports_module._grouped
    monkeypatch.setattr(host_ports_module, "_grouped", lambda spec: 1 // 0)
    sink.apply([Event("demo/web", wire()), Event("demo/other", wire("other"))])
    assert seen() == (
        both,
        {
            ("services", "host ports of pods", "demo/web", "bug"),
            ("services", "host ports of pods", "demo/other", "bug"),
        },
    )
    monkeypatch.setattr(host_ports_module, "_grouped", grouped)
    sink.apply([Event("demo/web", wire()), Event("demo/other", None)])
    assert seen() == (both[1:], set())


# a kind that may be missing

PATH = "/apis/cilium.io/v2/namespaces/demo/ciliumlocalredirectpolicies/near"
KIND = cilium.LOCAL_REDIRECT_POLICY


@asynccontextmanager
async def following(server: FakeApiServer) -> AsyncIterator[Database]:
    db = Database(LOCAL_REDIRECTS, NODES)
    async with kube.Client(Transport(Access(server=server.url))) as client:
        store = Optional(client, KIND, client.store(KIND), look_again=0.01)
        sink = TableSink(db, LOCAL_REDIRECTS, "kubernetes", local_redirect)
        task = asyncio.create_task(Reflector(store, sink, name="test", first_delay=0.001, max_delay=0.01).run())
        try:
            yield db
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until(db: Database, condition: Callable[[Snapshot], bool]) -> None:
    async with asyncio.timeout(60):
        await db.until(condition)


async def test_a_kind_that_is_not_served_keeps_nobody_waiting_and_is_followed_once_it_is() -> None:
    async with running() as server, following(server) as db:
        await until(db, lambda now: now.initialized(LOCAL_REDIRECTS))
        assert db.snapshot().count(LOCAL_REDIRECTS) == 0
        server.served["/apis/cilium.io/v2"] = ["ciliumlocalredirectpolicies"]
        server.put(PATH, spec={"redirectFrontend": SERVICE, "redirectBackend": NEAR})
        await until(db, lambda now: now.count(LOCAL_REDIRECTS) == 1)


async def test_a_kind_that_we_may_not_list_keeps_nobody_waiting_and_is_followed_once_we_may() -> None:
    async with running() as server:
        server.served["/apis/cilium.io/v2"] = ["ciliumlocalredirectpolicies"]
        server.put(PATH, spec={"redirectFrontend": SERVICE, "redirectBackend": NEAR})
        forbid(server)
        async with following(server) as db:
            await until(db, lambda now: now.initialized(LOCAL_REDIRECTS))
            assert db.snapshot().count(LOCAL_REDIRECTS) == 0
            server.faults.clear()
            await until(db, lambda now: now.count(LOCAL_REDIRECTS) == 1)


async def test_rules_of_access_are_awaited_until_we_may_list_them_but_not_where_they_are_not_served() -> None:
    path, kind = "/apis/isthmus.io/v1alpha1", "exportpolicies"
    refusal = status(403, "Forbidden", "no role says so")
    async with running() as server, kube.Client(Transport(Access(server=server.url))) as client:

        @asynccontextmanager
        async def followed() -> AsyncIterator[tuple[Database, Reflector[Any]]]:
            db = Database(EXPORT_POLICIES)
            [reflector] = kubernetes.reflectors(db, client, tables=["export_policies"], cluster=ClusterName("c1"))
            task = asyncio.create_task(reflector.run())
            yield db, reflector
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        async with followed() as (db, _):
            await until(db, lambda now: now.initialized(EXPORT_POLICIES))
        client.forget(EXPORT_POLICY)
        server.served[path] = [kind]
        server.put(f"{path}/namespaces/demo/{kind}/callers", spec={"allow": []})
        for _ in range(1000):
            server.fail(refusal, on=lambda each: each.path.endswith(kind))
        async with followed() as (db, reflector):
            async with asyncio.timeout(60):
                while reflector.state.failures < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            assert not db.snapshot().initialized(EXPORT_POLICIES)
            server.faults.clear()
            await until(db, lambda now: now.count(EXPORT_POLICIES) == 1)


async def test_a_right_that_is_taken_away_takes_away_nothing_that_was_known() -> None:
    async with running() as server:
        server.served["/apis/cilium.io/v2"] = ["ciliumlocalredirectpolicies"]
        server.put(PATH, spec={"redirectFrontend": SERVICE, "redirectBackend": NEAR})
        async with following(server) as db:
            await until(db, lambda now: now.count(LOCAL_REDIRECTS) == 1)
            watching = await server.watcher()
            forbid(server)
            left = len(server.faults)
            server.expire()
            watching.end()
            async with asyncio.timeout(60):
                while len(server.faults) > left - 10:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            assert db.snapshot().count(LOCAL_REDIRECTS) == 1


def forbid(server: FakeApiServer) -> None:
    refusal = status(403, "Forbidden", "no role says so")
    for _ in range(1000):
        server.fail(refusal, on=lambda each: each.path.endswith("ciliumlocalredirectpolicies") and not each.is_watch)


async def test_the_agents_source_knows_the_policies_as_a_kind_that_may_be_missing() -> None:
    async with running() as server, kube.Client(Transport(Access(server=server.url))) as client:
        db = Database(LOCAL_REDIRECTS)
        [reflector] = kubernetes.reflectors(db, client, tables=["local_redirects"], cluster=ClusterName("c1"))
        task = asyncio.create_task(reflector.run())
        await until(db, lambda now: now.initialized(LOCAL_REDIRECTS))
        assert reflector.state.failures == 0
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
