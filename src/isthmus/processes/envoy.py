"""Envoy's own unit, beside an agent or a gateway: it runs an Envoy for a directory while its bootstrap file exists.

It knows nothing of Kubernetes. Who fills the directory may end and come back; Envoy goes on with what it has.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from isthmus.config import Config
from isthmus.processes.start import CannotStart, require, start, supervised
from isthmus.proxy import NoEnvoyError, Settings, Supervisor, binary


def run(config: Config) -> int:
    """The process; its exit code."""
    return start("envoy", main, config)


async def main(config: Config) -> None:
    """Check the program, then supervise it."""
    section = config.proxy
    require(config, proxy__directory=section.directory)
    try:
        program = binary.find(section.envoy)
        await binary.check(program)
    except NoEnvoyError as error:
        raise CannotStart(str(error)) from None
    supervisor = Supervisor(
        Settings(
            program,
            Path(section.directory),
            concurrency=section.concurrency,
            drain_time=section.drain_time,
            drain_limit=section.drain_limit,
            uplinks=section.uplinks,
        )
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, supervisor.replace)
    async with supervised() as tasks:
        tasks.start("supervisor", supervisor.run, ends=True)
