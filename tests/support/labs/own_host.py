"""The fixture of tests that compare the network of the host before and after a lab."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from labs import lab_traces


@pytest.fixture(scope="module")
def own_host() -> Iterator[None]:
    """A host network of the module's own; labs are asked for after it."""
    with lab_traces.own_host():
        yield
