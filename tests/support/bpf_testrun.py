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
        self._out = ctypes.create_string_buffer(largest)

    def __call__(self, packet: bytes, *, repeat: int = 1) -> tuple[int, bytes]:
        """(return value, packet)."""
        given = ctypes.create_string_buffer(packet, len(packet))
        attributes = ctypes.create_string_buffer(
            ATTRIBUTES.pack(
                self._fd,
                0,
                len(packet),
                len(self._out),
                ctypes.addressof(given),
                ctypes.addressof(self._out),
                repeat,
                0,
                0,
                0,
                0,
                0,
            ),
            128,
        )
        if _libc.syscall(BPF, PROG_TEST_RUN, attributes, 128) < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        fields = ATTRIBUTES.unpack_from(attributes)
        self.nanoseconds = fields[7]
        value = fields[1] - (1 << 32) if fields[1] >> 31 else fields[1]
        return value, self._out.raw[: fields[3]]
