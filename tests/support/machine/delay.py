"""A line with a round trip of so many ms: what is sent to FAR comes back to NEAR that late, as if FAR had sent it.

    python delay.py ROUND_TRIP_MS           # prints "ready"; in a network namespace of its own, as root

Each packet of a TUN device waits and comes back with its addresses exchanged, which leaves checksums as they are: who
connects to FAR reaches what listens at NEAR, by real packets of both directions.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import sys
from collections import deque
from typing import Final

from pyroute2 import IPRoute

NEAR: Final = "10.99.0.1"
FAR: Final = "10.99.0.2"
DEVICE: Final = "delay"
TUNSETIFF: Final = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
LARGEST: Final = 1 << 16


def opened() -> int:
    """The device, with its address."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    with IPRoute() as route:
        [index] = route.link_lookup(ifname=DEVICE)
        route.addr("add", index=index, address=NEAR, prefixlen=24)
        route.link("set", index=index, state="up", txqlen=10_000)
    return device


async def run(device: int, delay: float) -> None:
    """Until it is killed. ``delay``: of each direction, s."""
    loop, waiting = asyncio.get_running_loop(), deque[tuple[float, bytes]]()

    def read() -> None:
        while True:
            try:
                packet = os.read(device, LARGEST)
            except BlockingIOError:
                return
            if packet[0] >> 4 == 4:
                waiting.append((loop.time() + delay, packet[:12] + packet[16:20] + packet[12:16] + packet[20:]))
                if len(waiting) == 1:
                    loop.call_at(waiting[0][0], write)

    def write() -> None:
        while waiting and waiting[0][0] <= loop.time():
            os.write(device, waiting.popleft()[1])
        if waiting:
            loop.call_at(waiting[0][0], write)

    loop.add_reader(device, read)
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run(opened(), float(sys.argv[1]) / 2000))
