#!/usr/bin/env python3
"""Run pytest, and where few tests fail, these once more: tools/again.py COMMAND…, for example tools/again.py make test

A test that passes then is printed as `flaky:`, and the exit code is 0. Where more than three failed, where one fails
again, and where pytest did not end by itself, the exit code is the first run's. docs/decisions/flaky-tests.md says why.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

MOST = 3
"""Tests that run once more; of a defect in the product more tend to fail."""
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
"""What pytest writes when it ends: tests that failed, below the folder that it ran in."""
ONLY_THESE = "--last-failed --last-failed-no-failures=none"


def main(command: list[str]) -> int:
    """Run the command, once or twice, and return its exit code."""
    LAST_FAILED.unlink(missing_ok=True)
    first = subprocess.run(command, check=False).returncode
    failed = list(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else []
    if first == 0 or not 0 < len(failed) <= MOST:
        return first
    print(f"again: {len(failed)} failed, and run once more", flush=True)
    options = f"{os.environ.get('PYTEST_ADDOPTS', '')} {ONLY_THESE}"
    if subprocess.run(command, check=False, env=os.environ | {"PYTEST_ADDOPTS": options}).returncode != 0:
        return first
    for test in failed:
        print(f"flaky: {test}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
