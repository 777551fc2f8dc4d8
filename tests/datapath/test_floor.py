"""The object runs on Linux 5.10: nothing in it is newer, unless a constant keeps it from being run.

Scanned are instructions, helpers as each type of program may call them, types of programs, hooks, and types and flags
of maps. What a scan does not see (arguments, fields of contexts, what the verifier makes of a loop) shows where the
object is loaded: ``make test-kernel KERNEL=5.10``.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from typing import Final

import pytest
from datapath_worlds import bpf_object

from isthmus.datapath.core import libbpf
from isthmus.datapath.core.attach import CGROUP_SOCK_ADDR, CONSTANTS, HELPERS, OBJECT
from isthmus.datapath.manifest import MAPS, PROGRAMS

GUARDED: Final = dict(zip(HELPERS, CONSTANTS.fields, strict=True))
"""Helpers that came later, and the constant without which the verifier never gets to them."""
ATOMIC, LOAD_SIGNED, SWAP, LONG_JUMP = (0xC3, 0xDB), (0x81, 0x89, 0x91), 0xD7, 0x06
ALU_MOV, ALU_DIV_MOD = (0xB4, 0xB7, 0xBC, 0xBF), (0x34, 0x37, 0x3C, 0x3F, 0x94, 0x97, 0x9C, 0x9F)

TC, CGROUP_SOCK, SOCK_OPS = 3, 9, 13
"""BPF_PROG_TYPE_SCHED_CLS, _CGROUP_SOCK, _SOCK_OPS."""
EVERY: Final = frozenset({TC, CGROUP_SOCK, CGROUP_SOCK_ADDR, SOCK_OPS})
CALLABLE: Final = {
    1: EVERY,  # map_lookup_elem
    2: EVERY,  # map_update_elem
    3: EVERY,  # map_delete_elem
    5: EVERY,  # ktime_get_ns
    7: EVERY,  # get_prandom_u32
    9: {TC},  # skb_store_bytes
    10: {TC},  # l3_csum_replace
    11: {TC},  # l4_csum_replace
    23: {TC},  # redirect
    26: {TC},  # skb_load_bytes
    28: {TC},  # csum_diff
    38: {TC},  # skb_change_tail
    46: EVERY,  # get_socket_cookie
    50: {TC},  # skb_adjust_room
    59: {SOCK_OPS},  # sock_ops_cb_flags_set
    86: {TC, CGROUP_SOCK_ADDR},  # sk_release
    95: {TC},  # sk_fullsock
    96: {TC, SOCK_OPS},  # tcp_sock
    99: {TC, CGROUP_SOCK_ADDR},  # skc_lookup_tcp
    107: EVERY,  # sk_storage_get; CGROUP_SOCK since 5.9
    118: EVERY,  # jiffies64
    122: {CGROUP_SOCK, CGROUP_SOCK_ADDR},  # get_netns_cookie; TC and SOCK_OPS since 5.14
    123: {CGROUP_SOCK, CGROUP_SOCK_ADDR},  # get_current_ancestor_cgroup_id
    130: EVERY,  # ringbuf_output
    131: EVERY,  # ringbuf_reserve
    132: EVERY,  # ringbuf_submit
    134: EVERY,  # ringbuf_query
    137: {TC, CGROUP_SOCK_ADDR, SOCK_OPS},  # skc_to_tcp_sock
    143: {SOCK_OPS},  # store_hdr_opt
    144: {SOCK_OPS},  # reserve_hdr_opt
}
"""Types of programs that may call a helper in 5.10: sock_filter_func_proto(), sock_addr_func_proto(),
tc_cls_act_func_proto() and sock_ops_func_proto() of its net/core/filter.c, and the functions that these end in,
bpf_sk_base_func_proto() and bpf_base_func_proto()."""
HOOKS: Final = {
    CGROUP_SOCK: {34},  # sock_release, 5.9
    CGROUP_SOCK_ADDR: {10, 11, 14, 15, 19, 20, 29, 30},  # connect, sendmsg, recvmsg; getpeername, 5.8
    SOCK_OPS: {3},
    TC: {0},
}
"""enum bpf_attach_type by type of program."""
NEWEST_MAP: Final = 28
"""BPF_MAP_TYPE_INODE_STORAGE, the last of 5.10: ring buffers (27) are of 5.8, storage of sockets (24) is of 5.2."""
MAP_FLAGS: Final = (1 << 13) - 1
"""Up to BPF_F_INNER_MAP of 5.10."""
BATCHED: Final = {1, 2, 5, 9, 11}
"""Types of maps that 5.10 reads and writes in batches: hashes, LRUs and arrays; per processor, hashes alone (5.13). LPM
tries (11) are read and written one by one where there are no batches (libbpf.py)."""


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


def each(following: Callable[..., int | None], opened: libbpf.Object) -> Iterator[int]:
    """Programs or maps of an object, as libbpf's pointers."""
    pointer = None
    while pointer := following(opened._pointer, pointer):
        yield pointer


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    """libbpf, with the calls that only this scan needs."""
    found = libbpf.library()
    for name in ("program__type", "program__expected_attach_type", "map__type", "map__map_flags"):
        getattr(found, f"bpf_{name}").argtypes = (ctypes.c_void_p,)
    found.bpf_object__next_program.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    found.bpf_object__next_program.restype = ctypes.c_void_p
    found.bpf_program__name.argtypes, found.bpf_program__name.restype = (ctypes.c_void_p,), ctypes.c_char_p
    return found


@pytest.fixture(scope="module")
def opened() -> Iterator[libbpf.Object]:
    """The object, not loaded: that needs neither rights nor a kernel with BPF."""
    found = libbpf.Object(OBJECT)
    yield found
    found.close()


def refused(types: dict[str, int], called: dict[str, frozenset[int]]) -> dict[str, set[int]]:
    """Helpers that a program calls and 5.10 refuses to one of its type."""
    found = {
        name: {each for each in helpers if types[name] not in CALLABLE.get(each, ()) and each not in GUARDED}
        for name, helpers in called.items()
    }
    return {name: helpers for name, helpers in found.items() if helpers}


def types_of(library: ctypes.CDLL, opened: libbpf.Object) -> dict[str, int]:
    """The type of each program, by its name."""
    programs = each(library.bpf_object__next_program, opened)
    return {library.bpf_program__name(one).decode(): library.bpf_program__type(one) for one in programs}


def test_no_instruction_is_newer_than_the_floor() -> None:
    code = dict(bpf_object.read(OBJECT).code())
    assert "cgroup/connect4" in code
    assert {name: newer(raw) for name, raw in code.items() if newer(raw)} == {}


def test_every_helper_is_there_for_the_type_of_program_that_calls_it(
    library: ctypes.CDLL, opened: libbpf.Object
) -> None:
    called = bpf_object.read(OBJECT).programs()
    assert called.keys() == {row.name for row in PROGRAMS}
    assert refused(types_of(library, opened), called) == {}
    for helper in GUARDED:
        assert any(helper in helpers for helpers in called.values()), "nobody calls it: it needs no constant"


def test_every_program_is_of_a_type_and_for_a_hook_of_the_floor(library: ctypes.CDLL, opened: libbpf.Object) -> None:
    found = {
        library.bpf_program__name(one).decode(): (
            library.bpf_program__type(one),
            library.bpf_program__expected_attach_type(one),
        )
        for one in each(library.bpf_object__next_program, opened)
    }
    assert found["connects"] == (SOCK_OPS, 3)
    assert {name: found for name, (kind, hook) in found.items() if hook not in HOOKS.get(kind, ())} == {}


def test_every_map_is_of_a_type_and_has_flags_of_the_floor(library: ctypes.CDLL, opened: libbpf.Object) -> None:
    maps = each(library.bpf_object__next_map, opened)
    found = {
        library.bpf_map__name(one).decode(): (library.bpf_map__type(one), library.bpf_map__map_flags(one))
        for one in maps
    }
    assert found.keys() > MAPS.keys()
    assert {name for name, (kind, flags) in found.items() if kind > NEWEST_MAP or flags & ~MAP_FLAGS} == set()
    read = {name for name, row in MAPS.items() if row.show}
    assert {name for name in read if found[name][0] not in BATCHED} == set()


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (struct.pack("<BBhi", 0xDB, 0x10, 0, 1), "atomic"),
        (struct.pack("<BBhi", 0xDB, 0x10, 0, 0), ""),
        (struct.pack("<BBhi", 0x85, 0x20, 0, 1), "kernel function"),
        (struct.pack("<BBhi", 0x3F, 0x10, 1, 0), "signed division"),
        (struct.pack("<BBhi", 0x18, 0x01, 0, 0) + struct.pack("<BBhi", 0xD7, 0x00, 0, 0), ""),
    ],
)
def test_the_scan_finds_what_it_is_for(code: bytes, found: str) -> None:
    assert found in " ".join(newer(code))
    assert bool(newer(code)) == bool(found)


def test_the_scan_finds_a_helper_that_is_new_or_of_another_type() -> None:
    assert bpf_object.helpers(struct.pack("<BBhi", 0x85, 0x00, 0, 211)) == {211}
    assert bpf_object.helpers(struct.pack("<BBhi", 0x85, 0x10, 0, 211)) == set(), "a call of another function"
    called = frozenset({1, 122, 211, *GUARDED})
    assert refused({"t": TC, "c": CGROUP_SOCK_ADDR}, {"t": called, "c": called}) == {"t": {122, 211}, "c": {211}}
