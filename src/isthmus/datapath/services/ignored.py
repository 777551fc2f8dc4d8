"""Ids of the cgroups of pods that are left alone, in the map ``exempt``.

A pod's cgroup is found by the UID in its name, which the kubelet makes before any of the pod's processes. Where names
have no UID, it is found by the address of a process in it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from isthmus.datapath.core.maps import Maps
from isthmus.datapath.core.namespaces import processes_by_group
from isthmus.datapath.core.shapes import CGROUP
from isthmus.datapath.services.callers import UID_OF_GROUP, addresses_of
from isthmus.datapath.settings import EXEMPT_CALLS, QOS_CLASSES, with_exempt
from isthmus.model.pods import IgnoredPod


class IgnoredPods:
    """Maintains the entries of these pods in ``exempt``."""

    def __init__(self, maps: Maps, cgroup: Path) -> None:
        self._maps = maps
        self._cgroup = cgroup
        self.missing: tuple[str, ...] = ()
        """Pods without a cgroup, or without room in the map, at the last :meth:`renew`: their calls are translated."""

    def __repr__(self) -> str:
        return f"<IgnoredPods below {self._cgroup}, without cgroup: {', '.join(self.missing) or 'none'}>"

    def renew(self, pods: Collection[IgnoredPod], *, complete: bool = True) -> None:
        """Make the map hold exactly these pods of the node; if ``complete`` is false, add them only.

        An entry precedes the flag that makes programs look for it, and the flag is taken back after the last entry.
        """
        desired = {CGROUP.pack(number): pod.name for pod, number in self._groups(pods)} if pods else {}
        current = dict(self._maps.items("exempt"))
        if complete:
            obsolete = [key for key, value in current.items() if value == EXEMPT_CALLS and key not in desired]
            self._maps.drop("exempt", obsolete)
        added = [key for key in desired if key not in current]
        failures = self._maps.put("exempt", [(key, EXEMPT_CALLS) for key in added])
        failed = {desired[added[position]] for position in failures}
        self.missing = tuple(sorted({pod.name for pod in pods} - set(desired.values()) | failed))
        [(key, value)] = self._maps.items("config")
        renewed = with_exempt(value, any(True for _ in self._maps.items("exempt")))
        if renewed != value:
            self._maps.put("config", [(key, renewed)])

    def _groups(self, pods: Collection[IgnoredPod]) -> Iterator[tuple[IgnoredPod, int]]:
        """Yield the pods that have a cgroup, with its id; a pod may have several."""
        by_uid = {pod.uid: pod for pod in pods}
        named: set[str] = set()
        for path, uid in named_groups(self._cgroup):
            named.add(uid)
            if uid in by_uid and (number := group_id(path)):
                yield by_uid[uid], number
        unnamed = {address: pod for pod in pods if pod.uid not in named for address in pod.addresses}
        if unnamed:
            for group, process in processes_by_group(self._cgroup):
                if UID_OF_GROUP.search(str(group)):
                    continue  # another pod's, whose row is older than its address
                for address in addresses_of(process.pid) & unnamed.keys():
                    if number := group_id(_pod_group(self._cgroup, group)):
                        yield unnamed[address], number


def named_groups(cgroup: Path) -> Iterator[tuple[Path, str]]:
    """Yield the cgroups of pods below ``cgroup`` that have a UID in their names; the groups below them are not read."""
    for directory, names, _ in os.walk(cgroup):
        for name in list(names):
            if uids := UID_OF_GROUP.findall(name):
                names.remove(name)
                yield Path(directory, name), uids[-1].replace("_", "-")


def _pod_group(cgroup: Path, group: Path) -> Path:
    """The cgroup of the pod that a cgroup below that of all pods belongs to: the first that is no class of service."""
    first, *more = group.relative_to(cgroup).parts or (".",)
    is_class = first.removesuffix(".slice").rpartition("-")[2] in QOS_CLASSES
    return Path(cgroup, first, *more[:1]) if is_class else cgroup / first


def group_id(path: Path) -> int:
    """The kernel's id of a cgroup; 0 if it has ended."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0
