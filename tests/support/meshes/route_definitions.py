"""Kinds of the Gateway API in an API server."""

from __future__ import annotations

import asyncio
from typing import Any

from isthmus import kube
from isthmus.kube.objects.gateway import HTTP_ROUTE
from isthmus_lab.realapi import definitions


async def define_routes(client: kube.Client, kind: kube.Kind[Any] = HTTP_ROUTE) -> None:
    """A kind as the lab has it, once the server serves it."""
    [found] = [each for each in definitions.of_routes() if each["spec"]["names"]["kind"] == kind.kind]
    await client.apply(definitions.DEFINITION, "", found["metadata"]["name"], found, field_manager="test")
    async with asyncio.timeout(60):
        while not await client.serves(kind):
            client.forget(kind)
            await asyncio.sleep(0.05)
