"""Finds the cgroup of all pods of this node from a process of a pod, the agent itself.

The kubelet puts every pod below ``kubepods``, whatever the runtime (containerd, CRI-O, Docker):

    systemd driver  /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/cri-containerd-<id>.scope
    cgroupfs driver /kubepods/burstable/pod<uid>/<id>
    --cgroup-root   /kubelet.slice/kubelet-kubepods.slice/… or /kubelet/kubepods/… (kind)

Three cases make the own line in /proc/self/cgroup useless: with a cgroup namespace of its own a container reads ``/``;
where the v1 hierarchies have the controllers (hybrid), a runtime with the cgroupfs driver leaves its containers in the
cgroup of its own in the v2 hierarchy, which then is that of all pods; and an agent outside any pod has another one. So
the own pid is looked for in the mounted hierarchy, and the path to it is judged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from isthmus.datapath.core.errors import DatapathError

AUTO: Final = "auto"
"""Value of ``datapath.cgroup`` for a cgroup that is found."""
_PODS: Final = re.compile(r"(?:.+-)?kubepods(?:\.slice)?")
_CONTAINER: Final = re.compile(r"(?:[a-z-]+-)?[0-9a-f]{12,64}(?:\.scope)?")
"""Cgroup of one container, whose parent is that of all where the kubelet makes none (``cgroupsPerQOS: false``)."""
_DEPTH: Final = 3
"""Levels below the root in which ``kubepods`` is looked for if this process is not below it."""


def find(*, proc: Path = Path("/proc/self"), pid: int | None = None) -> Path:
    """Return the cgroup of all pods. Raises DatapathError, with the cure, if it cannot be determined."""
    mounts = list(mount_points((proc / "mountinfo").read_text()))
    if not mounts:
        raise DatapathError("datapath.cgroup cannot be found: cgroup v2 is not mounted in this container")
    own_line = own_path((proc / "cgroup").read_text())
    for mount in mounts:
        own = own_group(mount, own_line, os.getpid() if pid is None else pid)
        if own is not None and (pods := pods_group(mount, own)) is not None:
            return pods
        if (pods := _by_name(mount)) is not None:
            return pods
        if own is not None and own != mount:
            return own.parent if _CONTAINER.fullmatch(own.name) and own.parent != mount else own
    raise DatapathError(
        "datapath.cgroup cannot be found: this process is in the root cgroup, and there is no kubepods: "
        "set datapath.cgroup to the cgroup of this node's pods"
    )


def mount_points(mountinfo: str) -> Iterator[Path]:
    """Yield the mount points of cgroup v2, each once. A later mount covers an earlier one at the same place."""
    points = []
    for line in mountinfo.splitlines():
        fields = line.split()
        if fields[fields.index("-") + 1] == "cgroup2":
            points.append(Path(fields[4]))
    yield from dict.fromkeys(points)


def own_path(text: str) -> str:
    """Path of this process in the v2 hierarchy, as seen in its cgroup namespace, from /proc/self/cgroup."""
    return next((line.partition("::")[2] for line in text.splitlines() if line.startswith("0::")), "/")


def own_group(mount: Path, own: str, pid: int) -> Path | None:
    """Cgroup below a mount point that has this process; ``None`` if none lists it."""
    candidate = mount / own.lstrip("/")
    if ".." not in candidate.parts and _has(candidate, pid):
        return candidate
    groups = (Path(directory) for directory, _, _ in os.walk(mount))
    return next((group for group in groups if _has(group, pid)), None)


def pods_group(mount: Path, own: Path) -> Path | None:
    """Ancestor of a cgroup that the kubelet made for all pods; ``None`` if it has none."""
    parts = own.relative_to(mount).parts
    depth = next((depth for depth, part in enumerate(parts, 1) if _PODS.fullmatch(part)), 0)
    return mount.joinpath(*parts[:depth]) if depth else None


def _by_name(mount: Path) -> Path | None:
    for directory, names, _ in os.walk(mount):
        for name in sorted(names):
            if _PODS.fullmatch(name):
                return Path(directory, name)
        if len(Path(directory).relative_to(mount).parts) >= _DEPTH - 1:
            names.clear()
    return None


def _has(group: Path, pid: int) -> bool:
    try:
        return str(pid) in (group / "cgroup.procs").read_text().split()
    except OSError:
        return False
