"""Calls of connected sockets: the service that a socket called, and the backend that its packets go to.

A socket that called a backend by its own address has no call here, so what becomes of services leaves it alone. The
call of a socket is in ``call_places``, by its cookie; where the place is another socket's, that of TCP is in the
socket's own storage, and that of UDP in ``udp_connects``: the kernel shows no storage of UDP sockets. Once that
map was full (``udp_unknown``), any connected UDP socket without an entry may have called a service.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from socket import IPPROTO_TCP, IPPROTO_UDP
from typing import Final, NamedTuple

from isthmus.datapath.core import shapes
from isthmus.datapath.core.maps import KernelMaps
from isthmus.datapath.failures import codecs, places
from isthmus.datapath.services.codecs import ORIG_DST
from isthmus.model.balancing import BackendKey, Frontend, FrontendKey, Scope, Target
from isthmus.model.services import Protocol
from isthmus.model.tables import BACKENDS, FRONTENDS, PLANS
from isthmus.netlink import sock_diag
from isthmus.netlink.sock_diag import Socket
from isthmus.statedb import Snapshot

STORAGE: Final = "tcp_calls"
"""Map of socket storage for the calls of TCP sockets that found no free place."""
PROTOCOLS: Final[Mapping[Protocol, int]] = {"TCP": IPPROTO_TCP, "UDP": IPPROTO_UDP}
Peer = tuple[bytes, bytes]
"""Address and port."""
Tuple = tuple[bytes, bytes, bytes, bytes]
"""Local address and port, remote address and port."""


class ConnectedCall(NamedTuple):
    """A connected socket that called a service."""

    socket: Socket
    called: Peer
    """The service's address and port; the backend's own if they are not known."""
    backend: Peer
    """The peer of its packets: of a moved connection another than the socket's own."""
    service: int
    """The service's number."""
    dropped: bool = False
    """True while its datagrams are dropped: its service had no backend."""


class ConnectedCalls:
    """The calls of one protocol, read from the maps at one moment."""

    def __init__(self, maps: KernelMaps, protocol: Protocol) -> None:
        self._protocol = PROTOCOLS[protocol]
        self._calls = {cookie: call for cookie, (_, call) in places.calls(maps).items()}
        self._moved: dict[Tuple, bytes] = {}
        self._storage: int | None = None
        self._complete = True
        if protocol == "TCP":
            self._moved = {four_tuple(key): value for key, value in maps.items("flows")}
            self._storage = maps.fd(STORAGE)
        else:
            self._moved = {four_tuple(key): value for key, value in maps.items("udp_flows")}
            for key, value in maps.items("udp_connects"):
                self._calls.setdefault(shapes.COOKIE.unpack(key)[0], value)
            self._complete = not any(any(value) for _, value in maps.items("udp_unknown"))

    def read(self) -> Iterator[ConnectedCall]:
        """Calls of the sockets of this thread's network namespace."""
        connected: Sequence[Socket] = sock_diag.connected(self._protocol, storage=self._storage)
        for sock in connected:
            stored = self._calls.get(sock.cookie, sock.storage)
            own = sock.remote, sock.remote_port
            if len(stored) < ORIG_DST.size:
                if not self._complete:
                    yield ConnectedCall(sock, own, own, 0)
                continue
            call = ORIG_DST.named(stored[: ORIG_DST.size])
            if (call["backend_address"], call["backend_port"]) == own:
                service, called = call["service"], (call["address"], call["port"])
                backend = self._moved_to(sock, service)
                dropped = backend is not None and not any(backend[1])
                yield ConnectedCall(sock, called, own if dropped else backend or own, service, dropped)

    def _moved_to(self, sock: Socket, service: int) -> Peer | None:
        entry = self._moved.get((sock.local, sock.local_port, sock.remote, sock.remote_port))
        if entry is None:
            return None
        if self._protocol == IPPROTO_UDP:
            flow = codecs.UDP_FLOW.named(entry)
            if (flow["socket"], flow["service"]) != (sock.cookie, service):
                return None
        else:
            flow = codecs.FLOW.named(entry)
        return flow["peer"], flow["peer_port"]


def four_tuple(key: bytes) -> Tuple:
    """Return the tuple that the socket of a moved connection shows; empty for the reverse entry."""
    raw = codecs.FLOW_KEY.named(key)
    if raw["reverse"]:
        return b"", b"", b"", b""
    return raw["pod"], raw["pod_port"], raw["peer"], raw["peer_port"]


def peer(target: Target) -> Peer:
    """Return the address and port of a target in the form of the maps."""
    return shapes.address(target.address), shapes.port(target.port)


def target_of(key: BackendKey) -> Target:
    """Return the target of a backend."""
    return Target(key.address, key.port, key.protocol, key.cluster)


def frontends(snapshot: Snapshot, called: Peer, protocol: Protocol) -> list[Frontend]:
    """Return the frontends at a called address, one for each scope in which it has one."""
    address, port = shapes.address_text(called[0]), int.from_bytes(called[1], "big")
    rows = (snapshot.get(FRONTENDS, FrontendKey(address, port, protocol, scope)) for scope in Scope)
    return [row for row in rows if row is not None]


def still_answers(snapshot: Snapshot, called: Peer, backend: Peer, protocol: Protocol) -> bool:
    """True if a service at the called address still has the backend, be it terminating, or a plan of it does; of a call
    that is not known, if any service has."""
    address, port = shapes.address_text(backend[0]), int.from_bytes(backend[1], "big")
    if called == backend:
        keys = (row.key for row in snapshot.all(BACKENDS))
        return any((key.address, key.port, key.protocol) == (address, port, protocol) for key in keys)
    for frontend in frontends(snapshot, called, protocol):
        rows = snapshot.by(BACKENDS, "service", frontend.service)
        if any((row.key.address, row.key.port, row.key.protocol) == (address, port, protocol) for row in rows):
            return True
        plan = snapshot.get(PLANS, frontend.plan)
        targets = (target for group in plan.groups for target in group.targets) if plan else ()
        if any((target.address, target.port) == (address, port) for target in targets):
            return True
    return False
