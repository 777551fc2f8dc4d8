"""Names as the resolvers of C libraries and languages find them, in a network namespace with our server's answers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parent.parent / "support"
MANY = "many.demo.svc.clusterset.local"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a resolv.conf of its own: needs root")

PYTHON = "import socket, sys; print(*{each[4][0] for each in socket.getaddrinfo(sys.argv[1], 80)}, sep='\\n')"


def found(count: int, command: list[str]) -> list[str]:
    unshare = ["unshare", "--net", "--mount", "--propagation", "private"]
    alone = [sys.executable, str(SUPPORT / "answers" / "dns_alone.py"), str(count), *command]
    done = subprocess.run([*unshare, *alone], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def compiled(compiler: str, directory: Path) -> str:
    program = directory / "resolve"
    subprocess.run([compiler, "-O1", "-o", str(program), str(SUPPORT / "answers" / "resolve.c")], check=True)
    return str(program)


@pytest.mark.parametrize("count", [1, 29, 30, 300])
@pytest.mark.parametrize(
    "resolver", ["python", *(pytest.param(each, marks=pytest.mark.needs(each)) for each in ("gcc", "musl-gcc", "dig"))]
)
@pytest.mark.slow
def test_a_set_of_any_size_resolves_though_tcp_is_anothers(resolver: str, count: int, tmp_path: Path) -> None:
    if resolver == "dig":
        command = ["dig", "+short", "+noedns", MANY, "A"]
    elif resolver == "python":
        command = [sys.executable, "-c", PYTHON, MANY]
    else:
        command = [compiled(resolver, tmp_path), MANY]
    addresses = found(count, command)
    assert len(set(addresses)) == min(count, 29), "as many as 512 bytes hold"
    assert all(each.startswith("10.1.") for each in addresses)
