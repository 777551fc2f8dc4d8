"""Pods that are left alone: their calls go where they address them, their questions for names to the node's server."""

from __future__ import annotations

import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest
from datapath_worlds.bpf_world import BACKENDS, CLUSTER_DNS, World, group, plan, programmed

from isthmus.datapath import Datapath
from isthmus.datapath.alive import Alive
from isthmus.datapath.core.namespaces import CLONE_NEWNET
from isthmus.datapath.core.shapes import CGROUP
from isthmus.datapath.settings import EXEMPT
from isthmus.model.pods import IgnoredPod
from isthmus_lab import kernel

pytestmark = pytest.mark.bpf

UID = "0a1b2c3d-0000-4000-8000-00000000000a"
ALONE = f"{CLUSTER_DNS}:80 10.7.0.1"
"""Answer of the address itself, as kube-proxy would give one."""
TRANSLATED = f"{BACKENDS[0]} 10.7.0.1"


def ignored(uid: str = UID, *addresses: str) -> IgnoredPod:
    return IgnoredPod("demo/meshed", uid, "container istio-proxy", addresses)


def flags(datapath: Datapath) -> int:
    from isthmus.datapath.settings import CONFIG

    [(_, value)] = datapath.maps.items("config")
    return int(CONFIG.named(value)["flags"])


@pytest.mark.parametrize(
    "group_of_pod",
    [f"pod{UID}", f"kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice"],
)
def test_a_pod_that_is_left_alone_calls_the_address_itself_and_others_are_translated(
    world: World, datapath: Datapath, group_of_pod: str
) -> None:
    programmed(datapath.target(), plan("echo", CLUSTER_DNS, group(BACKENDS[0])))
    inside = world.call_from(world.cgroup / group_of_pod / "container")
    pods = datapath.ignored_pods()
    pods.renew([ignored()])
    assert pods.missing == ()
    assert inside.tcp(CLUSTER_DNS)["answer"] == ALONE
    assert world.caller.tcp(CLUSTER_DNS)["answer"] == TRANSLATED
    pods.renew([])
    assert inside.tcp(CLUSTER_DNS)["answer"] == TRANSLATED
    assert flags(datapath) & 1 == 0, "where no pod is left alone no call pays for it"


def test_a_pod_is_left_alone_from_the_moment_its_cgroup_is_there(world: World, datapath: Datapath) -> None:
    uid = "0a1b2c3d-0000-4000-8000-00000000000b"
    pods = datapath.ignored_pods()

    def missing() -> tuple[str, ...]:
        pods.renew([ignored(uid)])
        return pods.missing

    assert missing() == ("demo/meshed",)
    (world.cgroup / f"pod{uid}").mkdir()
    assert missing() == ()
    pods.renew([])


def test_a_pod_for_which_the_map_has_no_room_is_named_and_left_alone_when_there_is_some(
    world: World, datapath: Datapath
) -> None:
    uid = "0a1b2c3d-0000-4000-8000-00000000000c"
    (world.cgroup / f"pod{uid}").mkdir()
    pods, room = datapath.ignored_pods(), 1_024
    others = [(CGROUP.pack((1 << 40) + n), EXEMPT) for n in range(room)]
    assert datapath.maps.put("exempt", others) == {}

    def missing() -> tuple[str, ...]:
        pods.renew([ignored(uid)])
        return pods.missing

    try:
        assert missing() == ("demo/meshed",)
    finally:
        datapath.maps.drop("exempt", [key for key, _ in others])
    assert missing() == ()
    pods.renew([])


def test_a_pod_without_a_uid_in_its_cgroups_name_is_found_by_its_address(world: World, datapath: Datapath) -> None:
    programmed(datapath.target(), plan("echo", CLUSTER_DNS, group(BACKENDS[0])))
    inside = world.call_from(world.cgroup / "demo_unnamed" / "container")
    pods = datapath.ignored_pods()
    pods.renew([ignored("", "10.7.0.1")])
    try:
        assert inside.tcp(CLUSTER_DNS)["answer"] == ALONE
    finally:
        pods.renew([])


@pytest.mark.own_datapath
def test_the_next_agent_leaves_a_pod_alone_until_it_knows_better(world: World, datapath: Datapath) -> None:
    programmed(datapath.target(), plan("echo", CLUSTER_DNS, group(BACKENDS[0])))
    inside = world.call_from(world.cgroup / f"pod{UID}" / "container")
    datapath.ignored_pods().renew([ignored()])
    datapath.close()
    reopened = world.open()
    try:
        assert inside.tcp(CLUSTER_DNS)["answer"] == ALONE
        reopened.ignored_pods().renew([], complete=False)
        assert inside.tcp(CLUSTER_DNS)["answer"] == ALONE
        reopened.ignored_pods().renew([])
        assert inside.tcp(CLUSTER_DNS)["answer"] == TRANSLATED
    finally:
        reopened.close()


async def test_the_names_of_a_pod_that_is_left_alone_are_answered_as_those_of_others(
    world: World, datapath: Datapath
) -> None:
    inside = world.call_from(world.cgroup / f"pod{UID}" / "container")
    alive = await Alive.open(world.pin)
    alive.takes_tcp = True
    alive.renew(60)
    datapath.ignored_pods().renew([ignored()])
    try:
        assert inside.tcp(CLUSTER_DNS, 53)["answer"] == world.caller.tcp(CLUSTER_DNS, 53)["answer"]
        assert inside.tcp(CLUSTER_DNS, 53)["answer"] != f"{CLUSTER_DNS}:53 10.7.0.1"
    finally:
        alive.close()
        datapath.ignored_pods().renew([])


SO_ORIGINAL_DST = 80
SIDECAR = 15001


@contextmanager
def sidecar(world: World) -> Iterator[list[str]]:
    """A mesh's sidecar in the pod's network namespace; yields the destinations of the connects that it takes."""
    called: list[str] = []
    rule = f"tcp dport {{ 80, 8080 }} redirect to :{SIDECAR}"
    rules = f"table ip mesh {{\nchain out {{\ntype nat hook output priority -100\n{rule}\n}}\n}}\n"
    in_pod = ("ip", "netns", "exec", world.client)
    subprocess.run([*in_pod, "nft", "-f", "-"], input=rules, text=True, check=True, timeout=30)
    sockets: list[socket.socket] = []
    listening = Event()

    def serve() -> None:
        with Path("/run/netns", world.client).open() as namespace:
            kernel.setns(namespace.fileno(), CLONE_NEWNET)
        sockets.append(socket.create_server(("", SIDECAR)))
        listening.set()
        while True:
            try:
                accepted, _ = sockets[0].accept()
            except OSError:
                return
            with closing(accepted):
                _, port, address = struct.unpack("!HH4s", accepted.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16)[:8])
                called.append(f"{socket.inet_ntoa(address)}:{port}")
                accepted.sendall(b"sidecar")

    thread = Thread(target=serve)
    thread.start()
    assert listening.wait(60)
    try:
        yield called
    finally:
        subprocess.run([*in_pod, "nft", "delete", "table", "ip", "mesh"], check=True, timeout=30)
        sockets[0].shutdown(socket.SHUT_RDWR)
        sockets[0].close()
        thread.join(30)


@pytest.mark.needs("nft")
def test_a_sidecar_sees_the_service_that_its_pod_calls_and_not_a_backend(world: World, datapath: Datapath) -> None:
    service, backend = "10.96.7.7", BACKENDS[0]
    programmed(datapath.target(), plan("echo", service, group(backend)))
    inside = world.call_from(world.cgroup / f"pod{UID}" / "container")
    with sidecar(world) as called:
        inside.tcp(service)
        datapath.ignored_pods().renew([ignored()])
        inside.tcp(service)
        datapath.ignored_pods().renew([])
    assert called == [backend, f"{service}:80"]
