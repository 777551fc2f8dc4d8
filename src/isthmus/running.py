"""How a process ends: one event loop, until its work is done or SIGTERM or SIGINT tells it to."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


def until_told(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine until it ends or a signal tells it to."""
    asyncio.run(_until_told(main))


async def _until_told(main: Coroutine[Any, Any, None]) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(main)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        if not task.cancelled():
            raise
