"""What a lab leaves on a machine: everything that is its own, and the network of its host as a whole."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labs.host_processes import command_line, with_command

from isthmus_lab import cgroups, kernel
from isthmus_lab.layout import STATE_ROOT, Lab
from isthmus_lab.network import namespaces

BPF_OBJ_GET = 7
BPF = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
NEXT_ID = {"prog_id": 11, "map_id": 12, "link_id": 31}


@contextmanager
def own_host() -> Iterator[None]:
    """This thread, and what it starts, on a host network of its own, which no other process changes meanwhile.

    It has an uplink with a default route, so a packet that leaves a lab leaves there.
    """
    with Path("/proc/thread-self/ns/net").open() as home:
        kernel.unshare(kernel.CLONE_NEWNET)
        try:
            for command in (
                "link set lo up",
                "link add uplink type veth peer name beyond",
                "link set uplink addrgenmode none up",  # no link-local address, which would be tentative for a while
                "link set beyond addrgenmode none up",
                "address add 192.0.2.1/24 dev uplink",
                "route add default via 192.0.2.2",
            ):
                subprocess.run(["ip", *command.split()], check=True)
            yield
        finally:
            kernel.setns(home.fileno(), kernel.CLONE_NEWNET)


def host_network() -> dict[str, str]:
    """Interfaces, addresses, routes, rules and packet filter of the namespace of this thread; see ``own_host``."""
    commands = {
        "links": "ip -o link",
        "addresses": "ip -o address",
        "routes": "ip route show table all",
        "rules": "ip rule",
        "rules of IPv6": "ip -6 rule",
        "nft": "nft list ruleset",
    }
    return {name: _output(command) for name, command in commands.items()}


def traces(lab: Lab) -> dict[str, list[str]]:
    """All that is there of a lab; every list is empty when it is gone."""
    root = cgroups.root() / lab.prefix
    return {
        "namespaces": [name for name in namespaces.names() if lab.owns(name)],
        "processes": [f"{pid} {command_line(pid)}" for pid in _processes(lab)],
        "cgroups": [str(root)] if root.exists() else [],
        "mounts": [where for where in kernel.mounts() if f"/{lab.name}/" in where or f"/{lab.prefix}-" in where],
        "files": [str(lab.directory)] if lab.directory.exists() else [],
    }


def pinned(directory: Path) -> dict[str, set[int]]:
    """Ids of the BPF objects pinned below a directory."""
    found: dict[str, set[int]] = {kind: set() for kind in NEXT_ID}
    for path in directory.rglob("*"):
        if path.is_file() and not path.name.endswith(".debug"):
            kind, number = _identify(path)
            found[kind].add(number)
    return found


def existing(kind: str) -> set[int]:
    """Ids of all BPF objects of a kind in this kernel."""
    found: set[int] = set()
    last = 0
    while True:
        attributes = ctypes.create_string_buffer(struct.pack("=III", last, 0, 0), 128)
        if _bpf(NEXT_ID[kind], attributes) < 0:
            return found
        last = struct.unpack_from("=I", attributes.raw, 4)[0]
        found.add(last)


def shared() -> set[Path]:
    """What labs make for all of them and take away with the last one."""
    return {path for path in (namespaces.DIRECTORY, STATE_ROOT) if path.exists()}


def others(lab: Lab) -> bool:
    """Whether another lab is on this machine, or another user of network namespaces."""
    groups = {path.name for path in cgroups.root().glob("isthmus-*")} - {lab.prefix}
    return bool(groups) or any(not lab.owns(name) for name in namespaces.names())


def _identify(path: Path) -> tuple[str, int]:
    name = ctypes.create_string_buffer(str(path).encode())
    attributes = ctypes.create_string_buffer(struct.pack("=Q", ctypes.addressof(name)), 128)
    descriptor = _bpf(BPF_OBJ_GET, attributes)
    try:
        lines = dict(line.split(":\t", 1) for line in Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines())
    finally:
        os.close(descriptor)
    kind = next(kind for kind in ("link_id", "map_id", "prog_id") if kind in lines)
    return kind, int(lines[kind])


def _bpf(command: int, attributes: ctypes.Array[ctypes.c_char]) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.syscall(BPF, command, attributes, 128))


def _processes(lab: Lab) -> list[int]:
    """By control group, and by what they say of themselves: one that escaped its group would be found too."""
    return sorted({*cgroups.processes(cgroups.root() / lab.prefix), *with_command(f"/labs/{lab.name}/")})


def _output(command: str) -> str:
    return subprocess.run(command.split(), capture_output=True, text=True, check=True).stdout
