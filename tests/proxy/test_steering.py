"""New connections go to the successor's sockets alone, whichever process has them."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from peers.etcd_server import free_ports

from isthmus.proxy.steering import Steering

CALLS = 200
SERVER = """
import select, socket, sys
name, port = sys.argv[1], int(sys.argv[2])
found = []
for _ in range(2):
    each = socket.socket()
    each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    each.bind(("127.0.0.1", port)); each.listen(300); found.append(each)
print("listens", flush=True)
while True:
    for each in select.select(found, [], [])[0]:
        client = each.accept()[0]
        client.sendall(name.encode()); client.close()
"""


@pytest.fixture
def servers() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def server(stack: ExitStack, name: str, port: int) -> subprocess.Popen[bytes]:
    process = stack.enter_context(
        subprocess.Popen([sys.executable, "-c", SERVER, name, str(port)], stdout=subprocess.PIPE)
    )
    stack.callback(process.kill)
    assert process.stdout is not None
    assert process.stdout.readline() == b"listens\n"
    return process


def answers(port: int) -> set[str]:
    found = set()
    for _ in range(CALLS):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            found.add(client.recv(10).decode())
    return found


def test_the_successor_gets_all_new_connections_until_steering_ends(servers: ExitStack) -> None:
    [port] = free_ports(1)
    first, second = server(servers, "first", port), server(servers, "second", port)
    assert answers(port) == {"first", "second"}
    steering = Steering(second.pid, [first.pid])
    assert steering.addresses == {("127.0.0.1", port)}
    assert answers(port) == {"second"}
    first.kill()
    first.wait()
    assert answers(port) == {"second"}
    steering.end()
    third = server(servers, "third", port)
    assert answers(port) == {"second", "third"}
    Steering(third.pid, [second.pid])
    assert answers(port) == {"third"}


def test_of_two_predecessors_neither_gets_a_connection(servers: ExitStack) -> None:
    [port] = free_ports(1)
    first, second, third = (server(servers, name, port) for name in ("first", "second", "third"))
    Steering(third.pid, [second.pid, first.pid])
    assert answers(port) == {"third"}


def test_a_process_that_has_ended_steers_nothing(servers: ExitStack) -> None:
    [port] = free_ports(1)
    first, second = server(servers, "first", port), server(servers, "second", port)
    first.kill()
    first.wait()
    steering = Steering(second.pid, [first.pid])
    assert steering.addresses == frozenset()
    steering.end()
    assert answers(port) == {"second"}
