"""Events: what happened to an object, for an hour."""

from __future__ import annotations

from clusters.apiserver_world import Client, Kubectl

from isthmus.etcd import Session


def pod() -> dict[str, object]:
    spec = {"containers": [{"name": "main", "image": "x"}], "nodeSelector": {"no": "where"}}
    return {"metadata": {"name": "p"}, "spec": spec}


async def test_a_pod_that_fits_no_node_has_an_event(kubectl: Kubectl, client: Client) -> None:
    await client.made("pods", pod())
    await client.until("events", lambda body: [e["reason"] for e in body["items"]] == ["FailedScheduling"])
    assert "nodes are available" in await kubectl("describe", "pod", "p")
    assert "Warning   FailedScheduling   pod/p" in await kubectl("get", "events")


async def test_events_go_after_an_hour_and_other_objects_stay(client: Client) -> None:
    await client.made("pods", pod())
    await client.made("configmaps", {"metadata": {"name": "c"}})
    await client.until("events", lambda body: body["items"])
    async with Session([client.server.etcd.endpoint]) as session:
        here = f"/{client.namespace}/"
        leases = {
            kv.key.split("/")[3]: kv.lease for kv in (await session.list("/isthmus/registry/")).kvs if here in kv.key
        }
    assert leases["events"] != 0
    assert leases["configmaps"] == 0
