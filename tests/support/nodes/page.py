"""Commands of a page of the documentation, by the headings above them, as people copy them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).resolve().parents[3] / "docs"
DOCUMENT: Final = "<<'Y'"
"""End of a command whose input follows, up to a line ``Y``."""


def commands(name: str) -> Mapping[str, list[str]]:
    """Return the commands in a page's code blocks by the heading that they follow; continued lines are joined."""
    found: dict[str, list[str]] = {}
    heading = ""
    lines = iter((DOCS / name).read_text().replace("\\\n", "").splitlines())
    for line in lines:
        if match := re.fullmatch(r"#+ (.*)", line):
            heading = match[1]
        elif match := re.fullmatch(r" {4}((?:isthmus|kubectl|helm|for) .*)", line):
            command = " ".join(match[1].split())
            if command.endswith(DOCUMENT):
                command += "".join(f"\n{each[4:]}" for each in iter(lambda: next(lines), "    Y")) + "\nY\n"
            found.setdefault(heading, []).append(command)
    return found


def files(name: str, path: str) -> list[str]:
    """Return each content that a page has for a file: code blocks that begin with its path as a comment."""
    lines = (DOCS / name).read_text().splitlines()
    starts = [number for number, line in enumerate(lines) if line == f"    # {path}"]
    blocks = [itertools.takewhile(lambda line: not line or line.startswith("    "), lines[each:]) for each in starts]
    return ["".join(f"{line[4:]}\n" for line in block) for block in blocks]
