"""A server process of the datapath's tests: on each address:port given, TCP and UDP answer with their own name."""

from __future__ import annotations

import selectors
import socket
import sys


def main(endpoints: list[str]) -> None:
    ready = selectors.DefaultSelector()
    for endpoint in endpoints:
        host, port = endpoint.rsplit(":", 1)
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            sock = socket.socket(socket.AF_INET6 if host.startswith("[") else socket.AF_INET, kind)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host.strip("[]"), int(port)))
            if kind == socket.SOCK_STREAM:
                sock.listen(128)
            ready.register(sock, selectors.EVENT_READ, endpoint)
    print("ready", flush=True)
    while True:
        for key, _ in ready.select():
            assert isinstance(key.fileobj, socket.socket)
            answer(key.fileobj, key.data)


def answer(sock: socket.socket, name: str) -> None:
    if sock.type == socket.SOCK_STREAM:
        taken, peer = sock.accept()
        taken.sendall(f"{name} {peer[0]}".encode())
        taken.close()
    else:
        _, peer = sock.recvfrom(200)
        sock.sendto(f"{name} {peer[0]}".encode(), peer)


main(sys.argv[1:])
