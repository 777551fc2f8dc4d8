"""``isthmus operator`` as processes, on each API server: who leads, who takes over, what the cluster is called."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from clusters.apiserver_world import ApiServer
from clusters.kube_apiserver import KubeApiServer
from clusters.operator_process import Replicas, leading, ready, replicas, until
from meshes.route_definitions import define_routes
from peers.etcd_server import EtcdServer

from isthmus import kube
from isthmus.config import ClusterSection
from isthmus.etcd import Session
from isthmus.kube.kind import Kind
from isthmus.kube.objects.about import CLUSTER_PROPERTY
from isthmus.kube.objects.coordination import LEASE
from isthmus.kube.objects.core import NAMESPACE, POD, SERVICE
from isthmus.kube.objects.discovery import ENDPOINT_SLICE
from isthmus.kube.objects.gateway import HTTP_ROUTE
from isthmus.kube.objects.mcs import SERVICE_EXPORT, SERVICE_IMPORT
from isthmus.kube.objects.meta import Meta, Wire
from isthmus.kube.objects.policies import TRAFFIC_POLICY

CRDS = Path(__file__).resolve().parents[2] / "deploy" / "crds"

PEER = "endpoints: [http://127.0.0.1:9]\n"
"""A peer that cannot be reached."""


class Definition(Wire, frozen=True):
    metadata: Meta


class Involved(Wire, frozen=True):
    kind: str
    name: str


class Happened(Wire, frozen=True):
    metadata: Meta
    involved_object: Involved
    reason: str


ACCOUNT = Kind("", "v1", "serviceaccounts", "ServiceAccount", Definition)
HAPPENED = Kind("", "v1", "events", "Event", Happened)


CRD = Kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", Definition, namespaced=False
)
ABOUT: dict[str, Any] = {
    "metadata": {
        "name": "clusterproperties.about.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/2149"},
    },
    "spec": {
        "group": "about.k8s.io",
        "scope": "Cluster",
        "names": {"kind": "ClusterProperty", "plural": "clusterproperties", "singular": "clusterproperty"},
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": {"type": "object", "properties": {"value": {"type": "string"}}}},
                    }
                },
            }
        ],
    },
}


@pytest.fixture
def operators(
    request: pytest.FixtureRequest, client: kube.Client, own_etcd: EtcdServer, tmp_path: Path
) -> Iterator[Replicas]:
    """Operators of the cluster that ``client`` speaks to."""
    if "lab" in request.node.callspec.id:
        lab: ApiServer = request.getfixturevalue("lab_apiserver")
        section = lab.section
    else:
        real: KubeApiServer = request.getfixturevalue("kube_apiserver")
        section = real.section()
    with replicas(tmp_path, etcd=own_etcd.endpoint, kubernetes=section) as operators:
        yield operators


@pytest.fixture(autouse=True)
async def office(client: kube.Client) -> None:
    """No replica leads, whatever the test before did."""
    try:
        await client.create(NAMESPACE, "", {"metadata": {"name": "kube-system"}})
    except kube.AlreadyExists:
        pass
    await client.delete(LEASE, "kube-system", "isthmus-operator")


async def _export(client: kube.Client, namespace: str, name: str) -> None:
    body = {"metadata": {"name": name}, "spec": {"ports": [{"name": "http", "port": 80}]}}
    await client.create(SERVICE, namespace, body)
    await client.create(SERVICE_EXPORT, namespace, {"metadata": {"name": name}})


async def _imported(client: kube.Client, namespace: str, name: str) -> None:
    async def there() -> bool:
        try:
            found = await client.get(SERVICE_IMPORT, name, namespace)
        except kube.NotFound:
            return False
        return bool(found.spec and found.spec.ips)

    await until(there)


@pytest.mark.slow
async def test_a_replica_that_is_killed_is_followed(client: kube.Client, namespace: str, operators: Replicas) -> None:
    first = operators.start()
    await leading(first)
    second = operators.start()
    await ready(second)
    assert "isthmus_operator_leader 0.0" in (await asyncio.to_thread(second.asked, "metrics"))[1]
    first.send(signal.SIGKILL)
    await _export(client, namespace, "echo")
    await leading(second)
    await _imported(client, namespace, "echo")


@pytest.mark.slow
async def test_a_replica_that_is_stopped_gives_its_lease_up_and_is_followed(
    client: kube.Client, namespace: str, operators: Replicas
) -> None:
    first = operators.start()
    await leading(first)
    second = operators.start()
    await ready(second)
    second.send(signal.SIGSTOP)
    first.send(signal.SIGTERM)
    assert await asyncio.to_thread(first.process.wait, 60) == 0
    assert not (await client.get(LEASE, "isthmus-operator", "kube-system")).spec.holder_identity
    second.send(signal.SIGCONT)
    await leading(second)
    await _export(client, namespace, "echo")
    await _imported(client, namespace, "echo")


@pytest.mark.slow
async def test_a_replica_that_was_held_up_leads_no_more_when_another_took_over(
    client: kube.Client, namespace: str, operators: Replicas
) -> None:
    first = operators.start()
    await leading(first)
    second = operators.start()
    await ready(second)
    first.send(signal.SIGSTOP)
    await leading(second)
    first.send(signal.SIGCONT)
    await until(lambda: asyncio.to_thread(lambda: first.ready and not first.leads and "leading no more" in first.log))
    assert await asyncio.to_thread(lambda: second.leads)


@pytest.mark.slow
async def test_it_says_how_it_is_to_machines(client: kube.Client, namespace: str, operators: Replicas) -> None:
    one = operators.start()
    await leading(one)
    await ready(one)
    assert await asyncio.to_thread(one.asked, "livez") == (200, "ok\n")
    await _export(client, namespace, "echo")
    await _imported(client, namespace, "echo")
    info = f'isthmus_operator_mcsapi_serviceimport_info{{namespace="{namespace}",serviceimport="echo"}} 1.0'
    await until(lambda: asyncio.to_thread(lambda: info in one.asked("metrics")[1]))


@pytest.mark.slow
async def test_numbers_of_accounts_are_published_and_read_by_another_clusters_agent(
    client: kube.Client, namespace: str, operators: Replicas, own_etcd: EtcdServer
) -> None:
    body: dict[str, Any] = yaml.safe_load((CRDS / "calleridentities.yaml").read_text())
    await client.apply(CRD, "", body["metadata"]["name"], body, field_manager="test")
    await client.apply(ACCOUNT, namespace, "front", {"metadata": {"name": "front"}}, field_manager="test")
    spec: dict[str, Any] = {"serviceAccountName": "front", "containers": [{"name": "app", "image": "app"}]}
    spec["automountServiceAccountToken"] = False
    await client.create(POD, namespace, {"metadata": {"name": "web"}, "spec": spec})
    one = operators.start(identities=True)
    await leading(one)
    await ready(one)

    async def record() -> str:
        async with Session([own_etcd.endpoint]) as etcd:
            found = (await etcd.list("cilium/state/identities/v1/id/")).kvs
        return next((kv.key.rpartition("/")[2] for kv in found if f"={namespace};".encode() in kv.value), "")

    await until(record)
    number = await record()
    assert int(number) >> 16 == 1
    (operators.peers / "c1").write_text(f"endpoints: ['{own_etcd.endpoint}']\n")
    agent = operators.start(process="agent", cluster=ClusterSection(name="c2", id=2), identities=True)

    def read() -> list[tuple[str, str]]:
        rows = [row for row in agent.rows("identities") if str(row["number"]) == number]
        return [(row["cluster"], f"{row['namespace']}/{row['service_account']}") for row in rows]

    # beside it the agent has the numbers of its own API server, here the same one, as c2's
    await until(lambda: asyncio.to_thread(lambda: ("c1", f"{namespace}/front") in read()))


@pytest.mark.slow
async def test_a_peer_that_never_speaks_holds_up_nothing(
    client: kube.Client, namespace: str, operators: Replicas
) -> None:
    (operators.peers / "c2").write_text(PEER)
    await _export(client, namespace, "echo")
    one = operators.start()
    await leading(one)
    await ready(one)
    await _imported(client, namespace, "echo")
    content = await asyncio.to_thread(one.status)
    assert content is not None
    assert content["objects"]["pruned"] is False, "the peer is still waited for, for sync.timeout"


@pytest.mark.slow
async def test_the_property_of_the_cluster_names_it_where_nothing_is_configured(
    client: kube.Client, namespace: str, operators: Replicas, own_etcd: EtcdServer
) -> None:
    nameless = ClusterSection(id=7)
    refused = operators.start(cluster=nameless)
    assert await asyncio.to_thread(refused.process.wait, 120) == 1
    [line] = [each for each in refused.log.splitlines() if each.startswith("isthmus operator: ")]
    assert line.startswith("isthmus operator: cluster.name: not set, and the cluster has no ClusterProperty")
    await client.apply(CRD, "", ABOUT["metadata"]["name"], ABOUT, field_manager="test")

    async def content() -> bool:
        body = {"spec": {"value": "north"}}
        try:
            await client.apply(CLUSTER_PROPERTY, "", "cluster.clusterset.k8s.io", body, field_manager="test")
        except kube.NotFound:
            return False
        return True

    await until(content)
    named = operators.start(cluster=nameless)
    await leading(named)
    async with Session([own_etcd.endpoint]) as session:
        await until(lambda: session.get("cilium/cluster-config/north"))
    agent = operators.start(cluster=nameless, process="agent")

    async def own() -> bool:
        return [each["name"] for each in await asyncio.to_thread(agent.rows, "clusters")] == ["north"]

    await until(own)
    await client.delete(CLUSTER_PROPERTY, "", "cluster.clusterset.k8s.io")
    await client.delete(CRD, "", ABOUT["metadata"]["name"])


@pytest.mark.slow
async def test_where_namespaces_do_not_take_part_by_default_the_export_is_told(
    client: kube.Client, namespace: str, operators: Replicas
) -> None:
    await _export(client, namespace, "echo")
    operators.start(default_global=False, cluster=ClusterSection(name="c1", id=1, families=("IPv4", "IPv6")))

    async def reasons() -> bool:
        found = await client.get(SERVICE_EXPORT, "echo", namespace)
        conditions = (found.status.conditions if found.status else None) or ()
        return {each.type: each.reason for each in conditions} == {"Valid": "NamespaceNotGlobal", "Ready": "Pending"}

    await until(reasons)
    body = {"metadata": {"annotations": {"clustermesh.cilium.io/global": "true"}}}
    await client.patch(NAMESPACE, "", namespace, body)
    await _imported(client, namespace, "echo")
    found = await client.get(SERVICE_IMPORT, "echo", namespace)
    assert (found.metadata.annotations or {})["clustermesh.cilium.io/supported-ip-families"] == "IPv4"


@pytest.mark.slow
async def test_an_address_that_is_refused_is_an_event_on_the_object_that_claims_it(
    client: kube.Client, namespace: str, operators: Replicas
) -> None:
    ports = [{"name": "http", "port": 8080}]
    metadata = {"name": "echo", "annotations": {"service.cilium.io/global": "true"}}
    await client.create(
        SERVICE, namespace, {"metadata": metadata, "spec": {"ports": ports, "externalIPs": ["8.8.8.8"]}}
    )
    spec = {"type": "ClusterSetIP", "ips": ["127.0.0.1"], "ports": ports}
    await client.create(SERVICE_IMPORT, namespace, {"metadata": {"name": "taken"}, "spec": spec})
    operators.start()

    async def events() -> set[tuple[str, str, str]]:
        found = await client.list(HAPPENED, namespace)
        return {
            (each.involved_object.kind, each.involved_object.name, each.reason)
            for each in found
            if each.reason in ("ExternalIPsDisabled", "ReservedAddress")
        }

    async def both() -> bool:
        return await events() == {
            ("Service", "echo", "ExternalIPsDisabled"),
            ("ServiceImport", "taken", "ReservedAddress"),
        }

    await until(both)


async def _define_policies(client: kube.Client) -> None:
    body = yaml.safe_load((CRDS / "trafficpolicies.yaml").read_text())
    await client.apply(CRD, "", body["metadata"]["name"], body, field_manager="test")
    async with asyncio.timeout(60):
        while not await client.serves(TRAFFIC_POLICY):
            client.forget(TRAFFIC_POLICY)
            await asyncio.sleep(0.1)


def _policy(*clusters: dict[str, Any], name: str = "echo", **tier: Any) -> dict[str, Any]:
    spec = {"targetRef": {"name": "echo"}, "tiers": [{"clusters": list(clusters), **tier}]}
    return {"metadata": {"name": name}, "spec": spec}


@pytest.mark.slow
async def test_what_came_of_a_policy_is_in_its_status(client: kube.Client, namespace: str, operators: Replicas) -> None:
    await _define_policies(client)
    await client.create(TRAFFIC_POLICY, namespace, _policy({"name": "c1", "weight": 90}, {"name": "c2", "weight": 10}))
    await _export(client, namespace, "echo")
    labels = {"kubernetes.io/service-name": "echo"}
    slice_ = {
        "metadata": {"name": "echo-1", "labels": labels},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.1.0.5"], "conditions": {"ready": True}}],
        "ports": [{"name": "http", "port": 8080}],
    }
    await client.create(ENDPOINT_SLICE, namespace, slice_)
    operators.start()

    async def status(name: str = "echo") -> tuple[str, str]:
        found = (await client.get(TRAFFIC_POLICY, name, namespace)).status
        conditions = (found.conditions if found is not None else None) or ()
        reasons = [each.reason for each in conditions if each.type == "Accepted"]
        return ",".join(reasons), (found.shares or "") if found is not None else ""

    async def accepted() -> bool:
        return await status() == ("Accepted", "c1 100%")

    await until(accepted)
    await client.create(TRAFFIC_POLICY, namespace, _policy({"name": "c2"}, name="later"))

    async def conflicted() -> bool:
        return await status("later") == ("Conflicted", "")

    await until(conflicted)


async def test_what_came_of_a_route_is_in_its_status(client: kube.Client, namespace: str, operators: Replicas) -> None:
    await define_routes(client)
    ports = [{"name": "http", "port": 80}]
    await client.create(SERVICE, namespace, {"metadata": {"name": "echo"}, "spec": {"ports": ports}})
    spec = {
        "parentRefs": [{"group": "", "kind": "Service", "name": "echo"}],
        "rules": [{"backendRefs": [{"name": "none", "port": 80}]}],
    }
    await client.create(HTTP_ROUTE, namespace, {"metadata": {"name": "route"}, "spec": spec})
    operators.start(proxy=str(operators.folder / "proxy"))

    async def written() -> bool:
        status = (await client.get(HTTP_ROUTE, "route", namespace)).status
        entries = (status.parents if status is not None else None) or []
        return [each["reason"] for entry in entries for each in entry["conditions"]] == ["Accepted", "BackendNotFound"]

    await until(written)


async def test_the_definition_refuses_what_cannot_be_followed(
    client: kube.Client, namespace: str, request: pytest.FixtureRequest
) -> None:
    await _define_policies(client)
    good = _policy({"name": "*"}, {"region": "eu", "zone": "a", "weight": 0}, minHealthy="50%")
    await client.create(TRAFFIC_POLICY, namespace, good)
    if "lab" in request.node.callspec.id:
        return  # it keeps schemas and does not enforce them
    both = _policy({"name": "c1"}, name="bad")
    both["spec"]["locality"] = "Node"
    for body, why in (
        (_policy({"name": "c1", "weight": 2**31}, name="bad"), "weight"),
        (_policy({"name": "c1", "region": "eu"}, name="bad"), "want either name, or region, zone or matchLabels"),
        (_policy({}, name="bad"), "want either name, or region, zone or matchLabels"),
        (_policy({"name": "c1"}, name="bad", minHealthy=0), "want a count of at least 1"),
        (_policy({"name": "c1"}, name="bad", minHealthy="101%"), "want a count of at least 1"),
        (both, "tiers and locality exclude each other"),
        ({**both, "spec": {**both["spec"], "tiers": both["spec"]["tiers"] * 17}}, "must have at most 16 items"),
    ):
        with pytest.raises(kube.KubeError, match=why):
            await client.create(TRAFFIC_POLICY, namespace, body)
