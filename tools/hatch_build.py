"""Hatch hook: a wheel carries the compiled datapath, so its users need no compiler, and deploy/ but for the chart."""

import subprocess
import sys
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version, build_data):
        if version == "editable":
            return
        target = Path(self.root) / "src/isthmus/datapath/isthmus.bpf.o"
        if not target.exists():
            command = [sys.executable, str(Path(self.root) / "tools/build_bpf.py"), str(target)]
            if subprocess.run(command, check=False).returncode:
                raise SystemExit(1)  # the compiler has written the reason
        for path in (Path(self.root) / "deploy").iterdir():
            if path.name != "chart":  # Helm's users take it from the repository; it repeats what the rest has
                build_data["force_include"][str(path)] = f"isthmus/deploy/{path.name}"
