"""A server of load tests: on each address:port given a call gets the endpoint's name, and its bytes back."""

from __future__ import annotations

import asyncio
import socket
import sys


def answer(name: str) -> object:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(f"{name}\n".encode())
            while piece := await reader.read(1 << 16):
                writer.write(piece)
                await writer.drain()
            writer.write_eof()
            writer.close()
            await writer.wait_closed()
        except OSError:
            writer.close()

    return serve


async def main(endpoints: list[str]) -> None:
    for endpoint in endpoints:
        host, port = endpoint.rsplit(":", 1)
        sock = socket.socket(socket.AF_INET6 if host.startswith("[") else socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host.strip("[]"), int(port)))
        await asyncio.start_server(answer(endpoint), sock=sock, backlog=4096)  # type: ignore[arg-type]
    print("ready", flush=True)
    await asyncio.Event().wait()


asyncio.run(main(sys.argv[1:]))
