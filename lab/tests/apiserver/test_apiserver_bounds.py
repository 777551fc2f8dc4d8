"""Values beyond their bounds are the client's mistake: answered with 400 or 422, and nothing else stops."""

from __future__ import annotations

from typing import Any

import pytest
from clusters.apiserver_world import Client

DIGITS = "9" * 4400
DEEP = b'{"a":' * 5000 + b"1" + b"}" * 5000


@pytest.mark.parametrize(
    "query", ["limit=%C2%B2", f"limit={DIGITS}", "watch=1&timeoutSeconds=inf", "watch=1&resourceVersion=1e3"]
)
async def test_a_number_of_a_request_that_is_none_is_a_bad_request(client: Client, query: str) -> None:
    reply = await client.get(f"configmaps?{query}")
    assert (reply.status, reply.reason) == (400, "BadRequest")
    assert len(reply.body["message"]) < 200


@pytest.mark.parametrize(
    ("body", "type"),
    [
        (DEEP, "application/json"),
        (b'{"metadata": {"name": "a"}, "x": %s}' % DIGITS.encode(), "application/json"),
        (b'{"metadata": {"name": "\xff"}}', "application/json"),
        (b"metadata: {name: a}\nx: %s\n" % DIGITS.encode(), "application/yaml"),
        (b"[" * 5000, "application/yaml"),
    ],
)
async def test_a_body_that_no_decoder_takes_is_a_bad_request(client: Client, body: bytes, type: str) -> None:
    headers = {"Content-Type": type}
    async with client._session.post(client.url("configmaps"), data=body, headers=headers) as answer:
        assert (answer.status, (await answer.json())["reason"]) == (400, "BadRequest")


@pytest.mark.parametrize("position", ["²", DIGITS, "-1", "2", "x"])
@pytest.mark.parametrize("operation", ["add", "remove", "replace"])
async def test_a_json_patch_of_a_position_that_a_list_has_not_is_refused(
    client: Client, operation: str, position: str
) -> None:
    finalizers = {"finalizers": ["a/b"]}
    await client.made("configmaps", {"metadata": {"name": "a", **finalizers}})
    patch = [{"op": operation, "path": f"/metadata/finalizers/{position}", "value": "c/d"}]
    reply = await client.patch("configmaps/a", patch, kind="json-patch+json")
    assert (reply.status, reply.reason) == (422, "Invalid")
    await client.patch("configmaps/a", {"metadata": {"finalizers": None}})
    await client.call("DELETE", "configmaps/a")


@pytest.mark.parametrize("replicas", [2**31, 10**30, -1])
async def test_a_count_beyond_32_bits_is_invalid(client: Client, replicas: int) -> None:
    pod: dict[str, Any] = {
        "metadata": {"labels": {"app": "a"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "a"}}, "template": pod}
    reply = await client.create("deployments", {"metadata": {"name": "a"}, "spec": spec})
    assert reply.status in (400, 422)
    assert "replicas" in reply.body["message"]


async def test_a_service_takes_no_address_with_a_zone(client: Client) -> None:
    spec = {"clusterIP": "fe80::1%eth0", "ports": [{"port": 80}]}
    reply = await client.create("services", {"metadata": {"name": "a"}, "spec": spec})
    assert (reply.status, reply.reason) == (422, "Invalid")
