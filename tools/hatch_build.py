"""Hatch hook: a wheel carries the compiled datapath, so its users need no compiler."""

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
            subprocess.run([sys.executable, str(Path(self.root) / "tools/build_bpf.py"), str(target)], check=True)
