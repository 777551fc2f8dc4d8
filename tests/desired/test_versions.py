"""Versions of objects: numbers that are compared, and anything else that is not."""

from __future__ import annotations

import pytest

from isthmus.desired.known import is_older


@pytest.mark.parametrize(
    ("seen", "version", "older"),
    [
        ("9", "10", True),
        ("10", "10", True),
        ("11", "10", False),
        ("", "10", False),
        ("²", "10", False),
        ("9", "9" * 4400, False),
        ("a1", "b2", False),
    ],
)
def test_a_version_is_older_by_its_number_and_one_that_is_none_never(seen: str, version: str, older: bool) -> None:
    assert is_older(seen, version) is older
