"""The real kubectl against the server, with the commands that people type."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from clusters.apiserver_world import Client, Kubectl, Node

APP = """
apiVersion: v1
kind: Service
metadata: {name: echo}
spec:
  selector: {app: echo}
  ports: [{name: http, port: 80, targetPort: http}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: echo}
spec:
  replicas: 2
  selector: {matchLabels: {app: echo}}
  template:
    metadata: {labels: {app: echo}}
    spec:
      containers:
      - {name: echo, image: echo, ports: [{containerPort: 8080, name: http}]}
---
apiVersion: multicluster.x-k8s.io/v1beta1
kind: ServiceExport
metadata: {name: echo}
"""


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


async def test_apply_get_and_delete(kubectl: Kubectl, client: Client, node: Node) -> None:
    first = await kubectl("apply", "-f", "-", stdin=APP)
    assert lines(first) == [
        ["service/echo", "created"],
        ["deployment.apps/echo", "created"],
        ["serviceexport.multicluster.x-k8s.io/echo", "created"],
    ]
    second = await kubectl("apply", "-f", "-", stdin=APP)
    assert {line[1] for line in lines(second)} == {"unchanged"}
    third = await kubectl("apply", "-f", "-", stdin=APP.replace("replicas: 2", "replicas: 3"))
    assert [line[1] for line in lines(third)] == ["unchanged", "configured", "unchanged"]
    assert "successfully rolled out" in await kubectl("rollout", "status", "deployment/echo", "--timeout=180s")
    header, *rows = lines(await kubectl("get", "pods"))
    assert header == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert [row[2] for row in rows] == ["Running"] * 3
    service = lines(await kubectl("get", "svc", "echo"))
    assert service[0] == ["NAME", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)", "AGE"]
    assert (service[1][0], service[1][1], service[1][4]) == ("echo", "ClusterIP", "80/TCP")
    assert lines(await kubectl("get", "svcex"))[0] == ["NAME", "VALID", "CONFLICT", "AGE"]
    assert "deployment.apps/echo" in await kubectl("get", "all")
    gone = await kubectl("delete", "-f", "-", stdin=APP)
    assert len(lines(gone)) == 3
    await client.until("pods", lambda body: not body["items"])


async def test_get_w_follows(kubectl: Kubectl, client: Client) -> None:
    await client.made("services", {"metadata": {"name": "a"}, "spec": {"ports": [{"port": 80}]}})
    process = await kubectl.start("get", "svc", "-w")
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            assert (await process.stdout.readline()).startswith(b"NAME ")
            assert (await process.stdout.readline()).split()[0] == b"a"
            await client.made("services", {"metadata": {"name": "b"}, "spec": {"ports": [{"port": 81}]}})
            row = (await process.stdout.readline()).split()
            assert (row[0], row[4]) == (b"b", b"81/TCP")
    finally:
        process.kill()
        await process.communicate()


async def test_server_side_apply(kubectl: Kubectl) -> None:
    assert "serverside-applied" in await kubectl("apply", "--server-side", "-f", "-", stdin=APP)
    await kubectl("scale", "deployment/echo", "--replicas=5")
    refused = await kubectl("apply", "--server-side", "-f", "-", stdin=APP, fails=True)
    assert 'conflict with "kubectl"' in refused
    await kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=APP)
    assert await kubectl("get", "deploy", "echo", "-o", "jsonpath={.spec.replicas}") == "2"


async def test_apply_drops_what_is_no_longer_in_the_file(kubectl: Kubectl) -> None:
    await kubectl(
        "apply",
        "-f",
        "-",
        stdin=APP.replace(
            "metadata: {name: echo}\nspec:\n  replicas",
            "metadata: {name: echo, labels: {x: yes-it-is}}\nspec:\n  replicas",
        ),
    )
    assert await kubectl("get", "deploy", "-l", "x=yes-it-is", "-o", "name") == "deployment.apps/echo\n"
    await kubectl("apply", "-f", "-", stdin=APP)
    assert await kubectl("get", "deploy", "-l", "x=yes-it-is", "-o", "name") == ""


async def test_what_people_do_by_hand(kubectl: Kubectl, node: Node) -> None:
    await kubectl("apply", "-f", "-", stdin=APP)
    await kubectl("wait", "--for=condition=Available", "deployment/echo", "--timeout=180s")
    await kubectl("wait", "--for=condition=Ready", "pod", "-l", "app=echo", "--timeout=180s")
    await kubectl("label", "svc", "echo", "tier=front")
    await kubectl("annotate", "svc", "echo", "note=this")
    found = json.loads(await kubectl("get", "svc", "-l", "tier=front", "-o", "json"))
    assert found["items"][0]["metadata"]["annotations"]["note"] == "this"
    await kubectl("scale", "deployment/echo", "--replicas=1")
    await kubectl("set", "image", "deployment/echo", "echo=other")
    await kubectl("rollout", "status", "deployment/echo", "--timeout=180s")
    assert await kubectl("get", "pods", "-l", "app=echo", "--field-selector=status.phase=Running", "-o", "name")
    await kubectl("rollout", "restart", "deployment/echo")
    await kubectl("rollout", "status", "deployment/echo", "--timeout=180s")
    history = lines(await kubectl("rollout", "history", "deployment/echo"))
    assert [row[0] for row in history[2:] if row] == ["1", "2", "3"]
    await kubectl("rollout", "undo", "deployment/echo", "--to-revision=1")
    await kubectl("rollout", "status", "deployment/echo", "--timeout=180s")
    images = await kubectl("get", "deploy", "echo", "-o", "jsonpath={.spec.template.spec.containers[*].image}")
    assert images == "echo"
    await kubectl("delete", "deployment", "echo", "--cascade=foreground")
    await kubectl("create", "configmap", "c", "--from-literal=a=b")
    await kubectl("patch", "configmap", "c", "--type=json", "-p", '[{"op":"replace","path":"/data/a","value":"c"}]')
    assert await kubectl("get", "configmap", "c", "-o", "jsonpath={.data.a}") == "c"
    await kubectl("expose", "deployment", "nothing", "--port=80", fails=True)


async def test_describe_shows_what_is_there(kubectl: Kubectl, node: Node) -> None:
    await kubectl("apply", "-f", "-", stdin=APP)
    await kubectl("rollout", "status", "deployment/echo", "--timeout=180s")
    for what, text in [
        ("deployment/echo", "2 desired | 2 updated | 2 total | 2 available | 0 unavailable"),
        ("service/echo", "Endpoints:"),
        ("pod", "Status:"),
        (f"node/{node.name}", "Conditions:"),
        ("serviceexport/echo", "Kind:         ServiceExport"),
    ]:
        assert text in await kubectl("describe", what), what


async def test_errors_are_worded_as_by_kubectl(kubectl: Kubectl) -> None:
    missing = await kubectl("get", "svc", "nothing", fails=True)
    assert missing == 'Error from server (NotFound): services "nothing" not found\n'
    broken = await kubectl("apply", "-f", "-", stdin=APP.replace("port: 80", "port: 99999"), fails=True)
    assert 'The Service "echo" is invalid: spec.ports[0].port: Invalid value: 99999' in broken
    unknown = await kubectl("get", "dinosaurs", fails=True)
    assert "the server doesn't have a resource type" in unknown


async def test_namespaces_come_and_go(kubectl: Kubectl, client: Client) -> None:
    name = f"{client.namespace}-more"
    await kubectl("create", "namespace", name)
    assert lines(await kubectl("get", "ns", name))[1][:2] == [name, "Active"]
    await kubectl("delete", "namespace", name, "--timeout=180s")
    assert "NotFound" in await kubectl("get", "ns", name, fails=True)


async def test_wide_output_and_all_namespaces(kubectl: Kubectl, client: Client) -> None:
    await kubectl("apply", "-f", "-", stdin=APP)
    wide: Any = lines(await kubectl("get", "svc", "-A", "-o", "wide"))
    assert wide[0] == ["NAMESPACE", "NAME", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)", "AGE", "SELECTOR"]
    assert [client.namespace, "echo", "app=echo"] in [[row[0], row[1], row[-1]] for row in wide]


async def test_create_commands_speak_protobuf_and_are_understood(kubectl: Kubectl, client: Client) -> None:
    await kubectl("create", "configmap", "c", "--from-literal=a=b")
    await kubectl("create", "secret", "generic", "s", "--from-literal=a=b")
    await kubectl("create", "serviceaccount", "sa")
    await kubectl("create", "service", "clusterip", "named", "--tcp=80:http")
    await kubectl("create", "service", "nodeport", "numbered", "--tcp=80:8080")
    await kubectl("create", "service", "externalname", "alias", "--external-name=example.com")
    await kubectl("create", "deployment", "d", "--image=x", "--replicas=0", "--port=80", "--", "run", "me")
    assert (await client.get("configmaps/c")).body["data"] == {"a": "b"}
    assert (await client.get("secrets/s")).body["data"] == {"a": "Yg=="}
    assert (await client.get("services/named")).body["spec"]["ports"][0]["targetPort"] == "http"
    assert (await client.get("services/numbered")).body["spec"]["ports"][0]["targetPort"] == 8080
    assert (await client.get("services/alias")).body["spec"]["externalName"] == "example.com"
    found = (await client.get("deployments/d")).body["spec"]
    assert (found["replicas"], found["selector"]) == (0, {"matchLabels": {"app": "d"}})
    container = found["template"]["spec"]["containers"][0]
    assert (container["image"], container["command"], container["ports"][0]["containerPort"]) == (
        "x",
        ["run", "me"],
        80,
    )
    await kubectl("expose", "deployment", "d", "--port=80", "--name=exposed")
    assert (await client.get("services/exposed")).body["spec"]["selector"] == {"app": "d"}
    await kubectl("run", "p", "--image=x")
    assert (await client.get("pods/p")).body["spec"]["containers"][0]["image"] == "x"
    await kubectl("delete", "pod", "p", "--now")


async def test_kinds_that_nothing_acts_on_are_stored_with_a_warning(kubectl: Kubectl) -> None:
    policy = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p}\nspec: {podSelector: {}}\n"
    process = await kubectl.start("apply", "-f", "-")
    out, err = await process.communicate(policy.encode())
    assert out == b"networkpolicy.networking.k8s.io/p created\n"
    assert err.startswith(b"Warning: kept, and nothing acts on it here")
    assert lines(await kubectl("get", "netpol"))[1][0] == "p"
