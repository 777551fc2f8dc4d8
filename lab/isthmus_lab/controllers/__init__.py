"""The controllers of the lab's small API server: plain loops that make true what objects ask for.

Each is level-triggered: it reads current state, never events, so a lost or repeated event costs nothing.
They read the server's memory and write through its verbs, as any client would over HTTP.
"""

from __future__ import annotations

import asyncio

from isthmus_lab.apiserver.api import Api
from isthmus_lab.controllers import (
    daemonsets,
    definitions,
    deployments,
    endpoints,
    garbage,
    jobs,
    namespaces,
    nodes,
    replicasets,
    scheduler,
    statefulsets,
)
from isthmus_lab.controllers.loop import Controller

PARTS = (
    *(definitions, namespaces, garbage, nodes, scheduler, endpoints),
    *(replicasets, deployments, statefulsets, daemonsets, jobs),
)


def controllers(api: Api) -> list[Controller]:
    """All of them, not running."""
    return [part.controller(api) for part in PARTS]


async def run(api: Api) -> None:
    """Run all of them, until cancelled."""
    await api.store.ready.wait()
    async with asyncio.TaskGroup() as tasks:
        for controller in controllers(api):
            tasks.create_task(controller.run(), name=controller.name)
