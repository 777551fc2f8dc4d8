"""Output of the demo: a line per step while it works, and one JSON object at the end for programs."""

from __future__ import annotations

from collections import Counter

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.status import Status
from rich.table import Table


class Step(Struct, frozen=True):
    """A step of the story, done."""

    name: str
    ok: bool
    seconds: float
    detail: str


class Outcome(Struct, frozen=True):
    """The whole run: ok only if every step held."""

    ok: bool
    steps: list[Step]


class Reporter:
    """Prints on stdout, or, for programs, on stderr while it works and one JSON object on stdout at the end."""

    def __init__(self, *, json: bool) -> None:
        self._json = json
        self._console = Console(stderr=json, highlight=False, soft_wrap=True)
        self._status: Status | None = None
        self.steps: list[Step] = []

    def begin(self, name: str) -> None:
        """A step begins."""
        self._status = self._console.status(f"{name} …")
        self._status.start()

    def end(self, step: Step) -> None:
        """A step has ended, well or not."""
        if self._status is not None:
            self._status.stop()
        mark = "[green]✔[/green]" if step.ok else "[red]✘[/red]"
        self._console.print(f"{mark} {step.name}  [dim]{step.seconds:.1f} s[/dim]")
        self._console.print(f"    {step.detail}", style="dim" if step.ok else "red", markup=False)
        self.steps.append(step)

    def spread(self, calls: Counter[tuple[str, str]]) -> None:
        """Print the number of answers of each pod."""
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 4))
        table.add_column("CLUSTER")
        table.add_column("POD")
        table.add_column("CALLS", justify="right")
        for (cluster, pod), count in sorted(calls.items()):
            table.add_row(cluster, pod, str(count))
        self._console.print(table)

    def say(self, text: str) -> None:
        """A line between steps."""
        self._console.print(text, markup=False)

    def finish(self) -> bool:
        """The verdict; the JSON object where it was asked for."""
        outcome = Outcome(ok=bool(self.steps) and all(step.ok for step in self.steps), steps=self.steps)
        if self._json:
            print(msgspec.json.format(msgspec.json.encode(outcome), indent=2).decode())
        return outcome.ok
