"""A node's report with the rights of ``deploy/routes/rbac.yaml`` alone, on a real kube-apiserver that enforces them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml
from clusters.apiserver_world import TIMEOUT
from clusters.kube_apiserver import KubeApiServer
from clusters.rights import GROUP, KINDS, user

from isthmus import kube
from isthmus.kube.objects.refusals import REFUSED_ROUTES
from isthmus.model.names import ServiceName
from isthmus.model.routes import MAX_REFUSAL, MAX_REFUSALS, NodeRefusals, RouteRefusal
from isthmus.proxy.refusals import ReportTarget
from isthmus.sources.routes import refusals
from isthmus_lab.realapi import definitions

pytestmark = pytest.mark.kube

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
NODE = "n1"


async def allow_agent(admin: kube.Client) -> None:
    """The definition, and the role that deploy/ binds to agents, for the user ``agent``."""
    definition = yaml.safe_load((DEPLOY / "crds" / "refusedroutes.yaml").read_text())
    await admin.apply(definitions.DEFINITION, "", definition["metadata"]["name"], definition, field_manager="test")
    found = yaml.safe_load_all((DEPLOY / "routes" / "rbac.yaml").read_text())
    [role] = [
        each for each in found if each["kind"] == "ClusterRole" and each["metadata"]["name"].endswith("agent-routes")
    ]
    name = role["metadata"]["name"]
    await admin.apply(KINDS["ClusterRole"], "", name, role, field_manager="test")
    binding: dict[str, Any] = {
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": name},
        "subjects": [user("agent")],
    }
    await admin.apply(KINDS["ClusterRoleBinding"], "", name, binding, field_manager="test")


def row(count: int, message: str) -> NodeRefusals:
    """A report of routes with names as long as names can be."""
    names = [ServiceName(f"{'n' * 63}/{number:03}{'r' * 250}") for number in range(count)]
    service = ServiceName(f"{'n' * 63}/{'s' * 63}")
    return NodeRefusals(name=NODE, routes=tuple(RouteRefusal("HTTPRoute", each, service, message) for each in names))


async def test_an_agent_may_write_and_remove_a_report_of_any_size_and_read_none(kube_apiserver: KubeApiServer) -> None:
    await kube_apiserver.ready()
    async with (
        await kube.connect(kube_apiserver.section()) as admin,
        await kube.connect(kube_apiserver.section("agent")) as agent,
        asyncio.timeout(TIMEOUT),
    ):
        await allow_agent(admin)
        target = ReportTarget(agent, NODE)
        while await target.update([row(1, "no")]):  # the definition and the role reach the server's parts one by one
            agent.forget(REFUSED_ROUTES)
            await asyncio.sleep(0.05)
        largest = row(MAX_REFUSALS, "…" * MAX_REFUSAL)
        assert await target.update([largest]) == {}
        assert refusals(await admin.get(REFUSED_ROUTES, NODE)) == largest
        with pytest.raises(kube.Forbidden):
            await agent.list(REFUSED_ROUTES)
        assert await target.delete([largest]) == {}
        assert await target.delete([largest]) == {}
        assert await target.prune([]) == "0 pruned"
        assert await admin.list(REFUSED_ROUTES) == []
