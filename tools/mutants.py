"""Random edits of the code, one at a time, each against the tests of its package: make mutants SEED=… N=…

An edit swaps a comparison or an operator, negates a condition, changes a number or a flag, drops a call or leaves a
loop otherwise, or returns nothing. One that no test notices is printed to be read: either it means the same, or a test
is missing. Edits are made in a copy of src. The same seed and number are the same edits while the code stays the same.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import functools
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

HERE: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = HERE / "src" / "isthmus"
TIMEOUT: Final = 600.0
"""Seconds for the tests of one edit; an edit that makes them hang is noticed."""
MODULES: Final = {
    "config": ["config"],
    "logs": ["config"],
    "running": ["processes"],
    "times": ["model"],
    "zone": ["dns"],
}
"""Directories of tests for the modules that are no packages; a package's tests have its name."""
COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
OPERATORS: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}


class Edit(NamedTuple):
    """A span of a file's text and what replaces it."""

    file: Path
    start: int
    end: int
    text: str

    @property
    def package(self) -> str:
        """The package, or the module outside of packages, that it is in."""
        return package_of(self.file)

    def apply(self, root: Path) -> None:
        """Make it in a copy of src."""
        path = root / "isthmus" / self.file.relative_to(SOURCE)
        path.write_bytes(self.after())

    def after(self) -> bytes:
        """The whole file with the edit."""
        before = self.file.read_bytes()
        return before[: self.start] + self.text.encode() + before[self.end :]

    def difference(self) -> str:
        """The lines it changes."""
        old, new = (text.decode().splitlines() for text in (self.file.read_bytes(), self.after()))
        return "\n".join(list(difflib.unified_diff(old, new, n=0, lineterm=""))[2:])


def package_of(file: Path) -> str:
    """The package, or the module outside of packages, that a file is in."""
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def edits(file: Path) -> list[Edit]:
    """Every edit that can be made in a file, in the order of its text."""
    text = file.read_bytes()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node, changed in _changes(ast.parse(text)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        new = ast.unparse(changed)
        found.append(Edit(file, start, end, f"({new})" if isinstance(changed, ast.expr) else new))
    return sorted(found, key=lambda edit: (edit.start, edit.end, edit.text))


Node = ast.expr | ast.stmt


def _changes(tree: ast.Module) -> Iterator[tuple[Node, Node]]:
    for node in _code(tree):
        match node:
            case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
                yield node, ast.Compare(node.left, [COMPARISONS[type(op)]()], node.comparators)
            case ast.BoolOp():
                yield node, ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
            case ast.UnaryOp(op=ast.Not()):
                yield node, node.operand
            case ast.BinOp() if type(node.op) in OPERATORS:
                yield node, ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
            case ast.Constant(value=bool()):
                yield node, ast.Constant(not node.value)
            case ast.Constant(value=int() | float() as value):
                yield node, ast.Constant(value + 1)
            case ast.If() | ast.While() | ast.IfExp():
                yield node.test, ast.UnaryOp(ast.Not(), node.test)
            case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
                yield node, ast.Return(ast.Constant(None))
            case ast.Expr(value=ast.Call() | ast.Await()):
                yield node, ast.Pass()
            case ast.Continue():
                yield node, ast.Break()
            case ast.Break():
                yield node, ast.Continue()


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run: no annotations, no names of types, nothing only for people to read (``__repr__``, logging)."""
    for field, value in ast.iter_fields(node):
        for each in value if isinstance(value, list) else [value]:
            if not isinstance(each, ast.AST) or field in ("annotation", "returns", "decorator_list", "bases"):
                continue
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name == "__repr__":
                continue
            if isinstance(each, ast.Expr) and _logs(each.value):
                continue
            if isinstance(each, ast.JoinedStr):  # the wording of messages
                continue
            yield each
            yield from _code(each)


def _logs(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func).partition(".")[0] in ("log", "logger", "_log")


@functools.cache
def tests_of(file: Path) -> list[str]:
    """Arguments of pytest that run what covers a file: its package's tests, then others that import its module."""
    folders = [HERE / "tests" / name for name in MODULES.get(package_of(file), [package_of(file)])]
    package, module = ".".join(("isthmus", *file.relative_to(SOURCE).parent.parts)), file.stem
    imports = re.compile(rf"{package}\.{module}\b|from {package} import .*\b{module}\b")
    others = [path for path, text in _test_files() if imports.search(text) and folders[0] not in path.parents]
    return [str(path) for path in (*folders, *others) if path.exists()]


@functools.cache
def _test_files() -> list[tuple[Path, str]]:
    return [(path, path.read_text()) for path in sorted((HERE / "tests").rglob("test_*.py"))]


def noticed(edit: Edit) -> tuple[bool, float]:
    """Whether a test fails, or hangs, with an edit; and the seconds that took."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="isthmus-mutants-") as folder:
        source = Path(folder, "src")
        shutil.copytree(HERE / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        edit.apply(source)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not kube and not lab", "-p", "no:cacheprovider"]
        environment = os.environ | {"PYTHONPATH": str(source), "CI": "true", "TMPDIR": folder}
        try:
            code = subprocess.run(
                [*command, "--timeout", "60", *tests_of(edit.file)],
                cwd=HERE,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=TIMEOUT,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            code = 1
    return code != 0, time.monotonic() - began


def main() -> int:
    """Print each edit that was not noticed, and the rate of each package; 1 where the whole is below the aim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", default=str(random.randrange(10**6)))
    parser.add_argument("-n", type=int, default=40, help="how many edits [40]")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--aim", type=int, default=0, help="percent of the edits that have to be noticed [0]")
    parser.add_argument("packages", nargs="*", help="only in these packages")
    options = parser.parse_args()
    files = [file for file in sorted(SOURCE.rglob("*.py")) if tests_of(file)]
    files = [file for file in files if not options.packages or package_of(file) in options.packages]
    found = [edit for file in files for edit in edits(file)]
    chosen = random.Random(options.seed).sample(found, min(options.n, len(found)))
    print(f"mutants: {len(chosen)} of {len(found)} edits, SEED={options.seed}", flush=True)
    all_, seen = Counter(edit.package for edit in chosen), Counter[str]()
    with ThreadPoolExecutor(options.jobs) as pool:
        for edit, (found_out, seconds) in zip(chosen, pool.map(noticed, chosen), strict=True):
            seen[edit.package] += found_out
            if not found_out:
                print(f"not noticed ({seconds:.0f} s): {edit.file.relative_to(HERE)}\n{edit.difference()}", flush=True)
    for package in sorted(all_):
        print(f"{package:<14} {seen[package]:>4} of {all_[package]:>4}  {100 * seen[package] // all_[package]:>3} %")
    rate = 100 * seen.total() // max(1, all_.total())
    print(f"{'all':<14} {seen.total():>4} of {all_.total():>4}  {rate:>3} %")
    return int(rate < options.aim)


if __name__ == "__main__":
    sys.exit(main())
