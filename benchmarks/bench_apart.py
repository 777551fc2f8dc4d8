"""What a process of its own for the maps would give, which no agent has: an upper bound of the next factor.

    make bench-apart                                # or: .venv/bin/python benchmarks/bench_apart.py --services 50000

The services of bench_lb come in until all are in the maps, which are dicts here, and go until nothing is left: once in
one process, and once with plans sent over a pipe to a second one that writes the maps. Nothing comes back from it but
that all is written, while a real one would have to answer for each plan. Wall time, medians of some rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import gc
import os
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from statistics import median
from typing import Any, Final, NamedTuple

import msgspec
from bench_lb import ENTRIES, ROUNDS, SERVICES, SHAPES, Node, through

from isthmus.datapath import PlanTarget
from isthmus.datapath.core.maps import DictMaps
from isthmus.datapath.services.restore import restore
from isthmus.model import chunked
from isthmus.model.balancing import Plan
from isthmus.processes.start import COLLECT_AFTER

HEAD: Final = struct.Struct("!BI")
"""Of a message: what it is, and how many bytes follow."""
UPDATE: Final = 0
DELETE: Final = 1
END: Final = 2
ROOM: Final = 1 << 20
"""Bytes of the pipe: some rounds of plans. With the 64 KiB that a pipe has, one process waits for the other in turn."""


class Apart:
    """The reconciler's target, which sends what it is given to the process that has the maps."""

    def __init__(self, pipe: int, done: int) -> None:
        self._pipe = pipe
        self._done = done
        self._encoder = msgspec.msgpack.Encoder(enc_hook=chunked.plain)

    async def update(self, rows: Sequence[Plan]) -> Mapping[Any, str]:
        """Send plans."""
        self._send(UPDATE, rows)
        return {}

    async def delete(self, rows: Sequence[Plan]) -> Mapping[Any, str]:
        """Send plans that go."""
        self._send(DELETE, rows)
        return {}

    async def prune(self, rows: Iterable[Plan]) -> str:
        """Nothing: the other process began empty."""
        return "nothing"

    def sweep_due(self) -> int:
        """Nothing: the other process sweeps."""
        return 0

    def settle(self) -> None:
        """Wait until all that was sent is written."""
        self._send(END)
        assert os.read(self._done, 1), "the process that has the maps has ended"

    def _send(self, kind: int, rows: Sequence[Plan] = ()) -> None:
        """Write a message; waits while the pipe is full."""
        body = self._encoder.encode(rows)
        left = memoryview(HEAD.pack(kind, len(body)) + body)
        while left:
            left = left[os.write(self._pipe, left) :]


class Ways(NamedTuple):
    """Services per second, in and out."""

    in_: float
    out: float


@contextmanager
def second_process() -> Iterator[Apart]:
    """A process that has the maps, and what sends plans to it."""
    (source, pipe), (done, end) = os.pipe(), os.pipe()
    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, ROOM)
    if (child := os.fork()) == 0:
        os.close(pipe)
        asyncio.new_event_loop().run_until_complete(follow(source, end))
        os._exit(0)
    os.close(source)
    os.close(end)
    try:
        yield Apart(pipe, done)
    finally:
        os.close(pipe)
        os.close(done)
        os.waitpid(child, 0)


async def follow(source: int, done: int) -> None:
    """The second process: messages into maps until the pipe ends."""
    maps = DictMaps()
    target = PlanTarget(maps, restore(maps, backends=ENTRIES), grace=0.0)
    decoder = msgspec.msgpack.Decoder(list[Plan])
    with os.fdopen(source, "rb") as pipe:
        while head := pipe.read(HEAD.size):
            kind, size = HEAD.unpack(head)
            rows = decoder.decode(pipe.read(size))
            if kind == END:
                os.write(done, b".")
                continue
            await (target.update if kind == UPDATE else target.delete)(rows)
            target.sweep_due()


async def measured(count: int, *, apart: bool) -> Ways:
    """All of them in, then out."""
    found: list[float] = []
    with second_process() if apart else nullcontext() as target:
        node = await Node(DictMaps(), target=target).begun()
        for change in SHAPES["services"]:
            events = [change(n) for n in range(count)]
            gc.collect()
            began = time.perf_counter()
            await through(node, events, hops=1.0)
            if target is not None:
                target.settle()
            found.append(count / (time.perf_counter() - began))
    return Ways(*found)


async def main() -> None:
    """The table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--services", type=int, default=SERVICES, help="how many")
    options.add_argument("--rounds", type=int, default=ROUNDS, help="of which the medians are taken")
    given = options.parse_args()
    gc.set_threshold(*COLLECT_AFTER)  # as our processes do
    rounds = [[await measured(given.services, apart=apart) for apart in (False, True)] for _ in range(given.rounds)]
    one, two = (Ways(*map(median, zip(*each, strict=True))) for each in zip(*rounds, strict=True))
    print(f"{'':<24} {'in':>11} {'out':>11}")
    for label, each in (("one process", one), ("maps in a second one", two)):
        print(f"{label:<24} {each.in_:>9,.0f}/s {each.out:>9,.0f}/s")
    print(f"{'times as fast':<24} {two.in_ / one.in_:>11.2f} {two.out / one.out:>11.2f}")


if __name__ == "__main__":
    asyncio.run(main())
