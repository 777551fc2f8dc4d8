"""The node's name server: ours from the table of names, the rest passed on to the cluster DNS.

The UDP side is a drain loop on the socket, without a task or a future per question. Nothing that a client sends ends
it: what cannot be read is answered FORMERR or not at all, what cannot be sent is counted. Where answering raises, the
reply is SERVFAIL and there is a row of ``faults``, as for a name that raises, whose last answer stays.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from typing import Any, Final

from msgspec import Struct

from isthmus import logs, uplinks
from isthmus.dns.callers import Namespaces
from isthmus.dns.intake import Intake
from isthmus.dns.respond import FORWARD, refusal, respond
from isthmus.dns.stream import Stream, StreamStats
from isthmus.dns.upstream import Upstream, UpstreamStats
from isthmus.model.hosts import joined
from isthmus.model.tables import FAULTS, NAMES, PODS
from isthmus.running import Tasks
from isthmus.statedb import Database, Faults, raised_at
from isthmus.zone import Zone, codec

READ_BATCH: Final = 1024
"""Packets read from a socket at once: more than its buffer holds, so that no question waits behind a flood in it."""
ANSWER_BATCH: Final = 64
"""Questions answered before the loop may do something else."""
CHANGES: Final = 1_000
REPORT_EVERY: Final = 1.0
"""Seconds between two writes of faults of questions."""
RECEIVE_BUFFER: Final = 1 << 20
ATTEMPTS: Final = 20
LARGEST_QUESTION: Final = 4096
MAX_LOGGED: Final = 20
"""Questions whose failure is logged: a client can send a million of them."""
SHOWN: Final = 128
"""Bytes of a packet in such a line."""

log = logs.get("dns")

Socket = socket.socket
Client = tuple[Any, ...]
"""The socket that was asked, and the address that asked."""


class CannotListen(Exception):  # noqa: N818
    """The address cannot be used; the message names it and the reason."""


class ServerStats(Struct, frozen=True, kw_only=True):
    """Where it listens, what it knows, and counts since the start."""

    listen: list[str]
    zone: str
    names: int
    complete: bool
    unwritable: int
    """Rows that DNS cannot express."""
    questions: int
    replies: int
    unsent: int
    """Replies that the kernel did not take."""
    dropped: int
    """Questions that a flood of another client displaced, or its own."""
    failed: int
    """Questions and rows that raised an exception: each is a bug, and in the log."""
    upstream: UpstreamStats
    tcp: StreamStats


class Server:
    """Answers on its addresses, from the ``names`` of a database; callers share by the namespaces in its ``pods``.

    :meth:`run` never returns. Names are taken in as the table changes; until its sources have completed, a name of
    ours that is not known is answered SERVFAIL, while everything else is passed on from the first moment. Packets that
    arrive on one of ``uplinks`` are dropped. ``shared``: another process may listen on the same addresses.
    """

    def __init__(
        self,
        database: Database,
        *,
        zone: str,
        listen: Sequence[tuple[str, int]],
        upstream: tuple[str, int],
        timeout: float = 3.0,
        uplinks: Sequence[str] = (),
        cluster_domain: str = "",
        shared: bool = False,
    ) -> None:
        if upstream in listen:
            raise CannotListen(f"{joined(*upstream)} is the upstream too: questions would go round for ever")
        self._database = database
        self._names, self._pods = database.changes(NAMES), database.changes(PODS)
        self._listen = tuple(listen)
        self._uplinks = tuple(uplinks)
        self._shared = shared
        self._zone = Zone(zone, cluster_domain=cluster_domain)
        self._upstream = Upstream(upstream, send=self._send, timeout=timeout)
        self._namespaces = Namespaces()
        self._stream = Stream(
            self._zone, upstream=upstream, namespace_of=self._namespaces.of_caller, failed=self._failed
        )
        self._faults = Faults(database, FAULTS, NAMES.name)
        self._questions = Faults(database, FAULTS, NAMES.name, kind="questions")
        """By where answering them raised: what a client asks is no name of ours to keep."""
        self._has_failed = asyncio.Event()
        self._listening = asyncio.Event()
        self._taken_in = -1
        """The table's revision from which is answered."""
        self._turned = asyncio.Event()
        """Set, and another one, with each change of it."""
        self._sockets: list[Socket] = []
        self._intake: Intake[tuple[bytes, Client]] = Intake()
        self._answering = False
        self.truncates = False
        """Whether an answer that does not fit over UDP sends the client to TCP; only where TCP reaches us too."""
        self.questions = self.replies = self.unsent = self.failed = 0

    def __repr__(self) -> str:
        return f"<Server {', '.join(joined(*each) for each in self._listen)} of {self._zone!r}>"

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens first, once it does: the port that was chosen where 0 was asked for."""
        host, port, *_ = self.socket.getsockname()
        return host, port

    @property
    def socket(self) -> Socket:
        """Its first UDP socket, once it listens, for those who watch over its life."""
        assert self._sockets, "it does not listen yet; await listening()"
        return self._sockets[0]

    async def listening(self) -> None:
        """Return when questions are answered."""
        await self._listening.wait()

    async def answers(self, revision: int) -> None:
        """Return when questions are answered, from the table as it was at this revision or later."""
        while self._taken_in < revision:
            await self._turned.wait()
        await self.listening()

    async def run(self) -> None:
        """Listen and answer, for ever.

        The names that are there are taken in first: with the sockets come questions, a share of another process's too.
        """
        with ExitStack() as opened:
            await self._take_in()
            dropped = uplinks.indexes(self._uplinks)
            bound = [bind_both(each, dropped, shared=self._shared) for each in self._listen]
            for pair in bound:
                for sock in pair:
                    opened.callback(sock.close)
            opened.callback(self._upstream.close)
            opened.callback(self._stream.close)
            opened.callback(self._listening.clear)
            self._sockets = [datagrams for datagrams, _ in bound]
            for datagrams, connections in bound:
                await self._serve(datagrams, connections, opened)
            async with Tasks() as tasks:
                tasks.start("upstream", self._upstream.run)
                tasks.start("names", self._follow)
                tasks.start("callers", self._follow_pods)
                tasks.start("faults", self._report_failures)
                if self._uplinks:
                    sockets = [sock for pair in bound for sock in pair]
                    tasks.start("uplinks", lambda: uplinks.keep(sockets, self._uplinks))
                self._listening.set()

    async def _serve(self, datagrams: Socket, connections: Socket, opened: ExitStack) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(datagrams, self._drain, datagrams)
        opened.callback(loop.remove_reader, datagrams)
        server = await asyncio.start_server(self._stream.serve, sock=connections)
        opened.callback(server.close)

    def stats(self) -> ServerStats:
        """Now."""
        return ServerStats(
            listen=[joined(*sock.getsockname()[:2]) for sock in self._sockets],
            zone=self._zone.name,
            names=len(self._zone),
            complete=self._zone.complete,
            unwritable=self._zone.unwritable,
            questions=self.questions,
            replies=self.replies,
            unsent=self.unsent,
            dropped=self._intake.dropped,
            failed=self.failed,
            upstream=self._upstream.stats(),
            tcp=self._stream.stats(),
        )

    async def _follow(self) -> None:
        """Keep the answers as the table is."""
        names = self._names
        while True:
            await self._database.until(lambda now: bool(names.unread) or now.initialized(NAMES) != self._zone.complete)
            await self._take_in()

    async def _follow_pods(self) -> None:
        """Keep the callers' namespaces as the node's pods are."""
        while True:
            self._namespaces.follow(self._pods.next()[1])
            await self._pods.wait()

    async def _take_in(self) -> None:
        """Bring the answers to what the table is now. A row that raises costs its own name."""
        snapshot, changes = self._names.next()
        for number, change in enumerate(changes, 1):
            with self._faults.attempt(change.key):
                self._zone.replace(change.old, change.new)
            if number % CHANGES == 0:
                await asyncio.sleep(0)
        self._faults.publish()
        self._zone.complete = snapshot.initialized(NAMES)
        self._taken_in = snapshot.revision(NAMES)
        self._turned.set()
        self._turned = asyncio.Event()

    def _drain(self, datagrams: Socket) -> None:
        for _ in range(READ_BATCH):  # hot:
            try:
                packet, asker = datagrams.recvfrom(LARGEST_QUESTION)
            except BlockingIOError:
                break
            except OSError:
                continue
            self.questions += 1
            self._intake.put(asker[0], (packet, (datagrams, asker)), namespace=self._namespaces.of_caller(asker[0]))
        if not self._answering:
            self._answer()

    def _answer(self) -> None:
        """Answer a batch, callers in turns; the rest after whatever else the loop has to do."""
        for _ in range(ANSWER_BATCH):  # hot:
            if not self._intake:
                self._answering = False
                return
            packet, client = self._intake.take()
            try:
                reply = respond(packet, self._zone, limit=codec.UDP_SIZE, truncate=self.truncates)
                if reply:
                    self._send(reply, client)
                elif reply == FORWARD:
                    caller = client[1][0]
                    self._upstream.forward(packet, client, caller=caller, namespace=self._namespaces.of_caller(caller))
            except MemoryError:
                raise
            except Exception as error:
                self._failed(error)
                if reply := refusal(packet, limit=codec.UDP_SIZE):
                    self._send(reply, client)
        self._answering = True
        asyncio.get_running_loop().call_soon(self._answer)

    def _failed(self, error: Exception) -> None:
        self._questions.failed(raised_at(error), error)
        self._has_failed.set()

    async def _report_failures(self) -> None:
        """Write faults of questions, for ever: a flood of questions must not become a flood of writes."""
        while True:
            await self._has_failed.wait()
            self._has_failed.clear()
            self._questions.publish()
            await asyncio.sleep(REPORT_EVERY)

    def _send(self, reply: bytes, client: Client) -> None:
        """Answer who asked from the socket that was asked."""
        datagrams, asker = client
        try:
            datagrams.sendto(reply, asker)
        except OSError:  # a full buffer, an unreachable client, port 0: the client asks again
            self.unsent += 1
        else:
            self.replies += 1


def bind_both(address: tuple[str, int], drop: Collection[int] = (), *, shared: bool = False) -> tuple[Socket, Socket]:
    """Sockets for UDP and TCP on one port, which drop what arrives on some interfaces. Port 0 is any free for both."""
    for attempts_left in reversed(range(ATTEMPTS if address[1] == 0 else 1)):
        datagrams = _bind(address, socket.SOCK_DGRAM, drop, shared=shared)
        try:
            port = datagrams.getsockname()[1]
            return datagrams, _bind((address[0], port), socket.SOCK_STREAM, drop, shared=shared)
        except CannotListen:
            datagrams.close()
            if not attempts_left:
                raise
    raise AssertionError("the last attempt raises")


def _bind(address: tuple[str, int], kind: socket.SocketKind, drop: Collection[int], *, shared: bool) -> Socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    sock = socket.socket(family, kind | socket.SOCK_NONBLOCK)
    try:
        if kind == socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if drop:  # of a TCP socket a filter is a privilege
            uplinks.drop_from(sock, drop)  # before it can receive anything
        sock.bind(address)
    except OSError as error:
        sock.close()
        transport = "udp" if kind == socket.SOCK_DGRAM else "tcp"
        raise CannotListen(f"{joined(*address)} ({transport}): {error.strerror}") from None
    return sock
