"""Calls each target of the JSON list in the first argument until all its checks pass or the time is over.

Prints a JSON list with an object per target: check → why it fails, '' where it passes; and the path, 'direct' where the
headless name has the pods' own addresses, 'gateway' where others stand for them, '' where it has none. The second
argument is the time in seconds.
"""

import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

ATTEMPT = 2.0
"""Seconds for one call: a SYN that is lost is sent again after one."""
PAUSE = 0.2
FAMILIES = {"IPv4": socket.AF_INET, "IPv6": socket.AF_INET6}
Target = dict[str, Any]


def resolved(name: str, target: Target) -> set[str]:
    found = socket.getaddrinfo(name, None, FAMILIES[target["family"]], socket.SOCK_STREAM)
    return {str(each[4][0]) for each in found}


def answered(address: str, port: int, target: Target, kind: int) -> str:
    with socket.socket(FAMILIES[target["family"]], kind) as caller:
        caller.settimeout(ATTEMPT)
        caller.connect((address, port))
        if kind == socket.SOCK_DGRAM:
            caller.send(b"?")
        answer = caller.recv(256).decode(errors="replace")
    return "" if answer == target["answer"] else f"{address} answered as {answer!r}"


def by_name(target: Target) -> str:
    resolved(target["name"], target)
    return ""


def by_tcp(target: Target) -> str:
    return answered(min(resolved(target["name"], target)), target["port"], target, socket.SOCK_STREAM)


def by_udp(target: Target) -> str:
    return answered(min(resolved(target["name"], target)), target["port"], target, socket.SOCK_DGRAM)


def headless(target: Target) -> str:
    found, own = resolved(target["headless"], target), set(target["pods"])
    target["path"] = "direct" if found & own else "gateway"
    if found != own and (found & own or len(found) != len(own)):
        return f"resolves to {', '.join(sorted(found))}, not to {', '.join(target['pods'])}"
    why = [answered(each, target["pod_port"], target, socket.SOCK_STREAM) for each in sorted(found)]
    return next((each for each in why if each), "")


CHECKS: dict[str, Callable[[Target], str]] = {"name": by_name, "tcp": by_tcp, "udp": by_udp, "headless": headless}


def check(target: Target, result: dict[str, str], deadline: float) -> None:
    left = list(CHECKS)
    while left:
        for each in list(left):
            try:
                result[each] = CHECKS[each](target)
            except OSError as why:
                result[each] = why.strerror or str(why) or type(why).__name__
            if not result[each]:
                left.remove(each)
        if time.monotonic() > deadline:
            return
        time.sleep(PAUSE if left else 0)


targets: list[Target] = json.loads(sys.argv[1])
deadline = time.monotonic() + float(sys.argv[2])
results: list[dict[str, str]] = [{} for _ in targets]
threads = [threading.Thread(target=check, args=(*pair, deadline)) for pair in zip(targets, results, strict=True)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps([{**result, "path": target.get("path", "")} for result, target in zip(results, targets, strict=True)]))
