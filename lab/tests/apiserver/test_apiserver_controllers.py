"""Controllers: pods of Deployments, endpoints of Services, and deletion together with the owner."""

from __future__ import annotations

from typing import Any

from clusters.apiserver_world import Client, Node, Object, running_status

from isthmus_lab.controllers.deployments import Size, sizes


def deployment(name: str = "web", *, replicas: int = 2, image: str = "one", **spec: Any) -> Object:
    container = {"name": "main", "image": image, "ports": [{"containerPort": 8080, "name": "http"}]}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}
    selector = {"matchLabels": {"app": name}}
    return {
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": selector, "template": template} | spec,
    }


def service(name: str = "web", **spec: Any) -> Object:
    wanted = {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": "http"}]}
    return {"metadata": {"name": name, "labels": {"l": "v"}}, "spec": wanted | spec}


def available(count: int) -> Any:
    return lambda body: body.get("status", {}).get("availableReplicas", 0) == count


def names(body: Object) -> set[str]:
    return {item["metadata"]["name"] for item in body["items"]}


async def test_a_deployment_has_as_many_pods_as_it_asks_for(client: Client, node: Node) -> None:
    await client.made("deployments", deployment(replicas=3))
    done = await client.until("deployments/web", available(3))
    assert done["status"]["observedGeneration"] == done["metadata"]["generation"]
    assert {c["type"]: c["status"] for c in done["status"]["conditions"]} == {
        "Available": "True",
        "Progressing": "True",
    }
    pods = (await client.get("pods")).body["items"]
    assert len(pods) == 3
    assert {pod["spec"]["nodeName"] for pod in pods} == {node.name}
    await client.patch("deployments/web/scale", {"spec": {"replicas": 1}})
    await client.until("deployments/web", available(1))
    await client.until("pods", lambda body: len(body["items"]) == 1)


async def test_a_pod_that_is_deleted_is_replaced(client: Client, node: Node) -> None:
    await client.made("deployments", deployment())
    await client.until("deployments/web", available(2))
    before = names((await client.get("pods")).body)
    victim = sorted(before)[0]
    await client.delete(f"pods/{victim}")
    after = await client.until("pods", lambda b: len(b["items"]) == 2 and victim not in names(b))
    assert len(names(after) & before) == 1


async def test_a_new_template_replaces_the_pods_without_an_outage(client: Client, node: Node) -> None:
    await client.made("deployments", deployment(replicas=4))
    await client.until("deployments/web", available(4))
    revision = (await client.get("pods")).revision
    await client.patch("deployments/web", deployment(replicas=4, image="two"))
    await client.until("deployments/web", lambda b: b["status"].get("updatedReplicas") == 4 and available(4)(b))
    await client.until("pods", lambda b: {p["spec"]["containers"][0]["image"] for p in b["items"]} == {"two"})
    assert await fewest_available(client, revision) >= 3
    sets = (await client.get("replicasets")).body["items"]
    assert sorted(each["spec"]["replicas"] for each in sets) == [0, 4]


async def fewest_available(client: Client, revision: str) -> int:
    """The fewest pods there were, ready and not being deleted, since a revision."""
    ready = {pod["metadata"]["name"] for pod in (await client.get("pods")).body["items"]}
    fewest, now = 99, set[str]()
    pods: dict[str, bool] = {}
    async with client.watch(f"pods?resourceVersion={revision}") as events:
        while ready - now or not all(pods[name] for name in ready):
            kind, pod = await events.next()
            name = pod["metadata"]["name"]
            is_ready = pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
            pods[name] = is_ready and kind != "DELETED"
            now.add(name)
            gone = [each for each in pods if not pods[each]]
            fewest = min(fewest, 4 - sum(1 for each in gone if each not in ready) + sum(pods[e] for e in ready & now))
    return fewest


def test_a_roll_stays_within_its_bounds_and_ends() -> None:
    new, old = Size(0, 0), [Size(4, 4)]
    for _ in range(20):
        grown, left = sizes(new, old, replicas=4, surge=1, unavailable=1)
        assert grown + sum(left) <= 5
        assert new.available + sum(min(a, b.available) for a, b in zip(left, old, strict=True)) >= 3
        new, old = Size(grown, grown), [Size(left[0], left[0])]
    assert (new, old) == (Size(4, 4), [Size(0, 0)])


async def test_endpoints_follow_the_pods(client: Client, node: Node) -> None:
    await client.made("services", service())
    await client.made("deployments", deployment())
    listed = await client.until(
        "endpointslices", lambda b: b["items"] and len(b["items"][0].get("endpoints") or []) == 2
    )
    found = listed["items"][0]
    assert found["ports"] == [{"name": "", "port": 8080, "protocol": "TCP"}]
    assert found["metadata"]["labels"] == {
        "l": "v",
        "kubernetes.io/service-name": "web",
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
    }
    assert found["metadata"]["ownerReferences"][0]["kind"] == "Service"
    endpoint = found["endpoints"][0]
    assert endpoint["conditions"] == {"ready": True, "serving": True, "terminating": False}
    assert endpoint["nodeName"] == node.name
    pod = endpoint["targetRef"]["name"]

    node.holding.add(pod)
    await client.patch(f"pods/{pod}/status", {"status": running_status("10.99.9.9", ready=False)})
    await client.until("endpointslices", lambda b: not state(b, pod)["ready"] and not state(b, pod)["serving"])
    await client.patch(f"pods/{pod}/status", {"status": running_status("10.99.9.9")})
    await client.until("endpointslices", lambda b: state(b, pod)["ready"])
    await client.delete(f"pods/{pod}")
    ending = {"ready": False, "serving": True, "terminating": True}
    await client.until("endpointslices", lambda b: state(b, pod) == ending)
    await client.delete(f"pods/{pod}", {"gracePeriodSeconds": 0})
    await client.until("endpointslices", lambda b: not state(b, pod) and len(b["items"][0]["endpoints"]) == 2)
    await client.delete("services/web")
    await client.until("endpointslices", lambda b: not b["items"])


def state(listed: Object, pod: str) -> Object:
    """The conditions of a pod's endpoint, {} where it has none."""
    for each in listed["items"][0]["endpoints"]:
        if each["targetRef"]["name"] == pod:
            return dict(each["conditions"])
    return {}


async def test_pods_that_are_not_ready_are_published_where_asked(client: Client, node: Node) -> None:
    await client.made("services", service(publishNotReadyAddresses=True, clusterIP="None"))
    await client.made("deployments", deployment(replicas=1))
    await client.until("deployments/web", available(1))
    pod = (await client.get("pods")).body["items"][0]["metadata"]["name"]
    node.holding.add(pod)
    await client.patch(f"pods/{pod}/status", {"status": running_status("10.99.9.8", ready=False)})
    expected = {"ready": True, "serving": False, "terminating": False}
    listed = await client.until("endpointslices", lambda b: state(b, pod) == expected)
    assert "service.kubernetes.io/headless" in listed["items"][0]["metadata"]["labels"]


async def test_what_a_deployment_owns_goes_with_it(client: Client, node: Node) -> None:
    await client.made("deployments", deployment())
    await client.until("deployments/web", available(2))
    await client.delete("deployments/web")
    await client.until("replicasets", lambda body: not body["items"])
    await client.until("pods", lambda body: not body["items"])


async def test_an_owner_can_leave_its_things_behind_or_wait_for_them(client: Client, node: Node) -> None:
    await client.made("deployments", deployment())
    await client.until("deployments/web", available(2))
    await client.delete("deployments/web", {"propagationPolicy": "Orphan"})
    await client.until("deployments", lambda body: not body["items"])
    await client.until("replicasets", lambda b: not b["items"][0]["metadata"].get("ownerReferences"))
    name = (await client.get("replicasets")).body["items"][0]["metadata"]["name"]
    pods = sorted(names((await client.get("pods")).body))
    node.holding.update(pods)
    marked = await client.delete(f"replicasets/{name}", {"propagationPolicy": "Foreground"})
    assert marked.body["metadata"]["finalizers"] == ["foregroundDeletion"]
    await client.until("pods", lambda b: all("deletionTimestamp" in p["metadata"] for p in b["items"]))
    assert (await client.get(f"replicasets/{name}")).status == 200
    for pod in pods:
        await client.delete(f"pods/{pod}", {"gracePeriodSeconds": 0})
    await client.until("replicasets", lambda body: not body["items"])


async def test_a_namespace_is_emptied_before_it_goes(client: Client, node: Node) -> None:
    await client.made("deployments", deployment())
    await client.made("configmaps", {"metadata": {"name": "held", "finalizers": ["example.com/x"]}})
    await client.until("deployments/web", available(2))
    where = f"namespaces/{client.namespace}"
    await client.delete(where)
    assert (await client.get(where)).body["status"]["phase"] == "Terminating"
    late = await client.create("configmaps", {"metadata": {"name": "late"}})
    assert (late.status, late.body["details"]["causes"][0]["reason"]) == (403, "NamespaceTerminating")
    await client.until("pods", lambda body: not body["items"])
    assert (await client.get(where)).status == 200
    await client.patch("configmaps/held", {"metadata": {"finalizers": None}})
    await client.until(where, lambda body: body.get("code") == 404)


async def test_a_pod_waits_for_a_node_that_is_ready_and_fits(client: Client) -> None:
    pod = deployment()["spec"]["template"] | {"metadata": {"name": "p"}}
    pod["spec"]["nodeSelector"] = {"only": client.namespace}
    await client.made("pods", pod)
    await client.made("nodes", {"metadata": {"name": client.namespace, "labels": {"only": client.namespace}}})
    assert "nodeName" not in (await client.get("pods/p")).body["spec"]
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await client.patch(f"nodes/{client.namespace}/status", ready)
    await client.until("pods/p", lambda body: body["spec"].get("nodeName") == client.namespace)
    await client.delete(f"nodes/{client.namespace}")


async def test_a_pod_on_a_node_ends_when_the_node_has_deleted_it(client: Client, node: Node) -> None:
    pod = deployment()["spec"]["template"] | {"metadata": {"name": "p"}}
    await client.made("pods", pod)
    await client.until("pods/p", lambda body: body["status"]["phase"] == "Running")
    node.holding.add("p")
    marked = await client.delete("pods/p")
    assert marked.body["metadata"]["deletionGracePeriodSeconds"] == 30
    assert (await client.get("pods/p")).status == 200
    gone = await client.delete("pods/p", {"gracePeriodSeconds": 0})
    assert (gone.body["kind"], gone.body["metadata"]["deletionGracePeriodSeconds"]) == ("Pod", 0)
    assert (await client.get("pods/p")).status == 404
