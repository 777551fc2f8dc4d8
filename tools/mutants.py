"""Random edits of the code, one at a time, each against the tests that reach it: make mutants SEED=… N=…

An edit swaps a comparison or an operator, negates a condition, changes a number or a flag, drops a call or leaves a
loop otherwise, or returns nothing. One that no test notices is printed to be read: either it means the same, or a test
is missing. Edits are made in a copy of src. The same seed and number are the same edits while the code stays the same.
What tests of an edit leave running ends with them, and with this program, however that ends (contained.py).
"""

from __future__ import annotations

import argparse
import ast
import difflib
import functools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

HERE: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = HERE / "src" / "isthmus"
TESTS: Final = HERE / "tests"
TESTS_OF_THE_LAB: Final = HERE / "lab" / "tests"
SUPPORT: Final = TESTS / "support"
EACH: Final = 60
"""Seconds for one test; an edit that makes it hang is noticed."""
TIMEOUT: Final = 1800
"""Seconds for the tests of one edit; one whose tests take longer is not judged."""
CONTAINED: Final = (
    *(sys.executable, str(HERE / "tools" / "contained.py")),
    *("--seconds", str(TIMEOUT), "--parent", str(os.getpid())),
)
_running: Final[set[subprocess.Popen[bytes]]] = set()
"""Tests of edits, which end all that they started when they get SIGTERM."""
VERDICTS: Final = {True: "noticed", False: "not noticed", None: "not judged"}
MODULES: Final = {
    "config": ["config"],
    "logs": ["config"],
    "netlink": ["datapath"],
    "running": ["processes"],
    "times": ["model"],
    "uplinks": ["dns", "proxy"],
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
    """Arguments of pytest that run what covers a file: its package's tests, then others that import it.

    A test imports what it names, and what the modules of tests/support name that it imports.
    """
    folders = [TESTS / name for name in MODULES.get(package_of(file), [package_of(file)])]
    others = [
        path
        for path in sorted([*TESTS.rglob("test_*.py"), *TESTS_OF_THE_LAB.rglob("test_*.py")])
        if file in _reached(path)
    ]
    return [
        str(path) for path in (*folders, *(each for each in others if folders[0] not in each.parents)) if path.exists()
    ]


def _reached(test: Path) -> set[Path]:
    """Every module of src that a test, its folder's conftest or the modules of tests/support they import name."""
    waiting, found = [test, test.parent / "conftest.py"], set[Path]()
    while waiting:
        for path in _imported(waiting.pop()) - found:
            found.add(path)
            if SUPPORT in path.parents:
                waiting.append(path)
    return found


@functools.cache
def _imported(path: Path) -> frozenset[Path]:
    """The modules of src and tests/support that a file names in its imports, anywhere in it."""
    if not path.exists():
        return frozenset()
    found = set[Path]()
    for node in ast.walk(ast.parse(path.read_bytes())):
        match node:
            case ast.Import():
                found.update(_module(name.name) for name in node.names)
            case ast.ImportFrom(module=str() as module, level=0):
                found.update(_defining(module, name.name) for name in node.names)
    return frozenset(path for path in found if path.exists())


def _defining(module: str, name: str) -> Path:
    """The module that a name imported from another comes from: a package's may be of one of its modules."""
    if (below := _module(f"{module}.{name}")).exists():
        return below
    where = _module(module)
    if where.name != "__init__.py":
        return where
    for node in ast.walk(ast.parse(where.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module and any(name in (n.asname, n.name) for n in node.names):
            return _defining(node.module, next(n.name for n in node.names if name in (n.asname, n.name)))
    return where


def _module(name: str) -> Path:
    """The file of a module; one that does not exist for those of other people."""
    package, *rest = name.split(".")
    if package != SOURCE.name:
        return SUPPORT.joinpath(package, *rest).with_suffix(".py")
    path = SOURCE.joinpath(*rest)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def noticed(edit: Edit, select: str) -> tuple[bool | None, float]:
    """True if a test fails, or hangs, with an edit; and the seconds that took.

    ``None`` if pytest did not end in time, or otherwise than with tests that failed (1) or passed (0), as when none was
    collected. ``select``: the marks of the tests that run.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="isthmus-mutants-") as folder:
        source = Path(folder, "src")
        shutil.copytree(HERE / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        edit.apply(source)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", select, "-p", "no:cacheprovider"]
        code = exit_code(
            [*CONTAINED, *command, "--timeout", str(EACH), *tests_of(edit.file)],
            environment=os.environ | {"PYTHONPATH": str(source), "CI": "true", "TMPDIR": folder},
        )
    return {0: False, 1: True}.get(code), time.monotonic() - began


def exit_code(command: list[str], *, environment: dict[str, str]) -> int:
    """The exit code of tests that run contained."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=HERE, env=environment, stdout=quiet, stderr=quiet) as child:
        _running.add(child)
        code = child.wait()
    _running.discard(child)
    return code


@contextmanager
def workers(count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads for the body; if it ends early, as by Ctrl-C, no further edit begins, and tests that run are ended."""
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in list(_running):
            child.terminate()
        pool.shutdown()


def main() -> int:
    """Print the verdict on each edit and the rate of each package; 1 where the whole is below the aim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", default=str(random.randrange(10**6)))
    parser.add_argument("-n", type=int, default=40, help="how many edits [40]")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--select", required=True, help="marks of the tests that run, as of pytest -m")
    parser.add_argument("--aim", type=int, default=0, help="percent of the edits that have to be noticed [0]")
    parser.add_argument("packages", nargs="*", help="only in these packages")
    options = parser.parse_args()
    files = [file for file in sorted(SOURCE.rglob("*.py")) if tests_of(file)]
    files = [file for file in files if not options.packages or package_of(file) in options.packages]
    found = [edit for file in files for edit in edits(file)]
    chosen = random.Random(options.seed).sample(found, min(options.n, len(found)))
    print(f"mutants: {len(chosen)} of {len(found)} edits, SEED={options.seed}", flush=True)
    all_, seen = Counter[str](), Counter[str]()
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
    with workers(options.jobs) as pool:
        judged = pool.map(functools.partial(noticed, select=options.select), chosen)
        for number, (edit, (found_out, seconds)) in enumerate(zip(chosen, judged, strict=True), 1):
            all_[edit.package] += found_out is not None
            seen[edit.package] += bool(found_out)
            what = VERDICTS[found_out]
            print(f"{number} of {len(chosen)} {what} ({seconds:.0f} s): {edit.file.relative_to(HERE)}", flush=True)
            if not found_out:
                print(edit.difference(), flush=True)
    for package in sorted(all_):
        share = 100 * seen[package] // max(1, all_[package])
        print(f"{package:<14} {seen[package]:>4} of {all_[package]:>4}  {share:>3} %")
    rate = 100 * seen.total() // max(1, all_.total())
    print(f"{'all':<14} {seen.total():>4} of {all_.total():>4}  {rate:>3} %")
    return int(rate < options.aim)


if __name__ == "__main__":
    sys.exit(main())
