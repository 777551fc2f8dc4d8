"""The code blocks of docs/statedb.md run in order, and print the text blocks under them."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "statedb.md"
BLOCKS = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)


def test_the_tutorial_prints_what_it_says() -> None:
    namespace: dict[str, Any] = {}
    blocks = BLOCKS.findall(PAGE.read_text())
    assert len(blocks) == 7
    for code, expected in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(PAGE), "exec"), namespace)
        assert printed.getvalue() == expected
