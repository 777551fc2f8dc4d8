"""Rings: tables for consistent hashing, which map a caller to the same backend on every node.

A ring is the table of ``isthmus.loadbalancer.maglev`` over the groups that currently get calls. It is written whole
under a new plan and never changed, so a call finds the old ring or the new one.
"""

from __future__ import annotations

import sys
from array import array
from functools import lru_cache

from isthmus.datapath.services import codecs
from isthmus.datapath.services.installed import Installed, State
from isthmus.loadbalancer import maglev
from isthmus.model.balancing import Target

WEIGHT_OF_ONE = 1_000
_MASK = 0xFFFF_FFFF_FFFF_FFFF


def entries(state: State, plan: Installed) -> list[tuple[bytes, bytes]]:
    """The ring of a plan in chunks; empty without consistent hashing or without usable backends."""
    weights = _weights(plan) if plan.flags & codecs.PLAN_CONSISTENT else {}
    if not weights:
        return []
    numbers = sorted(weights, key=lambda number: state.backends[number].target)
    targets = tuple(state.backends[number].target for number in numbers)
    cells = array("I", [numbers[place] for place in _table(targets, tuple(weights[n] for n in numbers))])
    cells.extend([0] * (len(plan.chunks()) * codecs.RING_CHUNK - len(cells)))
    assert cells.itemsize == 4, sys.platform
    parts = (cells[chunk * codecs.RING_CHUNK : (chunk + 1) * codecs.RING_CHUNK] for chunk in plan.chunks())
    return [
        (codecs.RING_KEY.pack(plan.id, chunk), codecs.RING.pack(plan.id, part.tobytes()))
        for chunk, part in enumerate(parts)
    ]


def cell(caller: bytes) -> int:
    """The cell of a caller's address (16 bytes), as bpf/select.h computes it; explains and tests choices."""
    high, low = int.from_bytes(caller[:8], "big"), int.from_bytes(caller[8:], "big")
    return (_mix(_mix(high) ^ low) >> 32) * codecs.RING_CELLS >> 32


def _weights(plan: Installed) -> dict[int, int]:
    """Each backend's weight: an equal part of its group's weight, summed over the groups that get calls."""
    sizes = [(tier, weight, len(group)) for (tier, weight), group in zip(plan.shares, plan.slots, strict=True)]
    weights: dict[int, int] = {}
    for bound, (_, weight, size), group in zip(codecs.cumulative_weights(sizes), sizes, plan.slots, strict=True):
        for number in group if bound else ():
            weights[number] = weights.get(number, 0) + max(1, weight * WEIGHT_OF_ONE // size)
    return weights


@lru_cache(maxsize=64)
def _table(targets: tuple[Target, ...], weights: tuple[int, ...]) -> array[int]:
    """The Maglev table; equal weights are passed as none."""
    different = len(set(weights)) > 1
    return maglev.table(targets, size=codecs.RING_CELLS, weights=weights if different else None)


def _mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
    return x ^ x >> 31
