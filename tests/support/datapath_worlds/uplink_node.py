"""A node with a pod, and a neighbour on its uplink that routes the node's link-local address to it, as namespaces."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Final

import pytest
from machine.namespaces import ip

SUPPORT: Final = Path(__file__).parents[1]
ADDRESS: Final = "169.254.7.1"
_numbers = count()


class UplinkNode:
    """To be closed."""

    def __init__(self) -> None:
        name = f"isthmus-up-{os.getpid()}-{next(_numbers)}"
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
            ip("-n", other, "route", "add", ADDRESS, "via", f"{subnet}.1")
        ip("-n", self.node, "addr", "add", f"{ADDRESS}/32", "dev", "lo", "scope", "host")
        ip("-n", self.node, "route", "add", "default", "via", "10.9.2.2")
        self._server: subprocess.Popen[str] | None = None

    def serve(self, program: str, *arguments: str, capabilities: Sequence[str] | None = None) -> None:
        """Run a module of tests/support on the node until it prints that it is ready; as root with capabilities."""
        limits: list[str] = []
        if capabilities is not None:
            given = ",".join(["-all", *(f"+{each.lower()}" for each in capabilities)])
            limits = ["setpriv", f"--bounding-set={given}", f"--inh-caps={given}", "--no-new-privs"]
        command = ["ip", "netns", "exec", self.node, *limits, sys.executable, "-m", program, *arguments]
        environment = os.environ | {"PYTHONPATH": str(SUPPORT)}
        pipe = subprocess.PIPE
        self._server = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        self.until_printed("ready")

    def ask_server(self, line: str, *, answer: str) -> None:
        """Write a line to the program, and wait for its answer."""
        assert self._server is not None
        assert self._server.stdin is not None
        self._server.stdin.write(f"{line}\n")
        self._server.stdin.flush()
        self.until_printed(answer)

    def until_printed(self, begin: str) -> None:
        """Wait for a line of the program that begins like this, past what its children log."""
        assert self._server is not None
        assert self._server.stdout is not None
        lines = []
        while line := self._server.stdout.readline():
            if line.startswith(begin):
                return
            lines.append(line)
        raise AssertionError(f"it ended before '{begin}': {''.join(lines)}")

    def run(self, namespace: str, *command: str) -> str:
        """What a command in a namespace prints."""
        run = ["ip", "netns", "exec", namespace, *command]
        return subprocess.run(run, check=True, capture_output=True, text=True).stdout.strip()

    def close(self) -> None:
        """Away with all of it. The server ends at the end of its input."""
        if self._server is not None:
            assert self._server.stdin is not None
            assert self._server.stdout is not None
            self._server.stdin.close()
            self._server.wait(60)
            self._server.stdout.close()
        for each in (self.node, self.pod, self.neighbour):
            ip("netns", "del", each)


@pytest.fixture
def uplink_node() -> Iterator[UplinkNode]:
    """A node for one test."""
    made = UplinkNode()
    try:
        yield made
    finally:
        made.close()
