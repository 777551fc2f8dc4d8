"""An island opens the port of its gateways, for calls and for its etcd, and no other."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import dns.message
import pytest
from labs.injected_faults import black_hole, diagnose
from labs.lab_running import PATIENCE, Running, invoked, lab_name, until

from isthmus.config import GatewaySection
from isthmus.model.names import etcd_name
from isthmus_lab import cgroups, kernel, removal
from isthmus_lab.layout import GATEWAY, Cluster, Lab, Node
from isthmus_lab.network import namespaces
from isthmus_lab.network.netlink import within
from isthmus_lab.supervisor.configs import config_of, socket_of

ECHO = Path(__file__).parents[2] / "examples" / "echo"
SHUT = 1.0
"""Seconds after which a port that does not answer is taken for closed, beside those that must, which have any time."""
ANY = {"0.0.0.0", "::"}
NODE_PORT = 31_999
EXPOSED_PORT = {"name": "http", "port": 80, "targetPort": 8080, "nodePort": NODE_PORT}
EXPOSED = {"spec": {"type": "NodePort", "ports": [EXPOSED_PORT]}}

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.needs("envoy")]


@pytest.fixture(scope="module")
def islands() -> Iterator[Running]:
    """Two of them, with two nodes that are both gateways; c1 exports echo, which has a node port, too."""
    running = Running(Lab(lab_name("e"), 2, 2, ("island",), gateways=2))
    try:
        words = ("--clusters", "2", "--nodes", "2", "--gateways", "2", "--network", "island", "--from", str(ECHO))
        running.cli("up", *words)
        running.kubectl("apply", "-f", str(ECHO / "export"))
        running.kubectl("-n", "demo", "patch", "service", "echo", "--type=merge", "-p", json.dumps(EXPOSED))
        yield running
    finally:
        removal.remove(running.lab)


def answers(islands: Running) -> bool:
    """True if c1 answers a call from c2."""
    script = "curl -sm30 http://echo.demo.svc.clusterset.local"
    return '"c1"' in islands.exec("demo/client", script, cluster="c2", code=None)


def peer(islands: Running, *, process: str = "agent") -> dict[str, Any]:
    """c1 as a process of c2 sees it."""
    socket_path = socket_of(islands.lab.clusters[1], process)
    done = invoked(["get", "clusters", "-o", "json", "--socket", str(socket_path)])
    [row] = [each for each in json.loads(done.stdout)["rows"] if each["name"] == "c1"]
    return dict(row)


def states(islands: Running) -> list[str]:
    """States of c1 in the tables of c2's agent and operator."""
    return [peer(islands, process=process)["state"] for process in ("agent", "operator")]


def at(cluster: Cluster) -> list[str]:
    return [f"https://{each}" for each in cluster.gateway_endpoints]


# What is open.


def listening(namespace: str) -> set[tuple[str, int]]:
    """The addresses and ports at which TCP is listened for in a namespace; 0.0.0.0 and :: are any."""
    with kernel.inside(namespaces.path(namespace)):
        tables = [Path(f"/proc/thread-self/net/{name}").read_text() for name in ("tcp", "tcp6")]
    found = set()
    for _, local, _, state, *_ in (line.split() for table in tables for line in table.splitlines()[1:]):
        address, port = local.split(":")
        if state == "0A":
            found.add((address_of(address), int(port, 16)))
    return found


def address_of(digits: str) -> str:
    """Parse an address of /proc/net/tcp or tcp6: 32-bit words in this machine's order. IPv4 in IPv6 becomes IPv4."""
    raw = struct.pack(f"!{len(digits) // 8}I", *struct.unpack(f"={len(digits) // 8}I", bytes.fromhex(digits)))
    found = ipaddress.ip_address(raw)
    return str((found.ipv4_mapped or found) if found.version == 6 else found)


def reachable(where: Cluster | Node) -> set[tuple[str, int]]:
    """Addresses and ports of a machine's listeners that other machines can address."""
    namespace = where.namespace if isinstance(where, Node) else where.control_plane
    return {(where.address, port) for address, port in listening(namespace) if address in ANY | {where.address}}


async def dialled(
    namespace: str, targets: set[tuple[str, int]], *, wanted: set[tuple[str, int]], kind: int = socket.SOCK_STREAM
) -> set[tuple[str, int]]:
    """Return the targets that accept a connection from a namespace, or with SOCK_DGRAM answer a DNS query.

    The wanted ones have any time, the others SHUT seconds more.
    """
    loop, found = asyncio.get_running_loop(), set()

    async def dial(target: tuple[str, int]) -> None:
        with kernel.inside(namespaces.path(namespace)):
            made = socket.socket(socket.AF_INET, kind | socket.SOCK_NONBLOCK)
        with made, suppress(OSError):
            await loop.sock_connect(made, target)
            if kind == socket.SOCK_DGRAM:
                await answered(made)
            found.add(target)

    async with asyncio.TaskGroup() as tasks:
        dials = {target: tasks.create_task(dial(target)) for target in targets}
        if wanted:
            await asyncio.wait([dials[each] for each in wanted], timeout=PATIENCE)
        await asyncio.wait(dials.values(), timeout=SHUT)
        for task in dials.values():
            task.cancel()
    return found


async def answered(server: socket.socket) -> None:
    """Wait for an answer of a name server, which is asked again as resolvers do."""
    question = dns.message.make_query("kube-dns.kube-system.svc.cluster.local", "A").to_wire()
    while True:
        await asyncio.get_running_loop().sock_sendall(server, question)
        with suppress(TimeoutError):
            async with asyncio.timeout(SHUT / 4):
                await asyncio.get_running_loop().sock_recv(server, 512)
                return


async def test_of_all_that_listens_in_an_island_others_reach_the_gateways_port_alone(islands: Running) -> None:
    """Dialled from c2 and from the fabric: c1's etcd, API server, name server, kubelets, node ports, pods, Services."""
    (one, two), lab = islands.lab.clusters, islands.lab
    service = islands.kubectl("-n", "demo", "get", "service", "echo", "-o", "jsonpath={.spec.clusterIP}")
    pods = islands.kubectl("-n", "demo", "get", "pods", "-l", "app=echo", "-o", "jsonpath={.items[*].status.podIP}")
    inner = {(service, 80), *((pod, 8080) for pod in pods.split())}
    node_ports = {(node.address, NODE_PORT) for node in one.nodes}
    gateways = {(node.address, GATEWAY) for node in one.nodes}
    with dual_stack(one.nodes[0]) as at_both:
        machines = reachable(one).union(*map(reachable, one.nodes))
        assert {(one.address, 2379), (one.address, 6443), at_both, *gateways} <= machines
        targets = {*machines, *inner, *node_ports}
        found = await dialled(one.nodes[1].namespace, targets, wanted=targets)
        assert found == targets, "all of it is open in c1"
        await through(lab, one.nodes[0], [service, *pods.split()])
        assert await dialled(lab.fabric, targets, wanted=gateways) == gateways
        outside = targets - inner  # which are addresses of its own in c2
        assert await dialled(two.nodes[0].namespace, outside, wanted=gateways) == gateways
        assert await dialled(two.control_plane, outside, wanted=set()) == set()


@contextmanager
def dual_stack(node: Node) -> Iterator[tuple[str, int]]:
    """Listen on a node as many programs do, at :: for both families."""
    with kernel.inside(namespaces.path(node.namespace)):
        made = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    with made:
        yield node.address, made.getsockname()[1]


async def test_the_name_server_of_an_island_answers_datagrams_of_its_own_cluster_alone(islands: Running) -> None:
    """Asked where it listens, and by its Service."""
    (one, two), lab = islands.lab.clusters, islands.lab
    [scheme] = one.schemes
    own, by_service = (one.address, 53), (scheme.cluster_dns, 53)  # which is one of its own in c2
    servers, kind = {own, by_service}, socket.SOCK_DGRAM
    assert await dialled(one.nodes[1].namespace, servers, wanted=servers, kind=kind) == servers
    await through(lab, one.nodes[0], [scheme.cluster_dns])
    assert await dialled(lab.fabric, servers, wanted=set(), kind=kind) == set()
    for namespace in (two.nodes[0].namespace, two.control_plane):
        assert await dialled(namespace, {own}, wanted=set(), kind=kind) == set()


async def through(lab: Lab, node: Node, addresses: list[str]) -> None:
    """Give the fabric a way to these addresses by a node: it has none to the inside of islands."""
    async with within(lab.fabric) as fabric:
        [index] = await fabric.link_lookup(ifname=node.wire)
        for each in addresses:
            await fabric.route("replace", dst=f"{each}/32", gateway=node.address, oif=index, flags=["onlink"])


# The etcd, through the gateways.


def test_an_etcd_is_followed_by_way_of_another_gateway_when_one_is_killed(islands: Running) -> None:
    one = islands.lab.clusters[0]
    until(lambda: states(islands) == ["ready", "ready"], what="c1 is followed")
    assert peer(islands)["endpoints"] == peer(islands, process="operator")["endpoints"] == at(one)
    until(lambda: answers(islands), what="c1 answers")
    islands.cli("kill", "c1/n1/gateway-envoy")
    try:
        islands.kubectl("-n", "demo", "scale", "deployment", "echo", "--replicas=3")
        until(lambda: known(islands) == 3, what="what is published now arrives")
    finally:
        islands.cli("start", "c1/n1/gateway-envoy")
        islands.kubectl("-n", "demo", "scale", "deployment", "echo", "--replicas=2")
    until(lambda: known(islands) == 2, what="and so does what is published later")


def known(islands: Running) -> int:
    """Number of c1's endpoints in the tables of c2's agent."""
    rows = json.loads(islands.isthmus("get", "endpoint_sets", "-A", "-o", "json", cluster="c2"))["rows"]
    return sum(len(row["endpoints"]) for row in rows if row["cluster"] == "c1")


def test_an_island_whose_gateways_are_cut_off_is_stale_and_diagnose_names_them(islands: Running) -> None:
    until(lambda: answers(islands), what="c1 answers")
    islands.cli("cut", "c2", "c1/gateway")
    try:
        until(lambda: states(islands) == ["stale", "stale"], what="stale")
        reason = peer(islands)["reason"]  # read once: it alternates between the gateways, which are tried in turn
        assert any(each in reason for each in at(islands.lab.clusters[0])), reason
        until(lambda: faults(islands) == named(islands), what="diagnose names the gateways, and nothing else")
    finally:
        islands.cli("heal")
    until(lambda: states(islands) == ["ready", "ready"], what="ready")
    until(lambda: not faults(islands) and answers(islands), what="all is well")


def named(islands: Running) -> list[tuple[str, str]]:
    return [("gateway", f"gateway {each} of c1") for each in islands.lab.clusters[0].gateway_endpoints]


def faults(islands: Running) -> list[tuple[str, str]]:
    """Faults that diagnose in c2 finds for echo."""
    command = [sys.executable, "-m", "isthmus", "diagnose", "demo/echo", "-o", "json"]
    words = ["--lab", islands.lab.name, "--cluster", "c2"]
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=PATIENCE, check=False)
    hops = [hop for hops in json.loads(done.stdout)["services"].values() for hop in hops]
    return [(hop["hop"], hop["object"]) for hop in hops if hop["state"] == "fault"]


def test_islands_part_and_join_again_by_the_two_commands(islands: Running) -> None:
    one, two = islands.lab.clusters
    for home, there in ((one, two), (two, one)):
        clusters(home, "leave", there.name)
    until(lambda: not islands.isthmus("get", "clusters", "-o", "json", cluster="c2").count('"c1"'), what="c1 is gone")
    invitation = subprocess.Popen(command(one, "invite"), stdout=subprocess.PIPE, text=True)
    with invitation:
        assert invitation.stdout is not None
        clusters(two, "join", stdin=invitation.stdout.readline())
        assert invitation.wait(timeout=PATIENCE) == 0
    until(lambda: peer(islands)["state"] == "ready", what="c1 is followed")
    assert peer(islands)["endpoints"] == at(one)
    name = etcd_name("c1", GatewaySection().domain)
    assert f"server-name: {name}" in (two.directory / "peers" / "c1").read_text()
    until(lambda: answers(islands), what="c1 answers")


def command(home: Cluster, *words: str) -> list[str]:
    """`isthmus clusters …` as an administrator of a cluster runs it: on a node, by the operator's configuration."""
    there = ["ip", "netns", "exec", home.nodes[0].namespace]
    return [*there, sys.executable, "-m", "isthmus", "clusters", *words, "--config", str(config_of(home, "operator"))]


def clusters(home: Cluster, *words: str, stdin: str | None = None) -> None:
    done = subprocess.run(
        command(home, *words), input=stdin, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_hung_agent_of_another_node_and_a_hung_gateway_are_named_in_a_diagnosis_of_the_cluster(
    islands: Running,
) -> None:
    until(lambda: codes(islands) == set(), what="all is well")
    node = islands.lab.clusters[0].nodes[0]
    agent, gateway = server_of(socket_of(islands.lab.clusters[1].nodes[1], "agent")), processes_in(islands, node)
    with stopped(agent):
        until(lambda: codes(islands) == {("process-hung", "c2/n2/agent")}, what="the agent is named")
    until(lambda: codes(islands) == set(), what="all is well again")
    address = islands.lab.clusters[0].gateway_endpoints[0]
    with stopped(*gateway):
        until(
            lambda: ("gateway-silent", f"gateway {address} of c1") in echo_codes(islands), what="the gateway is named"
        )
    until(lambda: codes(islands) == set() and not faults(islands), what="all is well again")


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def processes_in(islands: Running, node: Node) -> list[int]:
    """The gateway's Envoy of a node, and what runs it."""
    procs = cgroups.root() / islands.lab.prefix / node.gateway_cgroup / "cgroup.procs"
    return [int(pid) for pid in procs.read_text().split()]


def server_of(path: Path) -> int:
    """The process that listens at a socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        pid, _, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid)


def diagnosed(islands: Running, *service: str) -> dict[str, Any]:
    words = ["diagnose", *service, "-o", "json", "--lab", islands.lab.name, "--cluster", "c2"]
    return dict(json.loads(invoked(words).stdout))


def codes(islands: Running) -> set[tuple[str, str]]:
    """Faults of the cluster c2, by code and object."""
    return {(hop["code"], hop["object"]) for hop in diagnosed(islands)["cluster"] if hop["state"] == "fault"}


def echo_codes(islands: Running) -> set[tuple[str, str]]:
    """Faults of echo in c2."""
    [hops] = diagnosed(islands, "demo/echo")["services"].values()
    return {(hop["code"], hop["object"]) for hop in hops if hop["state"] == "fault"}


def test_large_packets_that_vanish_before_gateways_are_named(islands: Running) -> None:
    """Envoy's first packet of a connection is large, and it gives the connect up after a second."""
    until(lambda: answers(islands), what="c1 answers")
    with black_hole(islands):
        until(
            lambda: ("path", "calls to gateways of c1") in diagnose(islands, "demo/echo").faults,
            what="the gateways' path is named",
        )
    until(lambda: diagnose(islands, "demo/echo").code == 0, what="nothing is named any more")
