"""A slow wire: packets between two namespaces, each held back for a while in both directions. netem needs a module.

    bpf_delay.py NAMESPACE PEER SECONDS

Makes the tun interface ``slow`` in both; prints ``ready`` when packets pass.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import struct
import sys
from pathlib import Path

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
CLONE_NEWNET = 0x40000000


def tun(namespace: str) -> int:
    """The descriptor of a tun interface, made in a namespace."""
    with Path(f"/run/netns/{namespace}").open() as where:
        if ctypes.CDLL(None).setns(where.fileno(), CLONE_NEWNET):
            raise OSError(namespace)
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", b"slow", IFF_TUN | IFF_NO_PI))
    return fd


async def main(namespace: str, peer: str, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    one, other = tun(namespace), tun(peer)

    def forward(from_fd: int, to_fd: int) -> None:
        try:
            loop.call_later(seconds, send, to_fd, os.read(from_fd, 65536))
        except BlockingIOError:
            pass

    def send(fd: int, packet: bytes) -> None:
        try:
            os.write(fd, packet)
        except OSError:
            pass  # the interface is not up yet

    loop.add_reader(one, forward, one, other)
    loop.add_reader(other, forward, other, one)
    print("ready", flush=True)
    await asyncio.Event().wait()


asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
