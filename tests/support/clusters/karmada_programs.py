"""Karmada's own programs with small API servers as members, where no pod has to run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from clusters.apiserver_world import TOKEN, serving

from isthmus_lab.karmada.plane import Karmada, MemberServer


@contextmanager
def member_servers(folder: Path, *names: str) -> Iterator[dict[str, MemberServer]]:
    """An administrator's access to each."""
    with ExitStack() as stack:
        made = {name: stack.enter_context(serving(folder / name)) for name in names}
        yield {name: MemberServer(each.url, each.authority.certificate, TOKEN) for name, each in made.items()}


@contextmanager
def karmada(folder: Path, members: Mapping[str, MemberServer]) -> Iterator[Karmada]:
    """All of it; the members are not registered yet."""
    made = Karmada(folder / "plane", members)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        print(made.logs())
