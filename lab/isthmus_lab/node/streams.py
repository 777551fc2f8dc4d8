"""exec and attach: a command's standard streams to and from a caller's channels."""

from __future__ import annotations

import asyncio
import signal
from contextlib import aclosing, closing
from functools import partial
from typing import Any, Final

from aiohttp import web
from msgspec import Struct

from isthmus_lab import pod_exec, spawn
from isthmus_lab.images import missing
from isthmus_lab.node import channels, tail
from isthmus_lab.node.channels import CLOSE, RESIZE, Channels
from isthmus_lab.node.containers import Runner
from isthmus_lab.node.stdio import STDERR, STDIN, STDOUT, Pipes, StandardStreams, Terminal, pour

SUCCESS: Final = {"metadata": {}, "status": "Success"}
ATTACH_POLL_INTERVAL: Final = 0.02
"""Seconds between two reads of an attached container's log."""


class StreamRequest(Struct, frozen=True):
    """Request to run or attach to a command, with its streams."""

    command: tuple[str, ...]
    stdin: bool
    tty: bool

    @property
    def channels(self) -> frozenset[int]:
        """Channels that the caller must open."""
        return frozenset({STDOUT} | ({STDIN} if self.stdin else set()) | (set() if self.tty else {STDERR}))


async def exec(request: web.Request, inside: pod_exec.Container, asked: StreamRequest) -> web.StreamResponse:
    """Run a command to its end."""
    caller = await channels.opened(request, required=asked.channels)
    try:
        status = await _run(caller, inside, asked)
    except OSError as error:
        program = missing(asked.command[0]) if isinstance(error, FileNotFoundError) else f"{asked.command[0]}: {error}"
        status = _failure(f"cannot execute: {program}", 127 if isinstance(error, FileNotFoundError) else 126)
    return await caller.finish(status)


async def attach(request: web.Request, runner: Runner, asked: StreamRequest) -> web.StreamResponse:
    """Copy output of a container to the caller and input to the container, until one of them ends."""
    caller = await channels.opened(request, required=asked.channels)
    console = runner.console if asked.stdin else None
    listening = asyncio.ensure_future(_listen(caller, console, ending=runner.plan.spec.stdin_once))
    showing = asyncio.ensure_future(_show(caller, runner))
    try:
        await asyncio.wait((listening, showing), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (listening, showing):
            task.cancel()
    return await caller.finish(SUCCESS)


async def _run(caller: Channels, inside: pod_exec.Container, asked: StreamRequest) -> dict[str, Any]:
    own = f"/proc/{inside.pid}/root/dev/pts/ptmx"
    with closing(Terminal(own) if asked.tty else Pipes(stdin=asked.stdin)) as ends:
        child = pod_exec.run(
            inside, asked.command, stdin=ends.stdin, stdout=ends.stdout, stderr=ends.stderr, terminal=asked.tty
        )
        process = spawn.watch(child)
        ends.handed_over()
        outputs = [asyncio.ensure_future(pour(each, partial(caller.send, channel))) for channel, each in ends.outputs]
        listening = asyncio.ensure_future(_listen(caller, ends))
        listening.add_done_callback(lambda _: process.signal(signal.SIGKILL))
        try:
            code = await process.wait()
            await asyncio.wait(outputs, timeout=1.0)  # a grandchild may hold the pipe: it is not waited for
        finally:
            for task in (listening, *outputs):
                task.cancel()
    return SUCCESS if code == 0 else _failure("", code)


async def _show(caller: Channels, runner: Runner) -> None:
    async with aclosing(tail.follow(runner, every=ATTACH_POLL_INTERVAL)) as output:
        async for data in output:
            await caller.send(STDOUT, data)


async def _listen(caller: Channels, ends: StandardStreams | None, *, ending: bool = True) -> None:
    """Pass on the caller's input until it disconnects. ``ending``: close the command's input at its end."""
    async for channel, data in caller.received():
        if ends is None:
            continue
        if channel == STDIN:
            await ends.write(data)
        elif channel == CLOSE and data == bytes([STDIN]) and ending:
            ends.end()
        elif channel == RESIZE:
            ends.resize(data)


def _failure(message: str, code: int) -> dict[str, Any]:
    return {
        "metadata": {},
        "status": "Failure",
        "message": message or f"command terminated with non-zero exit code: exit code {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }
