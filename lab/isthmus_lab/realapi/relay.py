"""``python -m isthmus_lab.realapi.relay --fd N --to ADDRESS:PORT``: the way from the host's loopback into a namespace.

It runs inside, and inherits a socket that listens outside: bytes go through as they come, in both directions.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

from isthmus.running import until_told

PIECE: Final = 1 << 16


async def serve(listening: Sequence[socket.socket], host: str, port: int) -> None:
    """For ever."""

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection(host, port)
        except OSError:
            writer.transport.abort()  # a reset is as near as a connected caller gets to a refusal
            return
        await relay((reader, writer), (there_reader, there_writer))

    async with AsyncExitStack() as servers:
        for listener in listening:
            listener.setblocking(False)
            await servers.enter_async_context(await asyncio.start_server(accepted, sock=listener))
        await asyncio.Event().wait()


End = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def relay(here: End, remote: End) -> None:
    """Copy until both sides have ended their streams."""
    pumps = [asyncio.create_task(_pump(here[0], remote[1])), asyncio.create_task(_pump(remote[0], here[1]))]
    try:
        await asyncio.gather(*pumps)
    except OSError:
        pass  # one side is gone: the close ends the other
    finally:
        for pump in pumps:
            pump.cancel()
        for _, writer in (here, remote):
            writer.close()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while piece := await source.read(PIECE):
        sink.write(piece)
        await sink.drain()
    if sink.can_write_eof():
        sink.write_eof()


def main() -> None:
    """The process."""
    parser = argparse.ArgumentParser(prog="isthmus_lab.realapi.relay")
    parser.add_argument("--fd", type=int, action="append", required=True, help="a listening socket that is inherited")
    parser.add_argument("--to", required=True, help="address:port")
    options = parser.parse_args()
    host, _, port = options.to.rpartition(":")
    until_told(serve([socket.socket(fileno=number) for number in options.fd], host.strip("[]"), int(port)))


if __name__ == "__main__":
    main()
