"""Take a rule out of a copy of the code, and see the test fail that shows it: make mutate.

Edits of load-balancing scenarios are in tests/loadbalancer/mutations.toml, by scenario; those of trust are in
tests/trust_mutations.toml and slips in tests/slips.toml, by test; only that test is run. A scenario without an edit, an
edit that does not apply and a test that does not fail without its rule are failures; so is one whose fixtures fail,
since it asserts nothing then.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent.parent
TESTS = HERE / "tests"
SCENARIOS = TESTS / "loadbalancer" / "scenarios"
BY_TEST = ("trust_mutations.toml", "slips.toml")
"""Files with edits by the name of a test. A test may be in both."""


class Mutation(NamedTuple):
    """One edit, and the test that shows it: a path and a name, as pytest has them."""

    name: str
    test: str
    file: str
    old: str
    new: str


def main() -> int:
    """1 where some rule is shown by no test."""
    wrong: dict[str, str] = {}
    every = [*_scenarios(wrong), *_by_test(wrong)]
    names = {each.name for each in every} | set(wrong)
    chosen = [each for each in every if not sys.argv[1:] or each.name in sys.argv[1:]]
    wrong = {name: why for name, why in wrong.items() if not sys.argv[1:] or name in sys.argv[1:]}
    wrong |= {name: "there is no such scenario or test" for name in sys.argv[1:] if name not in names}
    for name, why in wrong.items():
        print(f"✘ {name}: {why}", flush=True)
    failing = 0
    for each in chosen:
        began = time.monotonic()
        why, seen = _try(each)
        print(f"{'✘' if why else '✔'} {each.name}  {time.monotonic() - began:.0f} s\n    {why or seen}", flush=True)
        if why:
            wrong[each.name] = why
        failing += not why
    print(f"{failing} of {len(chosen)} scenarios and tests fail when their rule is taken out")
    return min(1, len(wrong))


def _scenarios(wrong: dict[str, str]) -> Iterator[Mutation]:
    edits: dict[str, dict[str, Any]] = tomllib.loads((TESTS / "loadbalancer" / "mutations.toml").read_text())
    names = [str(path.relative_to(SCENARIOS).with_suffix("")) for path in sorted(SCENARIOS.rglob("*.txt"))]
    wrong |= {name: "its rule is not in mutations.toml" for name in names if name not in edits}
    wrong |= {name: "there is no such scenario" for name in edits if name not in names}
    for name in names:
        if edit := edits.get(name):
            test = f"{TESTS / 'loadbalancer' / 'test_scenarios.py'}::test_scenario[{name}-0]"
            yield Mutation(name, test, f"src/isthmus/{edit['file']}", edit["old"], edit["new"])


def _by_test(wrong: dict[str, str]) -> Iterator[Mutation]:
    paths = {
        name: f"{path}::{name}" if not indent else f"{path} -k {name}"
        for folder in (TESTS, HERE / "lab" / "tests")
        for path in folder.rglob("test_*.py")
        for indent, name in re.findall(r"^( *)(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE)
    }
    for name, edit in (each for file in BY_TEST for each in tomllib.loads((TESTS / file).read_text()).items()):
        if name in paths:
            yield Mutation(name, paths[name], edit["file"], edit["old"], edit["new"])
        else:
            wrong[name] = "there is no such test"


def _try(mutation: Mutation) -> tuple[str, str]:
    """Why a test does not show its rule, empty where it does; and what it failed with."""
    with tempfile.TemporaryDirectory(prefix="isthmus-mutate-") as folder:
        for part in ("src", "bpf", "tools", "deploy"):
            shutil.copytree(HERE / part, Path(folder, part), ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        path = Path(folder, mutation.file)
        text = path.read_text()
        if text.count(mutation.old) != 1:
            return f"{mutation.file} has {text.count(mutation.old)} times what is to be edited, not once", ""
        path.write_text(text.replace(mutation.old, mutation.new))
        if mutation.file.startswith("bpf/"):
            build = [Path(folder, "tools", "build_bpf.py"), Path(folder, "src/isthmus/datapath/isthmus.bpf.o")]
            subprocess.run([sys.executable, *build], check=True)
        failed = _failed(mutation.test, Path(folder, "src"))
    edit = f"{mutation.old!r} → {mutation.new!r} in {mutation.file}"
    return ("", failed) if failed else (f"does not fail without its rule: {edit}", "")


def _failed(test: str, source: Path) -> str:
    """What a test fails with; empty where it passes, or where it ends before it asserts anything."""
    options = ["-q", "-x", "-rf", "--tb", "line", "-p", "no:cacheprovider", "--timeout", "120"]
    command = [sys.executable, "-m", "pytest", *options, *test.split(" ")]
    environment = os.environ | {"PYTHONPATH": str(source)}
    done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"mutate: {' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    lines = done.stdout.splitlines()
    reasons = [found[1] for line in lines if (found := re.match(r"\S+:\d+: (.*)", line))]
    return (reasons or ["failed"])[0][:160] if any(line.startswith("FAILED ") for line in lines) else ""


if __name__ == "__main__":
    sys.exit(main())
