"""What people see: no line is wider than their terminal; what programs read is never folded."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

from isthmus.cli import output

LONG = "a-name-that-is-long-" * 3
TEXT = "one line of prose that says what is wrong and what to do about it, with many words"
CALLS = {
    "table": f'output.table(["NAME", "STATE", "WHY"], [["{LONG}", "ready", ""], ["b", "failed", "{TEXT}"]])',
    "lines": f'output.lines([["{LONG}", "ready", ""], ["b", "failed", "{TEXT}"]], widths=[])',
    "paragraph": f'output.paragraph("  ✓ name      ", "{TEXT}")',
}


def printed(call: str, *, columns: int = 0) -> list[str]:
    """The lines that a process prints, on a terminal of that many columns, or into a pipe."""
    command = [sys.executable, "-c", f"from isthmus.cli import output; {call}"]
    if not columns:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(command, stdout=theirs, env=os.environ | {"TERM": "dumb"})
    os.close(theirs)
    printed = b""
    try:
        while part := os.read(ours, 4096):
            printed += part
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert process.wait(60) == 0
    return printed.decode().splitlines()


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
@pytest.mark.parametrize("name", CALLS)
def test_no_line_is_wider_than_the_terminal(name: str, columns: int) -> None:
    assert all(len(line) <= columns for line in printed(CALLS[name], columns=columns))


@pytest.mark.parametrize("name", ["table", "paragraph"])
def test_on_a_terminal_nothing_is_left_out(name: str) -> None:
    words = " ".join(printed(CALLS[name], columns=60)).split()
    assert [word for word in TEXT.split() if word not in words] == []


@pytest.mark.parametrize("name", CALLS)
def test_in_a_pipe_a_row_is_a_line(name: str) -> None:
    assert [line for line in printed(CALLS[name]) if line.endswith(TEXT)]


def test_control_characters_of_a_text_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "clear \x1b[2J, beep \x07, \u202ereversed"
    output.table(["NAME"], [[hostile]])
    output.lines([[hostile]], widths=[])
    output.paragraph("✗ ", hostile)
    output.line(hostile)
    shown = capsys.readouterr().out
    assert not set("\x1b\x07\u202e") & set(shown)
    assert shown.count(r"clear \x1b[2J, beep \x07, \u202ereversed") == 4
