"""The operator with the rights of ``deploy/operator/rbac.yaml`` alone, on a real kube-apiserver that enforces them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from clusters.kube_apiserver import KubeApiServer
from clusters.operator_world import Operator, has_address, spec
from clusters.rights import GROUP, KINDS, until_allowed, user

from isthmus import kube
from isthmus.kube.events import Recorder
from isthmus.kube.lease import Election
from isthmus.kube.objects.core import EVENT, NAMESPACE, Event
from isthmus.mcs import Notifier
from isthmus.model import tables
from isthmus.model.services import Endpoint, Port

RBAC = Path(__file__).resolve().parents[2] / "deploy" / "operator" / "rbac.yaml"

pytestmark = [
    pytest.mark.kube,
    pytest.mark.parametrize("client", [pytest.param("kube", marks=pytest.mark.kube)], indirect=True),
]


@pytest.fixture
async def limited(client: kube.Client, kube_apiserver: KubeApiServer) -> AsyncIterator[kube.Client]:
    """A client that may do what the deployed operator may."""
    for role in yaml.safe_load_all(RBAC.read_text()):
        kind, name, namespace = role["kind"], role["metadata"]["name"], role["metadata"].get("namespace", "")
        await client.apply(KINDS[kind], namespace, name, role, field_manager="test")
        binding: dict[str, Any] = {
            "roleRef": {"apiGroup": GROUP, "kind": kind, "name": name},
            "subjects": [user("operator")],
        }
        await client.apply(KINDS[f"{kind}Binding"], namespace, name, binding, field_manager="test")
    async with await kube.connect(kube_apiserver.section("operator")) as limited:
        await until_allowed(limited, NAMESPACE)
        yield limited


async def test_the_deployed_rights_are_enough_for_all_it_does(
    client: kube.Client, limited: kube.Client, namespace: str
) -> None:
    people = Operator(client, namespace=namespace)
    async with Operator(limited, namespace=namespace).running() as operator:
        await people.export_here()
        operator.export("c2", labels=(("team", "red"),))
        operator.publish(Endpoint("10.2.1.5", (Port("http", 8080),)), service=operator.derived_name)
        await operator.imported(has_address)
        await operator.settled()
        operator.export("c2", type="Headless")
        await operator.imported(lambda each: spec(each).type == "Headless" and not spec(each).ips)
        await operator.settled()
        await operator.nothing_fails()
    async with Operator(limited, namespace=namespace).running() as second:
        await second.until(lambda now: second.name in {row.name for row in now.all(tables.IMPORTS)})
        await second.settled()
    await people.writer.close()


async def test_it_may_be_elected_and_say_events(client: kube.Client, limited: kube.Client, namespace: str) -> None:
    people = Operator(client, namespace=namespace)
    recorder = Recorder(limited, component="isthmus-operator", instance="test")
    elected = asyncio.Event()

    async def office() -> None:
        elected.set()
        await asyncio.Event().wait()

    election = Election(limited, name="isthmus-test-mcs-rights", namespace="kube-system", identity="test")
    async with Operator(limited, namespace=namespace).running() as operator, asyncio.TaskGroup() as tasks:
        notifier = Notifier(operator.db, recorder, Counter())
        running = [tasks.create_task(each) for each in (recorder.run(), notifier.run(), election.run(office))]
        await people.export_here()
        async with asyncio.timeout(60):
            await elected.wait()
            events: list[Event] = []
            while not events:
                events = await client.list(EVENT, namespace)
                await asyncio.sleep(0.05)
        for task in running:
            task.cancel()
    await people.writer.close()
