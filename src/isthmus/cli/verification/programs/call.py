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
BULK = 64 * 1024
"""Bytes sent each way over TCP: more than a window's first segments, so that full ones are sent in both directions."""
SEGMENTS = (1400, 1360, 1300, 1240, 1100, 536)
"""Largest segments and datagrams that are tried, in bytes, where full ones get no answer."""
DATAGRAM = 1400
LARGEST_DATAGRAM = 8972
"""Payload of a packet of 9,000 bytes: a larger path MTU (a loopback's) is of no interest."""
IP_MTU, IPV6_MTU = 14, 24
"""From linux/in.h and linux/in6.h; Python does not name them."""
FAMILIES = {"IPv4": socket.AF_INET, "IPv6": socket.AF_INET6}
Target = dict[str, Any]


def resolved(name: str, target: Target) -> set[str]:
    found = socket.getaddrinfo(name, None, FAMILIES[target["family"]], socket.SOCK_STREAM)
    return {str(each[4][0]) for each in found}


def answered(address: str, port: int, target: Target) -> str:
    """Connect, read the answer, then send and receive BULK bytes. Returns why that failed, or an empty string."""
    if why := _bulk(address, port, target, size=0):
        return why
    if not (why := _in_time(_bulk, address, port, target, BULK)):
        return ""
    for segment in SEGMENTS:
        if not _in_time(_bulk, address, port, target, BULK, segment):
            return f"{address}: {BULK // 1024} kB get no answer; with segments of {segment} bytes they do: {BLACK_HOLE}"
    return f"{address}: a few bytes pass, {BULK // 1024} kB each way do not: {why}"


BLACK_HOLE = "packets that are too large are dropped without ICMP (path MTU)"


def _in_time(attempt: Callable[..., str], *arguments: Any) -> str:
    try:
        return attempt(*arguments)
    except OSError as error:
        return str(error) or type(error).__name__


def _bulk(address: str, port: int, target: Target, size: int, segment: int = 0) -> str:
    answer = target["answer"].encode()
    with socket.socket(FAMILIES[target["family"]], socket.SOCK_STREAM) as caller:
        caller.settimeout(ATTEMPT)
        if segment:
            caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment)
        caller.connect((address, port))
        sender = threading.Thread(target=_send, args=(caller, size), daemon=True)
        sender.start()
        received = bytearray()
        while len(received) < len(answer) + size and (data := caller.recv(1 << 16)):
            received += data
    if bytes(received[: len(answer)]) != answer:
        return f"{address} answered as {bytes(received[:256]).decode(errors='replace')!r}"
    return "" if len(received) == len(answer) + size else f"{len(received) - len(answer)} of {size} bytes came back"


def _send(caller: socket.socket, size: int) -> None:
    try:
        caller.sendall(b"." * size)
    except OSError:
        pass  # the receiving side notices


def datagrams(address: str, port: int, target: Target) -> str:
    """Exchange datagrams of one byte, of 1,400, and as large as the path MTU if that is larger."""
    if why := _datagram(address, port, target, 1):
        return why
    largest = 0 if target.get("path") == "gateway" else min(_path_mtu(address, port, target), LARGEST_DATAGRAM)
    for size in sorted({DATAGRAM, max(largest, DATAGRAM)}):
        if why := _in_time(_datagram, address, port, target, size):
            for smaller in SEGMENTS:
                if smaller < size and not _in_time(_datagram, address, port, target, smaller):
                    return f"{address}: datagrams of {size} bytes get no answer, of {smaller} they do: {BLACK_HOLE}"
            return f"{address}: a datagram of one byte is answered, of {size} bytes it is not: {why}"
    return ""


def _path_mtu(address: str, port: int, target: Target) -> int:
    """Bytes of payload in the largest datagram that the path takes as far as the kernel knows."""
    with socket.socket(FAMILIES[target["family"]], socket.SOCK_DGRAM) as caller:
        caller.connect((address, port))
        if caller.family == socket.AF_INET6:
            return caller.getsockopt(socket.IPPROTO_IPV6, IPV6_MTU) - 48
        return caller.getsockopt(socket.IPPROTO_IP, IP_MTU) - 28


def _datagram(address: str, port: int, target: Target, size: int) -> str:
    """Exchange a datagram. The first may be lost and teach the kernel the path MTU, as it does to any application."""
    with socket.socket(FAMILIES[target["family"]], socket.SOCK_DGRAM) as caller:
        caller.settimeout(ATTEMPT)
        caller.connect((address, port))
        caller.send(b"?" * size)
        try:
            answer = caller.recv(1 << 16)
        except OSError:
            caller.send(b"?" * size)
            answer = caller.recv(1 << 16)
    expected = target["answer"].encode().ljust(size, b".")
    return "" if answer == expected else f"{address} answered as {answer[:256].decode(errors='replace')!r}"


def by_name(target: Target) -> str:
    resolved(target["name"], target)
    return ""


def by_tcp(target: Target) -> str:
    return answered(min(resolved(target["name"], target)), target["port"], target)


def by_udp(target: Target) -> str:
    return datagrams(min(resolved(target["name"], target)), target["port"], target)


def headless(target: Target) -> str:
    addresses, own = resolved(target["headless"], target), set(target["pods"])
    target["path"] = "direct" if addresses & own else "gateway"
    if addresses != own and (addresses & own or len(addresses) != len(own)):
        return f"resolves to {', '.join(sorted(addresses))}, not to {', '.join(target['pods'])}"
    reasons = [_bulk(each, target["pod_port"], target, size=0) for each in sorted(addresses)]
    return next((each for each in reasons if each), "")


def direct(target: Target) -> str:
    """The pods' own addresses, without any name: bytes by TCP both ways, and datagrams up to the path MTU."""
    for address in target["pods"]:
        reason = answered(address, target["pod_port"], target) or datagrams(address, target["pod_port"], target)
        if reason:
            return reason
    return ""


CHECKS: dict[str, Callable[[Target], str]] = {"name": by_name, "headless": headless, "tcp": by_tcp, "udp": by_udp}
"""The headless name is the first that shows the path, which datagrams want to know."""
ONLY: dict[str, Callable[[Target], str]] = {"direct": direct}
"""Checks that a target names in ``checks``; without it all of CHECKS are made."""


def check(target: Target, result: dict[str, str], deadline: float) -> None:
    every = {**CHECKS, **ONLY}
    pending = list(target.get("checks", CHECKS))
    while pending:
        for name in list(pending):
            try:
                result[name] = every[name](target)
            except OSError as error:
                result[name] = error.strerror or str(error) or type(error).__name__
            if not result[name]:
                pending.remove(name)
        if time.monotonic() > deadline:
            return
        time.sleep(PAUSE if pending else 0)


targets: list[Target] = json.loads(sys.argv[1])
deadline = time.monotonic() + float(sys.argv[2])
results: list[dict[str, str]] = [{} for _ in targets]
threads = [threading.Thread(target=check, args=(*pair, deadline)) for pair in zip(targets, results, strict=True)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps([{**result, "path": target.get("path", "")} for result, target in zip(results, targets, strict=True)]))
