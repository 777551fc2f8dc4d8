"""Answers every TCP connection and every datagram on port 8080 with $ANSWER, over both families.

A connection gets $ANSWER at once, then everything that it sends. An answer to a datagram is as long as the datagram.
"""

import os
import signal
import socket
import sys
import threading

PORT = 8080
ANSWER = os.environ["ANSWER"].encode()


def listening(kind: int) -> socket.socket:
    family, host = (socket.AF_INET6, "::") if socket.has_ipv6 else (socket.AF_INET, "0.0.0.0")
    made = socket.socket(family, kind)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    made.bind((host, PORT))
    return made


IDLE = 30.0
"""Seconds for which a caller may send nothing."""


def streams(server: socket.socket) -> None:
    server.listen(64)
    while True:
        caller, _ = server.accept()
        threading.Thread(target=echo, args=(caller,), daemon=True).start()


def echo(caller: socket.socket) -> None:
    with caller:
        caller.settimeout(IDLE)
        try:
            caller.sendall(ANSWER)
            while data := caller.recv(1 << 16):
                caller.sendall(data)
        except OSError:
            pass  # the caller is gone


def datagrams(server: socket.socket) -> None:
    while True:
        data, caller = server.recvfrom(1 << 16)
        try:
            server.sendto(ANSWER.ljust(len(data), b"."), caller)
        except OSError:
            pass  # larger than the way back takes: the caller's time ends


signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
threading.Thread(target=streams, args=(listening(socket.SOCK_STREAM),), daemon=True).start()
threading.Thread(target=datagrams, args=(listening(socket.SOCK_DGRAM),), daemon=True).start()
while True:
    signal.pause()
