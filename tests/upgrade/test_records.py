"""Records of this release, read by the previous one; and that the recordings are what the previous one writes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from machine import previous_release
from peers import record_samples

pytestmark = pytest.mark.upgrade

ROOT = Path(__file__).parents[2]
RELEASE = previous_release.previous()
RECORDING = ROOT / "tests" / "data" / "records" / f"{RELEASE.version}.json"


def previous(command: str, records: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    """What the previous release's code makes of records, or the records that it writes."""
    script = ROOT / "tests" / "support" / "peers" / "record_samples.py"
    done = subprocess.run(
        [RELEASE.python, script, command], input=json.dumps(records), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_the_previous_release_reads_todays_records_as_today_does() -> None:
    today = record_samples.samples()
    assert previous("read", today) == [
        {**each, "row": known(each["row"], earlier["row"])}
        for each, earlier in zip(record_samples.rows(today), previous("read", today), strict=True)
    ]


def known(row: Any, earlier: Any) -> Any:
    """Return a row of today with the fields that the earlier release's has."""
    if isinstance(row, dict) and isinstance(earlier, dict):
        return {field: known(row.get(field), each) for field, each in earlier.items()}
    if isinstance(row, list) and isinstance(earlier, list) and len(row) == len(earlier):
        return [known(*each) for each in zip(row, earlier, strict=True)]
    return row


def test_the_previous_release_ignores_fields_that_it_does_not_know() -> None:
    def widened(value: Any) -> Any:
        return {**value, "fieldOfTomorrow": {"nested": [1, None]}}

    today = record_samples.samples()
    later = [{"key": each["key"], "value": widened(each["value"])} for each in today]
    assert previous("read", later) == previous("read", today)


def test_the_recording_is_what_the_previous_release_writes_and_reads() -> None:
    written = previous("write")
    recorded = [{**record, "row": row["row"]} for record, row in zip(written, previous("read", written), strict=True)]
    if os.environ.get("ISTHMUS_REWRITE") == "1":
        RECORDING.write_text(json.dumps(recorded, indent=1) + "\n")
    assert json.loads(RECORDING.read_text()) == recorded
