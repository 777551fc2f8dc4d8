"""Calls a service by raw TCP, or by HTTP, from inside a pod; prints each cluster that answers, once, and then JSON.

``python3 -I -S tcp_load.py NAME PORT --calls 10000`` or ``--rate 100 --until-eof``: a call is one connection, a line
sent and a line read; with ``--http /path`` a GET, whose answer has to be 200. Failed connects are counted apart from
calls that broke after it. A connect that ends with ECONNRESET had succeeded: Linux gives ECONNREFUSED for a reset
before the peer has accepted (tcp_reset), and a socket with a time-out learns what came of its connect only when it is
scheduled again. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import sys
import time
from collections import Counter

MAX_CALLS = 1_000_000
LINE = b"who?\n"
GET = "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"


def call(address: tuple[str, int], family: int, timeout: float, request: bytes) -> tuple[str, str]:
    """The cluster that answered and what failed: 'connect', 'answer', or nothing."""
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(address)
        except ConnectionResetError as error:
            return "", f"answer: {error}, before the connect was known to have succeeded"
        except OSError as error:
            return "", f"connect: {error}"
        try:
            connection.sendall(request)
            received = b""
            while (request != LINE or not received.endswith(b"\n")) and (part := connection.recv(65536)):
                received += part
            if request != LINE:
                head, _, received = received.partition(b"\r\n\r\n")
                if head.split(b" ", 2)[1:2] != [b"200"]:
                    return "", f"answer: {head[:32].decode(errors='replace') or 'none'}"
            return json.loads(received)["cluster"], ""
        except (OSError, ValueError) as error:
            return "", f"answer: {error}"


def main() -> int:
    """Exit code 0 where every connect succeeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("port", type=int)
    parser.add_argument("--calls", type=int, default=MAX_CALLS, help="end after so many")
    parser.add_argument("--until-eof", action="store_true", help="end when standard input does")
    parser.add_argument("--rate", type=float, default=0.0, help="calls per second, at most; 0: as fast as they go")
    parser.add_argument("--timeout", type=float, default=3.0, help="seconds a connect, or an answer, may take")
    parser.add_argument("--http", default="", metavar="PATH", help="send a GET of that path, not a line")
    options = parser.parse_args()
    family, _, _, _, (host, port, *_) = socket.getaddrinfo(options.name, options.port, type=socket.SOCK_STREAM)[0]
    request = GET.format(path=options.http, host=options.name).encode() if options.http else LINE
    by_backend: Counter[str] = Counter()
    order: list[str] = []
    failed: Counter[str] = Counter()
    first_failure, slowest, made = "", 0.0, 0
    began = time.monotonic()
    while made < min(options.calls, MAX_CALLS):
        if options.until_eof and select.select([sys.stdin], [], [], 0)[0]:
            break
        if options.rate:
            time.sleep(max(0.0, began + made / options.rate - time.monotonic()))
        started = time.monotonic()
        cluster, error = call((str(host), int(port)), family, options.timeout, request)
        made += 1
        slowest = max(slowest, time.monotonic() - started)
        if error:
            failed[error.partition(":")[0]] += 1
            first_failure = first_failure or error
        else:
            by_backend[cluster] += 1
            if by_backend[cluster] == 1:
                print(f"answered by {cluster}", flush=True)
            if not order or order[-1] != cluster:
                order.append(cluster)
    result = {"calls": made, "by": by_backend, "order": order[:1000], "connects_failed": failed["connect"]}
    print(
        json.dumps({**result, "answers_failed": failed["answer"], "first_failure": first_failure, "slowest": slowest})
    )
    return 1 if failed["connect"] else 0


if __name__ == "__main__":
    sys.exit(main())
