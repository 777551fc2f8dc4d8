"""Parts of a lab on loopback addresses: addresses, resources of Envoy, groups by environment, environment of pods."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from ipaddress import ip_address, ip_network
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from labs.lab_running import until

from isthmus.host_user import VARIABLE
from isthmus_lab import cgroups, images, privileges
from isthmus_lab.layout import MAX_ON_LOOPBACK, Lab
from isthmus_lab.node import calls, shared_host
from isthmus_lab.node.config_data import Missing
from isthmus_lab.node.objects import Container, Mount, Port
from isthmus_lab.node.services import Vip

LAB = Lab("demo", MAX_ON_LOOPBACK, loopback=7)
NODE = LAB.clusters[2].nodes[0]
VIP = Vip("127.7.203.9", "tcp", 80, (("127.7.101.2", 8080), ("127.7.102.2", 8080)))


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Looked at and never killed: if a test fails, its members may be all processes of the machine."""
    monkeypatch.setattr(privileges, "CONFINED", True)
    monkeypatch.delenv(VARIABLE, raising=False)
    return cgroups.make(tmp_path / "group")


def test_all_addresses_of_a_lab_are_in_its_own_part_of_loopback() -> None:
    whole = ip_network("127.7.0.0/16")
    for cluster in LAB.clusters:
        [scheme], node = cluster.schemes, cluster.nodes[0]
        ours = (cluster.address, *node.addresses, *node.pod(254), scheme.node_local, scheme.cluster_dns)
        assert all(ip_address(each) in whole for each in ours)
        assert ip_address(scheme.cluster_dns) in ip_network(scheme.service_cidr)


def test_no_two_clusters_share_a_range_since_all_are_in_one_network() -> None:
    ranges = [
        ip_network(each)
        for cluster in LAB.clusters
        for each in (*cluster.pod_cidrs, *cluster.balancers, cluster.schemes[0].service_cidr)
    ]
    assert not any(one.overlaps(other) for one, other in combinations(ranges, 2))
    machines = [(cluster.address, cluster.nodes[0].address, cluster.schemes[0].node_local) for cluster in LAB.clusters]
    assert not any(ip_address(each) in net for each in sum(machines, ()) for net in ranges)


def test_ports_of_root_are_moved_on_loopback_and_no_others() -> None:
    assert [LAB.port(number) for number in (53, 80, 1023, 1024, 8080)] == [10053, 10080, 11023, 1024, 8080]
    assert Lab("demo").port(80) == 80


def test_a_vip_is_a_listener_that_passes_calls_to_a_cluster_of_its_targets() -> None:
    [listener], [cluster] = calls.listeners(NODE, [VIP]), calls.clusters(NODE, [VIP])

    assert _endpoint(listener["address"]) == ("127.7.203.9", 10080)
    assert listener["filter_chains"][0]["filters"][0]["typed_config"]["cluster"] == cluster["name"]
    assert _targets(cluster) == {("127.7.101.2", 8080): 1, ("127.7.102.2", 8080): 1}
    assert cluster["lb_policy"] == "ROUND_ROBIN"
    assert cluster["upstream_bind_config"]["source_address"]["address"] == NODE.address


def test_targets_have_the_weights_of_the_plan() -> None:
    vip = Vip(VIP.address, "tcp", 80, VIP.targets, weights=(16384, 49152))

    [cluster] = calls.clusters(NODE, [vip])
    assert list(_targets(cluster).values()) == [16384, 49152]


@pytest.mark.parametrize("more", [{"sticky": 10800}, {"hashed": True}])
def test_what_goes_by_the_caller_is_spread_by_the_callers_address(more: dict[str, Any]) -> None:
    vip = Vip(VIP.address, "tcp", 80, VIP.targets, **more)
    [listener], [cluster] = calls.listeners(NODE, [vip]), calls.clusters(NODE, [vip])

    assert cluster["lb_policy"] == "MAGLEV"
    assert listener["filter_chains"][0]["filters"][0]["typed_config"]["hash_policy"] == [{"source_ip": {}}]


def test_a_port_of_the_node_is_listened_to_on_its_address_and_datagrams_are_not() -> None:
    port, datagrams = Vip("", "tcp", 30080, VIP.targets), Vip(VIP.address, "udp", 53, VIP.targets)

    [listener] = calls.listeners(NODE, [port, datagrams])
    assert _endpoint(listener["address"]) == (NODE.address, 30080)


def test_a_pod_gets_its_address_its_name_server_and_the_lab_s_own_getent_first() -> None:
    found = shared_host.variables(NODE, "127.7.103.5", path="/usr/bin")

    assert (found["LAB_ADDRESS"], found["LAB_NAMES"]) == ("127.7.103.5", "127.7.3.53:10053")
    assert found["PATH"] == f"{NODE.directory / 'bin'}:/usr/bin"


@pytest.mark.parametrize(
    ("own_program", "more", "why"),
    [
        (True, {"ports": [Port(container_port=8080)]}, ""),
        (False, {}, ""),
        (True, {"ports": [Port(container_port=80)]}, "port 80 is root's"),
        (False, {"ports": [Port(container_port=8080)]}, "only programs of the lab can listen"),
        (True, {"volume_mounts": [Mount(name="v", mount_path="/v")]}, "so no volumes"),
    ],
)
def test_a_container_that_wants_a_network_or_files_of_its_own_is_refused(
    own_program: bool, more: dict[str, Any], why: str
) -> None:
    with pytest.raises(Missing, match=why) if why else nullcontext():
        shared_host.refuse(Container(name="main", image="acme/shop", **more), own_program=own_program)


def test_echo_and_its_kind_are_the_lab_s_own_programs_and_servers_of_others_are_not() -> None:
    own = {name for name, image in images.BUILT_IN.items() if images.own_program(image)}

    assert {"isthmus/echo", "hashicorp/http-echo", "traefik/whoami"} <= own
    assert not own & {"redis", "postgres", "python", "busybox"}


def test_a_process_is_in_the_group_that_its_environment_names_with_all_that_it_starts(group: Path) -> None:
    inner = cgroups.make(group / "pod")
    command = ["sh", "-c", "sleep 60 & echo started; wait"]
    environment, pipe = cgroups.environment(inner), subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, start_new_session=True) as member:
        assert member.stdout is not None
        member.stdout.readline()
        until(lambda: len(cgroups.processes(group)) == 2, what="the child has its environment, which exec takes away")
        found = cgroups.processes(group), cgroups.processes(inner), cgroups.processes(group / "po")
        os.killpg(member.pid, signal.SIGKILL)

    assert [len(each) for each in found] == [2, 2, 0]
    assert member.pid in found[0]


def test_a_process_without_a_new_program_moves_by_what_is_shown_of_its_environment(group: Path) -> None:
    inner = cgroups.make(group / "pod")
    script = f"""
from pathlib import Path
from isthmus_lab import cgroups, privileges
privileges.CONFINED = True
cgroups.move(Path({str(inner)!r}))
print("moved", flush=True)
input()
"""
    environment = {"PYTHONPATH": ":".join(sys.path), **cgroups.room(group)}
    command, pipe = [sys.executable, "-c", script], subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe) as member:
        assert member.stdout is not None
        assert member.stdout.readline() == b"moved\n"
        assert cgroups.processes(inner) == [member.pid]
        member.kill()


def _endpoint(address: dict[str, Any]) -> tuple[str, int]:
    socket = address["socket_address"]
    return socket["address"], socket["port_value"]


def _targets(cluster: dict[str, Any]) -> dict[tuple[str, int], int]:
    [group] = cluster["load_assignment"]["endpoints"]
    return {_endpoint(each["endpoint"]["address"]): each["load_balancing_weight"] for each in group["lb_endpoints"]}
