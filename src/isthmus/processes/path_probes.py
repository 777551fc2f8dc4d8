"""Probes of paths: once a minute, a signed connect to a backend of each cluster that verifies callers.

Only an agent whose own calls are signed makes them: it is a pod in the network of its node whose account has a number.
"""

from __future__ import annotations

import asyncio
import errno
import random
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

from isthmus import bounds
from isthmus.identity.paths import Answer, Verdict, judge
from isthmus.model import tables
from isthmus.model.hosts import family
from isthmus.model.names import ClusterName
from isthmus.model.signing import Path, SignedTo
from isthmus.statedb import Database, Snapshot, rewrite

EVERY: Final = 60.0
"""Seconds between two probes of a cluster."""
PATIENCE: Final = 3.0
"""Seconds for an answer. A lost SYN is sent again after one second."""
TRIES: Final = 3
"""Backends of a cluster that are tried until an answer is conclusive."""
AT_ONCE: Final = 8
"""Clusters that are probed at a time."""
IP_RECVERR, IPV6_RECVERR = 11, 25
EXTENDED_ERROR: Final = struct.Struct("=I4B")
"""The first fields of struct sock_extended_err of linux/errqueue.h: errno, origin, type, code, padding."""
SENDER: Final = {socket.AF_INET: slice(20, 24), socket.AF_INET6: slice(24, 40)}
"""Bytes of the address of the error's sender, which follows the error (SO_EE_OFFENDER)."""

Endpoint = tuple[str, int]


class PathProbes:
    """Keeps the table ``paths``.

    ``signed`` returns the ids of the clusters towards which this process's own calls are signed.
    """

    def __init__(
        self,
        db: Database,
        signed: Callable[[], Collection[int]],
        *,
        now: Callable[[], float] = time.time,
        connect: Callable[[str, int], Awaitable[Answer]] | None = None,
    ) -> None:
        self._db = db
        self._signed = signed
        self._now = now
        self._connect = connect or probe
        self._turns = asyncio.Semaphore(AT_ONCE)

    def __repr__(self) -> str:
        return f"<PathProbes of clusters {sorted(self._signed())}>"

    async def run(self) -> None:
        """Probe for ever, from a random moment on, since the nodes of a cluster may start together."""
        await asyncio.sleep(random.uniform(0, EVERY))
        while True:
            await self.look()
            await asyncio.sleep(EVERY)

    async def look(self) -> None:
        """Probe each cluster once. A cluster without a conclusive answer keeps its row."""
        endpoints = chosen(self._db.snapshot(), self._signed())
        found = await asyncio.gather(*(self._path(cluster, each) for cluster, each in endpoints.items()))
        with self._db.write() as txn:
            before = {row.cluster: row for row in txn.all(tables.PATHS)}
            rows = [new or before.get(cluster) for cluster, new in zip(endpoints, found, strict=True)]
            rewrite(txn, tables.PATHS, list(before.values()), [row for row in rows if row is not None])

    async def _path(self, cluster: ClusterName, endpoints: Sequence[Endpoint]) -> Path | None:
        """The first conclusive verdict of these backends; ``silent`` only if none of them answers."""
        verdict: Verdict | None = None
        silent = True
        for address, port in endpoints:
            async with self._turns:
                verdict = judge(await self._connect(address, port))
            if verdict is not None and verdict.state != "silent":
                return Path(cluster, verdict.state, verdict.reason, address, self._now())
            silent &= verdict is not None
        return Path(cluster, verdict.state, verdict.reason, address, self._now()) if verdict and silent else None


def chosen(now: Snapshot, signed: Collection[int]) -> Mapping[ClusterName, Sequence[Endpoint]]:
    """A few backends by TCP of each of these clusters, at random."""
    if not signed:
        return {}
    rows: defaultdict[ClusterName, list[SignedTo]] = defaultdict(list)
    for row in now.all(tables.SIGNED_TO):
        if row.cluster_id in signed:
            rows[row.cluster].append(row)
    endpoints: dict[ClusterName, Sequence[Endpoint]] = {}
    for cluster, each in sorted(rows.items()):
        picked = random.sample(each, min(TRIES, len(each)))
        if found := [one for row in picked for one in _endpoints(now, row)[:1]]:
            endpoints[cluster] = found
    return endpoints


def _endpoints(now: Snapshot, row: SignedTo) -> list[Endpoint]:
    keys = (each.key for each in now.by(tables.BACKENDS, "service", row.service))
    return [(key.address, key.port) for key in keys if (key.address, key.protocol) == (row.address, "TCP")]


async def probe(address: str, port: int) -> Answer:
    """Connect, and close what is accepted. Returns how it ended, with what an ICMP error quotes."""
    version6 = family(address) == "IPv6"
    try:
        sock = socket.socket(socket.AF_INET6 if version6 else socket.AF_INET, socket.SOCK_STREAM)
    except OSError as error:  # a kernel without IPv6, or no descriptor left: the other clusters are probed
        return Answer(error.errno or errno.EIO)
    with sock:
        sock.setblocking(False)
        if version6:
            sock.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVERR, 1)
        else:
            sock.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        try:
            async with asyncio.timeout(PATIENCE):
                await asyncio.get_running_loop().sock_connect(sock, (address, port))
        except OSError as error:  # TimeoutError is one, without a number
            return Answer(error.errno or errno.ETIMEDOUT, *_quoted(sock, address))
    return Answer()


def _quoted(sock: socket.socket, address: str) -> tuple[tuple[int, int], bytes]:
    """Type and code of the ICMP error about a socket's SYN, and the TCP header that it quotes; empty without any.

    A refusal has the address that was called as its sender. A firewall's error, of any code, has its own.
    """
    try:
        quoted, ancillary, _, _ = sock.recvmsg(2048, 512, socket.MSG_ERRQUEUE)
    except OSError:
        return (0, 0), b""
    for level, kind, data in ancillary:
        if (level, kind) in ((socket.IPPROTO_IP, IP_RECVERR), (socket.IPPROTO_IPV6, IPV6_RECVERR)):
            _, _, error_type, code, _ = EXTENDED_ERROR.unpack_from(data)
            if data[SENDER[sock.family]] == bounds.ip(address).packed:
                return (error_type, code), quoted
    return (0, 0), b""
