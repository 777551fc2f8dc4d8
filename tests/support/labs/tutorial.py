"""Tutorials as tests: the commands of a text's console blocks, and whether they print what the text shows.

A block's lines after ``$ `` are commands, run one after the other in one shell; the lines below are what is printed,
stdout and stderr as they come. ``…`` stands for anything within a line, a line of its own for any lines. Where a
command only looks (get, exec, status, wait), it is run again until it prints that or its time is up: the text is read
by people, who look again too.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ANYTHING: Final = "…"
PATIENCE: Final = 120.0
LOOKS: Final = re.compile(r"^(kubectl .*\b(get|describe)\b|isthmus (get|status|lab (exec|status)))")


class Step(NamedTuple):
    """A command and what it prints."""

    line: int
    command: str
    expected: list[str]


def steps(text: str) -> Iterator[Step]:
    """The commands of a text, in their order."""
    inside, found = False, None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            inside = not inside and line.startswith("```console")
        elif inside and line.startswith("$ "):
            if found:
                yield found
            found = Step(number, line[2:], [])
        elif inside and found and found.command.endswith("\\"):
            found = found._replace(command=f"{found.command[:-1]} {line.strip()}")
        elif inside and found:
            found.expected.append(line)
    if found:
        yield found


def matches(expected: list[str], printed: str) -> bool:
    """Whether that is what was printed; runs of blanks are one."""
    pattern = ""
    for line in expected:
        if line.strip() == ANYTHING:
            pattern += r"(?:.*\n)*"
        else:
            pattern += _line(line) + r"\n"
    shown = "".join(f"{_squeezed(line)}\n" for line in printed.splitlines() if line.strip())
    return re.fullmatch(pattern, shown) is not None


def _line(expected: str) -> str:
    return ".*".join(re.escape(part) for part in _squeezed(expected).split(ANYTHING))


def _squeezed(line: str) -> str:
    return re.sub(r"\s+", " ", line).strip()


class Shell:
    """One shell for all commands of a text: what one exports the next one sees."""

    def __init__(self, root: Path, environment: dict[str, str]) -> None:
        self._root = root
        self._environment = environment
        self._exports: list[str] = []

    def run(self, step: Step) -> None:
        """Run a step; AssertionError shows what was printed instead."""
        if step.command.startswith(("export ", "cd ")):
            self._exports.append(step.command)
            return
        deadline = time.monotonic() + PATIENCE
        while True:
            printed = self._printed(step.command)
            if matches(step.expected, printed):
                return
            if not LOOKS.match(step.command) or time.monotonic() > deadline:
                wanted = "\n".join(step.expected)
                raise AssertionError(
                    f"line {step.line}: $ {step.command}\n--- wanted\n{wanted}\n--- printed\n{printed}"
                )
            time.sleep(0.3)

    def _printed(self, command: str) -> str:
        script = "\n".join([*self._exports, command])
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self._root,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )
        return done.stdout
