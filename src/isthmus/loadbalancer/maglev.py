"""Maglev hashing: a table from hash to backend that is the same on every node and moves little when backends change.

Permutations, their seed, the keys of backends and the rule for weights are those of Cilium (``pkg/maglev``), so
nodes of both agree. The datapath chooses a cell by a hash of the caller's pod address.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import floor
from typing import Final

from isthmus.model.balancing import Target
from isthmus.model.hosts import joined

SIZES: Final = (251, 509, 1021, 2039, 4093, 8191, 16381, 32749, 65521, 131071)
SIZE: Final = 16381
"""Primes; at least a hundred cells for each backend keep shares within one percent."""

SEED: Final = 0x24B7EF82
MASK: Final = 0xFFFFFFFFFFFFFFFF
C1: Final = 0x87C37B91114253D5
C2: Final = 0x4CF5AD432745937F


def key(target: Target) -> str:
    """Key of a backend in the table. The format is frozen: every node must use the same."""
    return f"[{joined(target.address, target.port)}/{target.protocol},State:active]"


def table(targets: Sequence[Target], *, size: int = SIZE, weights: Sequence[int] | None = None) -> array[int]:
    """Return for each cell the index of its backend in ``targets``; empty if there are no targets."""
    if not targets:
        return array("I")
    order = sorted(range(len(targets)), key=lambda position: key(targets[position]))
    shares = [weights[position] if weights else 1 for position in order]
    cells = _fill([_permutation(key(targets[position]), size) for position in order], shares, size)
    return array("I", [order[cell] for cell in cells])


def _permutation(name: str, size: int) -> tuple[int, int]:
    """Offset and skip of a backend's preference list."""
    first, second = murmur3(name.encode(), SEED)
    return first % size, second % (size - 1) + 1


def _fill(permutations: Sequence[tuple[int, int]], weights: Sequence[int], size: int) -> list[int]:
    """Let backends take their next free cell in turn; one ahead of its weight skips its turn."""
    count, total = len(permutations), sum(weights)
    weighted = total // count > 1
    counters = [weight / count for weight in weights]
    next_cells = [offset for offset, _ in permutations]
    cells = [-1] * size
    for turn in range(size):
        index = turn % count
        if weighted:
            while (turn + 1) * weights[index] < floor(counters[index]):
                index = (index + 1) % count
            counters[index] += total
        cell, skip = next_cells[index], permutations[index][1]
        while cells[cell] >= 0:
            cell = (cell + skip) % size
        cells[cell] = index
        next_cells[index] = (cell + skip) % size
    return cells


def murmur3(data: bytes, seed: int) -> tuple[int, int]:
    """MurmurHash3, x64 variant of 128 bits, as two halves."""
    first = second = seed
    whole = len(data) & ~15
    for offset in range(0, whole, 16):
        first ^= _mix(int.from_bytes(data[offset : offset + 8], "little"), C1, 31, C2)
        first = ((_rotate(first, 27) + second) * 5 + 0x52DCE729) & MASK
        second ^= _mix(int.from_bytes(data[offset + 8 : offset + 16], "little"), C2, 33, C1)
        second = ((_rotate(second, 31) + first) * 5 + 0x38495AB5) & MASK
    tail = data[whole:]
    second ^= _mix(int.from_bytes(tail[8:], "little"), C2, 33, C1)
    first ^= _mix(int.from_bytes(tail[:8], "little"), C1, 31, C2)
    first, second = first ^ len(data), second ^ len(data)
    first = (first + second) & MASK
    second = (first + second) & MASK
    first, second = _finish(first), _finish(second)
    first = (first + second) & MASK
    return first, (first + second) & MASK


def _mix(word: int, before: int, bits: int, after: int) -> int:
    return _rotate(word * before & MASK, bits) * after & MASK


def _rotate(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & MASK


def _finish(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & MASK
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & MASK
    return word ^ word >> 33
