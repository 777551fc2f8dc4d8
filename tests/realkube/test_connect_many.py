"""More than two clusters by one command: one that is added, one that was lost, one that leaves. In this order."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from clusters.joined import SYSTEM
from clusters.linked import ADMIN, Laptop, LinkedCluster, linked
from labs.lab_running import until
from machine import programs

from isthmus import kube
from isthmus.cli import connect

pytestmark = [pytest.mark.kube, pytest.mark.timeout(900)]

NAMES = ("a" * 32, "c2", "c3", "c4")
"""The first one's is the longest that a cluster can have."""


class Clusters:
    """Four clusters, and whoever connects them."""

    def __init__(self, folder: Path, members: tuple[LinkedCluster, ...]) -> None:
        self.folder = folder
        self.members = list(members)
        self.laptop = Laptop(folder, *members)

    def links(self, *clusters: LinkedCluster) -> dict[tuple[str, str], int]:
        """Generations of the links of clusters, by cluster and peer."""
        return {
            (cluster.name, each["metadata"]["name"]): each["metadata"]["generation"]
            for cluster in clusters
            for each in cluster.get("clusterlink")["items"]
        }

    def connect(self, *contexts: str, code: int = 0) -> str:
        """Output of the command on stderr."""
        ended, _, errors = self.laptop.isthmus("connect", *contexts)
        assert ended == code, errors
        return errors

    def stop(self) -> None:
        for each in self.members:
            each.stop()


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    folder = tmp_path_factory.mktemp("many")
    with linked(folder, Path(programs.path("kube-apiserver")), names=NAMES) as members:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(install, members))
        made = Clusters(folder, members)
        yield made
        made.stop()


def install(cluster: LinkedCluster) -> None:
    """Install without an operator, which has no part in links."""
    asyncio.run(cluster.server.ready())
    cluster.install(operator=False)
    until(lambda: cluster.get("-n", SYSTEM, "configmap", "isthmus-cluster-info"), what="the cluster's own info")


def pairs(*members: LinkedCluster) -> list[tuple[str, str]]:
    return sorted((first.name, second.name) for first, second in itertools.permutations(members, 2))


def test_one_command_connects_three_clusters_each_with_each(clusters: Clusters) -> None:
    c1, c2, c3, _ = clusters.members
    clusters.connect(c1.name, "c2", "c3")
    assert sorted(clusters.links(c1, c2, c3)) == pairs(c1, c2, c3)
    for first, second in itertools.permutations((c1, c2, c3), 2):
        assert first.ready(second.name)


def test_a_fourth_is_added_without_a_change_of_the_others_links(clusters: Clusters) -> None:
    before = clusters.links(*clusters.members[:3])
    clusters.connect(*NAMES)
    after = clusters.links(*clusters.members)
    assert sorted(after) == pairs(*clusters.members)
    assert {pair: after[pair] for pair in before} == before


def test_a_cluster_that_was_lost_is_connected_again_under_its_name(clusters: Clusters) -> None:
    """It has another etcd and authority, and its links are gone: nothing of it is left but what its peers have."""
    c1, lost, c3, c4 = clusters.members
    others = clusters.links(c1, c3, c4)
    lost.stop()
    again = LinkedCluster(lost.name, lost.number, clusters.folder / "again", Path(programs.path("kube-apiserver")))
    clusters.members[1] = again
    again.start()
    install(again)
    clusters.laptop = Laptop(clusters.folder, *clusters.members)
    assert "cluster c2 has another key" in clusters.connect(*NAMES, code=1)
    clusters.connect(*NAMES, "--accept-new-keys")
    for first in (c1, c3, c4):
        bundle = again.get("-n", SYSTEM, "configmap", "isthmus-cluster-info")["data"]["caBundle"]
        assert first.link("c2")["spec"]["caBundle"] == bundle, "it is read by its new authority"
        assert first.secret("isthmus-peers")["c2.ca.crt"].decode() == bundle
    after = clusters.links(c1, c3, c4)
    assert [pair for pair in others if after[pair] != others[pair] and "c2" not in pair] == []
    assert clusters.laptop.isthmus("connect", *NAMES, "--dry-run")[1].count("is up to date") == 12


def test_the_clusters_of_an_inventory_are_connected_as_those_of_contexts_are(clusters: Clusters) -> None:
    """The inventory is in c3, whose profiles the one who connects may list."""
    hub = clusters.members[2]
    hub.kubectl("apply", "-f", "-", stdin=json.dumps(PROFILES))
    hub.kubectl("wait", "--for=condition=Established", f"crd/{PROFILES['metadata']['name']}")
    hub.kubectl("create", "clusterrole", "inventory", "--verb=list", "--resource=clusterprofiles.multicluster.x-k8s.io")
    hub.kubectl(
        "create", "clusterrolebinding", "inventory", "--clusterrole=inventory", f"--serviceaccount={SYSTEM}:{ADMIN}"
    )
    for each in clusters.members:
        hub.kubectl("apply", "-f", "-", stdin=json.dumps(profile(each, each.name)))
    command = ("connect", "--profiles=demo", "--inventory=c3")
    code, output, errors = clusters.laptop.isthmus(*command, "--dry-run")
    assert (code, output.count("is up to date")) == (0, 12), errors
    hub.kubectl("apply", "-f", "-", stdin=json.dumps(profile(clusters.members[1], "another")))
    code, _, errors = clusters.laptop.isthmus(*command)
    assert (code, "context c2 is cluster c2, its ClusterProfile profile-c2 is of cluster another" in errors) == (
        1,
        True,
    )
    stranger = profile(hub, "c9") | {"metadata": {"name": "stranger", "namespace": "demo"}}
    stranger["status"]["accessProviders"][0]["cluster"]["server"] = "https://192.0.2.9"
    hub.kubectl("apply", "-f", "-", stdin=json.dumps(stranger))
    code, _, errors = clusters.laptop.isthmus(*command)
    assert (code, "ClusterProfile stranger: no context of the kubeconfig has its server" in errors) == (1, True)


PROFILES: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "clusterprofiles.multicluster.x-k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, of a test: without a schema"},
    },
    "spec": {
        "group": "multicluster.x-k8s.io",
        "scope": "Namespaced",
        "names": {"kind": "ClusterProfile", "plural": "clusterprofiles"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


def profile(cluster: LinkedCluster, name: str) -> dict[str, Any]:
    """A profile as a cluster manager writes it, of the cluster called so in the clusterset."""
    [section] = cluster.context()["clusters"]
    access = {"name": "kubeconfig", "cluster": {"server": section["cluster"]["server"]}}
    return {
        "apiVersion": "multicluster.x-k8s.io/v1alpha1",
        "kind": "ClusterProfile",
        "metadata": {"name": f"profile-{cluster.name}", "namespace": "demo"},
        "spec": {"clusterManager": {"name": "fleet"}},
        "status": {
            "properties": [{"name": "cluster.clusterset.k8s.io", "value": name}],
            "accessProviders": [access],
        },
    }


def test_a_cluster_is_parted_from_one_of_three_and_from_no_other(clusters: Clusters) -> None:
    c1, c2, c3, c4 = clusters.members
    before = clusters.links(*clusters.members)
    code, _, errors = clusters.laptop.isthmus("disconnect", "c2", "c3")
    assert (code, errors.count("deleted")) == (0, 2)
    until(lambda: "c3.crt" not in c2.secret("isthmus-peers"), what="the files of c3 gone from c2")
    until(lambda: "c2.crt" not in c3.secret("isthmus-peers"), what="the files of c2 gone from c3")
    left = {pair: generation for pair, generation in before.items() if set(pair) != {"c2", "c3"}}
    assert clusters.links(*clusters.members) == left
    for first, second in left:
        [cluster] = [each for each in (c1, c2, c3, c4) if each.name == first]
        assert f"{second}.crt" in cluster.secret("isthmus-peers")
        assert cluster.ready(second)


async def test_connect_that_is_interrupted_after_each_write_and_run_again_converges(
    clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run ends with its first write: as many runs as writes are needed, and the keepers go on meanwhile."""
    _, _, c3, c4 = clusters.members
    assert clusters.laptop.isthmus("disconnect", "c3", "c4")[0] == 0
    until(lambda: "c4.key" not in c3.secret("isthmus-links"), what="the key of the link gone from c3")
    until(lambda: "c3.key" not in c4.secret("isthmus-links"), what="the key of the link gone from c4")
    runs = 0
    while (code := await one_write(clusters, monkeypatch)) is None:
        runs += 1
        assert runs < 20
    assert (code, runs >= 4) == (0, True)
    assert (c3.ready("c4"), c4.ready("c3")) == (True, True)
    assert clusters.laptop.isthmus("connect", "c3", "c4", "--dry-run")[1].count("is up to date") == 2


async def one_write(clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """Run connect until its first write, and return nothing; without a write its exit code."""
    apply = kube.Client.apply

    async def interrupted(self: kube.Client, *arguments: Any, **options: Any) -> None:
        await apply(self, *arguments, **options)
        raise InterruptedError

    session = connect._Session({}, accept_new_keys=False)
    with monkeypatch.context() as patched:
        patched.setattr(kube.Client, "apply", interrupted)
        async with AsyncExitStack() as stack:
            await session.open(stack, ("c3", "c4"), clusters.folder / "kubeconfig")
            try:
                return await session.connect(60.0)
            except InterruptedError:
                return None
