"""The story of load balancing as people run it: with root on the kernel's maps as well, without root all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from isthmus_lab import cgroups

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "examples.load_balancing"]


def told(*before: str) -> tuple[dict[str, Any], str]:
    done = subprocess.run(
        [*before, *COMMAND, "--json"], capture_output=True, text=True, check=False, timeout=100, cwd=ROOT
    )
    outcome = json.loads(done.stdout)
    assert (done.returncode, outcome["ok"]) == (0, True), done.stderr
    return outcome, done.stderr


@pytest.mark.bpf
@pytest.mark.slow
def test_every_step_holds_on_the_double_and_on_the_kernels_maps_and_leaves_no_trace() -> None:
    outcome, said = told()
    assert "the kernel's beside it" in said
    assert {step["name"] for step in outcome["steps"]} >= {
        "a second source",
        "the pod",
        "hand-over: the first one stops",
    }
    assert list(cgroups.root().glob("isthmus-demo-lb-*")) == []


@pytest.mark.needs("unshare")
def test_without_root_every_step_holds_on_the_double_and_tables_and_maps_are_printed() -> None:
    _, said = told(*(["unshare", "--user"] if os.geteuid() == 0 else []))
    assert "the kernel's are left alone: this is not root" in said
    assert "    plans      shop/cart:80/TCP/IPv4 → c1/10.1.1.9:3128 by CiliumLocalRedirectPolicy shop/cache" in said
    assert "        plan=shop/cart:80/TCP/IPv4 group=0 n=0 backend=10.1.1.9:3128/TCP" in said
