"""Two clusters on networks of their own, with the same addresses in both, by commands alone: install and connect."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import yaml
from nodes.cluster import Cluster, copied, islands, isthmus, until
from nodes.walk import SYSTEM
from nodes.world import NETWORK

from isthmus_lab.realapi import definitions
from nodes import apps, images, page

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(600)]

PORT = 15443


@pytest.fixture(scope="module")
def clusters() -> Iterator[tuple[Cluster, Cluster]]:
    with islands() as made:
        yield made


def test_one_command_installs_an_island(clusters: tuple[Cluster, Cluster]) -> None:
    for cluster in clusters:
        for each in definitions.of_routes():
            cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(KIND | each))
        settings = (
            f"cluster.network={cluster.name}",
            f"cluster.gateways={cluster.address}:{PORT}",
            f"cluster.pod_ranges={cluster.pods}",
            f"cluster.service_ranges={cluster.services}",
            f"cluster.node_ranges={NETWORK}.0/24",
        )
        words = (f"--context={cluster.name}", "--with=islands", *(f"--set={each}" for each in settings))
        isthmus(cluster.world, "install", *words, f"--image={apps.IMAGE}", f"--envoy-image={images.ENVOY}")
        cluster.balance("isthmus-gateway")
    for cluster in clusters:
        until(partial(cluster.pods_ready, SYSTEM), what=f"ready pods in {cluster.name}")
        assert not cluster.get("-n", SYSTEM, "service", "isthmus-etcd-peers")
    *_, removal = page.commands("install.md")["Islands"]
    copied(clusters[0].world, removal, folder=clusters[0].world.folder)


KIND = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}


def test_one_command_connects_islands_and_pods_call_by_name(clusters: tuple[Cluster, Cluster]) -> None:
    c1, c2 = clusters
    for cluster in clusters:
        cluster.apply(*apps.base())
    isthmus(c1.world, "connect", "c1", "c2", "--timeout=200")
    assert c1.get("clusterlink", "c2")["spec"]["gateways"] == [f"{c2.address}:{PORT}"]
    assert c1.get("clusterlink", "c2")["spec"]["podRanges"] == c2.get("clusterlink", "c1")["spec"]["podRanges"]
    c1.apply(apps.deployment("echo", "serve", replicas=2, probe=True), apps.service(), apps.export())
    c2.apply(apps.deployment("client"))
    until(lambda: apps.calls(c2, 1) == 1, what="first answer")
    assert apps.calls(c2, 50) == 50


def test_status_and_diagnose_find_nothing_wrong_with_islands(clusters: tuple[Cluster, Cluster]) -> None:
    for cluster in clusters:
        until(partial(isthmus, cluster.world, "status", f"--context={cluster.name}"), what="good status")
    isthmus(clusters[0].world, "diagnose", apps.EXPORTED, "--context=c2")


def test_a_disconnected_island_is_no_member_and_a_connected_one_is_again(clusters: tuple[Cluster, Cluster]) -> None:
    c1, c2 = clusters
    isthmus(c1.world, "disconnect", "c1", "c2")
    until(lambda: apps.calls(c2, 1) == 0, what="end of calls")
    isthmus(c1.world, "connect", "c1", "c2", "--timeout=200")
    until(lambda: apps.calls(c2, 1) == 1, what="answer of a member")
    assert apps.calls(c2, 20) == 20
