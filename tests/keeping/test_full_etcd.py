"""An export that the own etcd has no space for: its ServiceExport and `diagnose` have why, until the etcd is cured."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from clusters.keys_world import KeptCluster, kept, until
from clusters.kube_apiserver import KubeApiServer

from isthmus.admin.query import Socket
from isthmus.cli.diagnosis import facts
from isthmus.cli.diagnosis.exporters import exports
from isthmus.cli.diagnosis.hops import Hop
from isthmus.etcd import Credentials, EtcdError, Session, Tls
from isthmus.kube.objects.core import NAMESPACE, SERVICE
from isthmus.kube.objects.mcs import SERVICE_EXPORT
from isthmus.kube.objects.meta import Condition
from isthmus.model.names import ServiceName
from isthmus.reflector import Transient

pytestmark = [pytest.mark.kube, pytest.mark.slow]

QUOTA = 4 << 20


@pytest.fixture
async def cluster(kube_apiserver: KubeApiServer, tmp_path: Path) -> AsyncIterator[KeptCluster]:
    """A cluster whose etcd has a small quota and its users, and an operator; nothing cures that etcd."""
    async with kept(kube_apiserver, tmp_path) as made:
        made.etcd.flags = (*made.etcd.flags, f"--quota-backend-bytes={QUOTA}")
        await made.define()
        keys = made.start("keys")
        await made.mount("isthmus-etcd-server", "isthmus-etcd-operator")
        made.etcd.start()
        operator = made.start("operator")
        for each in (keys, operator):
            await until(lambda: _ready(each), "a ready process")  # noqa: B023
        await until(lambda: _authenticates(made), "an etcd that knows its users")
        keys.process.kill()
        keys.process.wait()
        yield made


async def _ready(process: object) -> bool:
    return bool(process.ready)  # type: ignore[attr-defined]


def as_operator(cluster: KeptCluster) -> Session:
    mount = cluster.mounts / "isthmus-etcd-operator"
    tls = Tls(*(str(mount / name) for name in ("ca.crt", "operator.crt", "operator.key")))
    user = Credentials("operator", (mount / "operator.password").read_text())
    return Session([cluster.etcd.endpoint], tls=tls, credentials=user)


async def _authenticates(cluster: KeptCluster) -> bool:
    """True if the users are made: while they are half made, processes work without them."""
    try:
        async with as_operator(cluster) as session:
            await session.get("cilium/.heartbeat")
    except (EtcdError, Transient):
        return False
    return True


async def fill(cluster: KeptCluster) -> None:
    """Overwrite one key as the operator may, until the etcd refuses writes."""

    async def overwrite() -> None:
        async with as_operator(cluster) as session:
            for number in range(200):
                await session.put("cilium/.heartbeat", bytes([number]) * (256 << 10))

    with pytest.raises((EtcdError, Transient), match="space exceeded"):
        await overwrite()


async def condition(cluster: KeptCluster, namespace: str, kind: str) -> Condition | None:
    export = await cluster.admin.get(SERVICE_EXPORT, "echo", namespace)
    conditions = (export.status.conditions if export.status is not None else None) or []
    return next((each for each in conditions if each.type == kind), None)


def export_hops(socket: Path, service: ServiceName) -> list[Hop]:
    """The part of a diagnosis that is about exports, as an operator's tables have it."""
    operator = facts.process(Socket(socket), "c1", "operator")
    agent = facts.process(None, "c1", "agent")
    return list(exports(facts.Facts(agent, operator, ()), service))


async def test_an_export_that_does_not_fit_into_the_etcd_has_why_until_the_etcd_is_cured(cluster: KeptCluster) -> None:
    made = await cluster.admin.create(NAMESPACE, "", {"metadata": {"generateName": "isthmus-test-full-"}})
    namespace = made.metadata.name
    await fill(cluster)
    await cluster.admin.create(
        SERVICE, namespace, {"metadata": {"name": "echo"}, "spec": {"ports": [{"name": "http", "port": 80}]}}
    )
    await cluster.admin.create(SERVICE_EXPORT, namespace, {"metadata": {"name": "echo"}})

    async def unpublished() -> Condition | None:
        return await condition(cluster, namespace, "Unpublished")

    found = await until(unpublished, "the condition Unpublished")
    assert (found.status, found.reason) == ("True", "EtcdFull")
    assert "quota" in found.message
    assert "isthmus keys" in found.message
    ready = await condition(cluster, namespace, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "Pending")

    [hop] = [
        each
        for each in export_hops(cluster.folder / "operator.sock", ServiceName(f"{namespace}/echo"))
        if each.state == "fault"
    ]
    assert "not published" in hop.text
    assert "isthmus keys" in hop.cure
    assert "etcdctl" in hop.cure

    cluster.start("keys")

    async def published() -> bool:
        state = await condition(cluster, namespace, "Ready")
        return await unpublished() is None and state is not None and state.status == "True"

    await until(published, "the export published once its etcd is cured")
    await cluster.admin.delete(SERVICE_EXPORT, namespace, "echo")  # nothing empties the namespace here
    await cluster.admin.delete(NAMESPACE, "", namespace)
