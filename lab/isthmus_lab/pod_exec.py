"""Runs a command inside a pod: its namespaces, control group and environment, the caller's input and output."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import termios
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from msgspec import Struct

from isthmus_lab import cgroups, privileges, spawn
from isthmus_lab.layout import Cluster
from isthmus_lab.node.sandbox import enter


class NoSuchPod(Exception):  # noqa: N818
    """No running container matches; the message lists those that run."""


class Container(Struct, frozen=True, order=True):
    """A running container, found by its control group."""

    pod: str
    """namespace/name."""
    name: str
    pid: int
    cgroup: Path


def containers(cluster: Cluster) -> list[Container]:
    """All that run in a cluster, by pod. Found by control group: no API server, node or supervisor has to answer."""
    root = cgroups.root() / cluster.lab.prefix
    return sorted(container for node in cluster.nodes for container in _of_node(root / node.pods_cgroup))


def find(cluster: Cluster, target: str, *, container: str = "") -> Container:
    """Find a container by ``demo/client``, ``demo/deploy/echo`` or, as in kubectl, ``deploy/echo`` (default)."""
    running = containers(cluster)
    namespace, kind, name = parse(target)
    full_name = f"{namespace}/{name}"
    for candidate in running:
        mine = candidate.pod == full_name if kind == "pod" else _of_workload(candidate.pod, full_name)
        if mine and container in ("", candidate.name):
            return candidate
    pods = sorted({candidate.pod for candidate in running})
    raise NoSuchPod(f"{cluster.name}: no {kind} {full_name} is running; running: {', '.join(pods) or 'nothing'}")


def run(
    container: Container,
    command: Sequence[str],
    *,
    stdin: int | IO[bytes] | None = None,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    terminal: bool = False,
) -> subprocess.Popen[bytes]:
    """Start the command; OSError where it cannot be executed. ``terminal``: its input is one, and is to control it."""
    with spawn.pids(spawn.Isolation(container.cgroup, pids_of=None if privileges.on_loopback() else container.pid)):
        return subprocess.Popen(
            list(command),
            env=_environment(container.pid),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            preexec_fn=_become(container, terminal),
        )


def wait(child: subprocess.Popen[bytes]) -> int:
    """Wait for the exit code, as a shell reports it. A keyboard interrupt is left to the command."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = child.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    return code if code >= 0 else 128 - code


def _become(container: Container, terminal: bool) -> Callable[[], None]:
    def become() -> None:
        if terminal:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        cgroups.enter(container.cgroup)
        if not privileges.on_loopback():
            enter(container.pid)
        os.chdir("/")

    return become


def _environment(pid: int) -> dict[str, str]:
    raw = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="surrogateescape")
    environment = dict(pair.split("=", 1) for pair in raw.split("\0") if "=" in pair)
    return {**environment, **({"TERM": os.environ["TERM"]} if "TERM" in os.environ else {})}


def _of_node(pods: Path) -> Iterator[Container]:
    for group in cgroups.groups(pods, depth=2):
        for pid in _firsts(cgroups.processes(group)):
            yield Container(group.parent.name.replace("_", "/", 1), group.name, pid, group)


def _firsts(pids: list[int]) -> list[int]:
    """The container's own among the processes of its group: the oldest, where there are no PID namespaces."""
    if privileges.on_loopback():
        return sorted(pids, key=spawn.born)[:1]
    return [pid for pid in pids if _is_first(pid)]


def _is_first(pid: int) -> bool:
    """True if a process is number 1 of its PID namespace."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    ids = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
    return len(ids) > 1 and ids[-1] == "1"


def parse(target: str) -> tuple[str, str, str]:
    """(namespace, kind, name)."""
    parts = target.split("/")
    kinds = {"deploy": "deployment", "deployment": "deployment", "sts": "statefulset", "pod": "pod", "po": "pod"}
    match parts:
        case [name]:
            return "default", "pod", name
        case [kind, name] if kind in kinds:
            return "default", kinds[kind], name
        case [namespace, name]:
            return namespace, "pod", name
        case [namespace, kind, name] if kind in kinds:
            return namespace, kinds[kind], name
    raise NoSuchPod(f"{target}: want NAMESPACE/POD or NAMESPACE/deploy/NAME")


def _of_workload(pod: str, workload: str) -> bool:
    """A workload's pods are called after it, with one or two parts that are generated."""
    rest = pod.removeprefix(f"{workload}-")
    return rest != pod and rest.count("-") <= 1
