"""Prints a line for each BPF program that is attached to a control group or to an interface here, or pinned.

It runs on a node: attached.py CGROUP. Standard library only, and libbpf.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from pathlib import Path
from typing import Final

CGROUP_TYPES: Final = range(64)
"""More attach types than kernels have; they refuse those that they do not know."""
INTERFACE_TYPES: Final = (46, 47)
"""BPF_TCX_INGRESS and BPF_TCX_EGRESS, of linux/bpf.h."""
MOST: Final = 64


def count(target: int, kind: int) -> int:
    """Return how many programs are attached to a descriptor or an interface; 0 if the kernel does not know."""
    flags, ids, number = ctypes.c_uint32(), (ctypes.c_uint32 * MOST)(), ctypes.c_uint32(MOST)
    libbpf = ctypes.CDLL("libbpf.so.1")
    failed = libbpf.bpf_prog_query(target, kind, 0, ctypes.byref(flags), ids, ctypes.byref(number))
    return 0 if failed else number.value


def main(cgroup: str) -> None:
    """Print what there is."""
    for path, _, _ in os.walk(cgroup):
        group = os.open(path, os.O_RDONLY)
        for kind in CGROUP_TYPES:
            if found := count(group, kind):
                print(f"cgroup {path}: {found} of type {kind}")
        os.close(group)
    for index, name in socket.if_nameindex():
        for kind in INTERFACE_TYPES:
            if found := count(index, kind):
                print(f"interface {name}: {found} of type {kind}")
    for pin in sorted(Path("/sys/fs/bpf").rglob("*")):
        print(f"pinned {pin}")


if __name__ == "__main__":
    main(sys.argv[1])
