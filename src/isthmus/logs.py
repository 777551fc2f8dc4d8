"""Logging: one line per event, as text for eyes or as JSON for machines, always to stderr."""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal

import structlog

Format = Literal["text", "json"]


def configure(*, level: str = "info", form: Format = "text") -> None:
    """Set the process's logging up, once, at its start."""
    timestamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    render: Any = structlog.processors.JSONRenderer() if form == "json" else structlog.dev.ConsoleRenderer(colors=False)
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, structlog.processors.add_log_level, timestamp, render],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def get(name: str) -> Any:
    """A logger that says which part is speaking."""
    return structlog.get_logger(part=name)
