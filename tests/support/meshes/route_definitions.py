"""The kind HTTPRoute in an API server."""

from __future__ import annotations

import asyncio

from isthmus import kube
from isthmus.kube.objects.gateway import HTTP_ROUTE
from isthmus_lab.realapi import definitions


async def define_routes(client: kube.Client) -> None:
    """As the lab has it, once the server serves it."""
    http_route, *_ = definitions.of_routes()
    await client.apply(definitions.DEFINITION, "", http_route["metadata"]["name"], http_route, field_manager="test")
    async with asyncio.timeout(60):
        while not await client.serves(HTTP_ROUTE):
            client.forget(HTTP_ROUTE)
            await asyncio.sleep(0.05)
