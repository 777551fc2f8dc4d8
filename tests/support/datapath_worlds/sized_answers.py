"""A server and its caller, by bytes: `serve` answers on port 8080; `call HOST CALL,ANSWER …` calls for each pair;
`try HOST CALL,ANSWER` calls on a new connection again and again, and gives each up after a second.

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


def attempt(host: str, pair: str) -> None:
    size, expected = map(int, pair.split(","))
    while True:
        try:
            with socket.create_connection((host, PORT), timeout=1.0) as connection:
                connection.sendall(f"{size} {expected}\n".encode() + b"." * size)
                connection.recv(expected)
        except TimeoutError:
            pass


if sys.argv[1] == "serve":
    serve()
elif sys.argv[1] == "try":
    attempt(*sys.argv[2:])
else:
    call(*sys.argv[2:])
