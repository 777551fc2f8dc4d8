"""Requirements of the datapath that this machine does not meet, as sentences with a remedy."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from isthmus.datapath.core import libbpf
from isthmus.datapath.core.attach import OBJECT

KERNEL = (5, 10)
_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}


def requirements(*, compiled: Path = OBJECT) -> list[str]:
    """Requirements that are not met; empty if the datapath can run. ``compiled`` is its object file."""
    problems = (_capabilities(), _kernel(), _cgroup(), _btf(), _library(), _object(compiled))
    return [missing for missing in problems if missing]


def _capabilities() -> str:
    match = re.search(r"^CapEff:\s*([0-9a-f]+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    effective = int(match[1], 16) if match else 0
    missing = [name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1]
    return f"{' and '.join(missing)} missing: run as root (sudo)" if missing else ""


def _kernel() -> str:
    release = platform.release()
    version = tuple(int(part) for part in re.findall(r"\d+", release)[:2])
    oldest = ".".join(map(str, KERNEL))
    return "" if version >= KERNEL else f"kernel {release} is older than {oldest}: boot a newer one"


def cgroup_root() -> Path | None:
    """Mount point of cgroup v2, or ``None``."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(mount)
    return None


def _cgroup() -> str:
    return "" if cgroup_root() else "cgroup v2 is not mounted: mount -t cgroup2 none /sys/fs/cgroup/unified"


def _btf() -> str:
    readable = os.access("/sys/kernel/btf/vmlinux", os.R_OK)
    return (
        "" if readable else "the kernel has no BTF (/sys/kernel/btf/vmlinux): use one built with CONFIG_DEBUG_INFO_BTF"
    )


def _library() -> str:
    try:
        libbpf.library()
    except (OSError, AttributeError):
        return f"{libbpf.SONAME} (1.0 or newer) is not installed: apt-get install libbpf1"
    return ""


def _object(compiled: Path) -> str:
    return "" if compiled.exists() else f"{compiled.name}, the compiled datapath, is missing: make bpf"
