"""The programs of ``isthmus verify`` over a path that drops large packets and sends no ICMP: a path-MTU black hole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from clusters import apiserver_world
from machine.namespaces import ip

from isthmus.cli.verification.objects import PROGRAMS

pytestmark = [pytest.mark.bpf, pytest.mark.needs("nft")]

SERVER, PORT = "10.77.2.2", 8080
NARROW = 1300
"""Bytes of the largest packet that the middle link takes."""


class Path:
    """A caller and a server in namespaces of their own, behind a router whose link to the server is narrow."""

    def __init__(self) -> None:
        self._names = [f"verify-{os.getpid()}-{part}" for part in ("caller", "router", "server")]
        self.caller, self.router, self.server = self._names
        for name in self._names:
            ip("netns", "add", name)
        self._link(self.caller, self.router, "10.77.1.2/24", "10.77.1.1/24")
        self._link(self.server, self.router, f"{SERVER}/24", "10.77.2.1/24")
        ip("-n", self.caller, "route", "add", "default", "via", "10.77.1.1")
        ip("-n", self.server, "route", "add", "default", "via", "10.77.2.1")
        self.inside(self.router, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
        serve = [sys.executable, str(PROGRAMS / "serve.py")]
        command = ["ip", "netns", "exec", self.server, *serve]
        self._process = subprocess.Popen(command, env=os.environ | {"ANSWER": "c2"})
        apiserver_world.until(self._listens)

    def _listens(self) -> bool:
        """True if the server has both of its sockets: a call before that would be refused."""
        tables = [
            self.inside(self.server, "sh", "-c", f"cat /proc/net/{each} /proc/net/{each}6") for each in ("tcp", "udp")
        ]
        return all(f":{PORT:04X} " in table for table in tables)

    def _link(self, end: str, router: str, address: str, gateway: str) -> None:
        inner = f"to-{end[-6:]}"
        ip("-n", end, "link", "add", "eth0", "type", "veth", "peer", "name", inner, "netns", router)
        ip("-n", end, "address", "add", address, "dev", "eth0")
        ip("-n", router, "address", "add", gateway, "dev", inner)
        for namespace, device in ((end, "eth0"), (end, "lo"), (router, inner)):
            ip("-n", namespace, "link", "set", device, "up")

    def narrow(self, *, silent: bool) -> None:
        """Make the router's link to the server narrow; ``silent`` drops the ICMP errors that would tell of it."""
        ip("-n", self.router, "link", "set", f"to-{self.server[-6:]}", "mtu", str(NARROW))
        if not silent:  # a veth drops what its other end cannot take
            ip("-n", self.server, "link", "set", "eth0", "mtu", str(NARROW))
        else:
            rules = "add table inet t; add chain inet t out { type filter hook output priority 0; }; "
            self.inside(self.router, "nft", rules + "add rule inet t out icmp type destination-unreachable drop")

    def inside(self, name: str, *command: str) -> str:
        done = ["ip", "netns", "exec", name, *command]
        return subprocess.run(done, check=True, capture_output=True, text=True, timeout=120).stdout

    def checks(self, *only: str, seconds: float = 0.1) -> dict[str, str]:
        """What the caller's program finds; ``only``: the checks that are made, instead of those of verify."""
        target: dict[str, Any] = {
            "family": "IPv4", "answer": "c2", "name": SERVER, "port": PORT, "headless": SERVER, "pods": [SERVER],
            "pod_port": PORT, **({"checks": only} if only else {}),
        }  # fmt: skip
        program = [sys.executable, str(PROGRAMS / "call.py"), json.dumps([target]), str(seconds)]
        found: list[dict[str, str]] = json.loads(self.inside(self.caller, *program))
        return found[0]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)
        for name in self._names:
            ip("netns", "delete", name)


@pytest.fixture
def path() -> Iterator[Path]:
    it = Path()
    yield it
    it.close()


def test_a_path_without_a_bottleneck_passes(path: Path) -> None:
    assert path.checks() == {"name": "", "headless": "", "tcp": "", "udp": "", "path": "direct"}


def test_a_bottleneck_that_is_reported_passes(path: Path) -> None:
    path.narrow(silent=False)
    found = path.checks()
    assert (found["tcp"], found["udp"]) == ("", "")


@pytest.mark.slow
def test_a_bottleneck_without_icmp_fails_and_the_size_that_passes_is_named(path: Path) -> None:
    path.narrow(silent=True)
    found = path.checks()
    assert found["headless"] == ""  # a few bytes pass
    assert "64 kB get no answer; with segments of 1240 bytes they do" in found["tcp"]
    assert "datagrams of 1400 bytes get no answer, of 1240 they do" in found["udp"]


def test_check_reaches_a_pod_without_any_name(path: Path) -> None:
    assert path.checks("direct", seconds=30) == {"direct": "", "path": ""}  # until the server listens


@pytest.mark.slow
def test_check_names_the_size_that_passes_a_bottleneck_without_icmp(path: Path) -> None:
    path.narrow(silent=True)
    found = path.checks("direct", seconds=5)
    assert "64 kB get no answer; with segments of 1240 bytes they do" in found["direct"]
