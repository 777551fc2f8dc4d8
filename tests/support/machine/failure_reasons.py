"""Why a test failed, in the line of its outcome: an emulated machine may not reach the summary (tools/test-kernel)."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """The word of a failure with its first 300 characters; other outcomes have pytest's own."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if not report.failed or crash is None:
        return None
    category, word = ("failed", "FAILED") if report.when == "call" else ("error", "ERROR")
    return category, word[0], f"{word} ({' '.join(crash.message.split())[:300]})"
