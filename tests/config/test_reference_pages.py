"""The reference pages in docs/ are what tools/reference.py writes, and no option goes without a description."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from isthmus.config import Config

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import reference  # noqa: E402


@pytest.mark.parametrize("page", reference.PAGES)
def test_a_reference_page_is_what_the_code_says(page: str) -> None:
    assert (ROOT / page).read_text() == reference.PAGES[page](), "write it again by `make reference`"


def test_every_option_has_a_description() -> None:
    without = [
        f"{section.name}.{option}"
        for section in msgspec.structs.fields(Config)
        for option, text in reference.attribute_docstrings(section.type).items()
        if not text
    ]
    assert without == []


def test_every_field_of_our_resources_has_a_row() -> None:
    page = (ROOT / "docs/api.md").read_text()
    for field in ("spec.targetRef.name", "spec.tiers[].clusters[].weight", "status.shares"):
        assert f"`{field}`" in page
