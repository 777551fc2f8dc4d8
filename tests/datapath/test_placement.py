"""Values that exist and are wrong are noticed by the pods of the node: the cgroup, the cluster DNS, a second agent."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from datapath_worlds.bpf_world import World

from isthmus.config import DnsSection
from isthmus.datapath import remove
from isthmus.datapath.core.namespaces import Process
from isthmus.datapath.services import placement
from isthmus.datapath.services.callers import addresses_below
from isthmus.datapath.services.placement import Placement, Resolver
from isthmus.model.services import Pod

KUBERNETES = "search demo.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.11\noptions ndots:5\n"
DNS = DnsSection(cluster_dns=("10.96.0.10",))


def pod(name: str, *addresses: str, uid: str = "", phase: str = "Running", host_network: bool = False) -> Pod:
    return Pod(
        name=f"demo/{name}",
        uid=uid,
        node="n1",
        addresses=addresses,
        phase=phase,
        host_network=host_network,
        ready=phase == "Running",
    )


@contextmanager
def process_with(resolv_conf: Path, cgroup: Path) -> Iterator[int]:
    """A process in a cgroup with a resolv.conf of its own, as a container has it."""
    script = f"mount --bind {resolv_conf} /etc/resolv.conf && echo ready && exec sleep 300"

    def join() -> None:
        (cgroup / "cgroup.procs").write_text(str(os.getpid()))

    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script], stdout=subprocess.PIPE, preexec_fn=join
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.mark.bpf
def test_a_pod_below_the_cgroup_is_found_by_its_address_and_one_elsewhere_is_not(world: World) -> None:
    [address] = [each for each in sorted(addresses_below(world.cgroup)) if "." in each and not each.startswith("127.")][
        :1
    ]
    pods = placement.expected(
        [pod("a", address), pod("b", address, host_network=True), pod("c", phase="Pending")], "n1"
    )
    assert [each.name for each in pods] == ["demo/a"]
    assert placement.cgroup_problem(world.cgroup, placement.look(world.cgroup, pods)) == ""
    wrong = world.cgroup.parent / f"{world.cgroup.name}-wrong"
    wrong.mkdir()
    try:
        found = placement.look(wrong, pods)
        assert placement.cgroup_problem(wrong, found).startswith(
            f"datapath.cgroup {wrong} has none of this node's 1 pods: their calls are not translated"
        )
    finally:
        wrong.rmdir()


@pytest.mark.bpf
def test_a_pod_is_found_by_the_uid_in_the_name_of_its_cgroup(world: World) -> None:
    uid = "0f1e2d3c-1111-2222-3333-444455556666"
    group = world.cgroup / f"kubepods-pod{uid.replace('-', '_')}.slice"
    group.mkdir()
    try:
        assert placement.look(world.cgroup, [pod("a", "192.0.2.99", uid=uid)]) == Placement(1, 1)
        assert placement.look(world.cgroup, [pod("b", "192.0.2.99", uid=uid.replace("0f", "1f"))]).in_cgroup == 0
    finally:
        group.rmdir()


@pytest.mark.bpf
def test_a_pod_in_a_second_cgroup_is_named_while_others_are_below_the_hooked_one(world: World) -> None:
    inside, outside = "0f1e2d3c-1111-2222-3333-444455556666", "1f1e2d3c-1111-2222-3333-444455556666"
    groups = [world.cgroup / f"pod{inside}", world.cgroup.parent / f"{world.cgroup.name}-second-pod{outside}"]
    for each in groups:
        each.mkdir()
    try:
        found = placement.look(world.cgroup, [pod("a", "192.0.2.98", uid=inside), pod("b", "192.0.2.99", uid=outside)])
        assert placement.cgroup_problem(world.cgroup, found) == "", "the configured one is right"
        assert placement.second_cgroup(world.cgroup, found) == (
            f"datapath.cgroup {world.cgroup} lacks 1 of this node's 2 pods (demo/b): their calls are not translated"
        )
        all_inside = placement.look(world.cgroup, [pod("a", "192.0.2.98", uid=inside)])
        assert placement.second_cgroup(world.cgroup, all_inside) == ""
    finally:
        for each in groups:
            each.rmdir()


@pytest.mark.bpf
@pytest.mark.needs("unshare")
def test_the_resolver_of_a_pod_is_that_of_its_container(world: World, tmp_path: Path) -> None:
    own = tmp_path / "resolv.conf"
    own.write_text(KUBERNETES)
    group = world.cgroup / "container"
    group.mkdir()
    with process_with(own, group) as pid:
        pods = [pod("a", *(each for each in addresses_below(group) if not each.startswith(("127.", "::1"))))]
        found = placement.look(group, pods)
        assert pid
    assert found.resolvers == (Resolver(("10.96.0.11",), "cluster.local"),)
    assert placement.dns_problem(DNS, found) == (
        "pods of this node ask 10.96.0.11 for names, and dns.cluster_dns has 10.96.0.10: "
        "names of the clusterset are not answered"
    )


def test_a_process_that_ends_during_the_search_does_not_hide_its_pods_other_processes() -> None:
    """Both have one network namespace, whose addresses the one that has ended no longer shows."""
    lives = Process.look(os.getpid())
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    owners: dict[str, str] = {"127.0.0.1": "demo/a"}
    seen: dict[int, str] = {}
    assert placement._pod(Process(ended.pid, 1, lives.namespace), owners, seen) == ""
    assert placement._pod(lives, owners, seen) == "demo/a"
    assert placement._pod(Process(ended.pid, 1, lives.namespace), owners, seen) == "demo/a"


def test_one_pod_that_asks_the_configured_server_is_enough_and_a_cache_counts() -> None:
    other, own = Resolver(("10.96.0.11",), "cluster.local"), Resolver(("10.96.0.10",), "cluster.local")
    assert placement.dns_problem(DNS, Placement(2, 2, resolvers=(other, own))) == ""
    cached = DnsSection(cluster_dns=("10.96.0.10",), resolvers=("10.96.0.11",))
    assert placement.dns_problem(cached, Placement(1, 1, resolvers=(other,))) == ""
    assert placement.dns_problem(DNS, Placement(1, 1)) == "", "nothing is known"


def test_a_wrong_domain_of_the_cluster_is_noticed() -> None:
    found = Placement(1, 1, resolvers=(Resolver(("10.96.0.10",), "example.org"),))
    assert placement.dns_problem(DNS, found) == (
        "pods of this node search in example.org, and dns.cluster_domain is cluster.local"
    )


@pytest.mark.parametrize("kind", ["link", "linked folder", "pipe", "folder", "none"])
def test_a_resolv_conf_that_is_no_file_of_the_pod_is_not_read(kind: str, tmp_path: Path) -> None:
    """A pod's link would be followed from the agent's root, and a pipe would hold the agent."""
    elsewhere, etc = tmp_path / "elsewhere", tmp_path / "root" / "etc"
    elsewhere.mkdir()
    (elsewhere / "resolv.conf").write_text(KUBERNETES)
    etc.parent.mkdir()
    if kind == "linked folder":
        etc.symlink_to(elsewhere)
    else:
        etc.mkdir()
    if kind == "link":
        (etc / "resolv.conf").symlink_to(elsewhere / "resolv.conf")
    elif kind == "pipe":
        os.mkfifo(etc / "resolv.conf")
    elif kind == "folder":
        (etc / "resolv.conf").mkdir()
    assert placement._read(tmp_path / "root") == ""


def test_a_hostile_resolv_conf_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "resolv.conf").write_bytes(
        b"nameserver \xff\x00\nnameserver 10.96.0.10;evil\nsearch svc.\x1b[31m svc.a\nnameserver 10.96.0.10\n" * 100_000
    )
    text = placement._read(tmp_path)
    assert len(text) <= placement.RESOLV_CONF
    assert set(placement.resolver(text).nameservers) == {"10.96.0.10"}
    assert placement.resolver(text).domain == ""


@pytest.mark.bpf
@pytest.mark.own_datapath
def test_a_second_agent_with_maps_of_its_own_on_the_same_cgroup_is_noticed_by_both(world: World) -> None:
    first = world.open()
    first.repair()
    assert first.rival == ""
    pin = f"{world.pin}-second"
    second = world.open(pin=pin)
    for each in (first, second):
        each.repair()
        assert each.rival.startswith("two agents run on this node: program ")
        assert each.hooks.startswith("10 programs attached")
    second.close()
    remove(pin)
    first.repair()
    assert first.rival == ""
    first.close()
    remove(world.pin)
