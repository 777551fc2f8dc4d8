"""The processes of this machine, by their command lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def command_line(pid: int) -> str:
    """Program and arguments with a blank between; empty where the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""


def with_command(part: str) -> Iterator[int]:
    """The processes whose command line has these words."""
    for entry in Path("/proc").glob("[0-9]*"):
        if part in command_line(int(entry.name)):
            yield int(entry.name)
