"""Standard streams of a container in one WebSocket: kubectl's ``v5.channel.k8s.io`` and the one before it.

The first byte of a message is its channel. The status goes last, then the close: without a status kubectl takes any
end for success.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import aclosing, closing
from functools import partial
from typing import Any, Final

import msgspec
from aiohttp import WSMsgType, web
from msgspec import Struct

from isthmus_lab import pod_exec, spawn
from isthmus_lab.images import missing
from isthmus_lab.node import tail
from isthmus_lab.node.containers import Runner
from isthmus_lab.node.stdio import STDIN, STDOUT, Pipes, StandardStreams, Terminal, pour

STATUS, RESIZE, CLOSE = 3, 4, 255
PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
SUCCESS: Final = {"metadata": {}, "status": "Success"}
ATTACH_POLL_INTERVAL: Final = 0.02
"""Seconds between two reads of an attached container's log."""


class StreamRequest(Struct, frozen=True):
    """What is to be run, and how."""

    command: tuple[str, ...]
    stdin: bool
    tty: bool


async def exec(request: web.Request, inside: pod_exec.Container, asked: StreamRequest) -> web.StreamResponse:
    """Run a command to its end."""
    socket = await _prepared(request)
    try:
        status = await _run(socket, inside, asked)
    except OSError as error:
        program = missing(asked.command[0]) if isinstance(error, FileNotFoundError) else f"{asked.command[0]}: {error}"
        status = _failure(f"cannot execute: {program}", 127 if isinstance(error, FileNotFoundError) else 126)
    return await _over(socket, status)


async def attach(request: web.Request, runner: Runner, asked: StreamRequest) -> web.StreamResponse:
    """Copy output of a container to the caller and input to the container, until one of them ends."""
    socket = await _prepared(request)
    console = runner.console if asked.stdin else None
    listening = asyncio.ensure_future(_listen(socket, console, ending=runner.plan.spec.stdin_once))
    showing = asyncio.ensure_future(_show(socket, runner))
    try:
        await asyncio.wait((listening, showing), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (listening, showing):
            task.cancel()
    return await _over(socket, SUCCESS)


async def _prepared(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse(protocols=PROTOCOLS)
    if not socket.can_prepare(request):
        raise web.HTTPBadRequest(text="this node streams over WebSockets, as kubectl does from 1.31 on\n")
    await socket.prepare(request)
    return socket


async def _over(socket: web.WebSocketResponse, status: dict[str, Any]) -> web.WebSocketResponse:
    if not socket.closed:
        await socket.send_bytes(bytes([STATUS]) + msgspec.json.encode(status))
        await socket.close()
    return socket


async def _run(socket: web.WebSocketResponse, inside: pod_exec.Container, asked: StreamRequest) -> dict[str, Any]:
    own = f"/proc/{inside.pid}/root/dev/pts/ptmx"
    with closing(Terminal(own) if asked.tty else Pipes(stdin=asked.stdin)) as ends:
        child = pod_exec.run(
            inside, asked.command, stdin=ends.stdin, stdout=ends.stdout, stderr=ends.stderr, terminal=asked.tty
        )
        process = spawn.watch(child)
        ends.handed_over()
        outputs = [asyncio.ensure_future(pour(each, partial(_say, socket, channel))) for channel, each in ends.outputs]
        listening = asyncio.ensure_future(_listen(socket, ends))
        listening.add_done_callback(lambda _: process.signal(signal.SIGKILL))
        try:
            code = await process.wait()
            await asyncio.wait(outputs, timeout=1.0)  # a grandchild may hold the pipe: it is not waited for
        finally:
            for task in (listening, *outputs):
                task.cancel()
    return SUCCESS if code == 0 else _failure("", code)


async def _show(socket: web.WebSocketResponse, runner: Runner) -> None:
    async with aclosing(tail.follow(runner, every=ATTACH_POLL_INTERVAL)) as output:
        async for data in output:
            await _say(socket, STDOUT, data)


async def _say(socket: web.WebSocketResponse, channel: int, data: bytes) -> None:
    await socket.send_bytes(bytes([channel]) + data)


async def _listen(socket: web.WebSocketResponse, ends: StandardStreams | None, *, ending: bool = True) -> None:
    """What the caller sends, until the caller leaves. ``ending``: the end of input is the command's, too."""
    async for message in socket:
        if message.type is not WSMsgType.BINARY or not message.data or ends is None:
            continue
        channel, data = message.data[0], message.data[1:]
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
