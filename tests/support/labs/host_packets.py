"""Packets of a lab on the host's own interfaces: there must be none, whatever error a caller inside got."""

from __future__ import annotations

import ipaddress
import socket
import threading
from types import TracebackType
from typing import Final

ETH_P_ALL: Final = 0x0003
ETH_P_IP: Final = 0x0800
ETH_P_IPV6: Final = 0x86DD
LAB: Final = [ipaddress.ip_network(n) for n in ("172.30.0.0/16", "10.96.0.0/16", "169.254.7.1/32")] + [
    ipaddress.ip_network(f"10.{cluster}.0.0/16") for cluster in range(1, 10)
]
LAB6: Final = [ipaddress.ip_network(n) for n in ("fd00:10::/32", "fd00:172::/32", "fd00:169::/32")]


class Watched:
    """Looks at every packet of every interface of the host while it is entered; ``found`` has the lab's."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.seen = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Watched:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
        self._socket.settimeout(0.2)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        self._socket.close()

    def _look(self) -> None:
        while not self._stop.is_set():
            try:
                packet, (interface, protocol, *_) = self._socket.recvfrom(2048)
            except TimeoutError:
                continue
            self.seen += 1
            if protocol == ETH_P_IP and len(packet) >= 20:
                self._judge(interface, packet[12:20])
            elif protocol == ETH_P_IPV6 and len(packet) >= 40:
                self._judge(interface, packet[8:40])

    def _judge(self, interface: str, both: bytes) -> None:
        """A packet by its source and destination."""
        length = len(both) // 2
        ends = [ipaddress.ip_address(both[:length]), ipaddress.ip_address(both[length:])]
        if any(end in network for end in ends for network in (*LAB, *LAB6)):
            self.found.append(f"{interface}: {ends[0]} → {ends[1]}")
