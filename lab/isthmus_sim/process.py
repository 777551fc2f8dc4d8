"""The process that code belongs to: all share one interpreter, and a context variable distinguishes them."""

from __future__ import annotations

from contextvars import ContextVar


class Process:
    """A process of a cluster: its host and its state."""

    def __init__(self, host: str, pid: int) -> None:
        self.host = host
        """Name in the network: ``c1.a``."""
        self.pid = pid
        self.paused = False
        self.dead = False

    def __repr__(self) -> str:
        state = "dead" if self.dead else "paused" if self.paused else "running"
        return f"<Process {self.pid} on {self.host}, {state}>"


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


def current() -> Process:
    """The process of the code that runs now."""
    process = PROCESS.get()
    assert process is not None, "code of a process runs outside of all processes"
    return process
