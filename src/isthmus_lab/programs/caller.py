"""Calls a service again and again from inside a pod, and prints the result of each call. Standard library only.

Run by the demo and by tests with ``python3 -I -S caller.py NAME PORT --count 60``; a JSON line per call on stdout:
``{"at": seconds since the epoch, "took": seconds, "ok": true, "answer": {...}}`` or ``"error"`` instead of the answer.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time

MAX_CALLS = 100_000


def call(name: str, port: int, timeout: float, *, turn: int) -> dict[str, object]:
    """Resolve, connect, ask, read to the end. Where a name has addresses of both families they take turns."""
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    firsts = list({each[0]: each for each in reversed(found)}.values())
    family, kind, protocol, _, address = firsts[turn % len(firsts)]
    with socket.socket(family, kind, protocol) as connection:
        connection.settimeout(timeout)
        connection.connect(address)
        connection.sendall(f"GET / HTTP/1.0\r\nHost: {name}\r\nAccept: application/json\r\n\r\n".encode())
        received = b""
        while part := connection.recv(65536):
            received += part
        peer = connection.getpeername()[0]
    answer = json.loads(received.partition(b"\r\n\r\n")[2])
    return {"answer": answer, "dialled": address[0], "peer": peer}


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
    wanted = parser.parse_args()
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
