"""Process 1 of a node: mounts what is the node's own, then collects processes that ended. Standard library only.

It is started in namespaces of mounts, process ids and control groups of its own: the mounts of containers go with it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

COMMON: Final = ("rw", "nosuid", "nodev", "noexec", "relatime")
"""Options of any mount; the others name a hierarchy."""
OWN: Final = {"run": "/run", "var-lib": "/var/lib", "var-log": "/var/log"}
"""Folders of the node, and where kubelet, containerd, CNI plugins and pods have their files."""


def main(folder: Path) -> None:
    """Make the node's mounts, print a line, and run until killed."""
    # Network namespaces and pods of others stay theirs alone: they live as long as anybody has them mounted.
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for path in reversed(mounted):
        if path.startswith("/run/"):
            subprocess.run(["umount", "-l", path], check=False, stderr=subprocess.DEVNULL)
    mount("-t", "proc", "proc", "/proc")
    mount_control_groups()
    for own, target in OWN.items():
        (folder / own).mkdir(exist_ok=True)
        mount("--bind", str(folder / own), target)
    mount("-t", "bpf", "bpf", "/sys/fs/bpf")
    mount("--make-rshared", "/")
    print("ready", flush=True)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.2)


def mount_control_groups() -> None:
    """Mount each hierarchy anew: in a namespace of control groups its root is the node's group."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    for _, path, kind, options, *_ in mounts:
        if kind in ("cgroup", "cgroup2"):
            subprocess.run(["umount", "-l", path], check=True)
            chosen = [each for each in options.split(",") if each not in COMMON]
            named = ["none"] if any(each.startswith("name=") for each in chosen) else []
            mount("-t", kind, *(["-o", ",".join(named + chosen)] if kind == "cgroup" else []), kind, path)


def mount(*arguments: str) -> None:
    """Run mount(8); an error ends the node."""
    subprocess.run(["mount", *arguments], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
