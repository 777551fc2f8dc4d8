"""The whole life on two real clusters: install, join, call, upgrade, remove. The tests go one after the other."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from nodes.cluster import isthmus, two, until
from nodes.traces import traces
from nodes.walk import SYSTEM, Member, join

from nodes import apps, page

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def members() -> Iterator[tuple[Member, Member]]:
    with two() as clusters:
        yield Member(clusters[0]), Member(clusters[1])


BEFORE: dict[str, set[str]] = {}
"""Traces of each cluster before the installation."""
BURNERS = 24
"""Processes that compute, of a lower priority than the nodes: with them a pod's process gets a tenth of a core."""


def test_all_pods_are_ready_after_the_walk_of_the_guide(members: tuple[Member, Member]) -> None:
    for member in members:
        BEFORE[member.cluster.name] = traces(member.cluster)
    both(Member.install, members)
    join(members)
    for member in members:
        member.rolled_out()
        member.all_ready()


def test_the_page_shows_that_it_works(members: tuple[Member, Member]) -> None:
    """Section 6. Its namespace goes meanwhile: others are used by the tests that follow."""
    c1, _ = members
    status, *demo, export, imported, call = page.commands("install.md")["6. See that it works"]
    c1.until(status)
    for line in (*demo, export):
        c1.run(line)
    c1.until(imported)
    until(lambda: "200" in c1.run(call), what=call)
    isthmus(c1.cluster.world, "diagnose", "demo/echo", "--context=c2")
    for member in members:
        member.cluster.kubectl("delete", "namespace", "demo", "--wait=false")


def test_all_calls_from_a_pod_of_the_other_cluster_succeed_by_the_kernels_path(members: tuple[Member, Member]) -> None:
    _, c2 = members
    calls_succeed(members)
    before = counted(c2)
    assert apps.calls(c2.cluster, 50) == 50
    until(lambda: counted(c2) >= before + 50, what="fifty calls in the agent's counters")


def test_status_diagnose_and_verify_find_nothing_wrong(members: tuple[Member, Member]) -> None:
    c1, c2 = members
    world = c1.cluster.world
    for context in ("c1", "c2"):
        until(partial(isthmus, world, "status", f"--context={context}"), what="good status")
    isthmus(world, "diagnose", apps.EXPORTED, f"--context={c2.cluster.name}")
    contexts = [f"--context={member.cluster.name}" for member in members]
    found = json.loads(isthmus(world, "verify", *contexts, f"--image={apps.IMAGE}", "--timeout=120", "--output=json"))
    assert found["ok"], found


def test_a_question_for_another_zone_goes_to_the_cluster_dns_and_never_back_to_the_name_server(
    members: tuple[Member, Member],
) -> None:
    """Their pod is below the cgroup whose questions are steered to them."""
    for member in members:
        found = json.loads(isthmus(member.cluster.world, "status", f"--context={member.cluster.name}", "--output=json"))
        for name in ("dns", "dns-second"):
            upstream = found["processes"][name]["server"]["upstream"]
            assert upstream["dropped"] == 0
            assert upstream["forwarded"] < 1000


def test_agents_read_a_mirrors_copies_by_files_that_are_made_by_hand(members: tuple[Member, Member]) -> None:
    _, c2 = members
    endpoint = f"https://{c2.read_through_mirror()}:2379"
    c2.rolled_out()
    until(lambda: endpoint in apps.followed(c2.cluster), what="c1 by the own etcd")
    assert apps.calls(c2.cluster, 50) == 50


def test_no_call_fails_and_no_connection_drops_while_a_release_is_rolled_out(members: tuple[Member, Member]) -> None:
    _, c2 = members
    apps.begin_load(c2.cluster)
    for member in members:
        member.cluster.node.tag(apps.IMAGE, "isthmus:next")
        member.image("next")
        for line in page.commands("upgrade.md")["By kubectl"]:
            member.until(line)
        member.rolled_out()
        member.all_ready()
    apps.assert_good(apps.end_load(c2.cluster))


def calls_succeed(members: tuple[Member, Member]) -> None:
    """Export a server in one cluster, and call it from a pod of the other."""
    c1, c2 = members
    for member in members:
        member.cluster.apply(*apps.base())
    c1.cluster.apply(apps.deployment("echo", "serve", replicas=2, probe=True), apps.service(), apps.export())
    c2.cluster.apply(apps.deployment("client"))
    for member, name in ((c1, "echo"), (c2, "client")):
        member.cluster.kubectl("-n", apps.NAMESPACE, "rollout", "status", f"deployment/{name}", "--timeout=200s")
    until(lambda: apps.calls(c2.cluster, 1) == 1, what="first answer")
    assert apps.calls(c2.cluster, 50) == 50


def counted(member: Member) -> float:
    """Calls of the exported service that the kernel of the node has translated, by the agent's counter."""
    script = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9964/metrics').read().decode())"
    command = ["-n", SYSTEM, "exec", "daemonset/isthmus-agent", "-c", "agent", "--", "python", "-c", script]
    lines = member.cluster.kubectl(*command).splitlines()
    wanted = [line for line in lines if line.startswith("isthmus_agent_calls_total{") and f"{apps.NAMESPACE}/" in line]
    return sum(float(line.split()[-1]) for line in wanted)


def test_on_a_busy_node_no_probe_ends_a_process_that_is_still_starting(members: tuple[Member, Member]) -> None:
    burn = ["nice", "-n", "4", sys.executable, "-c", "while True: pass"]
    burners = [subprocess.Popen(burn) for _ in range(BURNERS)]
    try:
        c1, _ = members
        c1.cluster.kubectl("-n", SYSTEM, "rollout", "restart", "daemonset,deployment")
        c1.rolled_out()
        c1.all_ready()
    finally:
        for each in burners:
            each.kill()
            each.wait()
    pods = c1.cluster.get("-n", SYSTEM, "pods")["items"]
    statuses = [status for pod in pods for status in pod["status"]["containerStatuses"]]
    assert {status["name"]: status["restartCount"] for status in statuses if status["restartCount"]} == {}


def test_the_commands_of_the_page_remove_objects_and_the_nodes_part(members: tuple[Member, Member]) -> None:
    """One cluster by isthmus uninstall, the other by hand."""
    c1, c2 = members
    sections = page.commands("install.md")
    [uninstall] = sections["Remove"]
    *objects, node = sections["Objects by hand"]

    def remove(member: Member) -> None:
        member.cluster.kubectl("delete", "namespace", apps.NAMESPACE)
        for line in [uninstall] if member is c1 else objects:
            member.run(line, stdin="y\n")

    both(remove, members)
    c2.cluster.node.run(str(Path(sys.executable).with_name("isthmus")), *node.split()[1:])
    for member in members:
        assert_as_before(member)


def test_the_commands_for_helm_install_and_connect(members: tuple[Member, Member]) -> None:
    sections = page.commands("install.md")

    def install(member: Member) -> None:
        for line in sections["With Helm"]:
            member.run(line)
        member.cluster.balance()

    both(install, members)
    for line in sections["5. Connect"]:
        members[0].run(line)
    calls_succeed(members)


def test_the_commands_for_helm_upgrade_and_no_call_fails(members: tuple[Member, Member]) -> None:
    _, c2 = members
    apps.begin_load(c2.cluster)
    for member in members:
        for line in page.commands("upgrade.md")["By Helm"]:
            member.run(line)
        member.rolled_out()
        member.all_ready()
    apps.assert_good(apps.end_load(c2.cluster))


def test_what_helm_installed_leaves_nothing_in_the_clusters_and_on_their_nodes(
    members: tuple[Member, Member],
) -> None:
    def remove(member: Member) -> None:
        member.cluster.kubectl("delete", "namespace", apps.NAMESPACE)
        for line in page.commands("install.md")["What Helm installed"]:
            member.run(line, stdin="y\n")

    both(remove, members)
    for member in members:
        assert_as_before(member)


def both(action: Callable[[Member], None], members: tuple[Member, Member]) -> None:
    """Do the same in both clusters at once."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(action, members))


def assert_as_before(member: Member) -> None:
    """Assert that nothing is left in the cluster and on its node."""
    assert sorted(traces(member.cluster) ^ BEFORE[member.cluster.name]) == []
