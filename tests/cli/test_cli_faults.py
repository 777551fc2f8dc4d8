"""Every fault of rows/fault_cases.py is named by its code alone, with a cure, and its healthy twin is no fault."""

from __future__ import annotations

import ast
import re
from typing import Final

import pytest
from labs.injected_faults import FAULTS
from rows import fault_page
from rows.fault_cases import CASES, faults

CODE: Final = re.compile(r"[a-z]+(-[a-z]+)+")
NO_CODES: Final = frozenset(
    {"dns-second", "isthmus-system", "not-allowed", "not-allowed-by-address", "bad-mac", "unknown-key"}
)
"""Words with hyphens in the diagnosis that are no codes."""


@pytest.mark.parametrize("case", CASES)
def test_a_fault_is_named_by_its_code_alone_and_has_a_cure(case: str) -> None:
    code, inject, _, world, whole = CASES[case]
    it = world()
    inject(it)
    found = faults(it.facts(), whole=whole)
    assert [fault.code for fault in found] == [code], found
    assert all(fault.text and fault.cure for fault in found)


@pytest.mark.parametrize("case", CASES)
def test_the_healthy_twin_of_a_fault_is_none(case: str) -> None:
    _, _, twin, world, _ = CASES[case]
    it = world()
    twin(it)
    assert faults(it.facts(), whole=False) == []
    assert faults(it.facts(), whole=True) == []


def test_the_page_of_faults_is_what_diagnose_prints() -> None:
    """If not: PYTHONPATH=tests/support python -m rows.fault_page."""
    assert fault_page.PAGE.read_text() == fault_page.page()


def test_the_table_has_fifty_faults_and_every_code_that_diagnose_has() -> None:
    assert len(CASES) >= 50
    assert codes() == {case.code for case in CASES.values()}


def codes() -> set[str]:
    """Codes in the sources of the diagnosis: words with hyphens among the arguments of a fault, or `bug`."""
    found = set[str]()
    for path in (fault_page.ROOT / "src/isthmus/cli/diagnosis").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and CODE.fullmatch(node.value):
                found.add(node.value)
    return (found - NO_CODES) | {"bug"}


@pytest.mark.parametrize("name", [*fault_page.REAL.values(), *(each.test for each in fault_page.ELSEWHERE)])
def test_the_test_that_the_page_names_exists(name: str) -> None:
    file, _, test = name.partition("::")
    function, _, parameter = test.partition("[")
    text = (fault_page.ROOT / file).read_text()
    assert f"def {function}(" in text
    if parameter:
        assert parameter.rstrip("]") in FAULTS


def test_every_fault_that_is_injected_for_real_is_one_of_the_table() -> None:
    assert fault_page.REAL.keys() <= CASES.keys()
