"""Programs on the node's ends of pods' links: attached when a pod is created, kept across restarts of the agent.

A pod's link is a veth whose other end is in another network namespace and that no default route uses. On kernels with
tcx (Linux 6.6) a program is attached by a link of its own, on older ones by a filter in the interface's clsact qdisc.
Both run beside other agents' programs: ours run first on ingress and last on egress, and return TC_ACT_UNSPEC (the next
program decides) for all other traffic.

Links are pinned as ``<program>@<interface index>``; a filter needs no pin.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import platform
import socket
import struct
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from isthmus import logs
from isthmus.datapath.core import libbpf
from isthmus.netlink import rtnetlink, wire

Direction = Literal["ingress", "egress"]

LOOK: Final = 10.0
"""Seconds between two full scans, in case an event was lost or a program was detached."""
BPF: Final = {"x86_64": 321, "aarch64": 280}[platform.machine()]
"""Number of the bpf system call; libbpf 1.1 has no function for tcx."""
LINK_CREATE, LINK_UPDATE = 28, 29
ATTACH_TYPE: Final[Mapping[Direction, int]] = {"ingress": 46, "egress": 47}
"""BPF_TCX_INGRESS, BPF_TCX_EGRESS."""
ORDER: Final[Mapping[Direction, int]] = {"ingress": 8, "egress": 16}
"""BPF_F_BEFORE and BPF_F_AFTER without a relative program: first and last of all."""

TC_MESSAGE: Final = struct.Struct("=BxxxiIII")
NEW_QDISC, NEW_FILTER, DELETE_FILTER = 36, 44, 45
REPLACE, EXCLUSIVE, CREATE = 0x100, 0x200, 0x400
CLSACT_HANDLE, CLSACT_PARENT = 0xFFFF0000, 0xFFFFFFF1
PARENT: Final[Mapping[Direction, int]] = {"ingress": 0xFFFFFFF2, "egress": 0xFFFFFFF3}
PRIORITY: Final[Mapping[Direction, int]] = {"ingress": 1, "egress": 0xC000}
HANDLE: Final = 0x1571
"""Handle of our filters, which distinguishes them from others of the same priority."""
TCA_KIND, TCA_OPTIONS, TCA_BPF_FD, TCA_BPF_NAME, TCA_BPF_FLAGS = 1, 2, 6, 7, 8
DIRECT_ACTION: Final = 1
ETH_P_ALL: Final = 3

log = logs.get("datapath")
_libc = ctypes.CDLL(None, use_errno=True)


class Attachment(NamedTuple):
    """A loaded program and its direction."""

    name: str
    direction: Direction
    fd: int


class PodLinksStats(Struct, frozen=True):
    """Number of interfaces with our programs, the mechanism, and errors by interface."""

    interfaces: int
    kind: Literal["tcx", "clsact"]
    failed: dict[str, str]


class PodLinks:
    """Keeps programs attached to every pod's link.

    ``announce`` receives an interface and the id of its pod's network namespace before programs run there, and the
    interface and ``None`` when it is deleted.

    Invariant: an interface in ``_attached`` has every program; with tcx we hold a descriptor of each, so that a program
    stays attached when its pin is deleted.
    """

    def __init__(
        self,
        programs: Iterable[Attachment],
        *,
        pins: Path,
        announce: Callable[[int, int | None], object] = lambda *_: None,
        tcx: bool | None = None,
    ) -> None:
        self._programs = tuple(programs)
        self._pins = pins
        self._announce = announce
        self._tcx = has_tcx(self._programs[0].fd) if tcx is None else tcx
        self._attached: dict[int, dict[str, int]] = {}
        self._failed: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<PodLinks: {len(self._attached)} interfaces>"

    def stats(self) -> PodLinksStats:
        """Current attachments and errors."""
        return PodLinksStats(len(self._attached), "tcx" if self._tcx else "clsact", dict(self._failed))

    async def keep(self) -> None:
        """Attach to new links and forget deleted ones, for ever."""
        loop, wake = asyncio.get_running_loop(), asyncio.Event()
        with rtnetlink.subscribe() as events:
            loop.add_reader(events, wake.set)
            try:
                while True:
                    for _ in self._looking():
                        await asyncio.sleep(0)  # a node has hundreds of links, and each takes milliseconds
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LOOK):
                            await self._follow(events, wake)
            finally:
                loop.remove_reader(events)

    def look(self) -> None:
        """Attach to every pod's link, and forget links that were deleted or lost a program."""
        for _ in self._looking():
            pass

    def _looking(self) -> Iterator[None]:
        """Scan in steps of one link. Accepted race: attaching to a link that is deleted between two steps fails."""
        uplinks = rtnetlink.default_route_interfaces()
        current = {link.ifindex: link for link in rtnetlink.links() if is_pod(link, uplinks)}
        for index, links in list(self._attached.items()):
            if index not in current or any(libbpf.link_target(fd) != index for fd in links.values()):
                self._forget(index)
        self._unpin_others(current)
        for link in current.values():
            if link.ifindex not in self._attached or not self._tcx:
                self._attach(link)
                yield

    def close(self) -> None:
        """Close descriptors; attached programs stay."""
        for links in self._attached.values():
            for fd in links.values():
                os.close(fd)
        self._attached.clear()

    async def _follow(self, events: socket.socket, wake: asyncio.Event) -> None:
        """Handle events until some were lost."""
        while True:
            await wake.wait()
            wake.clear()
            try:
                changes = rtnetlink.changes(events)
            except OSError:  # ENOBUFS: events were lost, a full look is needed
                return
            uplinks = rtnetlink.default_route_interfaces() if changes else set()
            for link, deleted in changes:
                if deleted:
                    self._forget(link.ifindex)
                elif is_pod(link, uplinks) and link.ifindex not in self._attached:
                    self._attach(link)

    def _attach(self, link: rtnetlink.Link) -> None:
        links: dict[str, int] = {}
        self._announce(link.ifindex, link.peer)
        try:
            for program in self._programs:
                if self._tcx:
                    links[program.name] = self._tcx_link(program, link.ifindex)
                else:
                    put_filter(program, link.ifindex)
        except OSError as error:
            for fd in links.values():
                os.close(fd)
            self._announce(link.ifindex, None)  # no packet of its pod is rewritten
            if error.errno not in (errno.ENODEV, errno.ENOLINK):  # else the link was deleted meanwhile
                self._failed[link.name] = str(error)
                log.warning("cannot attach to a pod's interface", interface=link.name, error=str(error))
            return
        self._attached[link.ifindex] = links
        self._failed.pop(link.name, None)

    def _tcx_link(self, program: Attachment, index: int) -> int:
        """Descriptor of a tcx link with our program: the pinned one, or a new one."""
        path = self._pins / f"{program.name}@{index}"
        if path.exists():
            fd = libbpf.open_pinned(path)
            if libbpf.link_target(fd) == index:
                _bpf(LINK_UPDATE, struct.pack("=IIII", fd, program.fd, 0, 0))
                return fd
            os.close(fd)
            path.unlink()
        fd = create_link(program.fd, index, program.direction)
        self._pins.mkdir(parents=True, exist_ok=True)
        libbpf.pin(fd, path)
        return fd

    def _forget(self, index: int) -> None:
        if index in self._attached:
            self._announce(index, None)
        for name, fd in self._attached.pop(index, {}).items():
            os.close(fd)
            (self._pins / f"{name}@{index}").unlink(missing_ok=True)

    def _unpin_others(self, current: Container[int]) -> None:
        """Remove pins that an earlier process left for interfaces deleted since."""
        names = {program.name for program in self._programs}
        for path in self._pins.glob("*@*"):
            name, _, index = path.name.rpartition("@")
            if name in names and int(index) not in current:
                path.unlink()


def is_pod(link: rtnetlink.Link, uplinks: Container[int]) -> bool:
    """True if an interface is the node's end of a pod's link."""
    return link.kind == "veth" and link.peer is not None and link.ifindex not in uplinks


def has_tcx(program: int) -> bool:
    """True if this kernel has tcx: it then fails with ENODEV for an interface that cannot exist."""
    try:
        os.close(create_link(program, 0x7FFFFFFF, "ingress"))
    except OSError as error:
        return error.errno == errno.ENODEV
    return True


def put_filter(program: Attachment, index: int) -> None:
    """Create or replace our filter in the interface's clsact qdisc."""
    with contextlib.suppress(FileExistsError):
        head = TC_MESSAGE.pack(socket.AF_UNSPEC, index, CLSACT_HANDLE, CLSACT_PARENT, 0)
        wire.request(socket.NETLINK_ROUTE, NEW_QDISC, CREATE | EXCLUSIVE, head + wire.attribute(TCA_KIND, b"clsact\0"))
    options = b"".join(
        wire.attribute(kind, data)
        for kind, data in (
            (TCA_BPF_FD, struct.pack("=I", program.fd)),
            (TCA_BPF_NAME, program.name.encode() + b"\0"),
            (TCA_BPF_FLAGS, struct.pack("=I", DIRECT_ACTION)),
        )
    )
    body = _filter(index, program.direction) + wire.attribute(TCA_OPTIONS, options)
    wire.request(socket.NETLINK_ROUTE, NEW_FILTER, CREATE | REPLACE, body)


def remove_filters() -> None:
    """Remove our filters from every interface of this network namespace."""
    for link in rtnetlink.links():
        for direction in ATTACH_TYPE:
            with contextlib.suppress(OSError):  # there is none
                wire.request(socket.NETLINK_ROUTE, DELETE_FILTER, 0, _filter(link.ifindex, direction))


def _filter(index: int, direction: Direction) -> bytes:
    info = PRIORITY[direction] << 16 | socket.htons(ETH_P_ALL)
    head = TC_MESSAGE.pack(socket.AF_UNSPEC, index, HANDLE, PARENT[direction], info)
    return head + wire.attribute(TCA_KIND, b"bpf\0")


def create_link(program: int, index: int, direction: Direction) -> int:
    """Descriptor of a new tcx link: the program runs on the interface while the link is open or pinned."""
    fields = (program, index, ATTACH_TYPE[direction], ORDER[direction], 0, 0, 0)
    return _bpf(LINK_CREATE, struct.pack("=IIIIIIQ", *fields))


def _bpf(command: int, attributes: bytes) -> int:
    """The bpf system call. Raises OSError if it fails."""
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    result = _libc.syscall(BPF, command, buffer, len(attributes))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(result)
