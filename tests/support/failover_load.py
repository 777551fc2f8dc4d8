"""Calls from inside a pod, by name and by address, TCP and UDP, both families, until stdin ends.

    failover_load.py NAME PORT ADDRESS…

Prints one JSON object: calls by kind, those that failed with phase, errno and duration, the slow ones and the rate.
Standard library only. Each call is a new socket. One of the callers sends 3 MB there
and back, again and again, and compares. UDP has callers of its own, and more of them: one whose datagram is lost waits
for a second.
"""

from __future__ import annotations

import errno
import hashlib
import json
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

CALLERS = {"tcp": 16, "udp": 96}
CYCLE = {"tcp": 0.06, "udp": 0.6}
"""Seconds from one call of a caller to its next: all make 425 a second where the machine can, and 300 of them come
about while two of three backends are silent: 96 callers, of whose calls two thirds take a second."""
CONNECT, ANSWER, LOST = 10.0, 5.0, 1.0
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


def call(kind: int, family: int, host: str, port: int, *, bulk: bool) -> tuple[str, float]:
    """Who answered, and seconds until connected."""
    began = time.monotonic()
    found = step("resolve", socket.getaddrinfo, host, port, family, kind)
    with socket.socket(family, kind) as sock:
        sock.settimeout(CONNECT)
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


def main() -> None:
    stop = threading.Event()
    name, port, *addresses = sys.argv[1:]
    families = [socket.AF_INET6 if ":" in each else socket.AF_INET for each in addresses]
    kinds = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}
    ways = [(family, host) for family, address in zip(families, addresses, strict=True) for host in (name, address)]
    ended: Counter[str] = Counter()
    answered: Counter[str] = Counter()
    failed: list[tuple[object, ...]] = []
    slow: list[tuple[str, float, float]] = []
    lock, began = threading.Lock(), time.time()

    def caller(label: str, n: int) -> None:
        turn, kind, bulk = n, kinds[label], (label, n) == ("tcp", 0)
        time.sleep(CYCLE[label] * n / CALLERS[label])
        while not stop.is_set():
            family, host = ways[turn % len(ways)]
            turn += 1
            at = time.time()
            way = f"{'bulk' if bulk else label}{6 if family == socket.AF_INET6 else 4}"
            way += " by name" if host == name else ""
            try:
                who, took = call(kind, family, host, int(port), bulk=bulk)
                with lock:
                    ended[way] += 1
                    answered[who] += 1
                    if took > SLOW:
                        slow.append((way, round(at - began, 2), round(took, 2)))
            except (CallError, ValueError) as why:
                with lock:
                    details = (why.phase, why.why) if isinstance(why, CallError) else ("transfer", str(why))
                    failed.append((way, *details, round(at - began, 2), round(time.time() - at, 2)))
            time.sleep(max(0.0, at + CYCLE[label] - time.time()))

    threads = [threading.Thread(target=caller, args=(label, n)) for label in kinds for n in range(CALLERS[label])]
    for each in threads:
        each.start()
    print("calling", flush=True)
    sys.stdin.read()
    stop.set()
    for each in threads:
        each.join()
    seconds = time.time() - began
    made = sum(ended.values()) + len(failed)
    print(
        json.dumps(
            {
                "ended": ended,
                "answered": answered,
                "failed": failed,
                "slow": slow,
                "seconds": round(seconds, 1),
                "rate": round(made / seconds),
            }
        )
    )


main()
