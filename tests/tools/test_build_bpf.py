"""A wheel is built where there is no BPF compiler only with a compiled object, and the error names what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_without_a_compiler_one_line_names_what_to_install(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", str(ROOT / "tools/build_bpf.py"), str(tmp_path / "isthmus.bpf.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": str(tmp_path)})
    assert done.returncode == 1
    assert done.stderr.startswith("build_bpf: the datapath needs a BPF compiler: install clang")
    assert len(done.stderr.splitlines()) == 1
