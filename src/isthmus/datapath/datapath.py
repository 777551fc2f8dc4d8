"""The datapath of a node, put together: loaded, restored, attached, told where DNS is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from isthmus import logs
from isthmus.config import DatapathSection, DnsSection
from isthmus.datapath import attach, codecs, libbpf, view
from isthmus.datapath.callers import Callers
from isthmus.datapath.errors import DatapathError
from isthmus.datapath.installed import State
from isthmus.datapath.maps import KernelMaps
from isthmus.datapath.restore import restore
from isthmus.datapath.target import PlanTarget
from isthmus.model.hosts import Endpoint, endpoint

LOOK: Final = 2.0
"""Seconds between looks whether everything is where it should be."""

log = logs.get("datapath")


class Datapath:
    """An attached datapath. Closing it leaves everything as it is: calls go on while the agent is away."""

    def __init__(self, loaded: attach.Loaded, maps: KernelMaps, state: State, *, cgroup: Path, grace: float) -> None:
        self._loaded = loaded
        self._cgroup = cgroup
        self.maps = maps
        self.state = state
        self.restored = bool(state.plans or state.frontends or state.backends)
        """An earlier process left something that a source not yet heard from may still want."""
        self._grace = grace
        self._repaired = ""
        self.hooks = ""
        """Whether programs and maps are where they should be, and what was put back, as a sentence."""

    @classmethod
    def open(cls, section: DatapathSection, dns: DnsSection) -> Datapath:
        """Load over what is pinned, restore, attach; with another layout beside it, attach not yet (``take_over``).

        DatapathError says what is missing.
        """
        if not section.cgroup:
            raise DatapathError("datapath.cgroup is empty: name the cgroup of this node's pods")
        settings = _settings(section, dns)
        exempt = [codecs.CGROUP.pack(attach.cgroup_id(path, field="exempt")) for path in section.exempt]
        loaded = attach.load(section.pin, cgroup=section.cgroup, max_entries=section.max_entries)
        maps = KernelMaps(loaded.maps, pinned=attach.directory(section.pin), given_up=loaded.superseded)
        maps.drop("exempt", [key for key, _ in maps.items("exempt") if key not in exempt])
        _require(maps.put("exempt", [(key, codecs.ID.pack(1)) for key in exempt]))
        _require(maps.put("config", [(codecs.ID.pack(0), settings)]))
        return cls(loaded, maps, restore(maps), cgroup=Path(section.cgroup), grace=section.grace)

    @property
    def waiting(self) -> bool:
        """Calls are answered from another version's maps until ``take_over``, once the plans are in ours."""
        return self._loaded.waiting

    def take_over(self) -> None:
        """Answer calls from our maps, from the next one on, and remove those of the other version."""
        self._loaded.take_over()

    def repair(self) -> None:
        """Put back what somebody deleted or detached under us; ``hooks`` says what."""
        try:
            lost = self._loaded.repair() + [f"map {name}" for name in self.maps.repair()]
        except DatapathError as why:
            self.hooks = str(why)
            return
        if lost:
            self._repaired = f"; put back at {time.strftime('%H:%M:%S')}: {', '.join(lost)}"
            log.warning("somebody took the datapath apart; it was put back", lost=lost)
        self.hooks = f"{len(attach.PROGRAMS)} programs attached to {self._cgroup}{self._repaired}"

    async def keep(self) -> None:
        """Repair, for ever."""
        while True:
            self.repair()
            await asyncio.sleep(LOOK)

    def target(self, *, clock: Callable[[], float] = time.monotonic) -> PlanTarget:
        """What the reconciler of plans drives; its ``sweep()`` is a task of the process."""
        return PlanTarget(self.maps, self.state, grace=self._grace, clock=clock)

    def callers(self) -> Callers:
        """Which pod a call comes from; kept by the agent while some plan tells callers apart."""
        return Callers(self.maps, self._cgroup)

    def counters(self) -> list[dict[str, Any]]:
        """Calls by service (a plan's key as text), cluster of the backend and verdict."""
        return view.dump(self.maps)["counters"]

    def close(self) -> None:
        """Give descriptors back; nothing detaches."""
        self._loaded.close()
        self.maps.close()


def open_maps(pin: str) -> KernelMaps:
    """The maps pinned at ``pin``, to look at. DatapathError where there are none."""
    try:
        where = attach.directory(pin)
        return KernelMaps({name: libbpf.open_pinned(where / name) for name in codecs.MAPS}, pinned=where)
    except libbpf.BpfError as error:
        raise DatapathError(f"no datapath at {pin}: {error.strerror}") from None


def _settings(section: DatapathSection, dns: DnsSection) -> bytes:
    flags = codecs.CONFIG_EXEMPT if section.exempt else 0
    known = _by_family(dns.cluster_dns, "dns.cluster_dns")
    servers = _by_family(dns.listen, "dns.listen")
    for family, asked in known.items():
        if family not in servers:
            raise DatapathError(f"dns.listen has no {family} address, which dns.cluster_dns has: {asked}")
    resolvers = b"".join(_resolver(known.get(family), servers.get(family)) for family in codecs.FAMILIES)
    return codecs.CONFIG.pack(codecs.LAYOUT, flags, resolvers)


def _by_family(texts: Iterable[str], field: str) -> dict[str, Endpoint]:
    found: dict[str, Endpoint] = {}
    for text in texts:
        try:
            said = endpoint(text, port=53)
            codecs.address(said.host)
        except (OSError, ValueError):
            raise DatapathError(f"{field} = '{text}': want an address, or address:port") from None
        if said.family in found:
            raise DatapathError(f"{field} has two {said.family} addresses: {found[said.family]} and {said}")
        found[said.family] = said
    return found


def _resolver(asked: Endpoint | None, server: Endpoint | None) -> bytes:
    if asked is None or server is None:
        return bytes(codecs.RESOLVER.size)
    hosts = (codecs.address(each.host) for each in (asked, server))
    return codecs.RESOLVER.pack(*hosts, *(codecs.port(each.port) for each in (asked, server)))


def _require(failures: object) -> None:
    if failures:
        raise DatapathError(f"cannot configure the datapath: {failures}")
