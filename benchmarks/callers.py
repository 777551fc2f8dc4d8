"""Ways to a backend that are called in turn, by callers in C: what bench_connect.py and bench_proxy.py share."""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

HERE: Final = Path(__file__).parent
CACHE: Final = HERE.parent / ".cache" / "bench-connect"

Process = subprocess.Popen[bytes]


class Way(Protocol):
    """One way to a backend, with a caller for each kind of call."""

    @property
    def callers(self) -> Mapping[str, Process]:
        """By kind."""

    def call(self, kind: str) -> None:
        """Make some calls, and keep what was measured."""

    def forget(self) -> None:
        """Drop what was measured."""


def built(program: str, directory: Path) -> Path:
    """A program in C of this directory, compiled."""
    made = directory / program
    subprocess.run(["gcc", "-O2", "-o", str(made), str(HERE / f"{program}.c")], check=True)
    return made


def called(caller: Process, count: int) -> tuple[list[int], int]:
    """The sorted times of so many calls, and the processor time that the caller took for them, in ns."""
    assert caller.stdin is not None
    assert caller.stdout is not None
    caller.stdin.write(f"{count}\n".encode())
    caller.stdin.flush()
    raw = caller.stdout.read(4 * count + 8)
    if len(raw) < 4 * count + 8:
        raise SystemExit(f"{caller.args!r} ended")
    return sorted(struct.unpack_from(f"={count}I", raw)), struct.unpack_from("=Q", raw, 4 * count)[0]


def in_turn(ways: Sequence[Way], kinds: Sequence[str], rounds: int) -> None:
    """Call by all ways, kind by kind, in another order in every round; the first calls of each only warm up."""
    for way in ways:
        for kind in way.callers:
            way.call(kind)
        way.forget()
    for turn in range(rounds):
        for kind in kinds:
            for way in random.Random(turn).sample(ways, len(ways)):
                if kind in way.callers:
                    way.call(kind)


def processor(pid: int) -> int:
    """Processor time of all threads of a process, ns."""
    return sum(int(each.read_text().split()[0]) for each in Path(f"/proc/{pid}/task").glob("*/schedstat"))


def at(times: Sequence[int], part: int) -> int:
    """A percentile of sorted times."""
    return times[len(times) * part // 100]


def debian(*packages: str) -> Path | None:
    """Where Debian's packages are unpacked; they are not installed. None where they cannot be had."""
    where = CACHE / packages[0]
    if where.exists():
        return where
    if shutil.which("apt-get") is None:
        print(f"no Debian here: without {packages[0]}", file=sys.stderr)
        return None
    with tempfile.TemporaryDirectory() as name:
        got = subprocess.run(["apt-get", "-qq", "download", *packages], cwd=name, capture_output=True, check=False)
        if got.returncode:
            print(f"{packages[0]} cannot be downloaded: without it", file=sys.stderr)
            return None
        CACHE.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=CACHE))
        for package in Path(name).glob("*.deb"):
            subprocess.run(["dpkg", "-x", str(package), str(part)], check=True)
        part.rename(where)
    return where
