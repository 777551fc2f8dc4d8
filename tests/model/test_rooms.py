"""What a room shows others is listed in its first paragraph, and others use nothing else of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import isthmus
from isthmus import model, sources

SOURCE = Path(isthmus.__file__).parent


def imported(path: Path, room: str) -> Iterator[str]:
    """What a module imports of a room, as ``module`` or ``module.name``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full.startswith(f"{room}."):
                    yield full.removeprefix(f"{room}.")


def listed(text: str | None) -> set[str]:
    return set(re.findall(r"^    (\w+(?:\.\w+)?)\s", text or "", re.MULTILINE))


def test_other_rooms_use_of_sources_what_its_first_paragraph_lists() -> None:
    public = listed(sources.__doc__)
    modules = {name.partition(".")[0] for name in public}
    used = {
        name
        for path in SOURCE.rglob("*.py")
        if "sources" not in path.relative_to(SOURCE).parts
        for name in imported(path, "isthmus.sources")
    }
    assert used, "the rule looks at something"
    assert {name for name in used if name not in public and name not in modules} == set()


def test_the_first_paragraph_of_model_lists_every_module_of_it() -> None:
    modules = {path.stem for path in (SOURCE / "model").glob("*.py")} - {"__init__"}
    assert set(re.findall(r"^    (\w+)\.py\s", model.__doc__ or "", re.MULTILINE)) == modules
