"""Reads flow records every 50 ms and gives them names.

Reading is by the clock: a wake-up for each record would cost the callers the processor that they run on.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from isthmus.datapath.core import libbpf
from isthmus.datapath.core.clock import BootTime
from isthmus.datapath.core.maps import KernelMaps
from isthmus.datapath.core.ring import RingBuffer
from isthmus.datapath.core.shapes import ID, address_text
from isthmus.datapath.failures.codecs import REASONS
from isthmus.datapath.flows import codecs
from isthmus.datapath.flows.names import FlowNames, Newest
from isthmus.datapath.services.codecs import PROTOCOL_NAMES, VERDICTS
from isthmus.datapath.services.views import host_port
from isthmus.model.flows import End, Flow

INTERVAL: Final = 0.05
"""Seconds between two looks. The ring has room for 1,600 records: 32,000 a second."""

Receive = Callable[[Sequence[Flow], int], object]
"""Gets what was read, and how many records were lost since the last time."""


class FlowStats(Struct, frozen=True):
    """What was read since the agent started."""

    one_of: int
    """One call of so many is recorded."""
    records: int
    lost: int
    """Records that the kernel had no room for, since the map was made."""


class FlowReader:
    """One per datapath that records flows.

    A connection that was seen to be established is kept until its end, with the names of that time: its service may be
    gone by then. Of the longest ones the oldest are given up when there are too many; their ends then have what names
    there are.
    """

    def __init__(self, maps: KernelMaps, names: FlowNames, receive: Receive, *, one_of: int, node: str) -> None:
        self._maps = maps
        self._names = names
        self._receive = receive
        self._one_of = one_of
        self._node = node
        self._boot = BootTime()
        self._raw: list[bytes] = []
        self._ring = RingBuffer(maps.fd("flow_records"), self._raw.append)
        self._connected: Newest[int, tuple[int, Flow]] = Newest()
        """By socket: when the connection began, as the kernel noted it, and its row."""
        self._records = 0
        self._lost = lost(maps)

    def __repr__(self) -> str:
        return f"<FlowReader: {self._records} records, {len(self._connected)} connections>"

    def stats(self) -> FlowStats:
        """Counts of records."""
        return FlowStats(self._one_of, self._records, self._lost)

    async def run(self) -> None:
        """Read, for ever."""
        try:
            while True:
                self.step()
                await asyncio.sleep(INTERVAL)
        finally:
            self.close()

    def step(self) -> int:
        """Read what is there; how many records."""
        self._ring.consume()
        self._names.renew()
        raw, self._raw[:] = self._raw[:], []
        records = [codecs.FLOW_RECORD.named(each) for each in raw]
        boot = self._boot.now()
        flows = [self._flow(each, boot) for each in records if is_known(each)]
        now = lost(self._maps)
        missed, self._lost = now - self._lost + len(raw) - len(flows), now
        self._records += len(flows)
        if flows or missed:
            self._receive(flows, missed)
        return len(flows)

    def close(self) -> None:
        """Stop reading; unread records stay for the next agent."""
        self._ring.close()
        self._names.close()

    def _flow(self, raw: Mapping[str, Any], boot: float) -> Flow:
        """The record with names; what was known of its connection before stands for what has gone since."""
        found = flow(raw, self._names, node=self._node, boot=boot)
        if found.state == "connected":
            self._connected.put(found.id, (raw["time"], found))
        elif found.state == "ended" and (known := self._connected.take(found.id)) and known[0] == raw["time"]:
            return replace(known[1], state="ended", took=found.took, sent=found.sent, received=found.received)
        return found


def flow(raw: Mapping[str, Any], names: FlowNames, *, node: str, boot: float) -> Flow:
    """A record's fields as a row."""
    address = address_text(raw["pod"]) if any(raw["pod"]) else names.address(raw["caller"])
    port = int.from_bytes(raw["pod_port"], "big")
    source = host_port(raw["pod"], raw["pod_port"]) if port else address
    return Flow(
        time=round(boot + raw["time"] / 1e9, 6),
        id=raw["socket"],
        state=codecs.STATES[raw["state"]],
        verdict=VERDICTS[raw["verdict"]],  # type: ignore[arg-type]
        reason=REASONS[raw["reason"]],
        protocol=PROTOCOL_NAMES.get(raw["protocol"], str(raw["protocol"])),
        node=node,
        pod=names.pod(address),
        source=source,
        service=names.service(raw["service"]),
        called=host_port(raw["called"], raw["called_port"]),
        asked=_end(raw, "asked", names),
        answered=_end(raw, "answered", names) if raw["state"] in ANSWERED else End(),
        took=round(raw["took"] / 1e9, 6),
        sent=raw["sent"],
        received=raw["received"],
    )


ANSWERED: Final = frozenset(n for n, state in enumerate(codecs.STATES) if state in ("sent", "connected", "ended"))


def is_known(raw: Mapping[str, Any]) -> bool:
    """Whether a record is one that this version has words for: a later one's may be unread when that is taken back."""
    enums = (("state", codecs.STATES), ("verdict", VERDICTS), ("reason", REASONS))
    return all(raw[field] < len(names) for field, names in enums)


def lost(maps: KernelMaps) -> int:
    """Records that found no room since the map was made."""
    cpus = libbpf.possible_cpus()
    return sum(struct.unpack(f"={cpus}Q", libbpf.lookup(maps.fd("lost_records"), ID.pack(0), 8 * cpus)))


def traffic(maps: KernelMaps, clusters: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """(bytes sent, bytes received) by name of the cluster, of connections that have ended; not where there were none.

    ``clusters``: name → number.
    """
    cpus, found = libbpf.possible_cpus(), {}
    for name, number in clusters.items():
        try:
            raw = libbpf.lookup(maps.fd("traffic"), ID.pack(number), codecs.TRAFFIC.size * cpus)
        except OSError:
            continue  # more clusters than there is room for
        values = struct.unpack(f"={2 * cpus}Q", raw)
        if any(values):
            found[name] = sum(values[::2]), sum(values[1::2])
    return found


def _end(raw: Mapping[str, Any], which: str, names: FlowNames) -> End:
    if not any(raw[which]):
        return End(names.cluster(raw[f"{which}_cluster"]))
    address = host_port(raw[which], raw[f"{which}_port"])
    return End(names.cluster(raw[f"{which}_cluster"]), address, names.gateways(address))
