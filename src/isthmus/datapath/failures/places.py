"""Places in ``call_places`` of sockets that ended while no program of ours was attached, which would have freed them.

A place that stays taken costs the sockets that would have it an allocation each, and nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from isthmus import logs
from isthmus.datapath.core.maps import Maps
from isthmus.datapath.core.namespaces import inside, processes_below
from isthmus.datapath.services import codecs
from isthmus.netlink import sock_diag

NOBODY: Final = bytes(8)
"""What a place begins with that no socket has, instead of its cookie."""
FREE: Final = bytes(codecs.CALL_PLACE.size)

log = logs.get("datapath")


def calls(maps: Maps) -> dict[int, tuple[bytes, bytes]]:
    """The key and the call of each place that a socket has, by its cookie; few of the 16,384 places have one."""
    places = ((key, value) for key, value in maps.items("call_places") if value[: len(NOBODY)] != NOBODY)
    return {socket: (key, call) for key, value in places for socket, _, call in [codecs.CALL_PLACE.unpack(value)]}


def free_ended(maps: Maps, cgroup: Path) -> int:
    """Free the places of sockets that no pod has any more; how many there were. Where a pod cannot be looked at, none.

    The kernel does not list a TCP socket whose connect made no SYN, nor do we those of a namespace without a process:
    their places are freed too, and ``getpeername`` shows the backend. Accepts a race: a socket that claims such a place
    in this moment loses it.
    """
    taken, living = calls(maps), set[int]()
    for process in {process.namespace: process for process in processes_below(cgroup)}.values() if taken else ():
        try:
            living |= inside(process.pid, sock_diag.cookies)
        except OSError as why:
            log.warning("places of sockets that ended are not looked for", pid=process.pid, error=str(why))
            return 0
    ended = calls(maps).keys() & taken.keys() - living
    maps.put("call_places", [(taken[cookie][0], FREE) for cookie in sorted(ended)])
    return len(ended)
