"""Compile bpf/isthmus.bpf.c to one object with BTF, by clang where it is installed, else by ziglang from PyPI."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

BPF = Path(__file__).resolve().parent.parent / "bpf"
FLAGS = ["-g", "-O2", "-Wall", "-Wextra", "-Werror", "-mcpu=v3", "-I", str(BPF)]
FLAGS += [f"-ffile-prefix-map={BPF.parent}=."]
"""Debug information names no folder of this machine: the object is the same wherever it is compiled."""


def command(*, pinned: bool = False) -> list[str]:
    """The compiler and what it needs to make little-endian BPF; no libbpf headers are used, only the kernel's.

    ``pinned``: ziglang of requirements/bpf.lock, also where clang is installed.
    """
    if not pinned and (clang := shutil.which("clang")):
        triplet = subprocess.run(["gcc", "-dumpmachine"], capture_output=True, text=True, check=False).stdout.strip()
        include = f"/usr/include/{triplet or 'x86_64-linux-gnu'}"
        return [clang, "-target", "bpfel", *FLAGS, "-I", include]
    try:
        import ziglang  # type: ignore[import-not-found,import-untyped,unused-ignore]  # only where clang is missing
    except ModuleNotFoundError:
        raise SystemExit(
            "build_bpf: the datapath needs a BPF compiler: install clang, or ziglang from requirements/bpf.lock, or"
            " put a compiled object at src/isthmus/datapath/isthmus.bpf.o (make bpf)"
        ) from None

    lib = Path(ziglang.__file__).parent / "lib" / "libc" / "include"
    headers = ["-isystem", str(lib / "x86-linux-any"), "-isystem", str(lib / "any-linux-any")]
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", "bpfel-freestanding"]
    return [*zig, "-fno-unwind-tables", "-fno-asynchronous-unwind-tables", *FLAGS, *headers]


def build(target: Path, *, pinned: bool = False) -> None:
    """Write the object whole or not at all."""
    part = target.resolve().with_suffix(".part")
    try:
        subprocess.run(
            [*command(pinned=pinned), "-c", str(BPF / "isthmus.bpf.c"), "-o", str(part)], check=True, cwd=BPF.parent
        )
    except subprocess.CalledProcessError as failed:
        raise SystemExit(f"build_bpf: the compiler failed on bpf/isthmus.bpf.c (exit {failed.returncode})") from None
    part.replace(target)


if __name__ == "__main__":
    build(Path(sys.argv[1]), pinned="--pinned" in sys.argv[2:])
