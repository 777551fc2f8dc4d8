"""The client against a real kube-apiserver: what the fake cannot know."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from clusters.kube_apiserver import KubeApiServer

from isthmus import kube
from isthmus.config import KubernetesSection
from isthmus.kube.access import access
from isthmus.kube.events import Recorder
from isthmus.kube.kind import Kind
from isthmus.kube.lease import Election
from isthmus.kube.objects.coordination import LEASE
from isthmus.kube.objects.core import EVENT, NAMESPACE, SERVICE, Event
from isthmus.kube.objects.mcs import SERVICE_IMPORT
from isthmus.kube.objects.meta import Meta, Wire
from isthmus.kube.store import Limits
from isthmus.kube.transport import Transport
from isthmus.model import tables as model
from isthmus.model.names import ClusterName
from isthmus.model.services import Service
from isthmus.reflector import Reflector, Transient
from isthmus.sources import kubernetes
from isthmus.statedb import Database

pytestmark = [pytest.mark.kube, pytest.mark.asyncio(loop_scope="function")]


class Definition(Wire, frozen=True):
    """An object of which only the name matters here."""

    metadata: Meta


CRD = Kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", Definition, namespaced=False
)


SERVICE_ACCOUNT = Kind("", "v1", "serviceaccounts", "ServiceAccount", Definition)


def definition(*versions: str) -> dict[str, Any]:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    served = [{"name": v, "served": True, "storage": n == 0, "schema": schema} for n, v in enumerate(versions)]
    return {
        "metadata": {
            "name": "serviceimports.multicluster.x-k8s.io",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/mcs-api"},
        },
        "spec": {
            "group": "multicluster.x-k8s.io",
            "scope": "Namespaced",
            "names": {"plural": "serviceimports", "singular": "serviceimport", "kind": "ServiceImport"},
            "versions": served,
        },
    }


async def remove_definition(client: kube.Client) -> None:
    """Until the server has neither the definition nor the kind: it takes both away later, one after the other."""
    async with asyncio.timeout(60):
        with suppress(kube.NotFound):
            await client.delete(CRD, "", definition()["metadata"]["name"])
            while await client.get(CRD, definition()["metadata"]["name"]):  # noqa: ASYNC110 in another process
                await asyncio.sleep(0.05)
        with suppress(kube.NotServed):
            while await client.served(SERVICE_IMPORT):
                client.forget(SERVICE_IMPORT)
                await asyncio.sleep(0.05)


@pytest.fixture
async def client(kube_apiserver: KubeApiServer) -> AsyncIterator[kube.Client]:
    await kube_apiserver.ready()
    async with await kube.connect(kube_apiserver.section()) as client:
        yield client


@pytest.fixture
async def namespace(client: kube.Client) -> str:
    made = await client.create(NAMESPACE, "", {"metadata": {"generateName": "isthmus-test-"}})
    return made.metadata.name


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


PORT: dict[str, Any] = {"spec": {"ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}}


@asynccontextmanager
async def running(*awaitables: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """These go on until the block ends, and have ended then: nothing of them outlives the loop."""
    tasks = [asyncio.create_task(each) for each in awaitables]
    try:
        yield
    finally:
        await stop(*tasks)


async def stop(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def of(db: Database, namespace: str, name: str) -> list[Service]:
    return db.snapshot().by(model.SERVICES, "name", f"{namespace}/{name}")


async def token(client: kube.Client, namespace: str, name: str) -> str:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = SERVICE_ACCOUNT.path(namespace, name, subresource="token")
    answer = await client._transport.request("POST", path, body=msgspec.json.encode(body))
    return str(msgspec.json.decode(answer)["status"]["token"])


async def test_verbs(client: kube.Client, namespace: str) -> None:
    made = await client.create(SERVICE, namespace, {"metadata": {"name": "echo"}, **PORT})
    with pytest.raises(kube.AlreadyExists):
        await client.create(SERVICE, namespace, {"metadata": {"name": "echo"}, **PORT})
    with pytest.raises(kube.NotFound, match='services "gone" not found') as caught:
        await client.get(SERVICE, "gone", namespace)
    assert type(caught.value) is kube.NotFound
    with pytest.raises(kube.NotFound) as caught:
        await client.create(SERVICE, "no-such-namespace", {"metadata": {"name": "echo"}, **PORT})
    assert type(caught.value) is kube.NotFound
    with pytest.raises(kube.Invalid, match="70000"):
        await client.apply(SERVICE, namespace, "bad", {"spec": {"ports": [{"port": 70000}]}}, field_manager="test")
    applied = await client.apply(
        SERVICE, namespace, "echo", {"metadata": {"labels": {"a": "1"}}, **PORT}, field_manager="test"
    )
    assert applied.metadata.labels == {"a": "1"}
    applied = await client.apply(SERVICE, namespace, "echo", PORT, field_manager="test")
    assert not applied.metadata.labels, "what we no longer say goes"
    patched = await client.patch(SERVICE, namespace, "echo", {"metadata": {"annotations": {"b": "2"}}})
    assert patched.metadata.annotations == {"b": "2"}
    with pytest.raises(kube.Conflict):
        await client.patch(
            SERVICE, namespace, "echo", {"metadata": {"resourceVersion": made.metadata.resource_version}}
        )
    with pytest.raises(kube.Conflict):
        await client.delete(SERVICE, namespace, "echo", uid="of another")
    assert [each.metadata.name for each in await client.list(SERVICE, namespace)] == ["echo"]
    assert await client.delete(SERVICE, namespace, "echo", uid=made.metadata.uid)
    assert not await client.delete(SERVICE, namespace, "echo")


async def test_a_status_is_applied_apart(client: kube.Client, namespace: str) -> None:
    spec = {**PORT["spec"], "type": "LoadBalancer"}
    await client.create(SERVICE, namespace, {"metadata": {"name": "echo"}, "spec": spec})
    body = {"status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.7"}]}}}
    await client.apply(SERVICE, namespace, "echo", body, field_manager="test", subresource="status")
    found = await client.get(SERVICE, "echo", namespace)
    assert found.status.load_balancer is not None
    assert found.status.load_balancer.ingress is not None


async def test_pages_are_of_one_revision(client: kube.Client, namespace: str) -> None:
    for n in range(10):
        await client.create(SERVICE, namespace, {"metadata": {"name": f"s{n}"}, **PORT})
    listing = await client.store(SERVICE, namespace, limits=Limits(page=3)).list()
    assert sorted(listing.items) == [f"{namespace}/s{n}" for n in range(10)]


async def test_a_watch_goes_on_from_a_list(client: kube.Client, namespace: str) -> None:
    store = client.store(SERVICE, namespace)
    listing = await store.list()
    watch = store.watch(listing.revision)
    assert (await anext(watch)).events == ()
    await client.create(SERVICE, namespace, {"metadata": {"name": "echo"}, **PORT})
    [event] = (await anext(watch)).events
    assert event.key == f"{namespace}/echo"
    assert event.item is not None
    await client.delete(SERVICE, namespace, "echo")
    [event] = (await anext(watch)).events
    assert event.item is None
    await watch.aclose()  # type: ignore[attr-defined]


async def test_what_vanished_while_the_server_was_away_goes(
    kube_apiserver: KubeApiServer, client: kube.Client, namespace: str
) -> None:
    for name in ("kept", "lost"):
        await client.create(SERVICE, namespace, {"metadata": {"name": name}, **PORT})
    db = Database(model.SERVICES)
    [reflector] = kubernetes.reflectors(db, client, tables=["services"], cluster=ClusterName("c1"))
    async with running(reflector.run()):
        await until(lambda: bool(of(db, namespace, "lost")))
        kube_apiserver.kill()
        await kube_apiserver.lose(f"/registry/services/specs/{namespace}/lost")
        kube_apiserver.start()
        await until(lambda: not of(db, namespace, "lost"))
        assert of(db, namespace, "kept")
        assert reflector.state.lists == 2, "the server no longer had our revision"


async def test_who_may_not_is_told_so_and_tried_again(kube_apiserver: KubeApiServer, client: kube.Client) -> None:
    async with await kube.connect(kube_apiserver.section("nobody")) as stranger:
        with pytest.raises(Transient, match=r"list services: 403 Forbidden: .*cannot list resource"):
            await stranger.store(SERVICE).list()
        with pytest.raises(kube.Forbidden):
            await stranger.get(SERVICE, "kubernetes", "default")


async def test_a_pod_comes_with_its_service_account_and_takes_a_new_token_when_the_old_one_ran_out(
    kube_apiserver: KubeApiServer, client: kube.Client, namespace: str, tmp_path: Path
) -> None:
    await client.create(SERVICE_ACCOUNT, namespace, {"metadata": {"name": "agent"}})
    kube_apiserver.give_pod(tmp_path, "ran out")
    found = access(KubernetesSection(), environment=kube_apiserver.environment, pod=tmp_path)
    async with kube.Client(Transport(found)) as pod:
        with pytest.raises(kube.Unauthorized):
            await pod.get(SERVICE, "kubernetes", "default")
        kube_apiserver.give_pod(tmp_path, await token(client, namespace, "agent"))
        with pytest.raises(kube.Forbidden, match=f"system:serviceaccount:{namespace}:agent"):
            await pod.get(SERVICE, "kubernetes", "default")


async def test_a_definition_that_comes_later_fills_its_table(client: kube.Client, namespace: str) -> None:
    await remove_definition(client)  # other suites use the same server
    db = Database(model.IMPORTS)
    [reflector] = kubernetes.reflectors(db, client, tables=["imports"], cluster=ClusterName("c1"))
    reflector._max_delay = 0.5
    async with running(reflector.run()):
        await until(lambda: reflector.state.failures > 1)
        assert "CustomResourceDefinition" in reflector.state.last_failure
        await client.create(CRD, "", definition("v1alpha1"))
        await until(lambda: reflector.state.synced)
        body = {"metadata": {"name": "echo"}, "spec": {"type": "ClusterSetIP", "ips": ["10.96.0.9"]}}
        await client.create(SERVICE_IMPORT, namespace, body)
        await until(lambda: bool(db.snapshot().count(model.IMPORTS)))
        assert (await client.served(SERVICE_IMPORT)).version == "v1alpha1"


async def test_tables_are_filled_and_survive_the_death_of_the_server(
    kube_apiserver: KubeApiServer, client: kube.Client, namespace: str
) -> None:
    names = ("services", "endpoint_sets", "namespaces", "nodes", "pods")
    db = Database(*(getattr(model, name.upper()) for name in names))
    reflectors: list[Reflector[Any]] = kubernetes.reflectors(db, client, tables=names, cluster=ClusterName("c1"))
    async with running(*(each.run() for each in reflectors)):
        await until(lambda: all(each.state.connected for each in reflectors))
        assert db.snapshot().by(model.SERVICES, "name", "default/kubernetes")
        kube_apiserver.kill()
        await until(lambda: not any(each.state.connected for each in reflectors))
        assert db.snapshot().count(model.NAMESPACES) > 1, "what was known still counts"
        kube_apiserver.start()
        await kube_apiserver.ready()
        await client.create(SERVICE, namespace, {"metadata": {"name": "after"}, **PORT})
        await until(lambda: bool(of(db, namespace, "after")))


async def test_a_lease_is_taken_renewed_and_given_away(client: kube.Client, namespace: str) -> None:
    led = asyncio.Event()

    async def work() -> None:
        led.set()
        await asyncio.Event().wait()

    first = Election(client, name="operator", namespace=namespace, identity="a")
    task = asyncio.create_task(first.run(work))
    await asyncio.wait_for(led.wait(), 60)
    lease = await client.get(LEASE, "operator", namespace)
    assert lease.spec.holder_identity == "a"
    assert lease.spec.lease_transitions == 0
    await stop(task)
    led.clear()
    second = asyncio.create_task(Election(client, name="operator", namespace=namespace, identity="b").run(work))
    await asyncio.wait_for(led.wait(), 12)  # before a lease that was not given away would end
    lease = await client.get(LEASE, "operator", namespace)
    assert lease.spec.lease_transitions == 1
    await stop(second)


async def test_events_are_made_and_counted(client: kube.Client, namespace: str) -> None:
    made = await client.create(SERVICE, namespace, {"metadata": {"name": "echo"}, **PORT})
    recorder = Recorder(client, component="isthmus-operator", instance="test")
    async with running(recorder.run()):
        for times in (1, 3):
            for _ in range(times):
                recorder.record(
                    SERVICE,
                    namespace=namespace,
                    name="echo",
                    uid=made.metadata.uid,
                    reason="Exported",
                    message="to all",
                )
            sent = recorder.sent + times
            await until(lambda sent=sent: recorder.sent == sent)  # type: ignore[misc]
        found: list[Event] = await client.list(EVENT, namespace)
        assert [event.count for event in found if event.count] == [4]  # the server may make some, without
