"""Run a program of the datapath on a packet by BPF_PROG_TEST_RUN: what it returns, and the packet as it left it."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from typing import Final

BPF: Final = {"x86_64": 321, "aarch64": 280}[platform.machine()]
PROG_TEST_RUN: Final = 10
ATTRIBUTES: Final = struct.Struct("=IIIIQQIIIIQQ")
"""struct bpf_attr's anonymous ``test``, up to ctx_out."""
PASS, DROP, REDIRECT = -1, 2, 7
_libc = ctypes.CDLL(None, use_errno=True)


class TestRun:
    """A loaded program, to be run on one packet after another."""

    __test__ = False

    def __init__(self, fd: int, *, largest: int = 4096) -> None:
        self._fd = fd
        self._given = ctypes.create_string_buffer(largest)
        self._out = ctypes.create_string_buffer(largest)
        self._attributes = ctypes.create_string_buffer(128)

    def __call__(self, packet: bytes, *, repeat: int = 1) -> tuple[int, bytes]:
        """(return value, packet)."""
        size = len(packet)
        self._given.raw = packet
        given, out, most = ctypes.addressof(self._given), ctypes.addressof(self._out), len(self._out)
        ATTRIBUTES.pack_into(self._attributes, 0, self._fd, 0, size, most, given, out, repeat, 0, 0, 0, 0, 0)
        if _libc.syscall(BPF, PROG_TEST_RUN, self._attributes, 128) < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        fields = ATTRIBUTES.unpack_from(self._attributes)
        self.nanoseconds = fields[7]
        value = fields[1] - (1 << 32) if fields[1] >> 31 else fields[1]
        return value, ctypes.string_at(out, fields[3])
