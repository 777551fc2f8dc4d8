"""The programs of ``isthmus verify`` over a path that drops large packets and sends no ICMP: a path-MTU black hole."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from datapath_worlds.narrow_path import PORT, SERVER, NarrowPath

from isthmus.cli.verification.objects import PROGRAMS

pytestmark = [pytest.mark.bpf, pytest.mark.needs("nft")]


def checks(path: NarrowPath, *only: str, seconds: float = 0.1) -> dict[str, str]:
    """What the caller's program finds; ``only``: the checks that are made, instead of those of verify."""
    target: dict[str, Any] = {
        "family": "IPv4", "answer": "c2", "name": SERVER, "port": PORT, "headless": SERVER, "pods": [SERVER],
        "pod_port": PORT, **({"checks": only} if only else {}),
    }  # fmt: skip
    program = [sys.executable, str(PROGRAMS / "call.py"), json.dumps([target]), str(seconds)]
    found: list[dict[str, str]] = json.loads(path.inside(path.caller, *program))
    return found[0]


@pytest.fixture
def path() -> Iterator[NarrowPath]:
    it = NarrowPath([str(PROGRAMS / "serve.py")], "tcp", "udp")
    yield it
    it.close()


def test_a_path_without_a_bottleneck_passes(path: NarrowPath) -> None:
    assert checks(path) == {"name": "", "headless": "", "tcp": "", "udp": "", "path": "direct"}


def test_a_bottleneck_that_is_reported_passes(path: NarrowPath) -> None:
    path.narrow(path.server, silent=False)
    found = checks(path)
    assert (found["tcp"], found["udp"]) == ("", "")


@pytest.mark.slow
def test_a_bottleneck_without_icmp_fails_and_the_size_that_passes_is_named(path: NarrowPath) -> None:
    path.narrow(path.server, silent=True)
    found = checks(path)
    assert found["headless"] == ""  # a few bytes pass
    assert "64 kB get no answer; with segments of 1240 bytes they do" in found["tcp"]
    assert "datagrams of 1400 bytes get no answer, of 1240 they do" in found["udp"]


def test_check_reaches_a_pod_without_any_name(path: NarrowPath) -> None:
    assert checks(path, "direct", seconds=30) == {"direct": "", "path": ""}  # until the server listens


@pytest.mark.slow
def test_check_names_the_size_that_passes_a_bottleneck_without_icmp(path: NarrowPath) -> None:
    path.narrow(path.server, silent=True)
    found = checks(path, "direct", seconds=5)
    assert "64 kB get no answer; with segments of 1240 bytes they do" in found["direct"]
