"""`make test` is for before each commit: each room keeps quick tests in it, and a story in a lab."""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
TESTS_OF_THE_LAB = ROOT / "lab" / "tests"
APART = {"islands", "nodes", "upgrade"}
"""Rooms whose tests are all of a suite of their own."""
ROOMS = {
    path.parent.name if path.parent != TESTS_OF_THE_LAB else "lab": path.parent
    for path in (*TESTS.glob("*/test_*.py"), *TESTS_OF_THE_LAB.rglob("test_*.py"))
}
LEFT_OUT = {"dist", "slow", "kube", "cilium", "failover", "islands", "karmada_programs", "netem", "nodes", "upgrade"}


def marks(nodes: list[ast.expr]) -> set[str]:
    """Names of the marks that expressions have: ``pytest.mark.NAME``, also in lists and called."""
    found = (each for node in nodes for each in ast.walk(node) if isinstance(each, ast.Attribute))
    return {each.attr for each in found if ast.unparse(each.value) == "pytest.mark"}


def quick(path: Path) -> Iterator[str]:
    """Tests of a module that `make test` runs, as far as its text shows."""
    tree = ast.parse(path.read_text())
    whole = [node.value for node in tree.body if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node)]
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
            continue
        if not LEFT_OUT & marks([*whole, *node.decorator_list]):
            yield node.name


@pytest.mark.parametrize("room", sorted(ROOMS.keys() - APART))
def test_each_room_has_quick_tests(room: str) -> None:
    assert [test for path in ROOMS[room].glob("test_*.py") for test in quick(path)] != []


def test_the_main_story_and_a_node_s_life_in_a_lab_are_among_them() -> None:
    assert "test_every_step_holds_and_json_is_all_that_stands_on_stdout" in list(
        quick(TESTS_OF_THE_LAB / "test_demo.py")
    )
    assert len(list(quick(TESTS_OF_THE_LAB / "test_lab_node.py"))) > 20


def test_it_leaves_out_what_takes_long_and_what_others_programs_are_needed_for() -> None:
    given = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "SELECT", "TESTS")
    }
    done = subprocess.run(["make", "-n", "test"], cwd=ROOT, capture_output=True, text=True, check=True, env=given)
    words = done.stdout
    assert {name for name in LEFT_OUT if f"not {name}" in words} == LEFT_OUT
