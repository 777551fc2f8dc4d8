"""A server and its caller, by bytes: `serve` answers on port 8080; `call HOST CALL,ANSWER …` calls for each pair.

A call begins with a line that has both sizes. The caller prints a line for each answer and keeps its connection; at
`-` it waits for a line of its input.
"""

import socket
import sys
import threading

PORT = 8080


def answer(connection: socket.socket) -> None:
    with connection, connection.makefile("rb") as stream:
        while line := stream.readline():
            call, size = map(int, line.split())
            stream.read(call)
            connection.sendall(b"." * size)


def serve() -> None:
    with socket.create_server(("", PORT)) as server:
        while True:
            connection, _ = server.accept()
            threading.Thread(target=answer, args=(connection,), daemon=True).start()


def call(host: str, *pairs: str) -> None:
    with socket.create_connection((host, PORT)) as connection, connection.makefile("rb") as stream:
        for pair in pairs:
            if pair == "-":
                sys.stdin.readline()
                continue
            size, expected = map(int, pair.split(","))
            connection.sendall(f"{size} {expected}\n".encode() + b"." * size)
            stream.read(expected)
            print(pair, flush=True)
        sys.stdin.read()


if sys.argv[1] == "serve":
    serve()
else:
    call(*sys.argv[2:])
