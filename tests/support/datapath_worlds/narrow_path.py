"""A caller and a server in namespaces of their own, and a router between them whose links can be made narrow."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from clusters import apiserver_world
from machine.namespaces import ip

SERVER, PORT = "10.77.2.2", 8080
NARROW = 1300
"""Bytes of the largest packet that a narrow link takes."""


class NarrowPath:
    """A caller and a server in namespaces of their own, behind a router whose link to either can be made narrow."""

    def __init__(self, program: Sequence[str], *protocols: str) -> None:
        """``program``: the server's, in Python, and its arguments; it listens over these of ``tcp`` and ``udp``."""
        self._names = [f"narrow-{os.getpid()}-{part}" for part in ("caller", "router", "server")]
        self.caller, self.router, self.server = self._names
        for name in self._names:
            ip("netns", "add", name)
        self._link(self.caller, self.router, "10.77.1.2/24", "10.77.1.1/24")
        self._link(self.server, self.router, f"{SERVER}/24", "10.77.2.1/24")
        ip("-n", self.caller, "route", "add", "default", "via", "10.77.1.1")
        ip("-n", self.server, "route", "add", "default", "via", "10.77.2.1")
        self.inside(self.router, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
        command = ["ip", "netns", "exec", self.server, sys.executable, *program]
        self.process = subprocess.Popen(command, env=os.environ | {"ANSWER": "c2"})
        apiserver_world.until(lambda: self._listens(protocols))

    def _listens(self, protocols: tuple[str, ...]) -> bool:
        """True if the server has all of its sockets: a call before that would be refused."""
        tables = [self.inside(self.server, "sh", "-c", f"cat /proc/net/{each} /proc/net/{each}6") for each in protocols]
        return all(f":{PORT:04X} " in table for table in tables)

    def _link(self, end: str, router: str, address: str, gateway: str) -> None:
        inner = f"to-{end[-6:]}"
        ip("-n", end, "link", "add", "eth0", "type", "veth", "peer", "name", inner, "netns", router)
        ip("-n", end, "address", "add", address, "dev", "eth0")
        ip("-n", router, "address", "add", gateway, "dev", inner)
        for namespace, device in ((end, "eth0"), (end, "lo"), (router, inner)):
            ip("-n", namespace, "link", "set", device, "up")

    def narrow(self, end: str, *, silent: bool) -> None:
        """Make the router's link to the caller or server narrow; ``silent`` drops the ICMP errors that report it."""
        ip("-n", self.router, "link", "set", f"to-{end[-6:]}", "mtu", str(NARROW))
        if not silent:  # a veth drops what its other end cannot take
            ip("-n", end, "link", "set", "eth0", "mtu", str(NARROW))
        else:
            rules = "add table inet t; add chain inet t out { type filter hook output priority 0; }; "
            self.inside(self.router, "nft", rules + "add rule inet t out icmp type destination-unreachable drop")

    def cut(self) -> None:
        """Drop every packet from now on, of any size."""
        self.inside(self.router, "sh", "-c", "echo 0 >/proc/sys/net/ipv4/ip_forward")

    def inside(self, name: str, *command: str) -> str:
        """Output of a command in a namespace."""
        done = ["ip", "netns", "exec", name, *command]
        return subprocess.run(done, check=True, capture_output=True, text=True, timeout=120).stdout

    def close(self) -> None:
        """End the server and remove the namespaces."""
        self.process.terminate()
        self.process.wait(10)
        for name in self._names:
            ip("netns", "delete", name)
