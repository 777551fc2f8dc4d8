"""Write the manual page of each command, and completions for three shells, from the commands themselves.

python tools/manuals.py FOLDER      share/man/man1/*.1, and each shell's file where packages put it
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from isthmus import __version__
from isthmus.cli import root

COMPLETIONS = {
    "bash": "share/bash-completion/completions/isthmus",
    "fish": "share/fish/vendor_completions.d/isthmus.fish",
    "zsh": "share/zsh/site-functions/_isthmus",
}


def commands(context: click.Context) -> Iterator[click.Context]:
    """Yield a command and all below it that are not hidden, with the words by which each is called."""
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            if command is not None and not command.hidden:
                yield from commands(click.Context(command, info_name=name, parent=context))


def page(context: click.Context, date: str) -> str:
    """Return the manual page of a command, in the macros of man(7)."""
    command, name = context.command, context.command_path.replace(" ", "-")
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [
        f'.TH "{name.upper()}" 1 "{date}" "isthmus {__version__}"',
        ".SH NAME",
        f"{text(name)} \\- {text(command.get_short_help_str(200))}",
        ".SH SYNOPSIS",
        f"\\fB{text(context.command_path)}\\fR {text(usage)}",
        ".SH DESCRIPTION",
        *paragraphs(command.help or ""),
        ".SH OPTIONS",
        *entries(filter(None, (each.get_help_record(context) for each in command.get_params(context)))),
    ]
    if isinstance(command, click.Group):
        below = ((each, command.get_command(context, each)) for each in command.list_commands(context))
        listed = [(each, found.get_short_help_str(200)) for each, found in below if found and not found.hidden]
        lines += [".SH COMMANDS", *entries((f"{name}-{each}(1)", short) for each, short in listed)]
    if context.parent is not None:
        lines += [".SH SEE ALSO", f"{text(context.parent.command_path.replace(' ', '-'))}(1)"]
    return "\n".join(lines) + "\n"


def entries(records: Iterator[tuple[str, str]]) -> Iterator[str]:
    """Yield a list of terms, each with what it means."""
    for term, meaning in records:
        if not meaning:
            continue  # an argument, which the description is about
        yield from (".TP", f"\\fB{text(term)}\\fR", text(" ".join(meaning.split())))


def paragraphs(help_text: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring; one that click is told to leave as it is keeps its lines."""
    for paragraph in help_text.strip().split("\n\n"):
        if paragraph.startswith("\b\n"):
            yield from (".PP", ".nf", *map(text, paragraph.splitlines()[1:]), ".fi")
        else:
            yield from (".PP", text(" ".join(paragraph.split())))


def text(line: str) -> str:
    """Escape what roff would take for a request, an escape or a hyphen."""
    line = line.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{line}" if line.startswith((".", "'")) else line


def main(folder: Path) -> None:
    """Fill a folder."""
    date = time.strftime("%Y-%m-%d", time.gmtime(float(os.environ.get("SOURCE_DATE_EPOCH", time.time()))))
    manuals = folder / "share" / "man" / "man1"
    manuals.mkdir(parents=True)
    for context in commands(click.Context(root, info_name="isthmus")):
        (manuals / f"{context.command_path.replace(' ', '-')}.1").write_text(page(context, date))
    for shell, path in COMPLETIONS.items():
        completion = get_completion_class(shell)
        assert completion is not None
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_text(completion(root, {}, "isthmus", "_ISTHMUS_COMPLETE").source())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
