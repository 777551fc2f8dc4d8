"""No chain of calls takes more stack than kernels before 6.9 have, which round each function up by more than later.

So a program that a new kernel takes can be refused by all older ones ("combined stack size of 6 calls is 544. Too
large"): check_max_stack_depth() of kernel/bpf/verifier.c, as this test does it.
"""

from __future__ import annotations

import struct

import pytest
from datapath_worlds import bpf_object
from datapath_worlds.bpf_object import Function

from isthmus.datapath.core.attach import OBJECT

MAX_BPF_STACK = 512
ROUNDED_TO = 32
FRAMES = 8
"""MAX_CALL_FRAMES."""

Functions = dict[tuple[int, int], Function]


def deepest(functions: Functions, at: tuple[int, int]) -> list[Function]:
    """The chain of calls from a function that takes most, itself first."""
    function = functions[at]
    chains = [deepest(functions, called) for called in sorted(function.calls)]
    return [function, *max(chains, key=taken, default=[])]


def taken(chain: list[Function]) -> int:
    """Bytes, as an old kernel counts them: a function without stack takes one unit too."""
    return sum(-(-max(function.stack, 1) // ROUNDED_TO) * ROUNDED_TO for function in chain)


def test_no_chain_of_calls_takes_more_stack_than_an_old_kernel_has() -> None:
    functions = bpf_object.read(OBJECT).functions()
    entries = {
        function.name: deepest(functions, at) for at, function in functions.items() if function.section != ".text"
    }
    assert {"connect4", "sendmsg6", "connects", "from_pod", "to_pod"} <= entries.keys()
    for name, chain in entries.items():
        print(f"{name}: {taken(chain)} = {' + '.join(f'{each.name} {each.stack}' for each in chain)}")
    assert [name for name, chain in entries.items() if taken(chain) > MAX_BPF_STACK] == []
    assert [name for name, chain in entries.items() if len(chain) > FRAMES] == []


def test_a_chain_is_found_across_sections_and_through_functions_without_stack() -> None:
    functions = bpf_object.read(OBJECT).functions()
    [entry] = [at for at, function in functions.items() if function.name == "connect4"]
    names = [function.name for function in deepest(functions, entry)]
    assert names[:2] == ["connect4", "pick_backend"]
    assert names[-1] == "use_slot"


@pytest.mark.parametrize(
    ("instructions", "stack"),
    [
        ([(0x7B, 0x1A, -16, 0)], 16),
        ([(0xBF, 0xA2, 0, 0), (0x07, 0x02, 0, -40)], 40),
        ([(0xBF, 0xA2, 0, 0), (0xB7, 0x02, 0, 1), (0x07, 0x02, 0, -40)], 0),
        ([(0x18, 0x01, 0, -1), (0, 0, 0, -1), (0x79, 0xA1, -8, 0)], 8),
    ],
)
def test_what_a_function_uses_is_read_from_its_instructions(
    instructions: list[tuple[int, int, int, int]], stack: int
) -> None:
    assert bpf_object.stack(b"".join(struct.pack("<BBhi", *each) for each in instructions)) == stack
