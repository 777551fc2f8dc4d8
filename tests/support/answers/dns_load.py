"""``python dns_load.py RATE SERVER``: questions for names of ours as resolvers ask them, until its input ends.

Each question has a socket of its own and is sent again after a second without an answer; four times in vain are a
time-out. Prints counts as JSON: questions, those sent again, time-outs, wrong answers, and the first of these.
"""

from __future__ import annotations

import json
import select
import selectors
import socket
import sys
import time
from typing import Any

import dns.message
import dns.rcode

ECHO, HUGE = "echo.demo.svc.clusterset.local", "huge.demo.svc.clusterset.local"
QUESTIONS = [
    (f"_http._tcp.{ECHO}", "SRV", 0, 1),
    (HUGE, "A", 0, 20),
    (ECHO, "A", 0, 1),
    ("dns-version.clusterset.local", "TXT", 0, 1),
    (f"absent.{ECHO}", "A", 3, 0),
]
"""Name, type, code, and the least number of records of the answer."""
AGAIN, TRIES = 1.0, 4


def main(rate: float, server: str) -> None:
    """Ask, then print."""
    wires = [dns.message.make_query(name, type_, use_edns=0).to_wire() for name, type_, *_ in QUESTIONS]
    counts: dict[str, Any] = {"questions": 0, "again": 0, "timeouts": 0, "wrong": 0, "first_wrong": ""}
    waiting: dict[socket.socket, list[Any]] = {}
    selector = selectors.DefaultSelector()
    due = time.monotonic()
    print("asking", flush=True)
    ended = False
    while not ended or waiting:
        now = time.monotonic()
        ended = ended or bool(select.select([sys.stdin], [], [], 0)[0])
        if not ended and now >= due:
            due = max(due + 1 / rate, now)  # no burst after a pause of this process
            which = counts["questions"] % len(QUESTIONS)
            sock = socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM)
            sock.setblocking(False)
            sock.connect((server, 53))
            sock.send(wires[which])
            waiting[sock] = [which, now, 1]
            selector.register(sock, selectors.EVENT_READ)
            counts["questions"] += 1
        for key, _ in selector.select(0.002):
            if wrong := judge(key.fileobj, *waiting[key.fileobj]):  # type: ignore[index,arg-type]
                counts["wrong"] += 1
                counts["first_wrong"] = counts["first_wrong"] or wrong
            end(selector, waiting, key.fileobj)
        for sock, (which, since, tries) in list(waiting.items()):
            if now - since < AGAIN:
                continue
            if tries == TRIES:
                counts["timeouts"] += 1
                end(selector, waiting, sock)
                continue
            waiting[sock][1:] = now, tries + 1
            counts["again"] += 1
            sock.send(wires[which])
    print(json.dumps(counts))


def judge(sock: socket.socket, which: int, since: float, tries: int) -> str:
    """What is wrong with the answer; empty where nothing is."""
    name, type_, rcode, least = QUESTIONS[which]
    about = f"{name} {type_}, {tries} times, after {time.monotonic() - since:.3f} s"
    try:
        reply = dns.message.from_wire(sock.recv(4096))
    except OSError as why:
        return f"{about}: {why!r}"
    if reply.rcode() != rcode or sum(len(rrset) for rrset in reply.answer) < least:
        return f"{about}: {reply}"
    return ""


def end(selector: selectors.BaseSelector, waiting: dict[socket.socket, Any], sock: Any) -> None:
    """Forget a question."""
    selector.unregister(sock)
    del waiting[sock]
    sock.close()


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2])
