"""Nodes that fall silent, and what becomes of their pods."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from clusters.apiserver_world import Client, Node, Object


def condition(body: Object, kind: str = "Ready") -> str:
    found = (c["status"] for c in body.get("status", {}).get("conditions", ()) if c["type"] == kind)
    return next(found, "")


async def renew(client: Client, node: str, *, ago: float) -> None:
    """Say when the node last renewed its Lease, of 60 seconds."""
    when = (datetime.now(UTC) - timedelta(seconds=ago)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    path = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}"
    spec = {"holderIdentity": node, "leaseDurationSeconds": 60, "renewTime": when}
    body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": node}, "spec": spec}
    reply = await client.apply(path, body, manager="node", force=True)
    assert reply.status in (200, 201), reply


async def pod(client: Client, node: Node) -> None:
    spec = {"nodeName": node.name, "containers": [{"name": "main", "image": "x"}]}
    await client.made("pods", {"metadata": {"name": "p"}, "spec": spec})
    await client.until("pods/p", lambda body: condition(body) == "True")


async def test_a_node_that_falls_silent_is_not_ready_until_it_is_back(client: Client, node: Node) -> None:
    await renew(client, node.name, ago=0)
    await pod(client, node)
    await renew(client, node.name, ago=120)
    await client.until(f"nodes/{node.name}", lambda body: condition(body) == "Unknown")
    await client.until("pods/p", lambda body: condition(body) == "False")
    await renew(client, node.name, ago=0)
    await client.until(f"nodes/{node.name}", lambda body: condition(body) == "True")
    await client.until("pods/p", lambda body: condition(body) == "True")


async def test_the_pods_of_a_node_that_stays_away_are_given_up(client: Client, node: Node) -> None:
    await pod(client, node)
    node.holding.add("p")
    await renew(client, node.name, ago=1000)
    await client.until("pods/p", lambda body: "deletionTimestamp" in body["metadata"])


async def test_the_pods_of_a_node_that_is_gone_go_at_once(client: Client, node: Node) -> None:
    await pod(client, node)
    node.holding.add("p")
    await client.delete(f"nodes/{node.name}")
    await client.until("pods/p", lambda body: body.get("code") == 404)
