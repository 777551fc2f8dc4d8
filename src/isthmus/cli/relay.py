"""``isthmus relay``: standard streams copied to and from an admin socket; what ``--context`` runs in a pod."""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path

import click

CHUNK = 1 << 16
"""Bytes copied at once."""


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
def relay(path: Path) -> None:
    """Copy standard input to the admin socket PATH and its answers to standard output, until either ends.

    Example: isthmus relay /run/isthmus/agent.sock
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(path))
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from None
    threading.Thread(target=_send, args=(connection,), daemon=True).start()
    while data := connection.recv(CHUNK):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def _send(connection: socket.socket) -> None:
    while data := os.read(0, CHUNK):
        connection.sendall(data)
    connection.shutdown(socket.SHUT_RDWR)  # standard input has ended: so does the main thread's read
