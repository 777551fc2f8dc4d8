"""A link's delay, jitter and rate: packets of the link are routed through a TUN device, held here, and put back.

Order is kept: a packet never overtakes an earlier one of the same direction. What waits longer than the queue allows
is dropped, as a router would.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import fcntl
import os
import random
import socket
import struct
from collections import deque
from typing import Any, Final, NamedTuple

from pyroute2 import NetlinkError

from isthmus.running import until_told
from isthmus_lab import kernel
from isthmus_lab.network.namespaces import path
from isthmus_lab.network.netlink import within

TUNSETIFF: Final = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
MTU: Final = 1500
QUEUE: Final = 1000
BATCH: Final = 64
MARKED: Final = 40
BACK: Final = 45
"""Priorities of our rules, which come before those of islands."""


class Timing(NamedTuple):
    """Seconds, and bits per second; a rate of 0 is none."""

    delay: float
    jitter: float
    rate: float


class Line:
    """One direction of a link: when each packet is to come out. Pure but for the dice."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._free = 0.0
        self._last = 0.0

    def departure(self, size: int, now: float) -> float:
        """Time at which to forward a packet of this many bytes that arrives now."""
        timing = self._timing
        if timing.rate:
            self._free = max(now, self._free) + size * 8 / timing.rate
        sent = self._free if timing.rate else now
        arrives = sent + max(0.0, timing.delay + random.uniform(-timing.jitter, timing.jitter))
        self._last = max(self._last, arrives)
        return self._last


class Relay:
    """Holds the packets of one device, which are those of one direction."""

    def __init__(self, device: int, timing: Timing) -> None:
        self._device = device
        self._line = Line(timing)
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(device, self._read)

    def _read(self) -> None:
        for _ in range(BATCH):
            try:
                packet = os.read(self._device, MTU + 64)
            except BlockingIOError:
                return
            if len(self._waiting) >= QUEUE:
                continue
            when = self._line.departure(len(packet), self._loop.time())
            self._waiting.append((when, packet))
            if len(self._waiting) == 1:
                self._loop.call_at(when, self._write)

    def _write(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._loop.time():
            try:
                os.write(self._device, self._waiting.popleft()[1])
            except OSError:
                continue  # the kernel does not want it: lost, as packets are
        if self._waiting:
            self._loop.call_at(self._waiting[0][0], self._write)


async def run(namespace: str, device: str, mark: int, timing: Timing, back: int) -> None:
    """Both directions, until cancelled. Devices and routes go with this process; rules stay, and match nothing.

    ``back`` is the table that routes forwarded packets before the main one; 0 if there is none.
    """
    relays = [Relay(await _device(namespace, f"{device}{way}", mark + way, back), timing) for way in (0, 1)]
    await asyncio.Event().wait()
    del relays


async def _device(namespace: str, name: str, mark: int, back: int) -> int:
    """A TUN device to which packets with a mark are routed. A link's table has the number of its mark."""
    with kernel.inside(path(namespace)):
        opened = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(opened, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    async with within(namespace) as fabric:
        index = (await fabric.link_lookup(ifname=name))[0]
        await fabric.link("set", index=index, state="up", mtu=MTU)
        for family, everything in ((socket.AF_INET, "0.0.0.0/0"), (socket.AF_INET6, "::/0")):
            await fabric.route("replace", family=family, dst=everything, oif=index, table=mark)
            await _rule(fabric, family=family, fwmark=mark, table=mark, priority=MARKED)
            if back:
                await _rule(fabric, family=family, iifname=name, table=back, priority=BACK)
    return opened


async def _rule(fabric: Any, **rule: Any) -> None:
    try:
        await fabric.rule("add", **rule)
    except NetlinkError as error:
        if error.code != errno.EEXIST:  # an earlier relay of this link was killed, and its rule fits
            raise


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(prog="isthmus_lab.network.relay", description=__doc__)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--mark", type=int, required=True)
    parser.add_argument("--delay", type=float, default=0.0, help="milliseconds")
    parser.add_argument("--jitter", type=float, default=0.0, help="milliseconds")
    parser.add_argument("--rate", type=float, default=0.0, help="bits per second")
    parser.add_argument("--table", type=int, default=0, help="where the ways of what was held are")
    options = parser.parse_args()
    timing = Timing(options.delay / 1000, options.jitter / 1000, options.rate)
    until_told(run(options.namespace, options.device, options.mark, timing, options.table))


if __name__ == "__main__":
    main()
