"""JSONPath as printer columns of CRDs use it: ``.a.b``, ``['a.b']``, ``[0]``, ``[*]``, ``[?(@.type=="Ready")]``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from isthmus_lab.apiserver.objects import whole

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
    steps, position = [], 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            raise ValueError(f"{path!r} is not a JSON path: {text[position:]!r}")
        steps.append(_step(match))
        position = match.end()

    def find(value: Any) -> list[Any]:
        values = [value]
        for step in steps:
            values = step(values)
        return values

    return find


def _step(match: re.Match[str]) -> Step:
    if match["index"] is not None:
        index = whole(match["index"])
        return lambda values: [v[index] for v in values if isinstance(v, list) and -len(v) <= index < len(v)]
    if match["key"] is not None:
        key, literal = match["key"], match["value"]
        return lambda values: [e for v in values for e in _elements(v) if isinstance(e, dict) and e.get(key) == literal]
    name = match["quoted"] if match["quoted"] is not None else match["name"]
    if name is None:
        return lambda values: [element for value in values for element in _elements(value)]
    plain = re.sub(r"\\(.)", r"\1", name)
    return lambda values: [value[plain] for value in values if isinstance(value, dict) and plain in value]


def _elements(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
