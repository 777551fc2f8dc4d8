"""Tables on terminals: no line is wider than the terminal, colours only there; what programs read is never cut."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.cli import output
from isthmus.cli.layout import columns, layout, widths
from isthmus.cli.screen import fitting

LONG = "a-name-that-is-long-" * 3
TEXT = "one line of prose that says what is wrong and what to do about it, with many words"
CALLS = {
    "table": f'output.table(["NAME", "STATE", "WHY"], [["{LONG}", "ready", ""], ["b", "failed", "{TEXT}"]])',
    "lines": f'output.lines([["{LONG}", "ready", ""], ["b", "failed", "{TEXT}"]], widths=[])',
    "paragraph": f'output.paragraph("  ✓ name      ", "{TEXT}")',
}


def printed(call: str, *, columns: int = 0, **environment: str) -> list[str]:
    """The lines that a process prints, on a terminal of that many columns, or into a pipe."""
    command = [sys.executable, "-c", f"from isthmus.cli import output\n{call}"]
    if not columns:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(command, stdout=theirs, env=os.environ | {"TERM": "dumb"} | environment)
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
def test_on_a_terminal_a_sentence_is_wrapped_and_nothing_of_it_left_out(name: str) -> None:
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


WIDE = {
    "NAMESPACE": "a-namespace-of-a-team", "NAME": "a-service-of-theirs", "PORT": "8080/TCP",
    "FRONTENDS": "10.96.0.7:80/TCP",
    "TARGETS": "cluster-one:12 cluster-two:34 | cluster-three:3", "SOURCE": "kubernetes", "WHY": TEXT,
}  # fmt: skip


def test_a_narrow_terminal_cuts_the_widest_columns_and_a_name_after_all_others() -> None:
    [heads, line] = output_lines({**WIDE, "WHY": ""}, room=100)
    assert heads.split() == [*WIDE]
    assert line.split()[:3] == ["a-namespace-of-a-team", "a-service-of-theirs", "8080/TCP"]
    assert "cluster-o…" in line


def test_a_terminal_of_80_columns_has_names_and_the_whole_of_what_is_wrong() -> None:
    heads, *lines = output_lines(WIDE, room=80, least=("SOURCE", "PORT"))
    assert heads.split() == ["NAMESPACE", "NAME", "FRONTENDS", "TARGETS", "WHY"]
    assert "a-service-of-theirs" in lines[0]
    assert " ".join(line[60:] for line in lines) == TEXT


def test_an_empty_column_is_left_out_before_anything_is_cut() -> None:
    call = f"output.table([*{[*WIDE]}], [[*{[*(WIDE | {'TARGETS': '', 'WHY': ''}).values()]}]])"
    assert printed(call, columns=200)[0].split() == [*WIDE]
    heads, line = printed(call, columns=95)
    assert heads.split() == ["NAMESPACE", "NAME", "PORT", "FRONTENDS", "SOURCE"]
    assert "…" not in line


def test_columns_are_left_out_by_importance_then_from_the_right_the_last_one_last() -> None:
    assert output_lines(WIDE, room=70, least=("SOURCE", "PORT"))[0].split() == ["NAMESPACE", "NAME", "FRONTENDS", "WHY"]
    assert output_lines(WIDE, room=60, least=("FRONTENDS",))[0].split() == ["NAMESPACE", "NAME", "WHY"]


def output_lines(row: dict[str, str], *, room: int, least: tuple[str, ...] = ()) -> list[str]:
    """The heads and a row, on a terminal with ``room`` columns."""
    shown = layout([*row], widths([[*row], [*row.values()]]), room, least=least)
    return [*shown.lines([*row]), *shown.lines([*row.values()])]


@given(
    st.lists(
        st.tuples(st.text("ABC", min_size=1, max_size=9), st.text("ab ü界", max_size=90)), min_size=1, max_size=12
    ),
    st.integers(10, 200),
)
def test_no_cells_make_a_line_wider_than_the_room(cells: list[tuple[str, str]], room: int) -> None:
    heads, row = [head for head, _ in cells], [cell for _, cell in cells]
    shown = layout(heads, widths([heads, row]), room)
    assert all(columns(line) <= room for line in [*shown.lines(heads), *shown.lines(row), shown.line(row)])


def test_failures_are_red_on_a_terminal_with_colours_only() -> None:
    red = [line for line in printed(CALLS["table"], columns=200, TERM="xterm") if "\x1b[31mfailed\x1b[0m" in line]
    assert len(red) == 1
    for environment in ({"TERM": "xterm", "NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert not any("\x1b" in line for line in printed(CALLS["table"], columns=200, **environment))
    assert not any("\x1b" in line for line in printed(CALLS["table"]))


def test_a_screen_shows_as_many_lines_as_it_has_and_counts_the_rest() -> None:
    assert fitting(["a", "b"], 24) == ["a", "b"]
    assert fitting([*"abcdef"], 5) == ["a", "b", "c", "and 3 more lines"]


def test_a_screen_is_left_as_it_was_found_and_its_last_lines_stay() -> None:
    script = 'from isthmus.cli.screen import screen\nwith screen() as draw: draw(["one"]); draw(["two"])'
    shown = "\n".join(printed(script, columns=80, TERM="xterm"))
    assert shown.startswith("\x1b[?1049h\x1b[?25l")
    assert shown.endswith("\x1b[?25h\x1b[?1049ltwo")
