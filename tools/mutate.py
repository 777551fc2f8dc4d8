"""Take the rule of each scenario out of a copy of the code, and see the scenario fail: make mutate.

The edits are in tests/loadbalancer/mutations.toml. A scenario without an edit, an edit that does not apply and
a scenario that holds without its rule are failures.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
TESTS = HERE / "tests" / "loadbalancer"
SCENARIOS = TESTS / "scenarios"


def main() -> int:
    """The number of scenarios that do not notice."""
    edits: dict[str, dict[str, Any]] = tomllib.loads((TESTS / "mutations.toml").read_text())
    names = [str(path.relative_to(SCENARIOS).with_suffix("")) for path in sorted(SCENARIOS.rglob("*.txt"))]
    chosen = [name for name in names if not sys.argv[1:] or name in sys.argv[1:]]
    wrong = {name: why for name in chosen if (why := _try(name, edits.get(name)))}
    wrong |= {name: "there is no such scenario" for name in edits if name not in names}
    for name, why in wrong.items():
        print(f"{name}: {why}")
    print(f"{len(chosen) - len(wrong)} of {len(chosen)} scenarios fail when their rule is taken out")
    return min(1, len(wrong))


def _try(name: str, edit: dict[str, Any] | None) -> str:
    """Why a scenario does not show its rule; nothing where it does."""
    if edit is None:
        return "its rule is not in mutations.toml"
    with tempfile.TemporaryDirectory(prefix="isthmus-mutate-") as folder:
        source = Path(folder, "src")
        shutil.copytree(HERE / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        path = source / "isthmus" / edit["file"]
        text = path.read_text()
        if text.count(edit["old"]) != 1:
            return f"{edit['file']} has {text.count(edit['old'])} times what is to be edited, not once"
        path.write_text(text.replace(edit["old"], edit["new"]))
        if _holds(name, source):
            return f"holds without its rule: {edit['old']!r} → {edit['new']!r} in {edit['file']}"
    return ""


def _holds(name: str, source: Path) -> bool:
    test = f"{TESTS / 'test_scenarios.py'}::test_scenario[{name}-0]"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "60", test]
    done = subprocess.run(
        command, cwd=HERE, env=os.environ | {"PYTHONPATH": str(source)}, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"mutate: {' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
