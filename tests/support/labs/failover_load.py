"""Calls from inside a pod, by name and by address, TCP and UDP, both families, until stdin ends.

    failover_load.py [--fast-open] [--connect-timeout SECONDS] NAME PORT ADDRESS…

Each call is a new socket and has its moment in a schedule: one that waits delays no other, as long as a caller is free.
One more caller sends 3 MB there and back, again and again, and compares. Prints one JSON object: calls by kind, those
that failed with phase, errno and duration, the slow ones, how many were under way at most, how late the latest began,
and the rate of the scheduled ones. ``--fast-open``: a TCP call sends a byte in its SYN where the kernel can. Standard
library only.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import itertools
import json
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

RATE = {"tcp": 220, "udp": 110}
"""Calls a second, offered."""
CALLERS = {"tcp": 64, "udp": 192}
"""More than are under way at that rate while two of three backends are silent: of UDP, a call without an answer takes a
second; of TCP, one that is moved twice 0.6 s."""
PAUSE = 0.06
"""Seconds from one transfer to the next."""
CONNECT, ANSWER, LOST = 10.0, 5.0, 1.0
TCP_FASTOPEN_CONNECT = 30
SLOW = 0.25
MEGABYTES = hashlib.sha256(b"isthmus").digest() * (3_000_000 // 32)


class CallError(Exception):
    def __init__(self, phase: str, why: OSError) -> None:
        super().__init__(phase)
        self.phase = phase
        self.why = errno.errorcode.get(why.errno or 0, "")
        self.why = self.why or type(why).__name__


def step(phase: str, action: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return action(*arguments)
    except OSError as why:
        raise CallError(phase, why) from None


def read_line(sock: socket.socket) -> str:
    line = b""
    while not line.endswith(b"\n"):
        piece = sock.recv(1)
        if not piece:
            raise ConnectionError("closed")
        line += piece
    return line.decode().strip()


def transfer(sock: socket.socket) -> None:
    digest, left = hashlib.sha256(), len(MEGABYTES)
    sender = threading.Thread(target=lambda: step("send", sock.sendall, MEGABYTES), daemon=True)
    sender.start()
    while left:
        piece = sock.recv(1 << 16)
        if not piece:
            raise ConnectionError("closed")
        digest.update(piece)
        left -= len(piece)
    if digest.digest() != hashlib.sha256(MEGABYTES).digest():
        raise ValueError("other bytes")


def fast_open(sock: socket.socket, address: Any) -> str:
    """Connect with a byte in the SYN, and return the line that the server sends, which shows that it is connected."""
    sock.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1)
    sock.connect(address)
    sock.sendall(b"?")
    return read_line(sock)


def call(kind: int, family: int, host: str, port: int, *, bulk: bool, options: argparse.Namespace) -> tuple[str, float]:
    """Who answered, and seconds until connected."""
    began = time.monotonic()
    found = step("resolve", socket.getaddrinfo, host, port, family, kind)
    with socket.socket(family, kind) as sock:
        sock.settimeout(options.connect_timeout)
        if options.fast_open and kind == socket.SOCK_STREAM and not bulk:
            name = step("connect", fast_open, sock, found[0][4])
            return name, time.monotonic() - began
        step("connect", sock.connect, found[0][4])
        took = time.monotonic() - began
        sock.settimeout(ANSWER)
        if kind == socket.SOCK_DGRAM:
            sock.settimeout(LOST)
            step("answer", sock.send, b"?")
            return step("answer", sock.recv, 200).decode(), took
        name = step("answer", read_line, sock)
        if bulk:
            step("transfer", transfer, sock)
    return name, took


class Calls:
    """What is called, and what became of it."""

    def __init__(self, options: argparse.Namespace) -> None:
        name, addresses = options.name, options.addresses
        families = [socket.AF_INET6 if ":" in each else socket.AF_INET for each in addresses]
        self._name, self._port, self._options = name, options.port, options
        self._ways = [
            (family, host) for family, address in zip(families, addresses, strict=True) for host in (name, address)
        ]
        self._lock, self._began = threading.Lock(), time.monotonic()
        self._under_way: Counter[str] = Counter()
        self._most: Counter[str] = Counter()
        self._latest = 0.0
        self._scheduled = 0
        self._ended: Counter[str] = Counter()
        self._answered: Counter[str] = Counter()
        self._failed: list[tuple[object, ...]] = []
        self._slow: list[tuple[str, float, float]] = []

    def moment(self, label: str, turn: int) -> float:
        """When a turn of the schedule is, in seconds from now; negative: it is late."""
        return self._began + turn / RATE[label] - time.monotonic()

    def scheduled(self, label: str, turn: int) -> None:
        """A call of the schedule, now."""
        late = -self.moment(label, turn)
        with self._lock:
            self._scheduled += 1
            self._latest = max(self._latest, late)
        self.make(label, turn)

    def make(self, label: str, turn: int) -> None:
        """One call, by name or address and family in turn."""
        family, host = self._ways[turn % len(self._ways)]
        kind = socket.SOCK_DGRAM if label == "udp" else socket.SOCK_STREAM
        way = f"{label}{6 if family == socket.AF_INET6 else 4}{' by name' if host == self._name else ''}"
        at = time.monotonic()
        with self._lock:
            self._under_way[label] += 1
            self._most[label] = max(self._most[label], self._under_way[label])
        try:
            who, took = call(kind, family, host, self._port, bulk=label == "bulk", options=self._options)
            with self._lock:
                self._ended[way] += 1
                self._answered[who] += 1
                if took > SLOW:
                    self._slow.append((way, round(at - self._began, 2), round(took, 2)))
        except (CallError, ValueError) as why:
            details = (why.phase, why.why) if isinstance(why, CallError) else ("transfer", str(why))
            with self._lock:
                self._failed.append((way, *details, round(at - self._began, 2), round(time.monotonic() - at, 2)))
        finally:
            with self._lock:
                self._under_way[label] -= 1

    def summary(self, seconds: float) -> dict[str, object]:
        """Of all calls, which began in so many seconds."""
        return {
            "ended": self._ended,
            "answered": self._answered,
            "failed": self._failed,
            "slow": self._slow,
            "under_way": self._most,
            "late": round(self._latest, 2),
            "seconds": round(seconds, 1),
            "rate": round(self._scheduled / seconds),
        }


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fast-open", action="store_true")
    parser.add_argument("--connect-timeout", type=float, default=CONNECT)
    parser.add_argument("name")
    parser.add_argument("port", type=int)
    parser.add_argument("addresses", nargs="+")
    return parser.parse_args()


def main() -> None:
    stop = threading.Event()
    turns = {label: itertools.count() for label in RATE}
    began = time.monotonic()
    calls = Calls(options())

    def caller(label: str) -> None:
        for turn in turns[label]:
            if stop.wait(max(0.0, calls.moment(label, turn))):
                return
            calls.scheduled(label, turn)

    def bulk() -> None:
        for turn in itertools.count():
            if stop.wait(PAUSE):
                return
            calls.make("bulk", turn)

    threads = [threading.Thread(target=caller, args=(label,)) for label in RATE for _ in range(CALLERS[label])]
    threads.append(threading.Thread(target=bulk))
    for each in threads:
        each.start()
    print("calling", flush=True)
    sys.stdin.read()
    stop.set()
    seconds = time.monotonic() - began
    for each in threads:
        each.join()
    print(json.dumps(calls.summary(seconds)))


main()
