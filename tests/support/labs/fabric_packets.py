"""What crosses a network namespace of a lab, byte by byte."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from isthmus_lab import kernel

ETH_P_ALL: Final = 0x0003
ETH_P_IP: Final = b"\x08\x00"
NETNS: Final = Path("/run/netns")
SO_RCVBUFFORCE: Final = 33
"""Of <asm-generic/socket.h>: a receive buffer beyond the host's limit."""
BUFFER: Final = 64 << 20


class Captured:
    """Frames on all interfaces of a namespace while it is entered."""

    def __init__(self, namespace: str) -> None:
        self.frames: list[bytes] = []
        with kernel.inside(NETNS / namespace):  # a socket belongs to the namespace that it was made in
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
        self._socket.settimeout(0.2)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Captured:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        self._socket.setblocking(False)
        with suppress(BlockingIOError):  # what was not read yet
            while True:
                self.frames.append(self._socket.recv(1 << 17))
        self._socket.close()

    def _read(self) -> None:
        while not self._ended.is_set():
            try:
                self.frames.append(self._socket.recv(1 << 17))
            except TimeoutError:
                continue

    def having(self, text: bytes) -> int:
        """How many frames have these bytes."""
        return sum(text in frame for frame in self.frames)

    def addresses(self) -> set[str]:
        """Sources and destinations, of IPv4."""
        headers = [frame[26:34] for frame in self.frames if frame[12:14] == ETH_P_IP]
        return {socket.inet_ntoa(both[at : at + 4]) for both in headers for at in (0, 4)}

    def ports(self) -> set[int]:
        """Ports of TCP that something was sent to, of IPv4 without options."""
        found = [frame[36:38] for frame in self.frames if frame[12:14] == ETH_P_IP and frame[23] == socket.IPPROTO_TCP]
        return {int.from_bytes(each, "big") for each in found}
