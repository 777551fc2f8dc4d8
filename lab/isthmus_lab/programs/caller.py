"""Calls a service again and again from inside a pod, and prints the result of each call. Standard library only.

Run by the demo and by tests with ``python3 -I -S caller.py NAME PORT --count 60``; a JSON line per call on stdout:
``{"at": seconds since the epoch, "took": seconds, "ok": true, "answer": {...}}``. Instead of the answer a call that
failed has ``"error"`` and ``"failed"``: ``name``, ``connect``, or ``answer``, which was lost on a connection. A connect
that ends with ECONNRESET had succeeded: Linux gives ECONNREFUSED for a reset before the peer has accepted (tcp_reset),
and a socket with a time-out gets the result of its connect only when it is scheduled again.

In a lab on loopback addresses the environment has what is elsewhere the pod's own: ``LAB_NAMES`` its name server,
``LAB_ADDRESS`` its address. Ports below 1024 are moved there.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MAX_CALLS = 100_000
NAMES, OWN = os.environ.get("LAB_NAMES", ""), os.environ.get("LAB_ADDRESS", "")
PRIVILEGED, MOVED = 1024, 10_000
"""Ports below, and where they are."""


def resolve(name: str, port: int) -> list[Any]:
    """Resolve by getaddrinfo(3); on loopback addresses, the name as it is given and IPv4 only."""
    if not NAMES:
        return socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    port += MOVED if port < PRIVILEGED else 0
    return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port)) for host in ask(name)]


def ask(name: str, timeout: float = 2.0) -> list[str]:
    """The A records that the name server of ``LAB_NAMES`` has for a name, by RFC 1035; OSError where there are none."""
    host, _, port = NAMES.rpartition(":")
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.rstrip(".").split(".")) + b"\0"
    question = labels + struct.pack("!HH", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.settimeout(timeout)
        server.connect((host, int(port)))
        server.send(struct.pack("!HHHHHH", 1, 0x0100, 1, 0, 0, 0) + question)
        reply = server.recv(4096)
    addresses, position = [], 12 + len(question)
    for _ in range(struct.unpack("!H", reply[6:8])[0]):
        while 0 < reply[position] < 0xC0:
            position += 1 + reply[position]
        position += 2 if reply[position] else 1  # a pointer, or the end
        kind, _, _, length = struct.unpack("!HHIH", reply[position : position + 10])
        if kind == 1:
            addresses.append(socket.inet_ntoa(reply[position + 10 : position + 14]))
        position += 10 + length
    if not addresses:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return addresses


class Failed(Exception):  # noqa: N818
    """A call without an answer: in which phase it failed, and how."""

    def __init__(self, phase: str, error: Exception) -> None:
        super().__init__(phase, error)
        self.phase = phase
        self.error = f"{type(error).__name__}: {error}"


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Errors of the body are failures of this phase of a call."""
    try:
        yield
    except ConnectionResetError as error:
        raise Failed("answer", error) from None
    except (OSError, ValueError) as error:
        raise Failed(name, error) from None


def call(name: str, port: int, timeout: float, *, turn: int) -> dict[str, object]:
    """Resolve, connect, ask, read to the end. Where a name has addresses of both families they take turns."""
    with phase("name"):
        addresses = resolve(name, port)
    firsts = list({each[0]: each for each in reversed(addresses)}.values())
    family, kind, protocol, _, address = firsts[turn % len(firsts)]
    with socket.socket(family, kind, protocol) as connection:
        connection.settimeout(timeout)
        if OWN:
            connection.bind((OWN, 0))
        with phase("connect"):
            connection.connect(address)
        with phase("answer"):
            peer = connection.getpeername()[0]  # not when all is read: of a connection that is then reset it has none
            connection.sendall(f"GET / HTTP/1.0\r\nHost: {name}\r\nAccept: application/json\r\n\r\n".encode())
            received = b""
            while part := connection.recv(65536):
                received += part
            answer = json.loads(received.partition(b"\r\n\r\n")[2])
    return {"answer": answer, "dialled": address[0], "peer": peer}


def show(name: str) -> int:
    """Print the addresses of a name; exit code 2 if it has none, as in getent(1)."""
    try:
        for address in resolve(name, 0):
            print(f"{address[4][0]:<15} {name}")
    except OSError:
        return 2
    return 0


def main() -> int:
    """Exit code 0 when every call was answered, or the first one where only that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("port", type=int)
    parser.add_argument("--count", type=int, default=1, help="how many calls, at most 100,000")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two calls")
    parser.add_argument("--timeout", type=float, default=3.0, help="seconds a call may take")
    parser.add_argument("--until-ok", action="store_true", help="stop at the first answer")
    parser.add_argument("--until-gone", action="store_true", help="stop at the first failure")
    parser.add_argument("--resolve", action="store_true", help="call nothing: print addresses, as getent does")
    options = parser.parse_args()
    if options.resolve:
        return show(options.name)
    failed = 0
    for turn in range(min(options.count, MAX_CALLS)):
        started = time.time()
        result: dict[str, object] = {"at": started}
        try:
            result.update(call(options.name, options.port, options.timeout, turn=turn), ok=True)
        except Failed as error:
            failed += 1
            result.update(ok=False, failed=error.phase, error=error.error)
        print(json.dumps({**result, "took": time.time() - started}), flush=True)
        if (result["ok"] and options.until_ok) or (not result["ok"] and options.until_gone):
            return 0
        if options.pause:
            time.sleep(options.pause)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
