"""JSONPath as printer columns of CRDs use it: ``.a.b``, ``['a.b']``, ``[0]``, ``[*]``, ``[?(@.type=="Ready")]``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_STEP = re.compile(
    r"""\.?\[\s*'(?P<quoted>[^']*)'\s*\] | \[\s*(?P<index>-?\d+)\s*\] | \[\s*\*\s*\](?P<all>) | \.\*(?P<every>)
    | \[\?\(\s*@\.(?P<key>[^=\s]+)\s*==\s*["'](?P<value>[^"']*)["']\s*\)\] | \.(?P<name>(?:\\.|[^.\[\\])+)""",
    re.VERBOSE,
)

Step = Callable[[list[Any]], list[Any]]


def parse(path: str) -> Callable[[Any], list[Any]]:
    """A path as a function from a value to all it finds there; ValueError where it is not one of ours."""
    text = path.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    text = text if text.startswith((".", "[")) else f".{text}"
    steps, at = [], 0
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None:
            raise ValueError(f"{path!r} is not a JSON path: {text[at:]!r}")
        steps.append(_step(found))
        at = found.end()

    def find(value: Any) -> list[Any]:
        values = [value]
        for step in steps:
            values = step(values)
        return values

    return find


def _step(found: re.Match[str]) -> Step:
    if found["index"] is not None:
        index = int(found["index"])
        return lambda values: [v[index] for v in values if isinstance(v, list) and -len(v) <= index < len(v)]
    if found["key"] is not None:
        key, wanted = found["key"], found["value"]
        return lambda values: [e for v in values for e in _elements(v) if isinstance(e, dict) and e.get(key) == wanted]
    name = found["quoted"] if found["quoted"] is not None else found["name"]
    if name is None:
        return lambda values: [element for value in values for element in _elements(value)]
    plain = re.sub(r"\\(.)", r"\1", name)
    return lambda values: [value[plain] for value in values if isinstance(value, dict) and plain in value]


def _elements(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
