"""Ends a run between two tests once ISTHMUS_SECONDS are over, with status 124 as timeout(1) has it (tools/test-kernel).

A signal ends it within a test, and may be lost there: one that came while the collector called hypothesis failed that
test, and the run went on.
"""

from __future__ import annotations

import os
import time
from typing import Final

import pytest

OVER: Final = "its time is up"
UNTIL: Final = time.monotonic() + float(os.environ["ISTHMUS_SECONDS"])


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """No test after this one, if its time is up."""
    if time.monotonic() >= UNTIL:
        item.session.shouldstop = OVER


def pytest_sessionfinish(session: pytest.Session) -> None:
    """The status of a run that was ended so, and of which nothing failed."""
    if session.shouldstop == OVER and not session.testsfailed:
        session.exitstatus = 124
