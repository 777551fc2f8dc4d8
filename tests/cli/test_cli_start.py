"""Commands start fast: none imports a library that it does not use. Counted in modules, not in time.

What a command costs to start is what it imports; aiohttp, gRPC and cryptography take longer than most commands.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "aiohttp", "cryptography", "dns", "google.protobuf", "grpc", "isthmus.kube.client", "mcp",
    "prometheus_client", "pydantic", "rich", "structlog", "yaml",
)  # fmt: skip
"""Libraries and modules that take over 10 ms to import; rows for people and for programs need none."""
RUN = """
import sys
from isthmus.cli import root
try:
    root.main({words!r}.split(), prog_name="isthmus", standalone_mode=False)
except Exception as error:
    assert "serves" in str(error), error
finally:
    print(*sys.modules, file=sys.stderr)
"""
SOCKET = "--socket /nonexistent/agent.sock"


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "status --help",
        "get --help",
        f"get services -A {SOCKET}",
        f"flows {SOCKET}",
        f"top --once {SOCKET}",
        f"explain demo/echo {SOCKET}",
        f"diagnose demo/echo {SOCKET}",
        "verify --help",
        "connect --help",
        "check --help",
        "agent --help",
    ],
)
def test_a_command_imports_no_library_that_it_does_not_use(words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(words=words)], capture_output=True, text=True, timeout=120, check=False
    )
    imported = done.stderr.split()
    assert "isthmus.cli" in imported, done.stderr
    assert sorted({*HEAVY} & {*imported}) == []


def test_diagnosis_imports_neither_transport_nor_cryptography() -> None:
    script = "import sys, isthmus.cli.diagnosis.exporters; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert sorted({*HEAVY} & {*done.stdout.split()}) == []


def test_commands_leave_the_environment_of_what_their_process_starts_alone() -> None:
    """gRPC is quiet in `isthmus clusters`. The variable for that once silenced processes that a test started, too."""
    script = """
import os
before = dict(os.environ)
from isthmus.cli import root
try:
    root.main("clusters refresh --config /nonexistent.toml".split(), prog_name="isthmus", standalone_mode=False)
except Exception as error:
    assert "nonexistent" in str(error), error
assert dict(os.environ) == before, {*os.environ.items()} ^ before.items()
"""
    subprocess.run([sys.executable, "-c", script], timeout=120, check=True)
