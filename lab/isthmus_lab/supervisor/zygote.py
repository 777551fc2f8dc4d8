"""Starts Python programs by forking an interpreter that has imported them already: 20 ms each instead of half a second.

The programs are the ordinary ones and are run as ``python -m`` would: only their imports are loaded before. The zygote
is forked off the supervisor before that has an event loop or a second thread. A program is forked twice, so that it
becomes the supervisor's own child: the one between ends, and the supervisor, a subreaper, adopts.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import runpy
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from isthmus_lab import cgroups, kernel, privileges, spawn

MODULES: Final = (
    "isthmus.cli",
    "isthmus.cli.run",
    "isthmus_lab.apiserver.bootstrap",
    "isthmus_lab.apiserver.http",
    "isthmus_lab.controllers",
    "isthmus_lab.clusterdns.server",
    "isthmus_lab.node.process",
    "isthmus_lab.realapi.scheduler",
    "isthmus.clusterset.joining",
    "isthmus.processes.agent",
    "isthmus.processes.dns",
    "isthmus.processes.envoy",
    "isthmus.processes.operator",
)
LARGEST: Final = 1 << 16


class Order(Struct, frozen=True):
    """A program to start; its inherited descriptors come beside it."""

    module: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    cgroup: str
    namespace: str
    output: str
    inherit: tuple[int, ...] = ()
    """The numbers that the descriptors are to have in the child."""


class Answer(Struct, frozen=True):
    """The pid, or why there is none."""

    pid: int = 0
    error: str = ""


def load() -> None:
    """Import what the programs need."""
    for module in MODULES:
        _load(module)
    gc.collect()
    gc.freeze()  # what is here now is shared by all children: the collector need not touch it


def serve(orders: socket.socket, lab: Path) -> None:
    """Take orders until the supervisor is gone. ``lab``: the group that ends then where no namespace ends with it."""
    while True:
        raw, descriptors, _, _ = socket.recv_fds(orders, LARGEST, 8)
        if not raw:
            return _end(lab) if privileges.on_loopback() else None
        between = os.fork()
        if between == 0:
            between = os.getpid()
            if os.fork() != 0:
                os._exit(0)
            return _become(msgspec.json.decode(raw, type=Order), orders, descriptors, between)
        os.waitpid(between, 0)
        for descriptor in descriptors:
            os.close(descriptor)


def _end(lab: Path) -> None:
    while pids := set(cgroups.processes(lab)) - {os.getpid()}:
        for pid in pids:
            cgroups.send(pid, signal.SIGKILL)
        time.sleep(0.01)


def _load(module: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        print(f"zygote: {module}: {error}", file=sys.stderr, flush=True)  # whoever needs it will say it again


def _become(order: Order, orders: socket.socket, descriptors: list[int], between: int) -> None:
    """Be that program, from its first line to its exit."""
    try:
        while os.getppid() == between:
            time.sleep(0.0005)  # the one between is about to end
        limit = _settle(order)
    except OSError as error:
        orders.send(msgspec.json.encode(Answer(error=str(error))))
        os._exit(spawn.PREPARATION_FAILED)
    orders.send(msgspec.json.encode(Answer(pid=os.getpid())))
    orders.close()
    for descriptor, number in zip(descriptors, order.inherit, strict=True):
        if descriptor != number:
            os.dup2(descriptor, number)
            os.close(descriptor)
    gc.unfreeze()
    sys.argv = [order.module, *order.arguments]
    _title([sys.executable, "-m", *sys.argv], limit=limit)
    runpy.run_module(order.module, run_name="__main__", alter_sys=True)


def _settle(order: Order) -> int:
    """Enter its place; the address in memory up to which a title may reach, 0 for the end of the environment."""
    os.setsid()
    group = Path(order.cgroup)
    cgroups.enter(group)
    limit = cgroups.move(group) if privileges.on_loopback() else 0
    if order.namespace:
        with Path(order.namespace).open() as target:
            kernel.setns(target.fileno(), kernel.CLONE_NEWNET)
    log = os.open(order.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
    os.environ.clear()
    os.environ.update(order.environment)
    os.environ.update(cgroups.environment(group))
    return limit


def _title(words: list[str], *, limit: int) -> None:
    """Set the command line that ``ps`` shows, over the interpreter's own and the memory after it."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end, env_start, last = map(int, fields[45:49])  # arg_start, arg_end, env_start, env_end
    room = ((limit or last) if env_start == end else end) - start - 1
    text = " ".join(words).encode()[:room]
    ctypes.memmove(start, text.ljust(end - start, b"\0") + b"\0", max(len(text), end - start) + 1)
