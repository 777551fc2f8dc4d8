"""docs/trust.md names tests: they are there, and each is seen to fail without the rule that it shows (make mutate)."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NAMED = sorted(set(re.findall(r"`(test_[a-z0-9_]+)`", (ROOT / "docs" / "trust.md").read_text())))
SEVERAL_CHECKS = {"test_an_import_cannot_name_another_address_than_its_derived_service_has"}
"""Tests that no one edit turns red: with one check out another still refuses."""
MUTATIONS: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "tests" / "trust_mutations.toml").read_text())


def test_every_test_that_the_page_names_is_there() -> None:
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)\(", path.read_text())
    }
    assert len(NAMED) > 10
    assert set(NAMED) <= defined


def test_every_test_that_the_page_names_has_the_edit_that_takes_its_rule_away() -> None:
    assert set(NAMED) - SEVERAL_CHECKS <= set(MUTATIONS)
