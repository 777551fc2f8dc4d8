"""Cookies of network namespaces → pods' addresses and Kubernetes namespaces, for plans that distinguish callers.

The kernel identifies a caller by its network namespace's cookie, which has no meaning on other nodes; the pod's address
has. /proc shows the network namespace and its addresses of each process below the pods' cgroup; those of pods are
written to the map. A network namespace is entered only once, to read its cookie.
"""

from __future__ import annotations

import errno
import platform
import re
import socket
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Final, NamedTuple

from isthmus.datapath.core import shapes
from isthmus.datapath.core.maps import Maps
from isthmus.datapath.core.namespaces import Process, inside, processes_below, processes_by_group
from isthmus.datapath.core.shapes import COOKIE, address_text
from isthmus.datapath.services import codecs
from isthmus.datapath.services.target import PlanTarget
from isthmus.model.balancing import Plan, PlanKey
from isthmus.model.services import ENDED, Pod

SO_NETNS_COOKIE: Final = 71
UID_OF_GROUP: Final = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})\b")
"""A pod's UID in the path of its cgroup, in which systemd replaces ``-`` by ``_``."""
_LOCAL: Final = re.compile(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL")


class Identity(NamedTuple):
    """Owner of an address: a pod's namespace and UID."""

    namespace: str
    uid: str


Identities = Mapping[str, Identity | None]
"""Owners by address; ``None`` if the owner of a pod's address is ambiguous."""


def identities(pods: Iterable[Pod], node_addresses: Collection[str]) -> dict[str, Identity | None]:
    """Owners of the pods' addresses; ``None`` for an address that several pods, or the node, have.

    An ended pod keeps its address in its status although another may use it by now. Pods on the node's network share
    its addresses and network namespace.
    """
    owners: dict[str, Identity | None] = {}
    for pod in pods:
        for address in pod.addresses if pod.phase not in ENDED else ():
            whose = Identity(pod.name.partition("/")[0], pod.uid)
            owners[address] = None if address in owners or address in node_addresses else whose
    return owners


class Callers:
    """Maintains the map ``callers`` for the pods below a cgroup."""

    def __init__(self, maps: Maps, cgroup: Path) -> None:
        self._maps = maps
        self._cgroup = cgroup
        self._cookies: dict[Process, int] = {}
        """Cookies by a process of each network namespace that was entered."""
        self._identities: Identities = {}
        self.condition = ""
        """Reason why pods cannot be distinguished, as a sentence; empty if they can."""

    def __repr__(self) -> str:
        return f"<Callers below {self._cgroup}: {self.condition or f'{len(self._cookies)} network namespaces'}>"

    def renew(self, pods: Identities) -> int:
        """Make the map hold exactly the local pods with these addresses. Returns the number of their namespaces."""
        self._identities = pods
        desired, current = self._find(pods.keys()) if pods else {}, dict(self._maps.items("callers"))
        self._maps.put("callers", [(key, value) for key, value in desired.items() if current.get(key) != value])
        self._maps.drop("callers", [key for key in current if key not in desired])
        return len(desired)

    def learn(self, pods: Collection[str]) -> None:
        """Add the local ones of these pods to the map; other entries stay."""
        self._maps.put("callers", list(self._find(set(pods)).items()))

    def addresses_by_cookie(self, pods: Collection[str]) -> dict[int, str]:
        """Addresses of the local ones of these pods by cookie, without a change to the map."""
        entries = self._find(set(pods))
        return {COOKIE.unpack(key)[0]: address_text(codecs.CALLER.unpack(value)[0]) for key, value in entries.items()}

    def _find(self, pods: Set[str]) -> dict[bytes, bytes]:
        if self.condition:
            return {}
        processes, groups = dict[int, Process](), dict[int, Path]()
        for group, process in processes_by_group(self._cgroup):
            processes[process.namespace], groups[process.namespace] = process, group
        processes |= {process.namespace: process for process in self._cookies if process.still_runs()}
        self._cookies = {process: n for process, n in self._cookies.items() if process in processes.values()}
        entries: dict[bytes, bytes] = {}
        try:
            for namespace, process in processes.items():
                if own := pods & addresses_of(process.pid):
                    if process not in self._cookies:
                        self._cookies[process] = cookie(process.pid)
                    if self._cookies[process]:
                        whose = self._namespace(own, groups.get(namespace))
                        entry = codecs.CALLER.pack(
                            shapes.address(min(own)), codecs.namespace_hash(whose) if whose else 0
                        )
                        entries[COOKIE.pack(self._cookies[process])] = entry
        except NoCookies as error:
            self.condition = str(error)
            return {}
        return entries

    def _namespace(self, addresses: Set[str], group: Path | None) -> str:
        """The Kubernetes namespace of a pod by its addresses; empty if it is ambiguous.

        A new pod may have the address of one whose row is not deleted yet. The kubelet writes a pod's UID into the name
        of its cgroup (k8s.io/kubernetes/pkg/kubelet/cm); if the name has one, it must be that of the row.
        """
        candidates = {self._identities.get(address) for address in addresses}
        [whose, *more] = candidates
        if more or whose is None:
            return ""
        uids = uids_of(group)
        return whose.namespace if not uids or whose.uid in uids else ""


def uids_of(group: Path | None) -> list[str]:
    """The pods' UIDs in the path of a cgroup: of a pod in a pod both, of other cgroups none."""
    return [each.replace("_", "-") for each in UID_OF_GROUP.findall(str(group))]


class CallersFirst:
    """A target of plans that adds a redirect's own pods to ``callers`` first: they would otherwise call themselves."""

    def __init__(self, target: PlanTarget, callers: Callers) -> None:
        self._target = target
        self._callers = callers
        self.delete = target.delete
        self.prune = target.prune

    def __repr__(self) -> str:
        return f"<CallersFirst: {self._target!r}>"

    async def update(self, rows: Sequence[Plan]) -> Mapping[PlanKey, str]:
        """Write these plans. Returns failures by key.

        A redirect with excluded pods fails if pods cannot be distinguished: these would call themselves.
        """
        if pods := {address for row in rows for address in row.skip}:
            self._callers.learn(pods)
        if not (reason := self._callers.condition):
            return await self._target.update(rows)
        failures = {row.key: reason for row in rows if row.skip}
        return {**await self._target.update([row for row in rows if not row.skip]), **failures}


def addresses_below(cgroup: Path) -> set[str]:
    """Addresses of the network namespaces of all processes below a cgroup."""
    return {address for process in processes_below(cgroup) for address in addresses_of(process.pid)}


def pid_of(cgroup: Path, addresses: set[str]) -> int:
    """Pid of a process below a cgroup whose network namespace has one of these addresses, or 0."""
    pids = (process.pid for process in processes_below(cgroup) if addresses & addresses_of(process.pid))
    return next(pids, 0)


class NoCookies(Exception):  # noqa: N818
    """This kernel does not support cookies of network namespaces; the message names the version that does."""


def cookie(pid: int) -> int:
    """Cookie of a process's network namespace, or 0 if that cannot be entered."""
    try:
        return inside(pid, _cookie)
    except OSError:
        return 0


def _cookie() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            raw = sock.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8)
        except OSError as error:
            if error.errno != errno.ENOPROTOOPT:
                raise
            raise NoCookies(
                f"this kernel ({platform.release()}) has no SO_NETNS_COOKIE: consistent hashing is by node and "
                "redirects cannot leave pods out; both need Linux 5.14"
            ) from None
    value: int = struct.unpack("=Q", raw)[0]
    return value


def addresses_of(pid: int) -> set[str]:
    """Addresses of a process's network namespace, in canonical form; empty if the process has ended."""
    try:
        addresses = set(_LOCAL.findall(Path(f"/proc/{pid}/net/fib_trie").read_text()))
        lines = Path(f"/proc/{pid}/net/if_inet6").read_text().splitlines()
    except OSError:
        return set()
    return addresses | {address_text(bytes.fromhex(line.split()[0])) for line in lines}
