"""The real kubectl: from PATH, or as tools/setup built it from its Go module."""

from __future__ import annotations

import shutil

import pytest


def program() -> str:
    """Its path. Where there is neither kubectl nor Go to build it, the test is skipped and says so."""
    found = shutil.which("kubectl")
    if found is None:
        pytest.skip("kubectl is missing (Debian's is too old): install it, or Go, from which make test builds it")
    return found
