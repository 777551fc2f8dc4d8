"""StatefulSets, DaemonSets and Jobs."""

from __future__ import annotations

from typing import Any

from clusters.apiserver_world import Client, Node, Object, running_status


def template(name: str, image: str = "one", **spec: Any) -> Object:
    return {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "main", "image": image}]} | spec}


def stateful_set(*, replicas: int = 2, image: str = "one") -> Object:
    spec = {"replicas": replicas, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}}}
    return {"metadata": {"name": "db"}, "spec": spec | {"template": template("db", image)}}


def images(body: Object) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["spec"]["containers"][0]["image"] for pod in body["items"]}


def rolled_out(body: Object) -> bool:
    status = body["status"]
    same = status["currentRevision"] == status["updateRevision"]
    return bool(same and status["observedGeneration"] == body["metadata"]["generation"] == 2)


async def test_a_stateful_set_makes_its_pods_one_after_the_other(client: Client, node: Node) -> None:
    node.holding.add("db-0")
    await client.made("statefulsets", stateful_set(replicas=3))
    await client.until("statefulsets/db", lambda b: b.get("status", {}).get("replicas") == 1)
    assert set(images((await client.get("pods")).body)) == {"db-0"}
    node.holding.clear()
    await node.serve((await client.get("pods/db-0")).body)
    await client.until("statefulsets/db", lambda b: b["status"].get("readyReplicas") == 3)
    pod = (await client.get("pods/db-2")).body
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("db-2", "db")
    assert pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] == "2"


async def test_a_stateful_set_is_updated_from_the_last_and_shrinks_from_the_last(client: Client, node: Node) -> None:
    await client.made("statefulsets", stateful_set())
    await client.until("statefulsets/db", lambda b: b.get("status", {}).get("readyReplicas") == 2)
    revision = (await client.get("pods")).revision
    await client.patch("statefulsets/db", stateful_set(image="two"))
    await client.until("statefulsets/db", rolled_out)
    assert set(images((await client.get("pods")).body).values()) == {"two"}
    async with client.watch(f"pods?resourceVersion={revision}") as events:
        deleted: list[str] = []
        while len(deleted) < 2:
            kind, pod = await events.next()
            deleted += [pod["metadata"]["name"]] if kind == "DELETED" else []
    assert deleted == ["db-1", "db-0"]
    await client.patch("statefulsets/db/scale", {"spec": {"replicas": 1}})
    await client.until("pods", lambda body: set(images(body)) == {"db-0"})


async def test_pods_of_a_stateful_set_have_names_in_the_endpoints(client: Client, node: Node) -> None:
    service = {"clusterIP": "None", "selector": {"app": "db"}, "ports": [{"port": 80}]}
    await client.made("services", {"metadata": {"name": "db"}, "spec": service})
    await client.made("statefulsets", stateful_set())

    def hostnames(body: Object) -> set[str]:
        return {e.get("hostname", "") for s in body["items"] for e in s.get("endpoints") or []}

    await client.until("endpointslices", lambda body: hostnames(body) == {"db-0", "db-1"})


async def test_a_daemon_set_has_a_pod_on_every_node_it_fits(client: Client, node: Node) -> None:
    labels = {"daemons": client.namespace}
    await client.patch(f"nodes/{node.name}", {"metadata": {"labels": labels}})
    spec = {"selector": {"matchLabels": {"app": "d"}}, "template": template("d", nodeSelector=labels)}
    await client.made("daemonsets", {"metadata": {"name": "d"}, "spec": spec})
    await client.until("daemonsets/d", lambda b: b.get("status", {}).get("numberReady") == 1)
    await client.patch("daemonsets/d", {"spec": {"template": template("d", image="two")}})
    await client.until("pods", lambda body: set(images(body).values()) == {"two"})
    await client.until("daemonsets/d", lambda b: b["status"].get("updatedNumberScheduled") == 1)
    await client.patch(f"nodes/{node.name}", {"metadata": {"labels": {"daemons": "no"}}})
    await client.until("pods", lambda body: not body["items"])


def job(**spec: Any) -> Object:
    return {
        "metadata": {"name": "j"},
        "spec": {"template": {"spec": template("j")["spec"] | {"restartPolicy": "Never"}}} | spec,
    }


async def finish(client: Client, phase: str) -> None:
    """End every pod that runs."""
    for pod in (await client.get("pods")).body["items"]:
        if pod["status"]["phase"] in ("Pending", "Running"):
            await client.patch(f"pods/{pod['metadata']['name']}/status", {"status": {"phase": phase}})


async def test_a_job_runs_pods_until_enough_have_succeeded(client: Client) -> None:
    made = await client.made("jobs", job(completions=3, parallelism=2))
    assert made["spec"]["selector"]["matchLabels"] == {"batch.kubernetes.io/controller-uid": made["metadata"]["uid"]}
    await client.until("jobs/j", lambda b: b.get("status", {}).get("active") == 2)
    await finish(client, "Succeeded")
    await client.until("jobs/j", lambda b: b["status"].get("active") == 1)
    await finish(client, "Succeeded")
    done = await client.until("jobs/j", lambda b: b["status"].get("succeeded") == 3)
    assert {c["type"]: c["status"] for c in done["status"]["conditions"]}["Complete"] == "True"
    assert len((await client.get("pods")).body["items"]) == 3


async def test_a_job_gives_up_when_too_much_fails(client: Client) -> None:
    await client.made("jobs", job(backoffLimit=0))
    await client.until("jobs/j", lambda b: b.get("status", {}).get("active") == 1)
    await finish(client, "Failed")
    done = await client.until("jobs/j", lambda b: b["status"].get("conditions"))
    assert {c["type"]: c["reason"] for c in done["status"]["conditions"]}["Failed"] == "BackoffLimitExceeded"


async def test_a_job_whose_containers_are_started_again_counts_that(client: Client) -> None:
    again = template("j", restartPolicy="OnFailure")
    await client.made("jobs", job(backoffLimit=2, template=again))
    pods = await client.until("pods", lambda body: body["items"])
    name = pods["items"][0]["metadata"]["name"]
    for count in (1, 2):
        status = {"phase": "Running", "containerStatuses": [{"name": "main", "restartCount": count}]}
        await client.patch(f"pods/{name}/status", {"status": status})
    done = await client.until("jobs/j", lambda b: b["status"].get("conditions"))
    assert {c["type"]: c["reason"] for c in done["status"]["conditions"]}["Failed"] == "BackoffLimitExceeded"
    assert done["status"]["failed"] == 1


async def test_a_job_that_takes_too_long_has_failed(client: Client) -> None:
    await client.made("jobs", job(activeDeadlineSeconds=1))
    done = await client.until("jobs/j", lambda b: b.get("status", {}).get("conditions"))
    assert {c["type"]: c["reason"] for c in done["status"]["conditions"]}["Failed"] == "DeadlineExceeded"


async def test_a_job_that_is_done_goes_after_its_ttl(client: Client) -> None:
    await client.made("jobs", job(ttlSecondsAfterFinished=0))
    await client.until("jobs/j", lambda b: b.get("status", {}).get("active") == 1)
    await finish(client, "Succeeded")
    await client.until("jobs/j", lambda body: body.get("code") == 404)
    await client.until("pods", lambda body: not body["items"])


async def test_a_deployment_that_does_not_progress_has_a_condition_and_recovers(client: Client) -> None:
    spec = {"selector": {"matchLabels": {"app": "a"}}, "template": template("a"), "progressDeadlineSeconds": 1}
    await client.made("deployments", {"metadata": {"name": "a"}, "spec": spec})

    def progressing(body: Object) -> str:
        found = body.get("status", {}).get("conditions", [])
        return next((c["reason"] for c in found if c["type"] == "Progressing"), "")

    await client.until("deployments/a", lambda body: progressing(body) == "ProgressDeadlineExceeded")
    await client.until("pods", lambda body: body["items"])
    name = (await client.get("pods")).body["items"][0]["metadata"]["name"]
    await client.patch(f"pods/{name}/status", {"status": running_status("10.99.1.1")})
    await client.until("deployments/a", lambda body: progressing(body) == "NewReplicaSetAvailable")
    await client.patch(f"pods/{name}/status", {"status": running_status("10.99.1.1", ready=False)})
    gone = await client.until("deployments/a", lambda body: not body["status"].get("readyReplicas"))
    assert progressing(gone) == "NewReplicaSetAvailable"
