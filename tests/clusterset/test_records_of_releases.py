"""Records of the earlier release, recorded from it: read as it reads them, and today's differ by added fields alone.

The rule is in docs/upgrade.md. A recording is made by ``make test-upgrade`` with ISTHMUS_REWRITE=1, and kept while
users come from its release.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from peers import record_samples

RECORDINGS = Path(__file__).parents[1] / "data" / "records"
[RECORDED] = [json.loads(path.read_text()) for path in RECORDINGS.glob("*.json")]
CHANGING = {("version",)}
"""Fields whose values are those of a release."""


def paths(value: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every path of a JSON value with the type of what is there; elements of lists share one path."""
    match value:
        case dict():
            yield before, "object"
            for field, each in value.items():
                yield from paths(each, (*before, field))
        case list():
            yield before, "array"
            for each in value:
                yield from paths(each, (*before, "[]"))
        case _:
            yield before, type(value).__name__


def without_new_fields(row: Any, earlier: Any) -> Any:
    """Return a row with the fields that an earlier release's has."""
    if isinstance(row, dict) and isinstance(earlier, dict):
        return {field: without_new_fields(row[field], each) for field, each in earlier.items() if field in row}
    if isinstance(row, list) and isinstance(earlier, list) and len(row) == len(earlier):
        return [without_new_fields(*each) for each in zip(row, earlier, strict=True)]
    return row


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda each: each["key"])
def test_a_record_of_the_earlier_release_is_read_as_it_reads_it(recorded: dict[str, Any]) -> None:
    [read] = record_samples.rows([recorded])
    assert without_new_fields(read["row"], recorded["row"]) == recorded["row"]


def test_the_keys_of_the_earlier_release_are_written_and_a_new_layout_has_a_new_version_in_its_keys() -> None:
    today = [each["key"] for each in record_samples.samples()]
    assert [each["key"] for each in RECORDED if each["key"] not in today] == []


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda each: each["key"])
def test_fields_are_only_added_and_keep_their_types_and_values(recorded: dict[str, Any]) -> None:
    [today] = [each["value"] for each in record_samples.samples() if each["key"] == recorded["key"]]
    assert set(paths(recorded["value"])) - set(paths(today)) == set()
    earlier = without_new_fields(today, recorded["value"])
    for changing in CHANGING:
        earlier |= {field: recorded["value"][field] for field in changing if field in recorded["value"]}
    assert earlier == recorded["value"]
