"""Sockets of a network namespace by sock_diag (linux/inet_diag.h): list those that are connected or wait, end one.

A destroyed TCP socket gives ECONNABORTED, a UDP socket likewise, and both wake whoever polls them. Functions act on the
namespace of the calling thread.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator
from typing import Final, NamedTuple

from isthmus.netlink import wire

NETLINK_SOCK_DIAG: Final = 4
"""NETLINK_SOCK_DIAG of linux/netlink.h."""
SOCK_DIAG_BY_FAMILY, SOCK_DESTROY = 20, 21
REQUEST: Final = struct.Struct("=BBBxI48s")
"""Family, protocol, extensions, states, id."""
MESSAGE: Final = struct.Struct("=BBBB48s4x4x4x4xI")
"""struct inet_diag_msg: family, state, timer, retransmissions, id, then expiry, queues and user, inode."""
ID: Final = struct.Struct("=2s2s16s16sI8s")
"""Ports, addresses, interface, cookie."""
COOKIE: Final = struct.Struct("=Q")
"""Two words there, the lower one first."""
TO_PORT: Final = struct.Struct(">2xH44x")
"""An id of which the remote port alone is looked at."""
ESTABLISHED, CLOSE, LISTEN = 1, 7, 10
"""States (net/tcp_states.h)."""
CONNECTED: Final = {socket.IPPROTO_TCP: 0b1011_0011_0110, socket.IPPROTO_UDP: 1 << ESTABLISHED}
"""Bits of connected sockets: all but listening ones, and those that have ended. UDP: with a peer."""
ANY_STATE: Final = 0x3FFE
"""TCP_ESTABLISHED to TCP_BOUND_INACTIVE, a bit each; older kernels do not know the last ones."""
INFO: Final = 2
"""INET_DIAG_INFO: the attribute that is a struct tcp_info."""
RETRANSMIT: Final = 1
"""Timer of a socket that waits for an acknowledgment (idiag_timer); others wait for a window, or keep alive."""
TIMER: Final = struct.Struct("=2xBB")
"""The timer and the number of its time-outs since the last acknowledgment, in a struct inet_diag_msg."""
PROGRESS: Final = struct.Struct("=16xI4xII24xII56xQ28xI40xQQ")
"""tcpi_snd_mss, tcpi_unacked, tcpi_sacked, tcpi_last_ack_recv, tcpi_pmtu, tcpi_bytes_acked, tcpi_data_segs_out,
tcpi_bytes_sent and tcpi_bytes_retrans in a struct tcp_info."""
TOTAL_RETRANS: Final = slice(100, 104)
"""Bytes of tcpi_total_retrans, the number of segments that were sent again."""
MIN_RTT: Final = slice(148, 152)
"""Bytes of tcpi_min_rtt, in µs, in a struct tcp_info (linux/tcp.h)."""
NOT_MEASURED: Final = 0xFFFFFFFF
"""tcpi_min_rtt of a connection that has none."""
NESTED: Final = 1 << 15
REQ_STORAGES, REQ_MAP = 2, 1
"""INET_DIAG_REQ_SK_BPF_STORAGES, in it SK_DIAG_BPF_STORAGE_REQ_MAP_FD (kernel 5.6)."""
STORAGES, STORAGE, STORAGE_VALUE = 20, 1, 3
"""INET_DIAG_SK_BPF_STORAGES, in it SK_DIAG_BPF_STORAGE, in it SK_DIAG_BPF_STORAGE_MAP_VALUE."""
MAPPED: Final = bytes(10) + b"\xff\xff"
"""An address of IPv4 as one of IPv6 (RFC 4291 2.5.5.2) begins with this."""


class Socket(NamedTuple):
    """A socket. Addresses are in the one key space, ports in network order."""

    family: int
    protocol: int
    id: bytes
    """Kernel's identifier, including the cookie: a later socket with the same addresses has another one."""
    local: bytes
    local_port: bytes
    remote: bytes
    remote_port: bytes
    inode: int
    """Inode in /proc/PID/fd."""
    attributes: bytes = b""

    @property
    def cookie(self) -> int:
        """The number that no other socket of this machine has had."""
        cookie: int = COOKIE.unpack_from(self.id, ID.size - COOKIE.size)[0]
        return cookie

    @property
    def storage(self) -> bytes:
        """Value of the requested socket storage, empty if there is none."""
        return wire.nested(self.attributes, STORAGES, STORAGE, STORAGE_VALUE)


class Progress(NamedTuple):
    """Acknowledged and unacknowledged data of a TCP connection."""

    segment: int
    """Mean bytes of data in an unacknowledged segment, without those that arrived out of order."""
    unacknowledged: int
    """Bytes that were sent and are not acknowledged."""
    later_acknowledged: bool
    """True if segments behind the first unacknowledged one arrived (RFC 2018)."""
    acknowledged_segment: float
    """Mean bytes of data in an acknowledged segment; 0 if there is none."""
    silence: float
    """Seconds since the last acknowledgment."""
    timeouts: int
    """Number of times in a row that the first unacknowledged segment timed out."""
    path_mtu: int


def connected(protocol: int, *, storage: int | None = None) -> list[Socket]:
    """Every connected socket of a protocol, both families. ``storage``: descriptor of a map of socket storage."""
    asked = b""
    if storage is not None:
        asked = wire.attribute(REQ_STORAGES | NESTED, wire.attribute(REQ_MAP, struct.pack("=I", storage)))
    return list(_dump(protocol, CONNECTED[protocol], asked=asked))


def all_sockets(protocol: int) -> list[Socket]:
    """Every socket of a protocol, in any state, both families."""
    return list(_dump(protocol, ANY_STATE))


def cookies() -> set[int]:
    """Return the cookies of all TCP and UDP sockets, in any state."""
    return {each.cookie for protocol in CONNECTED for each in _dump(protocol, ANY_STATE)}


def destroy(target: Socket) -> bool:
    """Destroy a socket. Returns ``False`` if it is closed already; raises OSError without CONFIG_INET_DIAG_DESTROY."""
    try:
        wire.request(NETLINK_SOCK_DIAG, SOCK_DESTROY, 0, REQUEST.pack(target.family, target.protocol, 0, 0, target.id))
    except FileNotFoundError:
        return False
    return True


def tcp_listeners() -> set[int]:
    """Inodes of the TCP sockets that listen."""
    return {each.inode for each in _dump(socket.IPPROTO_TCP, 1 << LISTEN)}


def udp_servers() -> set[int]:
    """Inodes of the UDP sockets that are bound to one address, and not connected."""
    return {each.inode for each in _dump(socket.IPPROTO_UDP, 1 << CLOSE) if any(each.local.removeprefix(MAPPED))}


def tcp_round_trips(port: int) -> dict[str, float]:
    """Return the shortest recent round trip in seconds, by address, of the TCP connections to a port (tcpi_min_rtt;
    net.ipv4.tcp_min_rtt_wlen)."""
    latest: dict[str, float] = {}
    for connection in _dump(socket.IPPROTO_TCP, 1 << ESTABLISHED, info=INFO, key=TO_PORT.pack(port)):
        address = socket.inet_ntop(
            connection.family, connection.remote[-4:] if connection.family == socket.AF_INET else connection.remote
        )
        trip = int.from_bytes(wire.nested(connection.attributes, INFO)[MIN_RTT], sys.byteorder)
        if 0 < trip < NOT_MEASURED:
            latest[address] = min(latest.get(address, trip / 1e6), trip / 1e6)
    return latest


def retransmitting() -> Iterator[tuple[Socket, Progress]]:
    """Established TCP connections whose first unacknowledged segment timed out."""
    for message in _messages(socket.IPPROTO_TCP, 1 << ESTABLISHED, info=INFO):
        timer, timeouts = TIMER.unpack_from(message)
        if timer == RETRANSMIT and timeouts:
            sock = _socket(socket.IPPROTO_TCP, message)
            info = wire.nested(sock.attributes, INFO)
            if len(info) >= PROGRESS.size:
                yield sock, _progress(info, timeouts)


def _progress(info: bytes, timeouts: int) -> Progress:
    """Read a struct tcp_info. The byte of the SYN, which only the client's end counts, is no data."""
    mss, unacked, sacked, last_ack, path_mtu, acked, segments, sent, resent = PROGRESS.unpack_from(info)
    repeated = int.from_bytes(info[TOTAL_RETRANS], sys.byteorder)
    unacknowledged = max(0, sent - resent - acked)
    acknowledged = segments - repeated - unacked
    lost = max(1, unacked - sacked)
    return Progress(
        segment=min(mss, unacknowledged // lost),
        unacknowledged=unacknowledged,
        later_acknowledged=sacked > 0,
        acknowledged_segment=(acked - 1) / acknowledged if acknowledged > 0 else 0.0,
        silence=last_ack / 1e3,
        timeouts=timeouts,
        path_mtu=path_mtu,
    )


def _dump(protocol: int, states: int, *, info: int = 0, key: bytes = bytes(48), asked: bytes = b"") -> Iterator[Socket]:
    """Sockets in one of these states, by its bit, of both families; with one kind of information, by its number."""
    return (_socket(protocol, message) for message in _messages(protocol, states, info=info, key=key, asked=asked))


def _messages(
    protocol: int, states: int, *, info: int = 0, key: bytes = bytes(48), asked: bytes = b""
) -> Iterator[bytes]:
    """The struct inet_diag_msg of each such socket, with its attributes."""
    more = 1 << (info - 1) if info else 0
    for family in (socket.AF_INET, socket.AF_INET6):
        body = REQUEST.pack(family, protocol, more, states, key) + asked
        for _, message in wire.dump(NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, body):
            yield message


def _socket(protocol: int, message: bytes) -> Socket:
    family, *_, key, inode = MESSAGE.unpack_from(message)
    local_port, remote_port, local, remote, _, _ = ID.unpack(key)
    if family == socket.AF_INET:
        local, remote = (MAPPED + address[:4] for address in (local, remote))
    return Socket(family, protocol, key, local, local_port, remote, remote_port, inode, message[MESSAGE.size :])
