"""Logging: one line per event on stderr, as text for people or as JSON for machines."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from functools import cache
from types import ModuleType
from typing import Any, Literal, TextIO

Format = Literal["text", "json"]


@cache
def _structlog() -> ModuleType:
    """The library, imported at the first event: commands that log nothing start without it.

    Debug events are off until :func:`configure`: tests and benchmarks run the library without it.
    """
    import structlog

    if not structlog.is_configured():
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    return structlog


class _Forgiving:
    """A stream for log lines that drops the lines it cannot write: a disk may be full, a pipe's reader may have ended.

    Lines pass by the stream's buffers: a buffer would keep a line that cannot be written until the interpreter's exit,
    whose flush fails and makes the exit code 120.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._raw = getattr(getattr(stream, "buffer", None), "raw", None)

    def write(self, text: str) -> int:
        """Write a text, or drop it."""
        with suppress(OSError, ValueError):
            if self._raw is None:
                return self._stream.write(text)
            data = text.encode(errors="backslashreplace")
            while data:
                data = data[self._raw.write(data) or len(data) :]
        return len(text)

    def flush(self) -> None:
        """Flush the stream, or drop what it holds."""
        with suppress(OSError, ValueError):
            self._stream.flush()


def configure(*, level: str = "info", form: Format = "text") -> None:
    """Configure the logging of this process; called once, at its start."""
    structlog = _structlog()
    structlog.configure(
        processors=processors(form),
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.WriteLoggerFactory(_Forgiving(sys.stderr)),
        cache_logger_on_first_use=True,
    )


def processors(form: Format) -> list[Any]:
    """Return the processors that turn an event into a line.

    A traceback shows lines of code and no values of variables, some of which are secrets.
    """
    structlog = _structlog()
    before = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if form == "json":
        return [*before, structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    plain = structlog.dev.plain_traceback
    return [*before, structlog.dev.ConsoleRenderer(colors=False, exception_formatter=plain)]


def get(name: str) -> Any:
    """Return a logger whose events carry the name of a part."""
    return _Logger(name)


class _Logger:
    """A logger of structlog that is made when it is used first."""

    _logger: Any

    def __init__(self, part: str) -> None:
        self._part = part

    def __getattr__(self, name: str) -> Any:
        """A method of structlog's logger. The logger becomes an attribute of this one: it is looked up once."""
        if name != "_logger":
            return getattr(self._logger, name)
        self._logger = _structlog().get_logger(part=self._part)
        return self._logger
