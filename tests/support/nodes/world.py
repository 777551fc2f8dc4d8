"""The machine's part of a world of nodes: its control groups, network namespaces and processes, and their removal."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from machine.namespaces import ip, put

from nodes import init, reaper

NETWORK: Final = "172.30.0"
"""Of the wire that joins the nodes; the machine from which people type has its first address."""
WIRE: Final = "wire"
HIERARCHIES: Final = reaper.hierarchies("cgroup", "cgroup2")


class World:
    """Where nodes live. Everything in it ends with the process that made it."""

    def __init__(self) -> None:
        self.name = f"isthmus-nodes-{os.getpid()}"
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-"))
        command = [sys.executable, reaper.__file__, self.name, str(self.folder)]
        self._reaper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self._started: list[subprocess.Popen[Any]] = []
        ip("netns", "add", self.namespace(WIRE))
        self._ip(WIRE, "link", "set", "lo", "up")
        self._ip(WIRE, "link", "add", "wire", "type", "bridge")
        self._ip(WIRE, "address", "add", f"{NETWORK}.1/24", "dev", "wire")
        self._ip(WIRE, "link", "set", "wire", "up")

    def close(self) -> None:
        """Remove everything, and wait for that."""
        self._reaper.communicate()
        for process in self._started:
            process.wait()

    def namespace(self, node: str) -> str:
        """Name of a network namespace, which ``ip netns`` lists."""
        return f"{self.name}-{node}"

    def attach(self, node: str, address: str) -> None:
        """Make a node's network namespace, with an interface on the wire and a default route that leads nowhere."""
        ip("netns", "add", self.namespace(node))
        peer = ["peer", "name", node, "netns", self.namespace(WIRE)]
        self._ip(node, "link", "add", "eth0", "type", "veth", *peer)
        self._ip(WIRE, "link", "set", node, "master", "wire", "up")
        self._ip(node, "link", "set", "lo", "up")
        self._ip(node, "address", "add", f"{address}/24", "dev", "eth0")
        self._ip(node, "link", "set", "eth0", "up")
        self._ip(node, "route", "add", "default", "via", f"{NETWORK}.1")  # which forwards nothing
        for setting in ("net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables"):
            put(self.namespace(node), setting, 1)

    def route(self, node: str, target: str, via: str) -> None:
        """Add a route to a node, and from where people type."""
        for namespace in (node, WIRE):
            self._ip(namespace, "route", "replace", target, "via", via)

    def _ip(self, node: str, *arguments: str) -> None:
        ip("-n", self.namespace(node), *arguments)

    def inside(self, node: str, *, init: int = 0) -> list[str]:
        """Begin of a command in a node's network namespace; with ``init``, its mounts and process ids as well."""
        also = [f"--target={init}", "--mount", "--pid", "--cgroup"] if init else []
        return ["nsenter", f"--net=/run/netns/{self.namespace(node)}", *also, "--"]

    def start(self, command: Sequence[str], *, group: str, log: str) -> None:
        """Start a process in a control group below the world's, with its output in a file."""
        entered = [*self._moved(group), *command]
        (self.folder / "logs").mkdir(exist_ok=True)
        with (self.folder / "logs" / log).open("ab") as output:
            started = subprocess.Popen(
                entered, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        self._started.append(started)

    def _moved(self, group: str) -> list[str]:
        """Begin of a command in a control group of the world, which is made where it is missing."""
        for hierarchy in HIERARCHIES:
            for path in (hierarchy / self.name, hierarchy / self.name / group):
                path.mkdir(exist_ok=True)
                for setting in ("cpuset.cpus", "cpuset.mems"):  # a group without any takes no process
                    if (path / setting).exists():
                        (path / setting).write_text((path.parent / setting).read_text())
        files = " ".join(f"{hierarchy}/{self.name}/{group}/cgroup.procs" for hierarchy in HIERARCHIES)
        return ["sh", "-c", f'for each in {files}; do echo 0 >$each || exit; done; exec "$@"', "sh"]

    def init(self, node: str) -> int:
        """Start process 1 of a node; its id on this machine."""
        (self.folder / node).mkdir()
        namespaces = ["unshare", "--mount", "--pid", "--cgroup", "--fork", "--kill-child", "--propagation", "private"]
        command = [*namespaces, sys.executable, init.__file__, str(self.folder / node)]
        entered = [*self._moved(node), *self.inside(node), *command]
        started = subprocess.Popen(entered, stdout=subprocess.PIPE, start_new_session=True, text=True)
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n", f"{node} has no process 1"
        started.stdout.close()
        self._started.append(started)
        [child] = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
        return int(child)


@contextmanager
def world() -> Iterator[World]:
    """A world, removed at the end."""
    made = World()
    try:
        yield made
    finally:
        made.close()
