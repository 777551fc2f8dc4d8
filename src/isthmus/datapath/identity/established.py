"""Lists and destroys established TCP connections of pods. Both ends of a destroyed one receive a reset."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from socket import IPPROTO_TCP
from typing import NamedTuple, TypeVar

from isthmus import logs
from isthmus.datapath.core.namespaces import inside, one_of_each_namespace
from isthmus.datapath.core.shapes import address_text
from isthmus.netlink import sock_diag
from isthmus.netlink.sock_diag import Socket

T = TypeVar("T")
log = logs.get("identity")


class Connection(NamedTuple):
    """A connection of a pod, or several from one address."""

    address: str
    """Of the pod."""
    port: int
    peer: str
    """Address of the other end."""


def connections(cgroup: Path, at: Collection[tuple[str, int]]) -> set[Connection]:
    """The connections of the pods below a cgroup at these addresses and ports."""
    return {each for found in _in_each_pod(cgroup, partial(_connections, at)) for each in found}


def destroy(cgroup: Path, ended: Collection[Connection]) -> int:
    """Destroy these connections of the pods below a cgroup. Returns their number."""
    return sum(_in_each_pod(cgroup, partial(_destroy, ended)))


def _in_each_pod(cgroup: Path, work: Callable[[], T]) -> Iterator[T]:
    for process in one_of_each_namespace(cgroup):
        try:
            yield inside(process.pid, work)
        except OSError as error:
            log.warning("cannot cut connections of a pod", pid=process.pid, error=str(error))


def _connections(at: Collection[tuple[str, int]]) -> set[Connection]:
    found = map(_connection, sock_diag.connected(IPPROTO_TCP))
    return {each for each in found if (each.address, each.port) in at}


def _destroy(ended: Collection[Connection]) -> int:
    return sum(sock_diag.destroy(each) for each in sock_diag.connected(IPPROTO_TCP) if _connection(each) in ended)


def _connection(sock: Socket) -> Connection:
    return Connection(address_text(sock.local), int.from_bytes(sock.local_port, "big"), address_text(sock.remote))
