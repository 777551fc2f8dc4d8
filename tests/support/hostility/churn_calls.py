"""Calls in several ways at a rate, from inside a pod; prints a JSON line for each failed or slow call. Standard library
only.

``python3 -I -S churn_calls.py RATE LABEL=HOST:PORT=CLUSTER,…`` calls each way in turn until its standard input ends: a
name is resolved, a connection made, a GET sent, and its answer read. An answer by a pod of another namespace than demo,
or of a cluster that is not listed, is a failure. Every ten seconds, and at the end, a line has totals.
"""

from __future__ import annotations

import itertools
import json
import socket
import sys
import threading
import time
from collections import Counter
from typing import Any, NamedTuple

THREADS = 8
"""Threads of each way: more than calls are under way at once, unless all of them take seconds."""
TIMEOUT = 10.0
"""Seconds for a connect and for each part of an answer: a machine that is busy stands still for seconds."""
SLOW = 2.0
"""Seconds from which a call is printed."""
TOTALS_EVERY = 10.0
NAMESPACE = "demo"


class Way(NamedTuple):
    """A destination, and the clusters that may answer."""

    label: str
    host: str
    port: int
    clusters: frozenset[str]

    @classmethod
    def parse(cls, text: str) -> Way:
        """Read LABEL=HOST:PORT=CLUSTER,…"""
        label, address, clusters = text.split("=")
        host, _, port = address.rpartition(":")
        return cls(label, host, int(port), frozenset(clusters.split(",")))


class CallError(Exception):
    """A failed call: its phase and the reason."""


def call(way: Way) -> dict[str, Any]:
    """Make one call; returns the answer of the pod."""
    phase = "name"
    try:
        [address, *_] = socket.getaddrinfo(way.host, way.port, type=socket.SOCK_STREAM)
        phase = "connect"
        with socket.socket(address[0], socket.SOCK_STREAM) as connection:
            connection.settimeout(TIMEOUT)
            connection.connect(address[4])
            phase = "answer"
            host = way.host.rstrip(".")
            connection.sendall(f"GET /{way.label} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            received = b""
            while part := connection.recv(65536):
                received += part
        head, _, body = received.partition(b"\r\n\r\n")
        if head.split(b" ", 2)[1:2] != [b"200"]:
            raise CallError(phase, head[:200].decode(errors="replace") or "closed without an answer")
        answer: dict[str, Any] = json.loads(body)
    except (OSError, ValueError) as error:
        raise CallError(phase, f"{type(error).__name__}: {error}") from None
    if answer["namespace"] != NAMESPACE or answer["cluster"] not in way.clusters:
        raise CallError("destination", f"answered by {answer['cluster']}/{answer['namespace']}/{answer['pod']}")
    return answer


class Calls:
    """Calls of all ways by one schedule."""

    def __init__(self, rate: float, ways: list[Way]) -> None:
        self._rate, self._ways = rate, ways
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._made: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._peers: dict[str, Counter[str]] = {way.label: Counter() for way in ways}
        self._slowest: dict[str, float] = dict.fromkeys(self._peers, 0.0)
        self._latest = 0.0
        self.stop = threading.Event()

    def run(self, way: int, turns: itertools.count[int]) -> None:
        """Make the calls of a way, each in its turn."""
        for turn in turns:
            due = self._began + (turn * len(self._ways) + way) / self._rate
            if self.stop.wait(max(0.0, due - time.monotonic())):
                return
            self._latest = max(self._latest, time.monotonic() - due)
            self._call(self._ways[way])

    def _call(self, way: Way) -> None:
        started, error, answer = time.time(), None, {}
        began = time.monotonic()
        try:
            answer = call(way)
        except CallError as failure:
            error = failure.args
        took = time.monotonic() - began
        with self._lock:
            self._made[way.label] += 1
            self._slowest[way.label] = max(self._slowest[way.label], took)
            if error is not None:
                self._failed[way.label] += 1
                line = {
                    "failed": way.label,
                    "at": started,
                    "took": round(took, 3),
                    "phase": error[0],
                    "error": error[1],
                }
                print(json.dumps(line), flush=True)
            else:
                self._peers[way.label][f"{answer['cluster']} called by {answer['caller']}"] += 1
                if took > SLOW:
                    print(json.dumps({"slow": way.label, "at": started, "took": round(took, 3)}), flush=True)

    def totals(self) -> dict[str, Any]:
        """Totals since the start."""
        with self._lock:
            slowest = {label: round(took, 3) for label, took in self._slowest.items()}
            parts = {"made": self._made, "failed": self._failed, "answered": self._peers, "slowest": slowest}
            return {"totals": parts, "late": round(self._latest, 2)}


def main() -> None:
    """Call until standard input ends."""
    ways = [Way.parse(text) for text in sys.argv[2:]]
    calls = Calls(float(sys.argv[1]), ways)
    turns = [itertools.count() for _ in ways]
    threads = [
        threading.Thread(target=calls.run, args=(number, turns[number]), daemon=True)
        for number in range(len(ways))
        for _ in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    ended = threading.Thread(target=sys.stdin.read, daemon=True)
    ended.start()
    while ended.is_alive():
        ended.join(TOTALS_EVERY)
        print(json.dumps(calls.totals()), flush=True)
    calls.stop.set()
    for thread in threads:
        thread.join(3 * TIMEOUT)
    print(json.dumps({**calls.totals(), "ended": True}), flush=True)


main()
