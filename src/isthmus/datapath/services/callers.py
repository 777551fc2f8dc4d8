"""Which pod a call comes from: cookies of network namespaces → pods' addresses, for plans that distinguish callers.

The kernel identifies a caller by its namespace's cookie, which means nothing on another node; its address does. For
each process below the pods' cgroup /proc has its namespace and that namespace's addresses; addresses of pods are
written. Namespaces that are known already are not entered again.
"""

from __future__ import annotations

import errno
import platform
import re
import socket
import struct
from collections.abc import Collection, Mapping, Sequence, Set
from pathlib import Path
from typing import Final

from isthmus.datapath.core import shapes
from isthmus.datapath.core.maps import Maps
from isthmus.datapath.core.namespaces import Process, inside, processes_below
from isthmus.datapath.core.shapes import COOKIE, address_text
from isthmus.datapath.services.target import PlanTarget
from isthmus.model.balancing import Plan, PlanKey

SO_NETNS_COOKIE: Final = 71
_LOCAL: Final = re.compile(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL")


class Callers:
    """Keeps the map ``callers`` equal to the pods below a cgroup."""

    def __init__(self, maps: Maps, cgroup: Path) -> None:
        self._maps = maps
        self._cgroup = cgroup
        self._cookies: dict[Process, int] = {}
        """Cookies by one process of each namespace that was read."""
        self.condition = ""
        """Why pods cannot be distinguished, as a sentence; empty when they can."""

    def __repr__(self) -> str:
        return f"<Callers below {self._cgroup}: {self.condition or f'{len(self._cookies)} network namespaces'}>"

    def renew(self, pods: Collection[str]) -> int:
        """Make the map hold the pods of these addresses that have a process here; how many namespaces are theirs."""
        wanted, present = self._find(set(pods)) if pods else {}, dict(self._maps.items("callers"))
        self._maps.put("callers", [(key, value) for key, value in wanted.items() if present.get(key) != value])
        self._maps.drop("callers", [key for key in present if key not in wanted])
        return len(wanted)

    def learn(self, pods: Collection[str]) -> None:
        """Have those of these pods that have a process here in the map now; the others there stay."""
        self._maps.put("callers", list(self._find(set(pods)).items()))

    def known(self, pods: Collection[str]) -> dict[int, str]:
        """Addresses by cookie of those of these pods that have a process here; the map stays as it is."""
        found = self._find(set(pods))
        return {COOKIE.unpack(key)[0]: address_text(value) for key, value in found.items()}

    def _find(self, pods: Set[str]) -> dict[bytes, bytes]:
        if self.condition:
            return {}
        processes = {process.namespace: process for process in processes_below(self._cgroup)}
        processes |= {process.namespace: process for process in self._cookies if process.still_runs()}
        self._cookies = {process: n for process, n in self._cookies.items() if process in processes.values()}
        found: dict[bytes, bytes] = {}
        try:
            for process in processes.values():
                if address := min(pods & _addresses(process.pid), default=""):
                    if process not in self._cookies:
                        self._cookies[process] = cookie(process.pid)
                    if self._cookies[process]:
                        found[COOKIE.pack(self._cookies[process])] = shapes.address(address)
        except NoCookies as why:
            self.condition = str(why)
            return {}
        return found


class CallersFirst:
    """A target of plans that knows a redirect's own pods before it is written: else these would call themselves."""

    def __init__(self, target: PlanTarget, callers: Callers) -> None:
        self._target = target
        self._callers = callers
        self.delete = target.delete
        self.prune = target.prune

    def __repr__(self) -> str:
        return f"<CallersFirst: {self._target!r}>"

    async def update(self, rows: Sequence[Plan]) -> Mapping[PlanKey, str]:
        """Make the maps hold these plans; what failed, by key.

        A redirect that leaves pods out is not programmed where these cannot be told apart: they would call themselves.
        """
        if pods := {address for row in rows for address in row.skip}:
            self._callers.learn(pods)
        if not (why := self._callers.condition):
            return await self._target.update(rows)
        failures = {row.key: why for row in rows if row.skip}
        return {**await self._target.update([row for row in rows if not row.skip]), **failures}


def addresses_below(cgroup: Path) -> set[str]:
    """Addresses of the network namespaces that have a process below a cgroup, as this host shows them."""
    return {address for process in processes_below(cgroup) for address in _addresses(process.pid)}


def pid_of(cgroup: Path, addresses: set[str]) -> int:
    """A process below a cgroup whose network namespace has one of these addresses; 0 where there is none."""
    found = (process.pid for process in processes_below(cgroup) if addresses & _addresses(process.pid))
    return next(found, 0)


class NoCookies(Exception):  # noqa: N818
    """This kernel gives user space no cookies of namespaces; the message names the version that does."""


def cookie(pid: int) -> int:
    """The cookie of a process's network namespace; 0 where the process is gone or may not be looked at."""
    try:
        return inside(pid, _cookie)
    except OSError:
        return 0


def _cookie() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            return int(struct.unpack("=Q", sock.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8))[0])
        except OSError as error:
            if error.errno != errno.ENOPROTOOPT:
                raise
            raise NoCookies(
                f"this kernel ({platform.release()}) has no SO_NETNS_COOKIE: consistent hashing is by node and "
                "redirects cannot leave pods out; both need Linux 5.14"
            ) from None


def _addresses(pid: int) -> set[str]:
    """The addresses of a process's network namespace, canonical."""
    try:
        found = set(_LOCAL.findall(Path(f"/proc/{pid}/net/fib_trie").read_text()))
        lines = Path(f"/proc/{pid}/net/if_inet6").read_text().splitlines()
    except OSError:
        return set()
    return found | {address_text(bytes.fromhex(line.split()[0])) for line in lines}
