"""Frees places in ``call_places`` of sockets that ended while no program of ours was attached to free them.

A leaked place costs an allocation for each socket that hashes to it, and nothing else. ``udp_connects`` has
room for few entries, so those of such sockets are deleted too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from isthmus import logs
from isthmus.datapath.core.maps import Maps
from isthmus.datapath.core.namespaces import inside, one_of_each_namespace
from isthmus.datapath.core.shapes import COOKIE
from isthmus.datapath.services import codecs
from isthmus.netlink import sock_diag

FREE_COOKIE: Final = bytes(8)
"""Cookie of a free place."""
FREE: Final = bytes(codecs.CALL_PLACE.size)

log = logs.get("datapath")


def calls(maps: Maps) -> dict[int, tuple[bytes, bytes]]:
    """(key, call) of each used place by its socket's cookie; few of the 16,384 places are in use."""
    places = ((key, value) for key, value in maps.items("call_places") if value[: len(FREE_COOKIE)] != FREE_COOKIE)
    return {socket: (key, call) for key, value in places for socket, _, call in [codecs.CALL_PLACE.unpack(value)]}


def free_ended(maps: Maps, cgroup: Path) -> int:
    """Free the places of sockets that no longer exist. Returns their number, 0 if a pod cannot be inspected. Deletes
    the entries of such sockets in ``udp_connects`` too.

    The kernel does not list a TCP socket whose connect sent no SYN, and we do not list sockets of a namespace without a
    process: their places are freed too, and ``getpeername`` then shows the backend. Accepted race: a socket that claims
    such a place at the same moment loses it.
    """
    before, living = calls(maps), set[int]()
    without = {COOKIE.unpack(key)[0]: key for key, _ in maps.items("udp_connects")}
    for process in one_of_each_namespace(cgroup) if before or without else ():
        try:
            living |= inside(process.pid, sock_diag.cookies)
        except OSError as error:
            log.warning("places of sockets that ended are not looked for", pid=process.pid, error=str(error))
            return 0
    ended = calls(maps).keys() & before.keys() - living
    if dropped := [key for cookie, key in without.items() if cookie not in living]:
        maps.drop("udp_connects", dropped)
    maps.put("call_places", [(before[cookie][0], FREE) for cookie in sorted(ended)])
    return len(ended)
