"""Answers every TCP connection and every datagram on port 8080 with $ANSWER, over both families."""

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


def streams(server: socket.socket) -> None:
    server.listen(64)
    while True:
        caller, _ = server.accept()
        with caller:
            try:
                caller.sendall(ANSWER)
            except OSError:
                pass  # the caller is gone


def datagrams(server: socket.socket) -> None:
    while True:
        _, caller = server.recvfrom(64)
        server.sendto(ANSWER, caller)


signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
threading.Thread(target=streams, args=(listening(socket.SOCK_STREAM),), daemon=True).start()
threading.Thread(target=datagrams, args=(listening(socket.SOCK_DGRAM),), daemon=True).start()
while True:
    signal.pause()
