"""Destroys established TCP connections of pods that a policy forbids. Both ends receive a reset."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from socket import IPPROTO_TCP

from isthmus import logs
from isthmus.datapath.core.namespaces import inside, one_of_each_namespace
from isthmus.datapath.core.shapes import address_text
from isthmus.netlink import sock_diag

log = logs.get("identity")


def destroy(cgroup: Path, forbidden: Callable[[str, int, str], bool]) -> int:
    """Destroy the connections of the pods below a cgroup that are forbidden. Returns their number.

    ``forbidden`` is called with the pod's address and port and the peer's address of each connection.
    """
    count = 0
    for process in one_of_each_namespace(cgroup):
        try:
            count += inside(process.pid, partial(_destroy, forbidden))
        except OSError as error:
            log.warning("cannot cut connections of a pod", pid=process.pid, error=str(error))
    return count


def _destroy(forbidden: Callable[[str, int, str], bool]) -> int:
    return sum(
        sock_diag.destroy(each)
        for each in sock_diag.connected(IPPROTO_TCP)
        if forbidden(address_text(each.local), int.from_bytes(each.local_port, "big"), address_text(each.remote))
    )
