"""Reads flow records every 50 ms and adds names.

Reading is timed: a wake-up for each record would take CPU time from the callers.
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
from isthmus.datapath.identity.codecs import REASONS as REFUSALS
from isthmus.datapath.services.codecs import PROTOCOL_NAMES, VERDICTS
from isthmus.datapath.services.views import host_port
from isthmus.model.flows import End, Flow

INTERVAL: Final = 0.05
"""Seconds between two reads. The ring holds 1,600 records, which allows 32,000 a second."""

Receive = Callable[[Sequence[Flow], int], object]
"""Receives new flows, and the number of records lost since the last call."""


class FlowStats(Struct, frozen=True):
    """Statistics since the agent started."""

    one_of: int
    """Sampling interval: one of this many calls is recorded."""
    records: int
    lost: int
    """Records lost because the buffer was full, since the map was created."""


class FlowReader:
    """Reads the records of one datapath.

    An established connection is kept until its end with its names, since its service may be deleted by then. If there
    are too many connections, the oldest are dropped; their ends are then named as far as possible.
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
        """The kernel's timestamp of the connection, and its row, by socket."""
        self._records = 0
        self._lost = lost(maps)

    def __repr__(self) -> str:
        return f"<FlowReader: {self._records} records, {len(self._connected)} connections>"

    def stats(self) -> FlowStats:
        """Numbers of records."""
        return FlowStats(self._one_of, self._records, self._lost)

    async def run(self) -> None:
        """Read, for ever. The owner of the reader closes it."""
        while True:
            self.step()
            await asyncio.sleep(INTERVAL)

    def step(self) -> int:
        """Read all unread records. Returns the number of flows passed on."""
        self._ring.consume()
        self._names.renew()
        raw, self._raw[:] = self._raw[:], []
        records = [codecs.FLOW_RECORD.named(each) for each in raw]
        boot = self._boot.current()
        flows = [self._flow(each, boot) for each in records if is_known(each)]
        total = lost(self._maps)
        missed, self._lost = total - self._lost + len(raw) - len(flows), total
        self._records += len(flows)
        if flows or missed:
            self._receive(flows, missed)
        return len(flows)

    def close(self) -> None:
        """Stop reading; unread records stay for the next agent."""
        self._ring.close()
        self._names.close()

    def _flow(self, raw: Mapping[str, Any], boot: float) -> Flow:
        """The record as a row. The end of a connection takes its names from the connection's earlier row."""
        if raw["state"] in (codecs.REFUSED, codecs.AUDITED):
            return refusal(raw, self._names, node=self._node, boot=boot)
        row = flow(raw, self._names, node=self._node, boot=boot)
        if row.state == "connected":
            self._connected.put(row.id, (raw["time"], row))
        elif row.state == "ended" and (connection := self._connected.take(row.id)) and connection[0] == raw["time"]:
            return replace(connection[1], state="ended", took=row.took, sent=row.sent, received=row.received)
        return row


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
        for_caller=bool(raw["for_caller"]),
        answered=_end(raw, "answered", names) if raw["state"] in ANSWERED else End(),
        took=round(raw["took"] / 1e9, 6),
        sent=raw["sent"],
        received=raw["received"],
    )


def refusal(raw: Mapping[str, Any], names: FlowNames, *, node: str, boot: float) -> Flow:
    """A record's fields as a row, of a SYN to a pod of this node that a policy refused, or would have without audit."""
    audited = raw["state"] == codecs.AUDITED
    called = host_port(raw["called"], raw["called_port"]) if any(raw["called"]) else ""
    return Flow(
        time=round(boot + raw["time"] / 1e9, 6),
        id=raw["socket"],
        state=codecs.STATES[raw["state"]],
        verdict="audited" if audited else "denied",
        reason=REFUSALS[raw["reason"]],
        protocol=PROTOCOL_NAMES.get(raw["protocol"], str(raw["protocol"])),
        node=node,
        pod="",
        source=host_port(raw["pod"], raw["pod_port"]) if raw["pod_port"] != NO_PORT else address_text(raw["pod"]),
        service="",
        called=called,
        took=0.0,
        policy=names.policy(raw["service"]),
        caller=names.account(raw["for_caller"]),
        identity=raw["for_caller"],
    )


NO_PORT: Final = bytes(2)
ANSWERED: Final = frozenset(n for n, state in enumerate(codecs.STATES) if state in ("sent", "connected", "ended"))


def is_known(raw: Mapping[str, Any]) -> bool:
    """True if this version knows all enum values of a record. After a downgrade, a newer version's may be unread."""
    if raw["state"] in (codecs.REFUSED, codecs.AUDITED):
        return raw["reason"] in REFUSALS
    enums = (("state", codecs.STATES), ("verdict", VERDICTS), ("reason", REASONS))
    return all(raw[field] < len(names) for field, names in enums)


def lost(maps: KernelMaps) -> int:
    """Records lost because the buffer was full, since the map was created."""
    cpus = libbpf.possible_cpus()
    return sum(struct.unpack(f"={cpus}Q", libbpf.lookup(maps.fd("lost_records"), ID.pack(0), 8 * cpus)))


def traffic(maps: KernelMaps, clusters: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """(bytes sent, bytes received) of ended connections by cluster name, without clusters that had none.

    ``clusters`` maps names to numbers.
    """
    cpus, totals = libbpf.possible_cpus(), {}
    for name, number in clusters.items():
        try:
            raw = libbpf.lookup(maps.fd("traffic"), ID.pack(number), codecs.TRAFFIC.size * cpus)
        except OSError:
            continue  # more clusters than entries
        values = struct.unpack(f"={2 * cpus}Q", raw)
        if any(values):
            totals[name] = sum(values[::2]), sum(values[1::2])
    return totals


def _end(raw: Mapping[str, Any], which: str, names: FlowNames) -> End:
    if not any(raw[which]):
        return End(names.cluster(raw[f"{which}_cluster"]))
    address = host_port(raw[which], raw[f"{which}_port"])
    return End(names.cluster(raw[f"{which}_cluster"]), address, names.gateways(address))
