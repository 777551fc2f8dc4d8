"""The operator numbers the accounts of the cluster's pods, on each API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus import kube
from isthmus.clusterset.records import identities as records
from isthmus.desired import ApiTarget
from isthmus.identity import objects
from isthmus.kube.kind import Kind
from isthmus.kube.objects.core import POD
from isthmus.kube.objects.identities import CALLER_IDENTITY, CallerIdentity
from isthmus.kube.objects.meta import Meta, Wire
from isthmus.mcs.records import derived as records_derived
from isthmus.model import tables
from isthmus.model.identities import numbers
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.objects import AS_WANTED
from isthmus.processes.identities import SOURCES, Numbering
from isthmus.sources import kubernetes
from isthmus.statedb import Backoff, Database, Derivations, Reconciler

C1 = ClusterName("c1")
DEFINITION = Path(__file__).resolve().parents[2] / "deploy" / "crds" / "calleridentities.yaml"


class Named(Wire, frozen=True):
    metadata: Meta


ACCOUNT = Kind("", "v1", "serviceaccounts", "ServiceAccount", Named)
CRD = Kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", Named, namespaced=False
)


class Numbers:
    """The operator's part of one cluster, and the time of day."""

    def __init__(self, client: kube.Client, namespace: str, *, start: timedelta = timedelta()) -> None:
        self.client = client
        self.namespace = namespace
        self.late = start
        self.db = Database(
            tables.PODS,
            tables.IDENTITIES,
            tables.OBSERVED,
            tables.IDENTITY_OBJECTS,
            tables.IDENTITY_OBJECTS_STATUS,
            tables.FAULTS,
            tables.RECORDS,
            tables.OWN_EXPORTS,
            tables.SERVICES,
            tables.NAMESPACES,
            tables.MERGED,
            tables.ENDPOINT_SETS,
        )

    def _now(self) -> datetime:
        return datetime.now(UTC) + self.late

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Numbers]:
        reflectors = kubernetes.reflectors(
            self.db, self.client, tables=(*SOURCES, "observed"), cluster=C1, accounts=True
        )
        self.numbering = Numbering(self.db, C1, numbers(1, 255), now=self._now)
        target = ApiTarget(self.client, objects.KINDS)
        reconciler: Reconciler[Any, Any] = Reconciler(
            self.db,
            tables.IDENTITY_OBJECTS,
            target,
            status=tables.IDENTITY_OBJECTS_STATUS,
            backoff=Backoff(0.05, 0.2),
        )
        derivations = Derivations(self.db, records_derived(C1, 1, with_identities=True))
        async with asyncio.TaskGroup() as group:
            parts: tuple[Any, ...] = (*reflectors, self.numbering, reconciler, derivations)
            tasks = [group.create_task(part.run()) for part in parts]
            yield self
            for task in tasks:
                task.cancel()

    async def pod(self, name: str, account: str) -> None:
        meta = {"name": account}
        await self.client.apply(ACCOUNT, self.namespace, account, {"metadata": meta}, field_manager="test")
        spec = {
            "serviceAccountName": account,
            "automountServiceAccountToken": False,
            "containers": [{"name": "app", "image": "app"}],
        }
        await self.client.create(POD, self.namespace, {"metadata": {"name": name}, "spec": spec})

    async def gone(self, name: str) -> None:
        await self.client.delete(POD, self.namespace, name, grace=0)

    def rows(self) -> dict[str, int]:
        found = self.db.snapshot().by(tables.IDENTITIES, "cluster", C1)
        return {each.service_account: each.number for each in found if each.namespace == self.namespace}

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def written(self) -> list[CallerIdentity]:
        found = await self.client.list(CALLER_IDENTITY)
        return [each for each in found if each.spec.namespace == self.namespace]


@pytest.fixture
async def defined(client: kube.Client) -> kube.Client:
    body: dict[str, Any] = yaml.safe_load(DEFINITION.read_text())
    await client.apply(CRD, "", body["metadata"]["name"], body, field_manager="test")
    async with asyncio.timeout(60):
        while not await client.serves(CALLER_IDENTITY):
            client.forget(CALLER_IDENTITY)
            await asyncio.sleep(0.05)
    return client


async def test_accounts_of_pods_are_numbered_published_and_forgotten_after_an_hour(
    defined: kube.Client, namespace: str
) -> None:
    async with Numbers(defined, namespace).running() as here:
        await here.pod("web-1", "front")
        await here.pod("web-2", "front")
        await here.pod("db-1", "back")
        await here.until(lambda: here.rows().keys() == {"front", "back"})
        before = here.rows()
        [front] = [row for row in here.db.snapshot().all(tables.IDENTITIES) if row.number == before["front"]]
        await here.until(lambda: str(front.number) in {row.name for row in here.db.snapshot().all(tables.RECORDS)})
        published = {row.name: row.value for row in here.db.snapshot().all(tables.RECORDS)}
        assert published[str(front.number)] == records.encode(front)  # type: ignore[index]
        await here.gone("web-1")
        await here.gone("db-1")
        key = (C1, before["back"])
        await here.until(lambda: (row := here.db.snapshot().get(tables.IDENTITIES, key)) and row.unused_since)
        assert here.rows() == before
        here.late = timedelta(hours=1, seconds=2)
        here.numbering.step()
        await here.until(lambda: here.rows() == {"front": before["front"]})
        assert [each.metadata.name for each in await here.written()] == [str(before["front"])]
        assert here.db.snapshot().count(tables.FAULTS) == 0


async def test_a_process_that_begins_changes_no_number(defined: kube.Client, namespace: str) -> None:
    async with Numbers(defined, namespace).running() as here:
        for account in ("a", "b", "c"):
            await here.pod(f"{account}-1", account)
        await here.until(lambda: len(here.rows()) == 3)
        before = here.rows()
    versions = {each.metadata.resource_version for each in await here.written()}
    async with Numbers(defined, namespace).running() as again:
        await again.pod("d-1", "d")
        await again.until(lambda: len(again.rows()) == 4)
        assert again.rows().items() > before.items()
    assert versions <= {each.metadata.resource_version for each in await here.written()}


async def test_an_account_of_a_deleted_object_gets_the_same_number_again(defined: kube.Client, namespace: str) -> None:
    async with Numbers(defined, namespace).running() as here:
        await here.pod("a-1", "a")
        await here.until(here.rows)
        [written] = await here.written()
        key = ("CallerIdentity", ServiceName(f"/{written.metadata.name}"))
        await here.until(lambda: here.db.snapshot().get(tables.IDENTITY_OBJECTS, key).seen == AS_WANTED)  # type: ignore[union-attr]
        await defined.delete(CALLER_IDENTITY, "", written.metadata.name)

        async def again() -> bool:
            return [each.metadata.name for each in await here.written()] == [written.metadata.name]

        async with asyncio.timeout(60):
            while not await again() or (await here.written())[0].metadata.uid == written.metadata.uid:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
