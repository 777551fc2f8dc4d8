"""Finds the interface of the node that leads to a pod, by the pod's address, and its cgroup, by its UID."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from isthmus.datapath.core.maps import Maps
from isthmus.datapath.core.namespaces import processes_by_group
from isthmus.datapath.core.shapes import ID
from isthmus.datapath.services.callers import Identities, addresses_of, uids_of
from isthmus.datapath.services.ignored import group_id, named_groups
from isthmus.netlink import rtnetlink


class End(NamedTuple):
    """A pod's end of a link: the interface at the node's, the addresses here, and the UIDs in the pod's cgroup."""

    interface: int
    addresses: Collection[str]
    uids: Collection[str]


def pod_interfaces(maps: Maps, cgroup: Path, owners: Callable[[], Identities] = dict) -> dict[str, int]:
    """Interfaces with our programs by the addresses at their other ends, of the pods below a cgroup.

    ``owners`` returns whose the addresses of this node's pods are.
    """
    links = {ID.unpack(value)[0]: ID.unpack(key)[0] for key, value in sorted(maps.items("pod_links"))}
    found = {process.namespace: (group, process) for group, process in processes_by_group(cgroup)} if links else {}
    ends = [
        End(interface, addresses_of(process.pid), uids_of(group))
        for group, process in found.values()
        if (interface := links.get(_namespace_id(process.pid)))
    ]
    return leading(ends, owners())


def leading(ends: Iterable[End], owners: Identities) -> dict[str, int]:
    """The interface that leads to each address: that of the pod whose address it is, where cgroups name pods.

    Whoever has CAP_NET_ADMIN in a pod gives its interface any address: another pod's would lose its guards and the
    proof of its calls. Of an address at two interfaces it is the newer one: an ended pod's namespace can outlive it.
    """
    interfaces: dict[str, int] = {}
    for end in ends:
        for address in end.addresses:
            owner = owners.get(address)
            if not (end.uids and owner is not None and owner.uid not in end.uids):
                interfaces[address] = max(end.interface, interfaces.get(address, 0))
    return interfaces


def groups_by_uid(cgroup: Path) -> dict[str, int]:
    """Ids of the pods' cgroups below a cgroup, by the pods' UIDs."""
    return {uid: number for path, uid in named_groups(cgroup) if (number := group_id(path))}


def uid_of(cgroup: Path, pid: int) -> str:
    """UID of the pod below a cgroup that a process is in; empty if it is in none, or pids are those of a container."""
    found = (uids_of(group) for group, process in processes_by_group(cgroup) if process.pid == pid)
    return next((uids[-1] for uids in found if uids), "")


def _namespace_id(pid: int) -> int:
    """This namespace's id for that of a process; -1 if there is none, or the process has ended."""
    try:
        number = rtnetlink.namespace_id(pid)
    except OSError:
        return -1
    return -1 if number is None else number
