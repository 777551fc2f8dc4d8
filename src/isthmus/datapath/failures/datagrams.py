"""Moves connected UDP sockets to another backend, as rescue moves a connect: the application notices nothing.

A client with one socket for life (statsd, syslog) does not connect again when its socket is destroyed. So the programs
on the pod's link rewrite its datagrams (``bpf/datagrams.h``) by the entries written here. Where the service has no
backend for the moment, datagrams are dropped: the old backend's address may be another pod's soon.

Sockets are not moved whose service treats callers differently (affinity, consistent hashing, redirects that leave pods
out, routes of a namespace): the kernel decides about these when the application connects again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from isthmus.datapath.core import shapes
from isthmus.datapath.core.maps import KernelMaps
from isthmus.datapath.core.shapes import COOKIE, ID
from isthmus.datapath.failures import places
from isthmus.datapath.failures.calls import PROTOCOLS, ConnectedCall, Peer, Tuple, frontends, peer
from isthmus.datapath.failures.codecs import FLOW_KEY, UDP_FLOW
from isthmus.model.balancing import Group, Plan, Scope, Target
from isthmus.model.names import ClusterName
from isthmus.model.tables import PLANS
from isthmus.netlink import rtnetlink, sock_diag
from isthmus.netlink.sock_diag import Socket
from isthmus.statedb import Snapshot

SPARE_PORTS: Final = range(61000, 65536)
"""Ports above Linux's default range of local ports."""
NOWHERE: Final[Peer] = (bytes(16), bytes(2))
"""Peer of datagrams that are dropped."""
GATE: Final = ID.pack(0)


class DatagramMover:
    """Moves sockets during one pass over the pods, by the plans of one snapshot.

    ``hold``: where a service has no backend its sockets' datagrams are dropped; else such sockets are not moved.
    """

    def __init__(self, maps: KernelMaps, snapshot: Snapshot, *, hold: bool = True) -> None:
        self._maps = maps
        self._snapshot = snapshot
        self._hold = hold
        self._links = {ID.unpack(value)[0] for _, value in maps.items("pod_links")}
        self._flows = dict(maps.items("udp_flows"))
        self._sockets: Sequence[Socket] | None = None
        self._owners: dict[Tuple, set[int]] = {}
        """Cookies of the sockets of the namespace, by tuple."""
        self.moved = 0

    def begin(self, pid: int) -> bool:
        """Turn to the network namespace of a process. Returns ``False`` if our programs are not on its link."""
        self._sockets = None
        return rtnetlink.namespace_id(pid) in self._links

    def move(self, call: ConnectedCall) -> bool:
        """Move a socket of this thread's network namespace. Returns ``False`` if it cannot be moved."""
        plan = _plan(self._snapshot, call.called)
        if plan is None or plan.affinity != "None" or plan.consistent or plan.skip or plan.consumers:
            return False
        target = choose(plan)
        if target is None and not self._hold:
            return False
        if target is None:
            return self._put(call, NOWHERE, call.socket.local_port)
        port = self._port(call.socket, peer(target))
        if port is None or not self._put(call, peer(target), port):
            return False
        self.moved += 1
        return True

    def _put(self, call: ConnectedCall, to: Peer, port: bytes) -> bool:
        """Write both entries of a socket, that for answers first, and the gate last (:func:`prune`)."""
        sock = call.socket
        forward = FLOW_KEY.pack(sock.local, sock.remote, sock.local_port, sock.remote_port, 0)
        back = FLOW_KEY.pack(sock.local, to[0], port, to[1], 1)
        entries = [(forward, UDP_FLOW.pack(*to, port, call.service, sock.cookie))]
        if to != NOWHERE:
            value = UDP_FLOW.pack(sock.remote, sock.remote_port, sock.local_port, call.service, sock.cookie)
            entries.insert(0, (back, value))
        if all(self._flows.get(key) == value for key, value in entries):
            return True  # a look at datagrams that are dropped already
        former = self._flows.get(forward)
        if self._maps.put("udp_flows", entries) or self._maps.put("udp_gate", [(GATE, ID.pack(1))]):
            return False
        self._flows.update(entries)
        stale = _back(forward, former) if former is not None else back
        if stale != back and stale in self._flows:
            del self._flows[stale]
            self._maps.drop("udp_flows", [stale])
        return True

    def _port(self, sock: Socket, to: Peer) -> bytes | None:
        """The source port towards a backend: the socket's own, unless another socket has it there."""
        if self._is_free(sock, to, sock.local_port):
            return sock.local_port
        used = {each.local_port for each in self._sockets or ()}
        ports = (shapes.port(number) for number in random.sample(SPARE_PORTS, 100))
        return next((port for port in ports if port not in used and self._is_free(sock, to, port)), None)

    def _is_free(self, sock: Socket, to: Peer, port: bytes) -> bool:
        entry = self._flows.get(FLOW_KEY.pack(sock.local, to[0], port, to[1], 1))
        if entry is not None and UDP_FLOW.named(entry)["socket"] != sock.cookie:
            return False
        if self._sockets is None:
            self._list()
        return not self._owners.get((sock.local, port, *to), set()) - {sock.cookie}

    def _list(self) -> None:
        """Read the sockets of this thread's network namespace: once, since a pod may have many that are moved."""
        self._sockets = sock_diag.all_sockets(PROTOCOLS["UDP"])
        self._owners = {}
        for each in self._sockets:
            self._owners.setdefault((each.local, each.local_port, each.remote, each.remote_port), set()).add(
                each.cookie
            )


def choose(plan: Plan) -> Target | None:
    """A target of the plan's tier in use, by weight; ``None`` if it has none."""
    groups: list[Group] = [group for group in plan.groups if group.targets and group.weight]
    if not groups:
        return None
    first = min(group.tier for group in groups)
    tier = [group for group in groups if group.tier == first]
    [group] = random.choices(tier, [group.weight for group in tier])
    return random.choice(group.targets)


def release(maps: KernelMaps, call: ConnectedCall) -> None:
    """Let datagrams that were dropped go to the socket's own backend, which its service has again."""
    sock = call.socket
    maps.drop("udp_flows", [FLOW_KEY.pack(sock.local, sock.remote, sock.local_port, sock.remote_port, 0)])


def waiting(maps: KernelMaps) -> set[Target]:
    """The former backends of sockets whose datagrams are dropped. The maps have no clusters of theirs."""
    keys = (key for key, value in maps.items("udp_flows") if not any(UDP_FLOW.named(value)["peer_port"]))
    peers = ((raw["peer"], raw["peer_port"]) for raw in map(FLOW_KEY.named, keys))
    return {
        Target(shapes.address_text(address), int.from_bytes(port, "big"), "UDP", ClusterName(""))
        for address, port in peers
    }


def prune(maps: KernelMaps) -> None:
    """Delete entries of sockets that were closed; without any left, datagrams are not looked at.

    A move in another thread writes its entries and then the gate; so the gate that closes is followed by another look.
    """
    flows = list(maps.items("udp_flows"))
    if not flows:
        return
    sockets = places.calls(maps).keys() | {COOKIE.unpack(key)[0] for key, _ in maps.items("udp_connects")}
    closed = [key for key, value in flows if UDP_FLOW.named(value)["socket"] not in sockets]
    if closed:
        maps.drop("udp_flows", closed)
    if len(closed) < len(flows):
        return
    maps.put("udp_gate", [(GATE, ID.pack(0))])
    if any(True for _ in maps.items("udp_flows")):
        maps.put("udp_gate", [(GATE, ID.pack(1))])


def _plan(snapshot: Snapshot, called: Peer) -> Plan | None:
    """The plan that a pod's calls of an address follow; ``None`` if there is no such service any more."""
    rows = {row.key.scope: row for row in frontends(snapshot, called, "UDP")}
    frontend = rows.get(Scope.INTERNAL) or rows.get(Scope.EXTERNAL)
    return snapshot.get(PLANS, frontend.plan) if frontend else None


def _back(forward: bytes, value: bytes) -> bytes:
    """Key of the entry for answers, of a forward entry."""
    flow = UDP_FLOW.named(value)
    return FLOW_KEY.pack(FLOW_KEY.named(forward)["pod"], flow["peer"], flow["pod_port"], flow["peer_port"], 1)
