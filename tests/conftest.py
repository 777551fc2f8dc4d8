"""What the machine can run decides what is skipped; ``ISTHMUS_NO_SKIP=1`` makes a skip a failure (CI sets it)."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["etcd_server", "kube_apiserver"]

CACHE = Path(__file__).parents[1] / ".cache" / "kube-tools"
"""Where `make kube-tools` puts what it builds; after PATH, as tools/setup promises."""
os.environ["PATH"] += f"{os.pathsep}{CACHE}"

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("people", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "people")
"""CI looks at the same examples each time, so what it says is about the change; people's machines look for new ones."""

NO_SKIP = os.environ.get("ISTHMUS_NO_SKIP") == "1"


def pytest_sessionstart() -> None:
    """A test without a loop has none: else a plugin that asks for it makes one that nobody closes."""
    asyncio.set_event_loop(None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell, and in what we start there
        signal.signal(signal.SIGINT, signal.default_int_handler)


@functools.cache
def missing() -> list[str]:
    """What this machine lacks for BPF and labs, as sentences."""
    from isthmus.datapath import requirements

    return requirements()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not any(item.get_closest_marker(name) for name in ("bpf", "lab")):
            continue
        if missing() and not NO_SKIP:
            item.add_marker(pytest.mark.skip(reason="; ".join(missing())))


def pytest_runtest_setup(item: pytest.Item) -> None:
    needs_kernel = any(item.get_closest_marker(name) for name in ("bpf", "lab"))
    if NO_SKIP and needs_kernel and missing():
        pytest.fail(f"this machine should run BPF tests, but: {'; '.join(missing())}", pytrace=False)
