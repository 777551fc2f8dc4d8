"""The datapath of a node: load, restore, attach and configure it, and create its parts."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, structs

from isthmus import logs
from isthmus.config import DatapathSection, DnsSection
from isthmus.datapath import view
from isthmus.datapath.core import attach, libbpf, pods_cgroup
from isthmus.datapath.core.errors import DatapathError
from isthmus.datapath.core.maps import KernelMaps
from isthmus.datapath.core.shapes import CGROUP, ID
from isthmus.datapath.core.tc import PodLinks
from isthmus.datapath.failures import places, stalled
from isthmus.datapath.failures.caller_names import CallerNames
from isthmus.datapath.failures.confirming import Confirmation
from isthmus.datapath.failures.drained import DrainedSockets
from isthmus.datapath.failures.servers import GoneServer
from isthmus.datapath.failures.sockets import GoneSockets
from isthmus.datapath.failures.watch import FailureWatch
from isthmus.datapath.flows.names import FlowNames
from isthmus.datapath.flows.reader import FlowReader, Receive, traffic
from isthmus.datapath.identity import established
from isthmus.datapath.identity.established import Connection
from isthmus.datapath.identity.interfaces import uid_of
from isthmus.datapath.identity.target import SHIFT, IdentityTarget, identity_target
from isthmus.datapath.manifest import MAPS, NUMBERED, PROGRAMS
from isthmus.datapath.names.counters import questions
from isthmus.datapath.names.settings import host_cookie
from isthmus.datapath.names.target import NamesTarget
from isthmus.datapath.services import placement
from isthmus.datapath.services.callers import Callers, Identities
from isthmus.datapath.services.ignored import IgnoredPods
from isthmus.datapath.services.installed import State
from isthmus.datapath.services.restore import restore
from isthmus.datapath.services.target import PlanTarget
from isthmus.datapath.settings import EXEMPT, pod_cgroups, servers
from isthmus.datapath.settings import settings as settings_of
from isthmus.model.balancing import Ejection
from isthmus.model.names import ClusterName
from isthmus.model.services import Pod
from isthmus.model.stalls import Stall
from isthmus.statedb import Database, Snapshot

LOOK: Final = 2.0
"""Seconds between checks that programs and maps are attached and pinned."""

log = logs.get("datapath")


class DatapathStats(Struct, frozen=True):
    """Attachment of the programs."""

    cgroup: str
    """The cgroup below which calls are translated."""
    attached: bool
    detail: str
    """Number of programs and the last repair, or why they are not attached."""


class Datapath:
    """An attached datapath. Closing it detaches nothing: calls continue without an agent."""

    def __init__(self, loaded: attach.Loaded, maps: KernelMaps, state: State, *, section: DatapathSection) -> None:
        self._loaded = loaded
        self._services = section.services
        self._cgroup = Path(section.cgroup)
        self._flows = section.flows
        self._moves = section.rescue == "auto"
        self.maps = maps
        self.state = state
        self.restored = bool(state.plans or state.frontends or state.sizes()["backends"])
        """True if an earlier process left entries, which sources that are not initialized yet may still need."""
        self._grace = section.grace
        self._repaired = ""
        self._attached = False
        self.rival = ""
        """Reason why another agent on this node disturbs this one; empty if there is none."""
        self.hooks = ""
        """State of programs and maps and the last repair, as a sentence."""

    @classmethod
    def open(cls, section: DatapathSection, dns: DnsSection) -> Datapath:
        """Load the programs over the pinned maps, restore the state, and attach.

        If maps of another layout are pinned, ``take_over`` attaches later. Raises DatapathError with the name of
        whatever is missing.
        """
        if not section.cgroup:
            raise DatapathError("datapath.cgroup is empty: name the cgroup of this node's pods")
        if section.cgroup == pods_cgroup.AUTO:
            section = structs.replace(section, cgroup=str(pods_cgroup.find()))
            log.info("found the cgroup of this node's pods", cgroup=section.cgroup)
        settings_of(section, dns)  # refuses wrong settings before anything is loaded
        exempt = [CGROUP.pack(attach.cgroup_id(path, field="exempt")) for path in section.exempt]
        loaded = attach.load(MAPS, PROGRAMS, pin=section.pin, cgroup=section.cgroup, max_entries=section.max_entries)
        maps = KernelMaps(loaded.maps, pinned=loaded.where, superseded=loaded.superseded, numbered=NUMBERED)
        # Entries of pods that are left alone stay until the pods are listed: see IgnoredPods.
        maps.drop("exempt", [key for key, value in maps.items("exempt") if value == EXEMPT and key not in exempt])
        _require(maps.put("exempt", [(key, EXEMPT) for key in exempt]))
        [(key, before)] = maps.items("config")
        pods, exempted = pod_cgroups(Path(section.cgroup)), any(True for _ in maps.items("exempt"))
        value = settings_of(section, dns, pods=pods, before=before, exempt=exempted)
        _require(maps.put("config", [(key, value)]))
        state = restore(maps, backends=section.max_entries)
        state.ejection = Ejection(section.eject_after, section.eject_first, section.eject_longest)
        return cls(loaded, maps, state, section=section)

    def stats(self) -> DatapathStats:
        """Result of the last :meth:`repair`."""
        return DatapathStats(str(self._cgroup), self._attached, self.hooks or "not checked yet")

    @property
    def waiting(self) -> bool:
        """True while calls use another version's maps: until ``take_over``, once our maps have the plans."""
        return self._loaded.waiting

    def take_over(self) -> None:
        """Use our maps from the next call on, and remove those of the other version."""
        self._loaded.take_over()

    def repair(self) -> None:
        """Restore pins and links that were deleted or detached; ``hooks`` names them."""
        try:
            lost = self._loaded.repair() + [f"map {name}" for name in self.maps.repair()]
            self.rival = "" if self._loaded.waiting else self._loaded.rival()
        except DatapathError as error:
            self._attached, self.hooks = False, str(error)
            return
        if lost:
            self._repaired = f"; put back at {time.strftime('%H:%M:%S')}: {', '.join(lost)}"
            log.warning("somebody took the datapath apart; it was put back", lost=lost)
        self._attached = True
        self.hooks = f"{len(self._loaded.programs)} programs attached to {self._cgroup}{self._repaired}"

    async def keep(self) -> None:
        """Repair, for ever. First free the places of sockets that ended while no program was attached."""
        await asyncio.to_thread(places.free_ended, self.maps, self._cgroup)
        while True:
            self.repair()
            await asyncio.sleep(LOOK)

    def target(self, *, clock: Callable[[], float] = time.monotonic) -> PlanTarget:
        """Target of the reconciler of plans; run its ``sweep()`` as a task."""
        return PlanTarget(self.maps, self.state, grace=self._grace, clock=clock)

    def names(self, dns: DnsSection, *, lifetime: float) -> NamesTarget:
        """Target of the reconciler of names; run its ``keep()`` as a task.

        If the datapath serves all Services, socket hooks translate the address of the cluster DNS, and so they also
        steer its questions.
        """
        host = host_cookie() if self._services != "all" else 0
        return NamesTarget(self.maps, dns, lifetime=lifetime, host=host)

    def identity(self, *, shift: int = SHIFT, owners: Callable[[], Identities] = dict) -> IdentityTarget:
        """Targets of the reconcilers of proven callers, and their keys; run its ``keep()`` as a task.

        ``shift`` is the number of bits of an identity below its cluster's id; ``owners`` returns whose the addresses
        of this node's pods are.
        """
        return identity_target(self.maps, self._cgroup, shift=shift, owners=owners)

    def connections(self, at: Collection[tuple[str, int]]) -> set[Connection]:
        """The pods' established TCP connections at these addresses and ports. Some milliseconds for each pod."""
        return established.connections(self._cgroup, at)

    def cut(self, ended: Collection[Connection]) -> int:
        """Destroy these connections. Returns their number."""
        return established.destroy(self._cgroup, ended)

    def own_uid(self) -> str:
        """UID of the pod that this process is in, below the hooked cgroup; empty if it is in none."""
        return uid_of(self._cgroup, os.getpid())

    def pod_links(self) -> PodLinks:
        """Attachment of programs to the pods' interfaces; run its ``keep()`` as a task."""
        return self._loaded.pod_links(self._announce)

    def _announce(self, interface: int, namespace: int | None) -> None:
        """Write to ``pod_links`` the network namespace in which the sockets of an interface's pod are looked up."""
        if namespace is None:
            self.maps.drop("pod_links", [ID.pack(interface)])
        else:
            self.maps.put("pod_links", [(ID.pack(interface), ID.pack(namespace))])

    def questions(self) -> list[dict[str, Any]]:
        """Questions of pods by kind, result and answerer."""
        return questions(self.maps.fd("name_counters"))

    def callers(self) -> Callers:
        """Identity of the calling pods; the agent maintains it while some plan distinguishes callers."""
        return Callers(self.maps, self._cgroup)

    def ignored_pods(self) -> IgnoredPods:
        """Pods whose calls are not translated."""
        return IgnoredPods(self.maps, self._cgroup)

    def placement(self, pods: Collection[Pod], dns: DnsSection) -> tuple[str, str, str]:
        """Compare the configuration with the node's pods: problems of the cgroup, of DNS, and of pods outside it.

        Each is empty if there is none.
        """
        survey, cgroup = placement.look(self._cgroup, pods), self._cgroup
        return (
            placement.cgroup_problem(cgroup, survey),
            placement.dns_problem(dns, survey),
            placement.second_cgroup(cgroup, survey),
        )

    def failures(self, db: Database, callers: Callers, *, node: str) -> FailureWatch:
        """Watch that maintains the tables of failures; run its ``run()`` as a task."""
        names = CallerNames(db, callers, node=node)
        return FailureWatch(self.maps, self.state, db, longest=self.state.ejection.longest, names=names)

    def confirmation(self, db: Database, watch: FailureWatch) -> Confirmation:
        """Probes of backends that callers cannot connect to; run its ``run()`` as a task."""
        return Confirmation(self.maps, self.state, db, watch)

    def flows(
        self,
        db: Database,
        receive: Receive,
        callers: Callers,
        *,
        node: str,
        account: Callable[[int], str] = lambda identity: "",
    ) -> FlowReader | None:
        """Reader of flow records, ``None`` if ``datapath.flows`` is off; run its ``run()`` as a task.

        ``account`` names the cluster and the account of an identity.
        """
        if self._flows == "off":
            return None
        names = FlowNames(db, self.maps, self.state, callers, node=node, account=account)
        return FlowReader(self.maps, names, receive, one_of=self._flows, node=node)

    def traffic(self) -> dict[str, tuple[int, int]]:
        """(bytes sent, bytes received) of ended connections, by the backend's cluster."""
        return traffic(self.maps, {name: cluster.id for name, cluster in self.state.clusters.items()})

    def gone_sockets(self, db: Database, *, tcp: bool = False) -> GoneSockets:
        """Destroys sockets of deleted backends; run its ``run()`` as a task."""
        return GoneSockets(self.maps, self._cgroup, db, tcp=tcp, grace=self._grace, moves=self._moves)

    def gone_server(self, sockets: GoneSockets, dns: DnsSection) -> GoneServer:
        """Destroys sockets of a name server that has ended; run its ``run()`` as a task."""
        return GoneServer(self.maps, sockets, servers(dns))

    def drained_sockets(self, db: Database) -> DrainedSockets:
        """Closes connections to drained backends; run its ``run()`` as a task."""
        return DrainedSockets(self.maps, self._cgroup, db, grace=self._grace, moves=self._moves)

    async def stalled(self, snapshot: Snapshot, cluster: ClusterName) -> list[Stall]:
        """Stalled connections of this node's pods; ``cluster``: the own one. Some milliseconds for each pod."""
        known = stalled.ends(snapshot, cluster)
        return await asyncio.to_thread(stalled.stalled, known, self._cgroup, now=time.time())

    def program_fd(self, name: str) -> int:
        """Descriptor of a program that is not attached to the cgroup; owned by the datapath, not the caller."""
        return self._loaded.program_fd(name)

    def counters(self) -> list[dict[str, Any]]:
        """Calls by service (a plan's key as text), cluster of the backend and verdict."""
        return [*view.rows(self.maps, "counters"), *view.rows(self.maps, "denied")]

    def close(self) -> None:
        """Close descriptors; nothing is detached."""
        self._loaded.close()
        self.maps.close()


def open_maps(pin: str) -> KernelMaps:
    """The maps pinned at ``pin``, for reading. Raises DatapathError if there are none."""
    try:
        where = attach.pinned(pin)
        readable = {name: libbpf.open_pinned(where / name) for name, row in MAPS.items() if not row.opaque}
        return KernelMaps(readable, pinned=where, numbered=NUMBERED & readable.keys())
    except libbpf.BpfError as error:
        raise DatapathError(f"no datapath at {pin}: {error.strerror}") from None


def _require(failures: object) -> None:
    if failures:
        raise DatapathError(f"cannot configure the datapath: {failures}")
