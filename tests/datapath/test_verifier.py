"""What each program costs the verifier: printed (``-s`` or ``-rP``), so that growth is seen; docs has a table of it."""

from __future__ import annotations

import ctypes

import pytest

from isthmus.datapath.core import libbpf
from isthmus.datapath.core.attach import OBJECT, constants
from isthmus.datapath.manifest import PROGRAMS

pytestmark = pytest.mark.bpf

BUDGET = 500_000
"""Instructions that the verifier may walk of one program: half of where it gives up (BPF_COMPLEXITY_LIMIT_INSNS). Older
kernels walk more: 6.1 164,093 of a program, of which this one walks 67,000."""


class ProgramInfo(ctypes.Structure):
    """struct bpf_prog_info of linux/bpf.h, as far as the last field that is read (5.16)."""

    _fields_ = (
        ("head", ctypes.c_uint32 * 4),
        ("jited_size", ctypes.c_uint32),
        ("translated_size", ctypes.c_uint32),
        ("pointers", ctypes.c_uint64 * 3),
        ("user", ctypes.c_uint32),
        ("map_count", ctypes.c_uint32),
        ("maps", ctypes.c_uint64),
        ("name", ctypes.c_char * 16),
        ("interface", ctypes.c_uint32),
        ("gpl", ctypes.c_uint32),
        ("namespace", ctypes.c_uint64 * 2),
        ("functions", ctypes.c_uint32 * 2),
        ("symbols", ctypes.c_uint64 * 2),
        ("btf", ctypes.c_uint32 * 2),
        ("function_info", ctypes.c_uint64),
        ("counts", ctypes.c_uint32 * 2),
        ("lines", ctypes.c_uint64 * 2),
        ("line_counts", ctypes.c_uint32 * 4),
        ("tags", ctypes.c_uint64),
        ("runs", ctypes.c_uint64 * 3),
        ("verified", ctypes.c_uint32),
    )


def walked(fd: int) -> tuple[int, int]:
    """(instructions after translation, instructions that the verifier walked)."""
    info = ProgramInfo()
    size = ctypes.c_uint32(ctypes.sizeof(info))
    assert libbpf.library().bpf_obj_get_info_by_fd(fd, ctypes.byref(info), ctypes.byref(size)) == 0
    return info.translated_size // 8, info.verified


def test_every_program_is_far_from_the_verifiers_limit() -> None:
    opened = libbpf.Object(OBJECT)
    try:
        opened.set_constants(constants())
        opened.load()
        found = {row.name: walked(opened.program_fd(row.name)) for row in PROGRAMS}
    finally:
        opened.close()
    print("\n| program | instructions | walked by the verifier |\n|---|---|---|")
    for name, (instructions, verified) in found.items():
        print(f"| `{name}` | {instructions:,} | {verified:,} |")
    assert all(instructions > 0 for instructions, _ in found.values())
    assert max(verified for _, verified in found.values()) < BUDGET
