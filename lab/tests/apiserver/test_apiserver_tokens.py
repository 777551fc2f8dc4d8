"""Tokens of service accounts, and evictions: what pods and `kubectl drain` ask for."""

from __future__ import annotations

from clusters.apiserver_world import Client, Kubectl, Node

from isthmus_lab.apiserver.tokens import Tokens


def test_a_token_admits_its_bearer_until_it_ends() -> None:
    now = 1000.0
    tokens = Tokens("secret", clock=lambda: now)
    token, ends = tokens.issue("ns", "sa", "uid", seconds=700)
    assert tokens.admits(token)
    assert tokens.admits("secret")
    assert ends == 1700
    now = 1701.0
    assert not tokens.admits(token)


def test_a_token_of_another_making_does_not() -> None:
    tokens = Tokens("secret")
    token, _ = Tokens("other").issue("ns", "sa", "uid")
    body, _, signature = tokens.issue("ns", "sa", "uid")[0].rpartition(".")
    for wrong in (token, f"{body}x.{signature}", signature, "", "a.b.c", "..", "."):
        assert not tokens.admits(wrong), wrong


async def test_a_service_account_has_tokens(kubectl: Kubectl, client: Client) -> None:
    await client.until("serviceaccounts/default", lambda body: body["kind"] == "ServiceAccount")
    token = (await kubectl("create", "token", "default")).strip()
    seen = await client.call("GET", "configmaps", headers={"Authorization": f"Bearer {token}"})
    assert seen.status == 200


async def test_draining_a_node_ends_its_pods(kubectl: Kubectl, client: Client, node: Node) -> None:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "main", "image": "x"}]}}
    spec = {"selector": {"matchLabels": {"app": "a"}}, "template": template}
    await client.made("deployments", {"metadata": {"name": "a"}, "spec": spec})
    await client.until("deployments/a", lambda body: body.get("status", {}).get("availableReplicas") == 1)
    before = (await client.get("pods")).body["items"][0]["metadata"]["name"]
    own = "--pod-selector=app=a"  # what other tests left without a node may have come to this one
    assert "drained" in await kubectl("drain", node.name, own, "--timeout=180s")
    after = await client.until("pods", lambda body: len(body["items"]) == 1)
    assert after["items"][0]["metadata"]["name"] != before
    assert "nodeName" not in after["items"][0]["spec"]
    await kubectl("uncordon", node.name)
    await client.until("deployments/a", lambda body: body["status"].get("availableReplicas") == 1)
