"""install, install again, uninstall: on the lab's API server, with nodes that run pods in name only."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters.apiserver_world import ApiServer, Client, Node, connected, serving
from machine import programs

pytestmark = [pytest.mark.needs("kubectl"), pytest.mark.asyncio(loop_scope="function")]

DNS = {
    "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}},
    "spec": {"ports": [{"name": "dns", "port": 53, "protocol": "UDP"}]},
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with serving(tmp_path) as made:
        yield made


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[Client]:
    async with connected(server, "demo") as made:
        await made.create("namespaces", {"metadata": {"name": "kube-system"}})
        await made.create("/api/v1/namespaces/kube-system/services", DNS)
        for name in ("demo", "kube-system"):  # what a controller puts into every namespace, a moment later
            for each in ("serviceaccounts/default", "configmaps/kube-root-ca.crt"):
                await made.until(f"/api/v1/namespaces/{name}/{each}", lambda body: body["kind"] != "Status")
        yield made


@pytest.fixture
async def node(client: Client) -> AsyncIterator[Node]:
    made = Node(client, "n1")
    await made.register()
    task = asyncio.ensure_future(made.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.wait([task])


async def isthmus(server: ApiServer, command: str, *words: str, code: int = 0, stdin: str = "") -> str:
    called = [sys.executable, "-m", "isthmus", command, "--kubeconfig", str(server.kubeconfig), *words]
    environ = {**os.environ, "PATH": f"{Path(programs.path('kubectl')).parent}:{os.environ['PATH']}"}

    def call() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            called, capture_output=True, text=True, timeout=120, check=False, env=environ, input=stdin
        )

    done = await asyncio.to_thread(call)
    assert done.returncode == code, f"{words}: {done.returncode} {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


async def everything(client: Client) -> dict[str, Any]:
    """Return every object of every kind, but for events and pods."""
    found: dict[str, Any] = {}
    groups = (await client.get("/apis")).body["groups"]
    roots = ["/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)]
    for root in roots:
        for each in (await client.get(root)).body["resources"]:
            if "/" not in each["name"] and each["name"] not in ("events", "pods") and "list" in each["verbs"]:
                for item in (await client.get(f"{root}/{each['name']}")).body["items"]:
                    meta = item["metadata"]
                    found[f"{each['name']}/{meta.get('namespace', '')}/{meta['name']}"] = item
    return found


async def asked_for(client: Client) -> dict[str, Any]:
    """Return what Isthmus' objects ask for: neither what controllers make of them nor what they write into them."""
    return {
        key: {field: value for field, value in item.items() if field not in ("metadata", "status")}
        | {"uid": item["metadata"]["uid"], "labels": item["metadata"]["labels"]}
        for key, item in (await everything(client)).items()
        if item["metadata"].get("labels", {}).get("app.kubernetes.io/part-of") == "isthmus"
        and "ownerReferences" not in item["metadata"]
    }


@pytest.mark.slow
async def test_install_waits_until_all_is_ready_and_uninstall_leaves_what_was_there(
    server: ApiServer, client: Client, node: Node
) -> None:
    before = await everything(client)
    out = await isthmus(server, "install", "--name", "c1", "--id", "1", "--timeout", "60")
    assert "✓ everything is ready" in out
    again = await isthmus(server, "install", "--timeout", "60")
    assert " 0 changed" in again

    export = {"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport", "metadata": {"name": "echo"}}
    await client.made("serviceexports", export)
    refused = await isthmus(server, "uninstall", code=1, stdin="n\n")
    assert "Aborted" in refused
    assert "daemonset/isthmus-agent" in refused
    out = await isthmus(server, "uninstall", "--crds", stdin="y\n")
    assert "daemonset/isthmus-cleanup created" in out
    assert "✓ nothing is left" in out
    after = await everything(client)
    assert after.keys() == before.keys()
    assert "nothing of Isthmus is here" in await isthmus(server, "uninstall", "--yes")


@pytest.mark.slow
async def test_upgrade_shows_what_it_changes_rolls_it_out_and_goes_back(
    server: ApiServer, client: Client, node: Node
) -> None:
    await isthmus(server, "install", "--name", "c1", "--id", "1", "--image", "example/isthmus:0.1.0", "--timeout", "60")
    before = await asked_for(client)
    shown = await isthmus(server, "upgrade", "--image", "example/isthmus:0.1.1", "--dry-run")
    assert "0.1.0 → 0.1.1" in shown
    assert "deployment/isthmus-operator will change" in shown
    assert await asked_for(client) == before
    out = await isthmus(server, "upgrade", "--image", "example/isthmus:0.1.1", "--timeout", "60")
    order = [out.index(f"/isthmus-{name} configured") for name in ("keys", "operator", "agent")]
    assert order == sorted(order)
    assert "✓ every workload runs 0.1.1, and is ready" in out
    assert await images(client) == {"example/isthmus:0.1.1"}
    assert " 0 changed" in await isthmus(server, "upgrade", "--image", "example/isthmus:0.1.1", "--timeout", "60")
    assert "0.1.1 → 0.1.0" in await isthmus(server, "upgrade", "--timeout", "60")
    assert await images(client) == {"example/isthmus:0.1.0"}


@pytest.mark.slow
async def test_an_upgrade_that_does_not_start_reaches_no_node(server: ApiServer, client: Client) -> None:
    await isthmus(server, "install", "--name", "c1", "--id", "1", "--no-wait")
    made = Node(client, "n1")
    await made.register()
    out = await isthmus(server, "upgrade", "--image", "isthmus:0.1.1", "--timeout", "2", code=1)
    assert "isthmus-etcd not ready after 2 s; what follows was not changed" in out
    assert await images(client) == {"isthmus:0.1.0"}


async def test_an_upgrade_over_two_minor_versions_or_of_nothing_changes_nothing(
    server: ApiServer, client: Client
) -> None:
    assert "isthmus install" in await isthmus(server, "upgrade", code=1)
    await isthmus(server, "install", "--name", "c1", "--id", "1", "--no-wait", "--image", "isthmus:0.3.0")
    before = await asked_for(client)
    out = await isthmus(server, "upgrade", code=1)
    assert "0.3.0 → 0.1.0: one minor version at a time is supported, go to 0.2 first; CHANGELOG.md" in " ".join(
        out.split()
    )
    assert await asked_for(client) == before


async def images(client: Client) -> set[str]:
    """Images of our workloads, but the etcd's."""
    found = set()
    for kind in ("deployments", "daemonsets"):
        listed = await client.get(f"/apis/apps/v1/namespaces/isthmus-system/{kind}")
        pods = [each["spec"]["template"]["spec"] for each in listed.body["items"]]
        found |= {container["image"] for pod in pods for container in pod["containers"]}
    return found


@pytest.mark.slow
async def test_what_others_gave_our_label_stays_when_we_are_removed(
    server: ApiServer, client: Client, node: Node
) -> None:
    await isthmus(server, "install", "--timeout", "60")
    labels = {"app.kubernetes.io/part-of": "isthmus"}
    await client.create("namespaces", {"metadata": {"name": "isthmus-dashboards", "labels": labels}})
    await client.create(
        "/api/v1/namespaces/isthmus-dashboards/configmaps", {"metadata": {"name": "isthmus", "labels": labels}}
    )
    role = {"metadata": {"name": "readers", "labels": labels}, "rules": []}
    await client.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", role)
    out = await isthmus(server, "uninstall", "--crds", "--yes")
    assert "✓ nothing is left" in out
    after = await everything(client)
    assert {
        "namespaces//isthmus-dashboards",
        "configmaps/isthmus-dashboards/isthmus",
        "clusterroles//readers",
    } <= after.keys()
    assert "namespaces//isthmus-system" not in after


SYSTEM = "/api/v1/namespaces/isthmus-system"
OURS = {"app.kubernetes.io/part-of": "isthmus"}


@pytest.mark.slow
async def test_the_namespace_stays_with_what_others_put_there_and_the_question_names_it(
    server: ApiServer, client: Client, node: Node
) -> None:
    await isthmus(server, "install", "--timeout", "60")
    for kind, name, labels in (
        ("secrets", "isthmus-keys", OURS),
        ("secrets", "isthmus-etcd-server", {}),  # made by hand, as docs/install.md has it
        ("secrets", "backup", {}),
        ("configmaps", "kube-root-ca.crt", {}),
        ("configmaps", "dashboard", {}),
    ):
        await client.create(f"{SYSTEM}/{kind}", {"metadata": {"name": name, "labels": labels}})
    refused = await isthmus(server, "uninstall", code=1, stdin="n\n")
    shown = refused.partition("namespace isthmus-system stays")
    assert "  daemonset/isthmus-agent in isthmus-system\n" in shown[0]
    assert "  secret/isthmus-keys in isthmus-system\n" in shown[0]
    assert "  secret/isthmus-etcd-server in isthmus-system\n" in shown[0]
    assert "namespace/isthmus-system" not in refused
    assert "  secret/backup in isthmus-system\n" in shown[2]
    assert "  configmap/dashboard in isthmus-system\n" in shown[2]
    assert "kube-root-ca.crt" not in refused

    out = await isthmus(server, "uninstall", "--crds", "--yes")
    assert "✓ nothing is left but namespace isthmus-system" in out
    names = {each for each in await everything(client) if "isthmus" in each}
    assert {each for each in names if "serviceaccounts" not in each} == {
        "namespaces//isthmus-system",
        "secrets/isthmus-system/backup",
        "configmaps/isthmus-system/dashboard",
        "configmaps/isthmus-system/kube-root-ca.crt",
    }
    assert "nothing of Isthmus is here" in await isthmus(server, "uninstall", "--yes")


@pytest.mark.slow
async def test_secrets_stay_until_the_keeper_that_would_write_them_again_has_ended(
    server: ApiServer, client: Client, node: Node
) -> None:
    await isthmus(server, "install", "--timeout", "60")
    await client.create(f"{SYSTEM}/secrets", {"metadata": {"name": "isthmus-keys", "labels": OURS}})
    pods = (await client.get(f"{SYSTEM}/pods")).body["items"]
    [keeper] = [name for pod in pods if (name := pod["metadata"]["name"]).startswith("isthmus-keys-")]
    node.holding.add(keeper)
    out = await isthmus(server, "uninstall", "--yes", "--timeout", "2", code=1)
    assert keeper in out
    assert (await client.get(f"{SYSTEM}/secrets/isthmus-keys")).status == 200
    node.holding.clear()
    await client.patch(f"{SYSTEM}/pods/{keeper}", {"metadata": {"labels": {"seen": "again"}}})
    out = await isthmus(server, "uninstall", "--yes")
    assert "secret/isthmus-keys in isthmus-system deleted" in out
    assert "namespaces//isthmus-system" not in await everything(client)


@pytest.mark.slow
async def test_an_object_that_took_the_name_of_one_in_the_question_is_not_deleted(
    server: ApiServer, client: Client, node: Node
) -> None:
    await isthmus(server, "install", "--timeout", "60")
    command = [sys.executable, "-m", "isthmus", "uninstall", "--kubeconfig", str(server.kubeconfig), "--timeout", "2"]
    pipe = asyncio.subprocess.PIPE
    environ = {**os.environ, "PATH": f"{Path(programs.path('kubectl')).parent}:{os.environ['PATH']}"}
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, env=environ)
    assert process.stderr is not None
    await process.stderr.readuntil(b"Delete these")
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    await client.delete(f"{path}/isthmus-agent")
    await client.create(path, {"metadata": {"name": "isthmus-agent", "labels": OURS}, "rules": []})
    out, _ = await asyncio.wait_for(process.communicate(b"y\n"), 120)
    assert process.returncode == 1
    assert "clusterrole/isthmus-agent is another one now" in out.decode()
    assert (await client.get(f"{path}/isthmus-agent")).status == 200
    assert "✓ nothing is left" in await isthmus(server, "uninstall", "--yes")


@pytest.mark.slow
async def test_the_definitions_and_the_exports_stay_unless_they_are_named(
    server: ApiServer, client: Client, node: Node
) -> None:
    await isthmus(server, "install", "--timeout", "60")
    export = {"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport", "metadata": {"name": "echo"}}
    await client.made("serviceexports", export)
    imported = {
        "apiVersion": "multicluster.x-k8s.io/v1beta1",
        "kind": "ServiceImport",
        "metadata": {"name": "echo", "annotations": {"isthmus.io/managed-by": "isthmus-operator"}},
        "spec": {"type": "ClusterSetIP", "ports": []},
    }
    await client.made("serviceimports", imported)
    out = await isthmus(server, "uninstall", "--yes", "--keep-calls")
    assert "isthmus-cleanup" not in out
    assert (await client.get("serviceimports/echo")).status == 200
    await isthmus(server, "install", "--timeout", "60")
    await isthmus(server, "uninstall", "--yes")
    assert (await client.get("serviceexports/echo")).status == 200
    assert (await client.get("serviceimports/echo")).status == 404, "nobody follows it any more"


@pytest.mark.slow
async def test_a_pod_that_is_not_ready_is_named_with_its_reason(server: ApiServer, client: Client, node: Node) -> None:
    node.holding.add("isthmus-etcd-0")
    out = await isthmus(server, "install", "--timeout", "3", code=1)
    assert "✗ pod isthmus-etcd-0: " in out
