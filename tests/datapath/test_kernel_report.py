"""What `make test-kernel` says of a run: a panic of the guest is a failure, too little time is not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

REPORT = Path(__file__).resolve().parents[2] / "tools" / "test-kernel-report"
ASKED = ["lab/tests/test_lab_links_by_netem.py::test_waits", "tests/datapath/test_verifier.py::test_runs"]
UP = "test-kernel: Linux 6.1.0-56-cloud-amd64, up after 4.41 s"
FIRST = f"{ASKED[0]} PASSED                      [ 50%]"
SECOND = f"{ASKED[1]} PASSED                     [100%]"
WRONG = f"{ASKED[1]} FAILED (OSError: [Errno 28] No space left on device) [100%]"
PANIC = f"{ASKED[1]} [   55.681229] sysrq: Trigger a crash\n[   55.684622] Kernel panic - not syncing"
"""As Linux 6.1 wrote it in a guest."""


@pytest.mark.parametrize(
    ("log", "over", "status", "counts"),
    [
        pytest.param([UP, FIRST, SECOND, "test-kernel: status 0"], False, 0, "2 tests passed, 0 failed", id="all"),
        pytest.param([UP, FIRST, WRONG, "test-kernel: status 1"], False, 1, "1 tests passed, 1 failed", id="failed"),
        pytest.param([UP, FIRST, WRONG], True, 1, "1 tests passed, 1 failed", id="failed, and no time for the summary"),
        pytest.param([UP, FIRST, PANIC], False, 1, "1 tests passed, 0 failed", id="panic"),
        pytest.param([UP, PANIC], False, 1, "0 tests passed, 0 failed", id="panic in the first test"),
        pytest.param([UP, "test-kernel: status 2"], False, 1, "0 tests passed, 0 failed", id="not collected there"),
        pytest.param([UP, FIRST, "test-kernel: status 124"], False, 0, "1 tests passed, 0 failed", id="interrupted"),
        pytest.param([UP, FIRST], True, 0, "1 tests passed, 0 failed", id="no time for the second"),
        pytest.param([UP], True, 2, "0 tests passed, 0 failed", id="no time for any"),
        pytest.param(
            [UP, "test-kernel: status 124"], False, 2, "0 tests passed, 0 failed", id="none before interrupted"
        ),
        pytest.param(["qemu-system-x86_64: no memory"], False, 2, "0 tests passed, 0 failed", id="no guest"),
        pytest.param([], True, 2, "0 tests passed, 0 failed", id="no guest in time"),
    ],
)
def test_a_run_on_an_older_kernel_comes_to(
    tmp_path: Path, log: list[str], over: bool, status: int, counts: str
) -> None:
    (tmp_path / "log").write_text("".join(f"{line}\n" for line in log))
    (tmp_path / "asked").write_text("".join(f"{name}\n" for name in ASKED))
    words: list[str | Path] = [
        REPORT,
        tmp_path / "log",
        tmp_path / "asked",
        "Linux 6.1, 61 s",
        *(["over"] if over else []),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert f"test-kernel: Linux 6.1, 61 s: {counts}, 0 skipped, " in done.stdout
