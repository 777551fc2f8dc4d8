"""Find kube-apiserver and its like in $KUBEBUILDER_ASSETS, PATH, or the output of `make kube-tools`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import isthmus_lab

SERVER: Final = "kube-apiserver"
CONTROLLERS: Final = "kube-controller-manager"
PROXY: Final = "kube-proxy"
COREDNS: Final = "coredns"
BUILT: Final = Path(isthmus_lab.__file__).resolve().parents[2] / ".cache" / "kube-tools"


def find(program: str, *, environment: Mapping[str, str] = os.environ, built: Path = BUILT) -> Path | None:
    """The program of this machine, the explicitly given first."""
    assets = environment.get("KUBEBUILDER_ASSETS", "")
    configured = Path(assets) / program if assets else None
    if configured is not None and os.access(configured, os.X_OK):
        return configured
    if in_path := shutil.which(program, path=environment.get("PATH", "")):
        return Path(in_path)
    return built / program if os.access(built / program, os.X_OK) else None


def missing(*programs: str) -> list[str]:
    """One sentence per missing program."""
    return [
        f"{program}: not in $KUBEBUILDER_ASSETS, on PATH or in .cache/kube-tools: run `make kube-tools`"
        for program in programs
        if find(program) is None
    ]
