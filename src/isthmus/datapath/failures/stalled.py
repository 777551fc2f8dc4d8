"""Connections of this node's pods that stall: what the kernel knows of a path that loses large packets, or all.

A path-MTU black hole drops packets above a size and sends no ICMP error (RFC 2923, section 2.1). Connects succeed, and
so do small requests; the first large segment is sent again and again. Nothing is sent to find that out: the kernel
counts retransmissions and acknowledged bytes of each socket. Read on request alone, in each pod's network namespace.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from isthmus import logs
from isthmus.datapath.core import shapes
from isthmus.datapath.core.namespaces import Process, inside, one_of_each_namespace
from isthmus.datapath.failures.calls import Peer
from isthmus.model.balancing import Backend
from isthmus.model.hosts import endpoint, joined
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.stalls import Stall
from isthmus.model.tables import BACKENDS, CLUSTERS
from isthmus.netlink import sock_diag
from isthmus.netlink.sock_diag import Progress, Socket
from isthmus.statedb import Snapshot

TIMEOUTS: Final = 3
"""Time-outs without an acknowledgment from which a connection has stalled: 1.4 s on a short path, and no burst of
losses lasts that long."""
TIMEOUTS_BY_SIZE: Final = 2
"""Time-outs without an acknowledgment from which a connection has stalled that loses only large segments, 0.6 s: Envoy
gives up a connect after one second, and its first segment is large if its TLS offers a key of ML-KEM."""
AGAIN: Final = 0.4
"""Seconds until a second look where some connection may be about to time out for the second time."""
LARGE: Final = 1200
"""Bytes of data from which a segment is large. It makes a packet of about 1,280 bytes, the smallest MTU that IPv6
allows (RFC 8200, section 5), so a path that loses smaller ones has another fault."""
PEERS: Final = 3
"""Other ends that a row names."""

log = logs.get("datapath")


class End(NamedTuple):
    """The backend or gateway at one end of a connection."""

    service: ServiceName
    cluster: ClusterName


class Ends(NamedTuple):
    """Backends and gateways by address and port: those that connections go to, and the own cluster's, which answer."""

    called: Mapping[Peer, list[End]]
    answering: Mapping[Peer, list[End]]


def only_large_lost(progress: Progress) -> bool:
    """True if a stalled connection's large segments are lost, and small ones are acknowledged.

    Either a small one behind the lost one arrived (a selective acknowledgment), or what was acknowledged before was
    small: nothing but the handshake, or short requests.
    """
    if progress.later_acknowledged:
        return progress.unacknowledged >= LARGE
    return progress.segment >= LARGE and progress.acknowledged_segment < LARGE / 2


def is_stalled(progress: Progress) -> bool:
    """True if a connection with a lost segment has stalled."""
    by_size = progress.later_acknowledged and only_large_lost(progress)
    return progress.timeouts >= (TIMEOUTS_BY_SIZE if by_size else TIMEOUTS)


def ends(snapshot: Snapshot, cluster: ClusterName) -> Ends:
    """The ends that connections of services have; ``cluster``: the own one, whose backends are those that answer.

    For the thread that writes the tables: a snapshot is not to be read beside it.
    """
    return Ends(_called(snapshot), _answering(snapshot, cluster))


def stalled(known: Ends, cgroup: Path, *, now: float) -> list[Stall]:
    """Stalled connections of the pods below a cgroup with backends of services, and of this node's Envoy with gateways.

    For a thread: it takes some milliseconds for each pod. ``now``: Unix seconds.
    """
    rows: dict[tuple[object, ...], Stall] = {}
    for sock, progress in _stalled_sockets(cgroup, known):
        for row in _rows(sock, progress, known, now):
            key = (row.service, row.cluster, row.sends, row.by_size)
            rows[key] = _joined(rows[key], row) if key in rows else row
    return sorted(rows.values(), key=lambda row: (row.service, row.cluster, row.sends, row.by_size))


def _called(snapshot: Snapshot) -> dict[Peer, list[End]]:
    """Destinations of connections, by address and port: backends, and gateways of other networks."""
    found: dict[Peer, list[End]] = {}
    for row in _tcp_backends(snapshot):
        found.setdefault(_peer(row), []).append(_end(row))
    for cluster in snapshot.all(CLUSTERS):
        for gateway in () if cluster.own else cluster.gateways:
            try:
                address = endpoint(gateway, port=0)
                peer = shapes.address(address.host), shapes.port(address.port)
            except (ValueError, OSError):
                continue  # a gateway by its name: which address that is only Envoy knows
            found.setdefault(peer, []).append(End(ServiceName(""), cluster.name))
    return found


def _answering(snapshot: Snapshot, cluster: ClusterName) -> dict[Peer, list[End]]:
    """Backends of the own cluster, by address and port."""
    found: dict[Peer, list[End]] = {}
    for row in _tcp_backends(snapshot):
        if row.key.cluster == cluster:
            found.setdefault(_peer(row), []).append(_end(row))
    return found


def _tcp_backends(snapshot: Snapshot) -> Iterator[Backend]:
    return (row for row in snapshot.all(BACKENDS) if row.key.protocol == "TCP")


def _peer(row: Backend) -> Peer:
    return shapes.address(row.key.address), shapes.port(row.key.port)


def _end(row: Backend) -> End:
    return End(row.import_of or row.key.service, row.key.cluster)


def _stalled_sockets(cgroup: Path, known: Ends) -> Iterator[tuple[Socket, Progress]]:
    """Stalled sockets with one of these ends, found in one look, or in two where some may be about to stall."""
    concerned: dict[int, tuple[Socket, Progress]] = {}
    for look in range(2):
        for sock, progress in _retransmitting(cgroup):
            if (sock.remote, sock.remote_port) in known.called or (sock.local, sock.local_port) in known.answering:
                concerned[sock.cookie] = sock, progress
        about_to = any(each.later_acknowledged and not is_stalled(each) for _, each in concerned.values())
        if look or not about_to:
            break
        time.sleep(AGAIN)
    return (each for each in concerned.values() if is_stalled(each[1]))


def _retransmitting(cgroup: Path) -> Iterator[tuple[Socket, Progress]]:
    """Retransmitting sockets of the pods, and of this process's own network namespace, the node's, with its Envoy."""
    processes: dict[int, Process] = {each.namespace: each for each in one_of_each_namespace(cgroup)}
    own = Process.look(os.getpid())
    processes.setdefault(own.namespace, own)
    for process in processes.values():
        try:
            yield from inside(process.pid, _retransmitting_here)
        except OSError as error:
            log.warning("cannot look for stalled connections of a pod", pid=process.pid, error=str(error))


def _retransmitting_here() -> list[tuple[Socket, Progress]]:
    return list(sock_diag.retransmitting())


def _rows(sock: Socket, progress: Progress, known: Ends, now: float) -> Iterator[Stall]:
    """A row for each service that a connection may belong to: two may have the same backend."""
    local, remote = (sock.local, sock.local_port), (sock.remote, sock.remote_port)
    called = known.called.get(remote, [])
    for end in dict.fromkeys(called or known.answering.get(local, [])):
        yield Stall(
            service=end.service,
            cluster=end.cluster,
            sends="calls" if called else "answers",
            by_size=only_large_lost(progress),
            connections=1,
            since=now - progress.silence,
            segment=progress.segment,
            path_mtu=progress.path_mtu,
            peers=(joined(shapes.address_text(remote[0]), int.from_bytes(remote[1], "big")),),
        )


def _joined(one: Stall, other: Stall) -> Stall:
    """Sum of two rows of the same connections' key."""
    return Stall(
        service=one.service,
        cluster=one.cluster,
        sends=one.sends,
        by_size=one.by_size,
        connections=one.connections + other.connections,
        since=min(one.since, other.since),
        segment=max(one.segment, other.segment),
        path_mtu=max(one.path_mtu, other.path_mtu),
        peers=tuple(dict.fromkeys((*one.peers, *other.peers)))[:PEERS],
    )
