"""The server's link-local address answers pods of the node, and nobody who routes to it over an uplink."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from namespaces import ip

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: needs root")

SUPPORT = Path(__file__).parent.parent / "support"
_numbers = count()

ASK = """
import socket, sys, dns.message, dns.query
query = dns.message.make_query("echo.demo.svc.clusterset.local", "A")
if sys.argv[2] == "udp":
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(float(sys.argv[3]))
        sock.connect((sys.argv[1], 53))
        sock.send(query.to_wire())
        try:
            print(dns.message.from_wire(sock.recv(512)).answer[0][0])
        except TimeoutError:
            print("nothing")
else:
    try:
        print(dns.query.tcp(query, sys.argv[1], timeout=float(sys.argv[3])).answer[0][0])
    except dns.exception.Timeout:
        print("nothing")
"""


class Node:
    """A node with a pod, and a neighbour on its uplink that routes the server's address to it."""

    def __init__(self) -> None:
        name = f"isthmus-dns-{os.getpid()}-{next(_numbers)}"
        self.node, self.pod, self.neighbour = f"{name}-n", f"{name}-p", f"{name}-x"
        for each in (self.node, self.pod, self.neighbour):
            ip("netns", "add", each)
            ip("-n", each, "link", "set", "lo", "up")
        for other, device, subnet in ((self.pod, "veth0", "10.9.1"), (self.neighbour, "eth0", "10.9.2")):
            wire = ("name", device, "netns", self.node, "type", "veth", "peer", "name", "eth0", "netns", other)
            ip("link", "add", *wire)
            for namespace, dev, host in ((self.node, device, 1), (other, "eth0", 2)):
                ip("-n", namespace, "link", "set", dev, "up")
                ip("-n", namespace, "addr", "add", f"{subnet}.{host}/24", "dev", dev)
            ip("-n", other, "route", "add", "169.254.7.1", "via", f"{subnet}.1")
        ip("-n", self.node, "addr", "add", "169.254.7.1/32", "dev", "lo", "scope", "host")
        ip("-n", self.node, "route", "add", "default", "via", "10.9.2.2")
        self._server: subprocess.Popen[str] | None = None

    def serve(self, uplinks: str) -> None:
        """Run the server on the link-local address."""
        command = [sys.executable, str(SUPPORT / "dns_serve.py"), "169.254.7.1", uplinks]
        self._server = subprocess.Popen(["ip", "netns", "exec", self.node, *command], stdout=subprocess.PIPE, text=True)
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == "ready\n"

    def ask(self, namespace: str, transport: str, *, patience: float = 10.0) -> str:
        """What a question from a namespace gets."""
        command = [sys.executable, "-c", ASK, "169.254.7.1", transport, str(patience)]
        run = ["ip", "netns", "exec", namespace, *command]
        return subprocess.run(run, check=True, capture_output=True, text=True).stdout.strip()

    def close(self) -> None:
        """Away with all of it."""
        if self._server is not None:
            self._server.kill()
            self._server.wait(60)
            assert self._server.stdout is not None
            self._server.stdout.close()
        for each in (self.node, self.pod, self.neighbour):
            ip("netns", "del", each)


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node()
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("uplinks", ["auto", "eth0"])
@pytest.mark.parametrize("transport", ["udp", "tcp"])
def test_a_neighbour_on_an_uplink_is_not_answered_and_a_pod_is(node: Node, transport: str, uplinks: str) -> None:
    node.serve(uplinks)
    assert node.ask(node.pod, transport) == "10.96.0.7"
    assert node.ask(node.neighbour, transport, patience=0.5) == "nothing"


def test_where_no_uplink_is_configured_everybody_is_answered(node: Node) -> None:
    node.serve("")
    assert node.ask(node.neighbour, "udp") == "10.96.0.7"
