"""A node of namespaces whose pods' questions pass the program that answers names: real packets, no cluster."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from answers.names_world import SECTION, SERVER, SERVER6, NamesWorld
from machine.namespaces import ip, switch_on

from isthmus.config import DnsSection
from isthmus.datapath.core.tc import Attachment, PodLinks
from isthmus.model.dns import Name

SUPPORT = Path(__file__).parents[1]
_numbers = count()
_libc = ctypes.CDLL(None, use_errno=True)

ASK = """
import socket, sys, dns.message
for name, type_, server in zip(sys.argv[2::3], sys.argv[3::3], sys.argv[4::3]):
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    query = dns.message.make_query(name, type_)
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.settimeout(float(sys.argv[1]))
        sock.connect((server, 53))
        sock.send(query.to_wire())
        try:
            reply = dns.message.from_wire(sock.recv(4096))
            print(reply.rcode(), *(item for rrset in reply.answer for item in rrset))
        except (TimeoutError, ConnectionError):
            print("nothing")
"""


@contextlib.contextmanager
def within(namespace: str | Path) -> Iterator[None]:
    """This thread in a network namespace, by name or by file."""
    home, there = os.open("/proc/thread-self/ns/net", os.O_RDONLY), os.open("/run/netns" / Path(namespace), os.O_RDONLY)
    try:
        assert _libc.setns(there, 0x40000000) == 0
        yield
    finally:
        assert _libc.setns(home, 0x40000000) == 0
        os.close(home)
        os.close(there)


class Node:
    """A namespace for the node and one for each pod, joined by veths; the node's programs and pins."""

    def __init__(self, directory: Path, bpffs: Path, rows: Sequence[Name], *, section: DnsSection = SECTION) -> None:
        self.name = f"isthmus-tc-{os.getpid()}-{next(_numbers)}"
        self.pins = bpffs / self.name
        self.world = NamesWorld(directory / "maps", section=section, lifetime=36000.0)  # emulated tests are slow
        self.world.hold(rows)
        self._made = [self.name]
        ip("netns", "add", self.name)
        ip("-n", self.name, "link", "set", "lo", "up")
        switch_on(self.name, "net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding")
        for address in (SERVER, SERVER6):
            ip("-n", self.name, "addr", "add", address, "dev", "lo")
        self.pod = self.plug(1)
        self.server: subprocess.Popen[str] | None = None

    def plug(self, number: int) -> str:
        """A pod; its namespace."""
        namespace, interface = f"{self.name}-p{number}", f"pod{number}"
        ip("netns", "add", namespace)
        self._made.append(namespace)
        end, mac = ("name", interface, "netns", self.name), f"02:00:00:00:{number >> 8:02x}:{number & 255:02x}"
        wire = (*end, "address", mac, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        ip("link", "add", *wire)
        ends = ((self.name, interface, 1), (namespace, "eth0", 2))
        for where, device, host in ends:
            ip("-n", where, "link", "set", device, "up")
            ip("-n", where, "addr", "add", f"10.{9 + number // 256}.{number % 256}.{host}/24", "dev", device)
            ip("-n", where, "addr", "add", f"fd00:9:{number}::{host}/64", "dev", device, "nodad")
        for gateway in (f"10.{9 + number // 256}.{number % 256}.1", f"fd00:9:{number}::1"):
            # told, not found out: all namespaces together may have 1,024 neighbours (gc_thresh3)
            ip("-n", namespace, "neigh", "add", gateway, "lladdr", mac, "dev", "eth0")
            ip("-n", namespace, "route", "add", "default", "via", gateway)
        return namespace

    def links(self, *, tcx: bool | None = None) -> PodLinks:
        """What a process that starts now keeps attached."""
        found = [
            Attachment("from_pod", "ingress", self.world.program("from_pod")),
            Attachment("to_pod", "egress", self.world.program("to_pod")),
        ]
        return PodLinks(found, pins=self.pins, tcx=tcx)

    def attach(self, *, tcx: bool | None = None) -> PodLinks:
        """Programs on what there is now."""
        made = self.links(tcx=tcx)
        with within(self.name):
            made.look()
        return made

    def ask(self, *questions: str, pod: str = "", patience: float = 30.0) -> list[str]:
        """What a pod is answered to questions, given as name, type, server, name, type, server …"""
        command = ["ip", "netns", "exec", pod or self.pod, sys.executable, "-c", ASK, str(patience), *questions]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()

    def serve(self, *, upstream: str = "") -> None:
        """Register the node's server with the kernel and run it."""
        command = [sys.executable, "-m", "answers.dns_serve", f"{SERVER},{SERVER6}", "", upstream]
        pipe = subprocess.PIPE  # it ends with its input
        environment = os.environ | {"PYTHONPATH": str(SUPPORT)}
        inside = ["ip", "netns", "exec", self.name, *command]
        self.server = subprocess.Popen(inside, stdin=pipe, stdout=pipe, text=True, env=environment)
        assert self.server.stdout is not None
        assert self.server.stdout.readline() == "ready\n"
        self.world.alive()

    def close(self) -> None:
        """Away with all of it."""
        if self.server is not None:
            self.server.kill()
            self.server.wait(60)
            for stream in (self.server.stdin, self.server.stdout):
                assert stream is not None
                stream.close()
        for pin in self.pins.glob("*") if self.pins.is_dir() else ():
            pin.unlink()
        for each in self._made:
            ip("netns", "del", each)
        self.world.close()
