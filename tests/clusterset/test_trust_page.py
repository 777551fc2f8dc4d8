"""docs/trust.md names tests: they are there, and each is seen to fail without the rule that it shows (make mutate)."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMED = sorted(set(re.findall(r"`(test_[a-z0-9_]+)`", (ROOT / "docs" / "trust.md").read_text())))
SEVERAL_CHECKS = {"test_an_import_cannot_name_another_address_than_its_derived_service_has"}
"""Tests that no one edit turns red: with one check out another still refuses."""
MUTATIONS: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "tests" / "trust_mutations.toml").read_text())
SLIPS: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "tests" / "slips.toml").read_text())
"""Edits that no page names, by the test that notices each."""


def defined() -> set[str]:
    paths = (path for each in ("tests", "lab/tests") for path in (ROOT / each).rglob("test_*.py"))
    return {name for path in paths for name in re.findall(r"def (test_\w+)\(", path.read_text())}


def test_every_test_that_the_page_names_is_there() -> None:
    assert len(NAMED) > 10
    assert set(NAMED) <= defined()


def test_every_test_that_notices_a_slip_is_there() -> None:
    assert set(SLIPS) <= defined()


def test_every_test_that_the_page_names_has_the_edit_that_takes_its_rule_away() -> None:
    assert set(NAMED) - SEVERAL_CHECKS <= set(MUTATIONS)


@pytest.mark.parametrize("edits", [MUTATIONS, SLIPS], ids=["trust", "slips"])
def test_each_edit_is_of_a_place_that_is_there_once(edits: dict[str, dict[str, Any]]) -> None:
    """What takes a rule out of the code must still find it: make mutate is not run with every change."""
    found = {name: (ROOT / edit["file"]).read_text().count(edit["old"]) for name, edit in edits.items()}
    assert {name: count for name, count in found.items() if count != 1} == {}
