from __future__ import annotations

import pytest
from mcs_world import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def dual() -> World:
    """A cluster with both address families."""
    return World("IPv4", "IPv6")
