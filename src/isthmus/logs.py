"""Logging: one line per event, as text for eyes or as JSON for machines, always to stderr."""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal

import structlog

Format = Literal["text", "json"]


def configure(*, level: str = "info", form: Format = "text") -> None:
    """Set the process's logging up, once, at its start."""
    structlog.configure(
        processors=processors(form),
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def processors(form: Format) -> list[Any]:
    """What makes an event a line. A traceback has the lines of code and no values of variables: some are secrets."""
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
    """A logger that says which part is speaking."""
    return structlog.get_logger(part=name)
