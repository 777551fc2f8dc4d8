"""From nothing to a call between two real clusters by commands that need no file and no key: install and connect."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from nodes.cluster import Cluster, copied, is_ready, isthmus, two, until
from nodes.walk import INSTALLED, NEXT, PYTHON, SYSTEM

from nodes import apps, page

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(600)]


ROTATION = 480
"""Seconds that end a rotation that hangs."""
ROTATION_PAUSE = 15
"""Seconds in place of ten minutes: above the interval in which kubelets here look at the Secrets of their pods."""


@pytest.fixture(scope="module")
def clusters() -> Iterator[tuple[Cluster, Cluster]]:
    with two() as made:
        for cluster in made:
            for name in (INSTALLED, NEXT, PYTHON):
                cluster.node.tag(apps.IMAGE, name)
        yield made


def test_the_commands_of_the_page_install_and_connect(clusters: tuple[Cluster, Cluster]) -> None:
    """The sections of docs/install.md that need nothing but contexts, as they stand there."""
    c1, _ = clusters
    sections = page.commands("install.md")
    for line in sections["By one command"]:
        copied(c1.world, line, folder=c1.world.folder)
    for cluster in clusters:
        cluster.balance()
    for line in sections["5. Connect"]:
        copied(c1.world, line, folder=c1.world.folder)


def test_pods_call_by_name(clusters: tuple[Cluster, Cluster]) -> None:
    c1, c2 = clusters
    for cluster in clusters:
        cluster.apply(*apps.base())
    c1.apply(apps.deployment("echo", "serve", replicas=2, probe=True), apps.service(), apps.export())
    c2.apply(apps.deployment("client"))
    until(lambda: apps.calls(c2, 1) == 1, what="first answer")
    assert apps.calls(c2, 50) == 50


def test_a_second_run_changes_nothing(clusters: tuple[Cluster, Cluster]) -> None:
    before = [versions(cluster) for cluster in clusters]
    install(clusters)
    isthmus(clusters[0].world, "connect", "c1", "c2")
    assert [versions(cluster) for cluster in clusters] == before


def test_agents_read_a_mirrors_copies_after_one_setting_and_no_call_fails(clusters: tuple[Cluster, Cluster]) -> None:
    _, c2 = clusters
    install(clusters, "--set=clusterset.through_mirror=true", f"--set=keys.rotation_pause={ROTATION_PAUSE}")
    until(lambda: c2.get("-n", SYSTEM, "secret", "isthmus-mirrored"), what="the files of agents")
    for cluster in clusters:
        until(partial(cluster.pods_ready, SYSTEM), what=f"ready pods in {cluster.name}")
    [address] = c2.get("-n", SYSTEM, "service", "isthmus-etcd")["spec"]["clusterIPs"]
    until(lambda: f"https://{address}:2379" in apps.followed(c2), what="c1 by the own etcd")
    assert apps.calls(c2, 50) == 50


def test_authorities_are_rotated_and_a_release_goes_there_and_back_meanwhile_and_no_call_fails(
    clusters: tuple[Cluster, Cluster],
) -> None:
    """The commands of docs/clusterset.md and docs/upgrade.md.

    At once, since a rotation mostly waits: for peers, and for what a kubelet has mounted. Both images are today's: make
    test-upgrade runs the previous release's code beside it.
    """
    c1, c2 = clusters
    before = [authority(cluster) for cluster in clusters]
    apps.begin_load(c2)
    dry, rotate = page.commands("clusterset.md")["Rotation in the cluster"]
    assert before[0] in copied(c1.world, dry, folder=c1.world.folder)
    isthmus(c2.world, "clusters", "rotate-ca", "--context=c2")
    with ThreadPoolExecutor() as pool:
        rotated = pool.submit(copied, c1.world, rotate, folder=c1.world.folder, seconds=ROTATION)
        change_release(clusters, "Before", "By command", image=NEXT)
        change_release(clusters, "Going back", image=INSTALLED)
        assert rotated.result().splitlines()[-1].startswith("steady")
    for cluster, old in zip(clusters, before, strict=True):
        until(lambda: authority(cluster) not in ("", old), what=f"another authority of {cluster.name}")  # noqa: B023
        until(partial(isthmus, c1.world, "clusters", "status", f"--context={cluster.name}"), what="its peer")
    apps.assert_good(apps.end_load(c2))
    assert_new_exports_arrive(clusters, "rotated")


def test_three_etcds_are_on_three_nodes_and_lose_all_data_and_no_call_fails(
    clusters: tuple[Cluster, Cluster],
) -> None:
    c1, c2 = clusters
    addresses = imported(c2)
    c1.grow([c2], name=INSTALLED)
    apps.begin_load(c2)
    for line in page.commands("install.md")["Three etcds"]:
        copied(c1.world, line, folder=c1.world.folder)
    isthmus(c1.world, "install", "--context=c1", "--with=replicated", f"--image={INSTALLED}")
    for lost in ([], ["isthmus-etcd-1"], ["isthmus-etcd-0", "isthmus-etcd-1", "isthmus-etcd-2"]):
        if lost:
            c1.kubectl("-n", SYSTEM, "delete", "pod", *lost, "--grace-period=1")
        until(lambda: spread(c1) == {node.name for node in c1.nodes}, what="an etcd on each node")
        until(partial(isthmus, c1.world, "status", "--context=c1"), what="good status")
    assert_new_exports_arrive(clusters, "filled")
    apps.assert_good(apps.end_load(c2))
    assert imported(c2) == addresses


def change_release(clusters: tuple[Cluster, Cluster], *headings: str, image: str) -> None:
    """Run the commands of docs/upgrade.md below these headings."""
    world = clusters[0].world
    for line in (line for heading in headings for line in page.commands("upgrade.md")[heading]):
        if line.startswith("isthmus status"):  # after a rollout a cluster is well some seconds later
            until(partial(copied, world, line, folder=world.folder), what=line)
        else:
            copied(world, line, folder=world.folder)
    assert [images(cluster) for cluster in clusters] == [{image}, {image}]


def authority(cluster: Cluster) -> str:
    """Return the digest of the cluster's only authority; empty while there are two."""
    state = cluster.get("-n", SYSTEM, "configmap", "isthmus-authority-rotation")["data"]
    return str(state["authority"]) if state.get("step", "steady") == "steady" else ""


def imported(cluster: Cluster) -> list[str]:
    """Return the addresses by which pods call what the other cluster exports."""
    addresses: list[str] = cluster.get("-n", apps.NAMESPACE, "serviceimport", "echo")["spec"]["ips"]
    return addresses


def spread(cluster: Cluster) -> set[str]:
    """Return the nodes of etcds that are ready."""
    pods = cluster.get("-n", SYSTEM, "pods", "-l", "app.kubernetes.io/name=isthmus-etcd")["items"]
    return {pod["spec"]["nodeName"] for pod in pods if is_ready(pod)}


def assert_new_exports_arrive(clusters: tuple[Cluster, Cluster], name: str) -> None:
    """Export the server by another name, and call that from the other cluster."""
    c1, c2 = clusters
    c1.apply(apps.service(name), apps.export(name))
    until(lambda: apps.calls(c2, 1, name) == 1, what=f"first answer of {name}")
    assert apps.calls(c2, 20, name) == 20


def images(cluster: Cluster) -> set[str]:
    """Images of our processes that run."""
    pods = cluster.get("-n", SYSTEM, "pods", "-l", "app.kubernetes.io/name!=isthmus-etcd")["items"]
    return {each["image"] for pod in pods for each in pod["spec"]["containers"]}


def install(clusters: tuple[Cluster, Cluster], *more: str) -> None:
    """Run ``isthmus install`` for both."""
    contexts = [f"--context={cluster.name}" for cluster in clusters]
    isthmus(clusters[0].world, "install", *contexts, f"--image={INSTALLED}", *more)


def versions(cluster: Cluster) -> dict[str, int]:
    """Return the generations of objects, which change with what they ask for."""
    kinds = "daemonset,deployment,statefulset,networkpolicy,poddisruptionbudget,clusterlink"
    found = cluster.get("-n", SYSTEM, kinds)["items"]
    return {f"{each['kind']}/{each['metadata']['name']}": each["metadata"]["generation"] for each in found}
