"""Calls a service again and again from inside a pod, and prints the result of each call. Standard library only.

Run by the demo and by tests with ``python3 -I -S caller.py NAME PORT --count 60``; a JSON line per call on stdout:
``{"at": seconds since the epoch, "took": seconds, "ok": true, "answer": {...}}`` or ``"error"`` instead of the answer.

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
from typing import Any

MAX_CALLS = 100_000
NAMES, OWN = os.environ.get("LAB_NAMES", ""), os.environ.get("LAB_ADDRESS", "")
PRIVILEGED, MOVED = 1024, 10_000
"""Ports below, and where they are."""


def resolve(name: str, port: int) -> list[Any]:
    """Addresses as getaddrinfo(3) has them; on loopback addresses, of the name as it is given and IPv4 alone."""
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
    found, at = [], 12 + len(question)
    for _ in range(struct.unpack("!H", reply[6:8])[0]):
        while 0 < reply[at] < 0xC0:
            at += 1 + reply[at]
        at += 2 if reply[at] else 1  # a pointer, or the end
        kind, _, _, length = struct.unpack("!HHIH", reply[at : at + 10])
        if kind == 1:
            found.append(socket.inet_ntoa(reply[at + 10 : at + 14]))
        at += 10 + length
    if not found:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return found


def call(name: str, port: int, timeout: float, *, turn: int) -> dict[str, object]:
    """Resolve, connect, ask, read to the end. Where a name has addresses of both families they take turns."""
    found = resolve(name, port)
    firsts = list({each[0]: each for each in reversed(found)}.values())
    family, kind, protocol, _, address = firsts[turn % len(firsts)]
    with socket.socket(family, kind, protocol) as connection:
        connection.settimeout(timeout)
        if OWN:
            connection.bind((OWN, 0))
        connection.connect(address)
        connection.sendall(f"GET / HTTP/1.0\r\nHost: {name}\r\nAccept: application/json\r\n\r\n".encode())
        received = b""
        while part := connection.recv(65536):
            received += part
        peer = connection.getpeername()[0]
    answer = json.loads(received.partition(b"\r\n\r\n")[2])
    return {"answer": answer, "dialled": address[0], "peer": peer}


def show(name: str) -> int:
    """Print the addresses of a name; exit code 2 where it has none, as getent(1) has it."""
    try:
        for found in resolve(name, 0):
            print(f"{found[4][0]:<15} {name}")
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
    wanted = parser.parse_args()
    if wanted.resolve:
        return show(wanted.name)
    failed = 0
    for turn in range(min(wanted.count, MAX_CALLS)):
        at = time.time()
        result: dict[str, object] = {"at": at}
        try:
            result.update(call(wanted.name, wanted.port, wanted.timeout, turn=turn), ok=True)
        except (OSError, ValueError) as error:
            failed += 1
            result.update(ok=False, error=f"{type(error).__name__}: {error}")
        print(json.dumps({**result, "took": time.time() - at}), flush=True)
        if (result["ok"] and wanted.until_ok) or (not result["ok"] and wanted.until_gone):
            return 0
        if wanted.pause:
            time.sleep(wanted.pause)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
