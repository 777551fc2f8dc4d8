"""Connections from inside a pod that are held and used in turn, until stdin ends.

    held_connections.py COUNT HOST PORT

Prints "holding" once all are open; at the end one JSON object: how many are still open, how many lines went there and
back, and the reasons of those that ended. Standard library only.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from typing import Any

ROUND = 2.0
"""Seconds in which each connection is used once."""
ANSWER = 10.0


class Held:
    """The connections, and what became of them."""

    def __init__(self) -> None:
        self.open = 0
        self.exchanges = 0
        self.dropped: list[str] = []

    async def hold(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Use one connection every round."""
        line = f"{number}\n".encode()
        try:
            while True:
                writer.write(line)
                async with asyncio.timeout(ANSWER):
                    if await reader.readline() != line:
                        raise ConnectionError("closed by the other end")
                self.exchanges += 1
                await asyncio.sleep(ROUND)
        except (OSError, TimeoutError) as error:
            self.open -= 1
            self.dropped.append(repr(error))


async def main(count: int, host: str, port: int) -> None:
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (count + 64, max(count + 64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    )
    held, tasks = Held(), []
    for number in range(count):
        reader, writer = await asyncio.open_connection(host, port)
        await reader.readline()  # who answers
        held.open += 1
        tasks.append(asyncio.create_task(held.hold(number, reader, writer)))
    print("holding", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    result: dict[str, Any] = {"open": held.open, "exchanges": held.exchanges, "dropped": held.dropped}
    print(json.dumps(result), flush=True)
    for task in tasks:
        task.cancel()


asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
