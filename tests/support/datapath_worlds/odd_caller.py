"""A pod that calls, and may make its own connects fail, for which it needs no right. Standard library only.

odd_caller.py HOST PORT CALLS [ttl|least_ttl]     0: for ever. Prints how many calls each server answered, as JSON.
"""

from __future__ import annotations

import itertools
import json
import socket
import sys
from collections import Counter

OPTIONS = {"ttl": (socket.IP_TTL, 1), "least_ttl": (21, 255)}
"""IP_TTL: packets end at the first hop. IP_MINTTL: answers that have passed one are dropped."""


def call(host: str, port: int, option: tuple[int, int] | None) -> str:
    """Who answered, or how the call failed."""
    with socket.socket() as sock:
        if option is not None:
            sock.setsockopt(socket.IPPROTO_IP, *option)
        sock.settimeout(1.0 if option else 20.0)
        try:
            sock.connect((host, port))
            return sock.recv(200).decode().strip()
        except OSError as why:
            return type(why).__name__


def main() -> None:
    host, port, calls, *option = sys.argv[1:]
    chosen = OPTIONS[option[0]] if option else None
    rounds = range(int(calls)) if int(calls) else itertools.count()
    print(json.dumps(Counter(call(host, int(port), chosen) for _ in rounds)))


main()
