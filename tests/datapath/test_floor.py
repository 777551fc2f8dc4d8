"""The object runs on Linux 5.10: no instruction or helper in it is newer, unless a constant keeps it from being run."""

from __future__ import annotations

import struct

import bpf_object
import pytest

from isthmus.datapath.core.attach import OBJECT

NEWEST_HELPER = 155
"""bpf_redirect_peer, the last of enum bpf_func_id in 5.10's linux/bpf.h."""
GUARDED = {187: "has_set_retval", 196: "has_mptcp"}
"""Helpers that came later, and the constant without which the verifier never gets to them."""
ATOMIC, LOAD_SIGNED, SWAP, LONG_JUMP = (0xC3, 0xDB), (0x81, 0x89, 0x91), 0xD7, 0x06
ALU_MOV, ALU_DIV_MOD = (0xB4, 0xB7, 0xBC, 0xBF), (0x34, 0x37, 0x3C, 0x3F, 0x94, 0x97, 0x9C, 0x9F)


class Instruction:
    """One of eight bytes, as linux/bpf.h has struct bpf_insn."""

    def __init__(self, raw: bytes) -> None:
        self.code, registers, self.offset, self.immediate = struct.unpack("<BBhi", raw)
        self.source = registers >> 4

    def newer_than_floor(self) -> str:
        """What of it 5.10 does not know; empty: nothing."""
        if self.code in ATOMIC and self.immediate:
            return "an atomic operation other than add without its result (5.12)"
        if self.code in LOAD_SIGNED:
            return "a sign-extending load (6.6)"
        if self.code == SWAP or self.code == LONG_JUMP:
            return "an unconditional byte swap or a long jump (6.6)"
        if self.code in ALU_MOV + ALU_DIV_MOD and self.offset:
            return "a signed division or a sign-extending move (6.6)"
        if self.code == 0x85 and self.source == 2:
            return "a call of a kernel function (5.13)"
        if self.code == 0x85 and not self.source and self.immediate > NEWEST_HELPER and self.immediate not in GUARDED:
            return f"helper {self.immediate}"
        return ""


def newer(code: bytes) -> list[str]:
    """What of a section 5.10 does not know."""
    found = []
    at = 0
    while at < len(code):
        instruction = Instruction(code[at : at + 8])
        found.append(instruction.newer_than_floor())
        at += 16 if instruction.code == 0x18 else 8  # a 64-bit constant has two
    return [what for what in found if what]


def test_no_instruction_or_helper_is_newer_than_the_floor() -> None:
    code = dict(bpf_object.read(OBJECT).code())
    assert "cgroup/connect4" in code
    assert {name: newer(raw) for name, raw in code.items() if newer(raw)} == {}


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (struct.pack("<BBhi", 0xDB, 0x10, 0, 1), "atomic"),
        (struct.pack("<BBhi", 0xDB, 0x10, 0, 0), ""),
        (struct.pack("<BBhi", 0x85, 0x00, 0, 211), "helper 211"),
        (struct.pack("<BBhi", 0x85, 0x20, 0, 1), "kernel function"),
        (struct.pack("<BBhi", 0x3F, 0x10, 1, 0), "signed division"),
        (struct.pack("<BBhi", 0x18, 0x01, 0, 0) + struct.pack("<BBhi", 0xD7, 0x00, 0, 0), ""),
    ],
)
def test_the_scan_finds_what_it_is_for(code: bytes, found: str) -> None:
    assert found in " ".join(newer(code))
    assert bool(newer(code)) == bool(found)
