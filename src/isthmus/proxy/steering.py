"""Steers new connections to one of two processes that listen on the same ports, before the other stops listening.

The kernel spreads connections over all sockets of a port (``SO_REUSEPORT``), and resets those that wait in the queue
of a socket that is closed: a replaced Envoy would lose what arrives in its last moment. A classic BPF program on the
group (``SO_ATTACH_REUSEPORT_CBPF``, socket(7)) picks among the successor's sockets alone; they follow those of its
predecessors in the group, which the kernel keeps in the order of their listen().

The sockets are copied by pidfd_getfd(2), for which the caller must be allowed to trace the process: as root, or as its
parent if nothing forbids it. Otherwise nothing is steered, and a call in that moment may be refused. UDP is not
steered: a session whose datagrams reach the other process starts anew there.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
import struct
from collections.abc import Container, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from isthmus.netlink import sock_diag

SO_ATTACH_REUSEPORT_CBPF: Final = 51
SO_DETACH_REUSEPORT_BPF: Final = 68
PIDFD_GETFD: Final = 438
"""Number of the system call, the same on every architecture."""
SKF_AD_RANDOM: Final = 0xFFFFF000 + 56
"""Offset from which a classic program loads a random number (linux/filter.h)."""
LOAD, MODULO, ADD, RETURN = 0x20, 0x94, 0x04, 0x16
"""``BPF_LD|BPF_W|BPF_ABS``, ``BPF_ALU|BPF_MOD|BPF_K``, ``BPF_ALU|BPF_ADD|BPF_K``, ``BPF_RET|BPF_A``."""

SOCKET: Final = re.compile(r"socket:\[(\d+)\]")
"""Target of a link in /proc/PID/fd that is a socket."""

_libc: Final = ctypes.CDLL(None, use_errno=True)

Address = tuple[object, ...]


class Steering:
    """Steers new connections to a successor. Call :meth:`end` when its predecessors have ended."""

    def __init__(self, successor: int, predecessors: Iterable[int]) -> None:
        before: dict[Address, int] = {}
        with ExitStack() as stack:
            for pid in predecessors:
                for listener in listening(pid, stack):
                    before[listener.getsockname()] = before.get(listener.getsockname(), 0) + 1
            after: dict[Address, list[socket.socket]] = {}
            for listener in listening(successor, stack):
                after.setdefault(listener.getsockname(), []).append(listener)
            steered = {address: sockets for address, sockets in after.items() if address in before}
            for address, sockets in steered.items():
                _attach(sockets[0], first=before[address], among=len(sockets))
        self._successor = successor
        self.addresses = frozenset(steered)
        """Addresses on which both listened."""

    def __repr__(self) -> str:
        return f"<Steering to {self._successor} on {len(self.addresses)} addresses>"

    def end(self) -> None:
        """Let the kernel spread connections again."""
        with ExitStack() as stack:
            for listener in listening(self._successor, stack):
                if listener.getsockname() in self.addresses:
                    with suppress(OSError):  # the second socket of a group, already detached
                        listener.setsockopt(socket.SOL_SOCKET, SO_DETACH_REUSEPORT_BPF, 0)


def listening(pid: int, stack: ExitStack, *, among: Container[int] | None = None) -> list[socket.socket]:
    """Return copies of a process's listening TCP sockets, closed with the stack; empty if not allowed.

    ``among``: copy the sockets with these inodes instead, of any protocol. Connections are not copied: a copy would
    keep a connection open that Envoy closes.
    """
    listeners = sock_diag.tcp_listeners() if among is None else among
    sockets: list[socket.socket] = []
    try:
        pidfd = os.pidfd_open(pid)
        stack.callback(os.close, pidfd)
        numbers = [number for number, inode in _sockets(pid) if inode in listeners]
    except OSError:
        return []
    for number in numbers:
        copied = _libc.syscall(PIDFD_GETFD, pidfd, number, 0)
        if copied >= 0:
            sockets.append(stack.enter_context(socket.socket(fileno=copied)))
    return sockets


def _sockets(pid: int) -> Iterator[tuple[int, int]]:
    """Yield (descriptor, inode) of each socket of a process."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            if (inode := SOCKET.fullmatch(str(descriptor.readlink()))) is not None:
                yield int(descriptor.name), int(inode[1])


def _attach(group: socket.socket, *, first: int, among: int) -> None:
    """Attach a program that picks at random among ``among`` sockets of a group from index ``first``."""
    program = [(LOAD, SKF_AD_RANDOM), (MODULO, among), (ADD, first), (RETURN, 0)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", op, 0, 0, value) for op, value in program))
    filters = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    group.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, filters)
