"""Names answered on the node's ends of pods' links: real packets, both mechanisms, beside others' programs."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import dns.message
import pytest
from answers.names_judge import is_partial
from answers.names_node import Node, within
from answers.names_world import SECTION, SERVER, ZONE, NamesWorld, message
from machine.namespaces import ip
from msgspec.structs import replace

from isthmus.datapath.core.tc import create_link, has_tcx, remove_filters
from isthmus.model.dns import Name

pytestmark = pytest.mark.bpf

ECHO = f"echo.demo.svc.{ZONE}"
ROWS = (
    Name(ECHO, "A", ("10.96.0.7",)),
    Name(ECHO, "AAAA", ("fd00::7",)),
    Name(f"_http._tcp.{ECHO}", "SRV", (f"0 100 80 {ECHO}.",)),
)


@pytest.fixture(scope="module")
def bpffs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    where = tmp_path_factory.mktemp("bpffs")
    subprocess.run(["mount", "-t", "bpf", "bpf", str(where)], check=True)
    yield where
    subprocess.run(["umount", str(where)], check=True)


@pytest.fixture
def node(tmp_path: Path, bpffs: Path) -> Iterator[Node]:
    made = Node(tmp_path, bpffs, ROWS)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def needs_tcx(node: Node) -> None:
    """Before Linux 6.6 programs are filters, which have no pins, and others' cannot be links."""
    if not has_tcx(node.world.program("from_pod")):
        pytest.skip("this kernel has no tcx: Linux 6.6")


SOL_PACKET, PACKET_AUXDATA, TP_STATUS_CSUMNOTREADY, ETH_P_ALL = 263, 8, 8, 3
BOTH = (ECHO, "A", SECTION.cluster_dns[0], ECHO, "AAAA", SECTION.cluster_dns[1])
ANSWERED = ["0 10.96.0.7", "0 fd00::7"]


def checksum_offload(namespace: str, device: str, on: bool) -> None:
    """ETHTOOL_STXCSUM."""
    with within(namespace), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        value = ctypes.create_string_buffer(struct.pack("=II", 0x17, on))
        request = struct.pack("16sP", device.encode(), ctypes.addressof(value))
        fcntl.ioctl(sock, 0x8946, request.ljust(40, b"\0"))


@pytest.mark.parametrize("tcx", [True, False])
@pytest.mark.slow
def test_a_pods_question_is_answered_on_its_link_with_nobody_else_there(
    node: Node, tcx: bool, request: pytest.FixtureRequest
) -> None:
    if tcx:
        request.getfixturevalue("needs_tcx")
    assert node.ask(*BOTH, patience=0.3) == ["nothing", "nothing"]
    with contextlib.closing(node.attach(tcx=tcx)) as links:
        assert links.stats().interfaces == 1
        assert node.ask(*BOTH) == ANSWERED
        assert node.ask(f"x.{ZONE}", "A", SECTION.cluster_dns[0]) == ["3"]
    assert node.ask(*BOTH) == ANSWERED, "and goes on when the process has gone"
    if not tcx:
        with within(node.name):
            remove_filters()
        assert node.ask(*BOTH, patience=0.3) == ["nothing", "nothing"]


@contextlib.contextmanager
def raw_receiver(namespace: str, device: str) -> Iterator[list[tuple[bytes, bool]]]:
    """Frames from port 53 as a packet socket reads them, each with whether its checksum is still to be made."""
    found: list[tuple[bytes, bool]] = []
    with within(namespace):
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    with sock:
        sock.setblocking(False)
        sock.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
        sock.bind((device, ETH_P_ALL))
        yield found
        with contextlib.suppress(BlockingIOError):
            while True:
                frame, (auxdata, *_), _, sender = sock.recvmsg(4096, socket.CMSG_SPACE(20))
                udp = 34 if frame[12:14] == b"\x08\x00" else 54
                if sender[2] != socket.PACKET_OUTGOING and frame[udp : udp + 2] == b"\0\x35":
                    found.append((frame, bool(struct.unpack_from("=I", auxdata[2])[0] & TP_STATUS_CSUMNOTREADY)))


@pytest.mark.parametrize("at_pod", [True, False])
@pytest.mark.parametrize("at_node", [True, False])
@pytest.mark.slow
def test_checksums_are_right_whoever_makes_them(node: Node, at_pod: bool, at_node: bool) -> None:
    checksum_offload(node.pod, "eth0", at_pod)
    checksum_offload(node.name, "pod1", at_node)
    node.serve()
    srv = f"_http._tcp.{ECHO}"
    with contextlib.closing(node.attach()), raw_receiver(node.pod, "eth0") as frames:
        assert node.ask(*BOTH) == ANSWERED
        steered = node.ask(srv, "SRV", SECTION.cluster_dns[0], srv, "SRV", SECTION.cluster_dns[1])
    assert steered == [f"0 0 100 80 {ECHO}."] * 2, "the reply to a steered question comes from whom was asked"
    for frame, unfinished in frames:
        message(frame)
        assert is_partial(frame, 34 if frame[12:14] == b"\x08\x00" else 54) == unfinished
    assert [unfinished for _, unfinished in frames] == [at_pod and at_node] * 2 + [at_node] * 2


async def test_pods_that_come_are_attached_and_those_that_go_forgotten(node: Node) -> None:
    links = node.links()
    with within(
        node.name
    ):  # sockets of netlink belong to the namespace they are made in, and keep() runs in this thread
        keep = asyncio.create_task(links.keep())
        while links.stats().interfaces != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        pod = node.plug(2)
        while links.stats().interfaces != 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert node.ask(*BOTH, pod=pod) == ANSWERED
        ip("-n", node.name, "link", "del", "pod2")
        while links.stats().interfaces != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert len(list(node.pins.glob("*"))) == (2 if links.stats().kind == "tcx" else 0)
        keep.cancel()
        await asyncio.gather(keep, return_exceptions=True)
    links.close()


async def test_other_tasks_have_their_turn_while_many_pods_are_attached(node: Node) -> None:
    for number in (2, 3):
        node.plug(number)
    links, seen = node.links(), list[int]()
    with within(node.name):
        keep = asyncio.create_task(links.keep())
        while (count := links.stats().interfaces) < 3:
            seen.append(count)
            await asyncio.sleep(0)
        keep.cancel()
        await asyncio.gather(keep, return_exceptions=True)
    links.close()
    assert set(seen) == {0, 1, 2}


@pytest.mark.parametrize("target", [SECTION.cluster_dns[0], SERVER])
def test_a_pod_that_asks_without_end_loses_its_own_questions_alone(tmp_path: Path, bpffs: Path, target: str) -> None:
    """While the server does not read: without the limit one pod's questions fill the buffer of its socket."""
    node = Node(tmp_path, bpffs, ROWS, section=replace(SECTION, pod_rate=10))
    srv = dns.message.make_query(f"_http._tcp.{ECHO}", "SRV").to_wire()
    other = node.plug(2)
    try:
        node.serve()
        assert node.server is not None
        with contextlib.closing(node.attach()):
            with within(other):
                flooding = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            with within(node.pod):
                asking = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(20)]
            node.server.send_signal(signal.SIGSTOP)
            for number in range(6_000):
                flooding.sendto(srv if number % 2 else bytes(1400), (target, 53))
            for each in asking:
                each.settimeout(30)
                each.connect((target, 53))
                each.send(srv)
            node.server.send_signal(signal.SIGCONT)
            assert [each.recv(512)[:2] for each in asking] == [srv[:2]] * 20
        for each in (flooding, *asking):
            each.close()
    finally:
        node.close()


@pytest.mark.usefixtures("needs_tcx")
def test_a_process_that_restarts_takes_the_links_over(node: Node) -> None:
    node.attach().close()
    pins = sorted(node.pins.iterdir())
    again = node.attach()
    assert sorted(node.pins.iterdir()) == pins
    assert node.ask(*BOTH) == ANSWERED
    for pin in pins:
        pin.unlink()
    assert node.ask(*BOTH) == ANSWERED, "a link that somebody unpins is held by its process"
    again.close()


@pytest.mark.usefixtures("needs_tcx")
def test_a_link_that_went_while_nobody_looked_leaves_no_pin(node: Node) -> None:
    node.plug(2)
    node.attach().close()
    assert len(list(node.pins.iterdir())) == 4
    ip("-n", node.name, "link", "del", "pod2")
    node.attach().close()
    assert len(list(node.pins.iterdir())) == 2


def test_the_interface_of_a_default_route_is_no_pods(node: Node) -> None:
    node.plug(2)
    ip("-n", node.name, "route", "add", "default", "via", "10.9.2.2")
    with contextlib.closing(node.attach()) as links:
        assert links.stats().interfaces == 1


@pytest.mark.usefixtures("needs_tcx")
@pytest.mark.parametrize("tcx", [True, False])
@pytest.mark.slow
def test_anothers_program_on_the_same_hook_runs_too(node: Node, tmp_path: Path, tcx: bool) -> None:
    other = NamesWorld(tmp_path / "other", section=replace(SECTION, zone="other.zone"))  # counts, and lets pass
    with within(node.name):
        index = socket.if_nametoindex("pod1")
        link = create_link(other.program("from_pod"), index, "ingress")
    with contextlib.closing(node.attach(tcx=tcx)):
        assert node.ask(*BOTH) == ANSWERED
        node.ask("a.cluster.local", "A", SECTION.cluster_dns[0], patience=0.2)
    # the first of all with tcx, so only what is not ours comes to the other; filters run after tcx
    expected = {("A", "passed"): 1} if tcx else {("A", "passed"): 2, ("AAAA", "passed"): 1}
    assert other.questions() == expected
    os.close(link)
    other.close()


def test_this_kernel_is_asked_whether_it_has_tcx(node: Node) -> None:
    release = tuple(int(each) for each in os.uname().release.split(".")[:2])
    assert has_tcx(node.world.program("from_pod")) == (release >= (6, 6))
