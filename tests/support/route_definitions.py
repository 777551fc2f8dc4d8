"""The kind HTTPRoute in an API server, as the Gateway API's definition has it but for the schema."""

from __future__ import annotations

import asyncio
from typing import Any

from isthmus import kube
from isthmus.kube.objects.gateway import HTTP_ROUTE
from isthmus_lab.realapi.definitions import DEFINITION

ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
HTTP_ROUTES: dict[str, Any] = {
    "metadata": {
        "name": "httproutes.gateway.networking.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/gateway-api/pull/2997"},
    },
    "spec": {
        "group": "gateway.networking.k8s.io",
        "scope": "Namespaced",
        "names": {"kind": "HTTPRoute", "plural": "httproutes", "singular": "httproute"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": ANYTHING},
                "subresources": {"status": {}},
            }
        ],
    },
}


async def define_routes(client: kube.Client) -> None:
    await client.apply(DEFINITION, "", HTTP_ROUTES["metadata"]["name"], HTTP_ROUTES, field_manager="test")
    async with asyncio.timeout(60):
        while not await client.serves(HTTP_ROUTE):
            client.forget(HTTP_ROUTE)
            await asyncio.sleep(0.05)
