"""Which interface of the node leads to a pod, by the pod's address."""

from __future__ import annotations

from pathlib import Path

from isthmus.datapath.core.maps import Maps
from isthmus.datapath.core.namespaces import one_of_each_namespace
from isthmus.datapath.core.shapes import ID
from isthmus.datapath.services.callers import addresses_of
from isthmus.netlink import rtnetlink


def pod_interfaces(maps: Maps, cgroup: Path) -> dict[str, int]:
    """Interfaces with our programs by the addresses at their other ends, of the pods below a cgroup.

    Of an address at two interfaces it is the newer one: an ended pod's namespace can outlive its address.
    """
    links = {ID.unpack(value)[0]: ID.unpack(key)[0] for key, value in sorted(maps.items("pod_links"))}
    interfaces: dict[str, int] = {}
    for process in one_of_each_namespace(cgroup) if links else ():
        interface = links.get(_namespace_id(process.pid))
        for address in addresses_of(process.pid) if interface else ():
            interfaces[address] = max(interface or 0, interfaces.get(address, 0))
    return interfaces


def _namespace_id(pid: int) -> int:
    """This namespace's id for that of a process; -1 if there is none, or the process has ended."""
    try:
        number = rtnetlink.namespace_id(pid)
    except OSError:
        return -1
    return -1 if number is None else number
