"""A lab whose clusters call each other by an import, and its client's calls, for tests of what may fail on the way."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from labs.lab_running import Running, lab_name

from isthmus_lab import removal
from isthmus_lab.images import IDLE
from isthmus_lab.layout import Cluster, Lab, Network

LABS: Final = Path(__file__).parent
MANIFESTS: Final = LABS.parents[2] / "lab" / "tests" / "manifests" / "failover"
NAME: Final = "echo.demo.svc.clusterset.local"
LOAD: Final = [sys.executable, "-I", "-S", str(LABS / "failover_load.py")]
FLAT: Final = 12
"""Three backends for each family and protocol."""


@contextmanager
def lab_of(letter: str, *options: str, networks: tuple[Network, ...] = ("flat",)) -> Iterator[Running]:
    """Two clusters of two nodes in dual stack with the client and its three servers."""
    running = Running(Lab(lab_name(letter), 2, 2, networks, families=(("IPv4", "IPv6"),) * 2))
    try:
        server = ("--image", f"failover/server={sys.executable} -I -S {LABS / 'failover_serve.py'}")
        client = ("--image", f"failover/client={shlex.join(['/bin/sh', '-c', IDLE, *LOAD])}")
        shape = ("--clusters", "2", "--nodes", "2", "--ip-families=IPv4,IPv6")
        running.cli("up", *shape, *options, f"--from={MANIFESTS}", *server, *client)
        yield running
    finally:
        removal.remove(running.lab)


def settled(lab: Running, backends: int = FLAT) -> bool:
    """True if the kernel has this number of backends, and none of them is ejected or dead, as at the start."""
    count = len({row["backend"] for row in maps(lab, "backends")})
    ejected = any(row["ejected"] for row in maps(lab, "failing"))
    return count == backends and not ejected and not any(row["verdict"] == "dead" for row in maps(lab, "probed"))


def maps(lab: Running, name: str) -> list[dict[str, Any]]:
    """A BPF map of c1's first node, which the client is on."""
    rows: list[dict[str, Any]] = json.loads(lab.isthmus("bpf", "maps", name, "-o", "json"))[name]
    return rows


def cluster_of(lab: Running, name: str) -> Cluster:
    cluster = lab.lab.cluster(name)
    assert cluster is not None
    return cluster


class Calling:
    """Calls from the client, from now on until ``end``."""

    def __init__(self, lab: Running, *options: str) -> None:
        [found] = [json.loads(lab.kubectl("-n", "demo", "get", "serviceimport", "echo", "-o", "json"))]
        inside = [*LOAD, *options, NAME, "80"]
        command = [sys.executable, "-m", "isthmus", "lab", "exec", "--lab", lab.lab.name, "c1", "demo/client", "--"]
        self._process = subprocess.Popen(
            [*command, *inside, *found["spec"]["ips"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "calling\n"

    def end(self) -> dict[str, Any]:
        """End the calls and return their results."""
        output, _ = self._process.communicate(timeout=60)
        result: dict[str, Any] = json.loads(output)
        return result
