"""The datapath of a node, put together: loaded, restored, attached, given the DNS settings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from isthmus import logs
from isthmus.config import DatapathSection, DnsSection
from isthmus.datapath import view
from isthmus.datapath.core import attach, libbpf
from isthmus.datapath.core.errors import DatapathError
from isthmus.datapath.core.maps import KernelMaps
from isthmus.datapath.core.shapes import CGROUP, ID
from isthmus.datapath.core.tc import PodLinks
from isthmus.datapath.failures import places
from isthmus.datapath.failures.drained import DrainedSockets
from isthmus.datapath.failures.servers import GoneServer
from isthmus.datapath.failures.sockets import GoneSockets
from isthmus.datapath.failures.watch import FailureWatch
from isthmus.datapath.flows.names import FlowNames
from isthmus.datapath.flows.reader import FlowReader, Receive, traffic
from isthmus.datapath.manifest import MAPS, NUMBERED, PROGRAMS
from isthmus.datapath.names.counters import questions
from isthmus.datapath.names.settings import host_cookie
from isthmus.datapath.names.target import NamesTarget
from isthmus.datapath.services.callers import Callers
from isthmus.datapath.services.installed import State
from isthmus.datapath.services.restore import restore
from isthmus.datapath.services.target import PlanTarget
from isthmus.datapath.settings import servers
from isthmus.datapath.settings import settings as settings_of
from isthmus.model.balancing import Ejection
from isthmus.statedb import Database, Growth

LOOK: Final = 2.0
"""Seconds between looks whether everything is where it should be."""

log = logs.get("datapath")


class DatapathStats(Struct, frozen=True):
    """Where the programs are attached, and whether they are."""

    cgroup: str
    """The cgroup below which calls are translated."""
    attached: bool
    detail: str
    """How many programs, what was put back, or why they are not attached."""


class Datapath:
    """An attached datapath. Closing it leaves everything as it is: calls go on while the agent is away."""

    def __init__(self, loaded: attach.Loaded, maps: KernelMaps, state: State, *, section: DatapathSection) -> None:
        self._loaded = loaded
        self._services = section.services
        self._cgroup = Path(section.cgroup)
        self._flows = section.flows
        self.maps = maps
        self.state = state
        self.restored = bool(state.plans or state.frontends or state.backends)
        """An earlier process left entries that a source which is not complete yet may still want."""
        self._grace = section.grace
        self._repaired = ""
        self._attached = False
        self.hooks = ""
        """Whether programs and maps are where they should be, and what was put back, as a sentence."""

    @classmethod
    def open(cls, section: DatapathSection, dns: DnsSection) -> Datapath:
        """Load over what is pinned, restore, attach; with another layout beside it, attach not yet (``take_over``).

        DatapathError names what is missing.
        """
        if not section.cgroup:
            raise DatapathError("datapath.cgroup is empty: name the cgroup of this node's pods")
        settings_of(section, dns)  # refuses what is wrong before anything is loaded
        exempt = [CGROUP.pack(attach.cgroup_id(path, field="exempt")) for path in section.exempt]
        loaded = attach.load(MAPS, PROGRAMS, pin=section.pin, cgroup=section.cgroup, max_entries=section.max_entries)
        maps = KernelMaps(loaded.maps, pinned=loaded.where, given_up=loaded.superseded, numbered=NUMBERED)
        maps.drop("exempt", [key for key, _ in maps.items("exempt") if key not in exempt])
        _require(maps.put("exempt", [(key, ID.pack(1)) for key in exempt]))
        [(key, before)] = maps.items("config")
        _require(maps.put("config", [(key, settings_of(section, dns, before=before))]))
        state = restore(maps, backends=section.max_entries)
        state.ejection = Ejection(section.eject_after, section.eject_first, section.eject_longest)
        return cls(loaded, maps, state, section=section)

    def stats(self) -> DatapathStats:
        """What :meth:`repair` found last."""
        return DatapathStats(str(self._cgroup), self._attached, self.hooks or "not checked yet")

    @property
    def waiting(self) -> bool:
        """Calls are answered from another version's maps until ``take_over``, once the plans are in ours."""
        return self._loaded.waiting

    def take_over(self) -> None:
        """Answer calls from our maps, from the next one on, and remove those of the other version."""
        self._loaded.take_over()

    def repair(self) -> None:
        """Restore pins and links that were deleted or detached; ``hooks`` names them."""
        try:
            lost = self._loaded.repair() + [f"map {name}" for name in self.maps.repair()]
        except DatapathError as why:
            self._attached, self.hooks = False, str(why)
            return
        if lost:
            self._repaired = f"; put back at {time.strftime('%H:%M:%S')}: {', '.join(lost)}"
            log.warning("somebody took the datapath apart; it was put back", lost=lost)
        self._attached = True
        self.hooks = f"{len(self._loaded.programs)} programs attached to {self._cgroup}{self._repaired}"

    async def keep(self) -> None:
        """Repair, for ever; first free what sockets left that ended while no program was attached."""
        await asyncio.to_thread(places.free_ended, self.maps, self._cgroup)
        while True:
            self.repair()
            await asyncio.sleep(LOOK)

    def target(self, *, clock: Callable[[], float] = time.monotonic, beside: Growth | None = None) -> PlanTarget:
        """What the reconciler of plans drives; its ``sweep()`` is a task of the process."""
        return PlanTarget(self.maps, self.state, grace=self._grace, clock=clock, beside=beside)

    def names(self, dns: DnsSection, *, lifetime: float) -> NamesTarget:
        """What the reconciler of names drives; its ``keep()`` is a task of the process.

        Where all Services are answered, socket hooks translate the cluster DNS' address: they steer its questions too.
        """
        alone = host_cookie() if self._services != "all" else 0
        return NamesTarget(self.maps, dns, lifetime=lifetime, host=alone)

    def pod_links(self) -> PodLinks:
        """What keeps programs on the pods' interfaces; its ``keep()`` is a task of the process."""
        return self._loaded.pod_links(self._announce)

    def _announce(self, interface: int, namespace: int | None) -> None:
        """``pod_links``: in which network namespace the sockets of an interface's pod are looked up."""
        if namespace is None:
            self.maps.drop("pod_links", [ID.pack(interface)])
        else:
            self.maps.put("pod_links", [(ID.pack(interface), ID.pack(namespace))])

    def questions(self) -> list[dict[str, Any]]:
        """Questions of pods by kind, result and who answers."""
        return questions(self.maps.fd("name_counters"))

    def callers(self) -> Callers:
        """Which pod a call comes from; kept by the agent while some plan distinguishes callers."""
        return Callers(self.maps, self._cgroup)

    def failures(self, db: Database) -> FailureWatch:
        """What keeps the table of failures; its ``run()`` is a task of the process."""
        return FailureWatch(self.maps, self.state, db, longest=self.state.ejection.longest)

    def flows(self, db: Database, receive: Receive, callers: Callers, *, node: str) -> FlowReader | None:
        """What reads flow records; its ``run()`` is a task of the process. None where none are written."""
        if self._flows == "off":
            return None
        names = FlowNames(db, self.maps, self.state, callers, node=node)
        return FlowReader(self.maps, names, receive, one_of=self._flows, node=node)

    def traffic(self) -> dict[str, tuple[int, int]]:
        """(bytes sent, bytes received) by cluster of the backend, of connections that have ended."""
        return traffic(self.maps, {name: cluster.id for name, cluster in self.state.clusters.items()})

    def gone_sockets(self, db: Database, *, tcp: bool = False) -> GoneSockets:
        """What destroys sockets whose backend has gone; its ``run()`` is a task of the process."""
        return GoneSockets(self.maps, self._cgroup, db, tcp=tcp, grace=self._grace)

    def gone_server(self, sockets: GoneSockets, dns: DnsSection) -> GoneServer:
        """What destroys sockets of a name server that has gone; its ``run()`` is a task of the process."""
        return GoneServer(self.maps, sockets, servers(dns))

    def drained_sockets(self, db: Database) -> DrainedSockets:
        """What closes connections to what is drained; its ``run()`` is a task of the process."""
        return DrainedSockets(self.maps, self._cgroup, db, grace=self._grace)

    def program_fd(self, name: str) -> int:
        """The descriptor of a program that is not attached to the cgroup; ours, not the caller's."""
        return self._loaded.program_fd(name)

    def counters(self) -> list[dict[str, Any]]:
        """Calls by service (a plan's key as text), cluster of the backend and verdict."""
        return view.rows(self.maps, "counters")

    def close(self) -> None:
        """Give descriptors back; nothing detaches."""
        self._loaded.close()
        self.maps.close()


def open_maps(pin: str) -> KernelMaps:
    """The maps pinned at ``pin``, to look at. DatapathError where there are none."""
    try:
        where = attach.pinned(pin)
        readable = {name: libbpf.open_pinned(where / name) for name, row in MAPS.items() if not row.opaque}
        return KernelMaps(readable, pinned=where, numbered=NUMBERED & readable.keys())
    except libbpf.BpfError as error:
        raise DatapathError(f"no datapath at {pin}: {error.strerror}") from None


def _require(failures: object) -> None:
    if failures:
        raise DatapathError(f"cannot configure the datapath: {failures}")
