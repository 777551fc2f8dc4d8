"""Stands in for an image that is not here: listens on the container's ports and answers, so that probes pass.

    stand_in.py NAME [tcp:PORT] [udp:PORT]…

On a TCP port by what the caller sends first: HTTP gets 200 and a JSON object that repeats the request; gRPC (HTTP/2
with prior knowledge) gets ``SERVING`` of grpc.health.v1 to every call; anything else is echoed, as datagrams are.
Standard library only.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from typing import Final

OWN: Final = os.environ.get("LAB_ADDRESS", "")
"""The one address to listen on, where the pod has no network of its own."""
METHODS: Final = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"PATC", b"OPTI")
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LARGEST: Final = 1 << 16
"""Bytes of an HTTP request's head, of a frame of HTTP/2, of a datagram."""

DATA, HEADERS, SETTINGS, PING, GOAWAY = 0, 1, 4, 6, 7
END_STREAM, END_HEADERS, ACK = 1, 4, 1
OK: Final = b"\x88" + b"\x00\x0ccontent-type\x10application/grpc"
"""HPACK (RFC 7541): ``:status 200`` of the static table, and a literal."""
TRAILERS: Final = b"\x00\x0bgrpc-status\x010"
SERVING: Final = b"\x00\x00\x00\x00\x02\x08\x01"
"""A message of gRPC: not compressed, two bytes: HealthCheckResponse with status = SERVING."""


def serve(caller: socket.socket, name: str) -> None:
    """One connection, until either side ends it."""
    with caller:
        caller.settimeout(300.0)
        try:
            first = caller.recv(LARGEST)
            if first.startswith(PREFACE[: len(first)]) and first:
                _grpc(caller, first)
            elif first.startswith(METHODS):
                _http(caller, first, name)
            else:
                while first:
                    caller.sendall(first)
                    first = caller.recv(LARGEST)
        except (OSError, ValueError):
            pass  # the caller is gone, or speaks nothing of this


def _http(caller: socket.socket, head: bytes, name: str) -> None:
    """One request per connection."""
    while b"\r\n\r\n" not in head and len(head) < LARGEST:
        more = caller.recv(LARGEST)
        if not more:
            return
        head += more
    method, path, *_ = head.split(None, 2)
    address = caller.getpeername()[0].removeprefix("::ffff:")
    seen = {"standsInFor": name, "pod": socket.gethostname(), "method": method.decode(errors="replace")}
    answer = json.dumps({**seen, "path": path.decode(errors="replace"), "caller": address}).encode() + b"\n"
    lines = ("HTTP/1.1 200 OK", "Content-Type: application/json", f"Content-Length: {len(answer)}", "Connection: close")
    caller.sendall("\r\n".join((*lines, "", "")).encode() + (b"" if method == b"HEAD" else answer))


def _grpc(caller: socket.socket, received: bytes) -> None:
    """Every stream that its caller ends gets the same answer; nothing of the request is looked at."""
    caller.sendall(_frame(SETTINGS, 0, 0, b""))
    stream = caller.makefile("rb")
    rest = received[len(PREFACE) :]
    if len(received) < len(PREFACE):
        stream.read(len(PREFACE) - len(received))

    def read(count: int) -> bytes:
        nonlocal rest
        kept, rest = rest[:count], rest[count:]
        return kept + (stream.read(count - len(kept)) or b"")

    while len(head := read(9)) == 9:
        size, kind, flags, number = int.from_bytes(head[:3], "big"), head[3], head[4], int.from_bytes(head[5:], "big")
        payload = read(min(size, LARGEST))
        if kind == GOAWAY or size > LARGEST:
            return
        if kind in (SETTINGS, PING) and not flags & ACK:
            caller.sendall(_frame(kind, ACK, 0, payload if kind == PING else b""))
        if kind in (DATA, HEADERS) and flags & END_STREAM:
            answer = _frame(HEADERS, END_HEADERS, number, OK) + _frame(DATA, 0, number, SERVING)
            caller.sendall(answer + _frame(HEADERS, END_HEADERS | END_STREAM, number, TRAILERS))


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _tcp(port: int, name: str) -> None:
    kind = socket.AF_INET if OWN else socket.AF_INET6
    listening = socket.create_server((OWN or "::", port), family=kind, dualstack_ipv6=not OWN, backlog=128)

    def accept() -> None:
        while True:
            caller, _ = listening.accept()
            threading.Thread(target=serve, args=(caller, name), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def _udp(port: int) -> None:
    here = socket.socket(socket.AF_INET if OWN else socket.AF_INET6, socket.SOCK_DGRAM)
    if not OWN:
        here.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    here.bind((OWN or "::", port))

    def echo() -> None:
        while True:
            data, caller = here.recvfrom(LARGEST)
            here.sendto(data, caller)

    threading.Thread(target=echo, daemon=True).start()


def main() -> None:
    """Serve until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    name, *ports = sys.argv[1:]
    for port in ports:
        protocol, _, number = port.partition(":")
        if protocol == "udp":
            _udp(int(number))
        else:
            _tcp(int(number), name)
    print(f"stands in for {name}: {' '.join(ports) or 'no ports'}", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
