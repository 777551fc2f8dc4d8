"""The maps and programs of ejection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from isthmus.datapath.core.manifest import Entry, Map, Names, Program, Row, ids, per_entry, times
from isthmus.datapath.core.shapes import ID
from isthmus.datapath.failures import codecs
from isthmus.datapath.services.views import host_port


def _failing(names: Names, key: bytes, value: bytes) -> Row:
    raw = codecs.FAILING.named(value)
    return {
        "backend": names.backend(ID.unpack(key)[0]),
        "ejected": bool(raw["until"]),
        "failures": raw["failures"],
        "reason": codecs.REASONS[raw["reason"]],
        "level": raw["level"],
        "backend_id": ID.unpack(key)[0],
        "generation": raw["generation"],
        "used": raw["last"],
    }


def _caller(names: Names, key: bytes, value: bytes) -> Row:
    raw = codecs.CALLER_FAILING.named(value)
    return {
        "caller": codecs.CALLER_KEY.named(key)["caller"],
        "backend": names.backend(raw["backend"]),
        "ejected": bool(raw["until"]),
        "failures": raw["failures"],
        "reason": codecs.REASONS[raw["reason"]],
        "level": raw["level"],
        "backend_id": raw["backend"],
        "generation": raw["generation"],
        "used": raw["last"],
    }


def _denial(names: Names, key: bytes, value: bytes) -> Row:
    raw, where = codecs.DENIAL.named(value), codecs.DENIAL_KEY.named(key)
    return {
        "caller": where["caller"],
        "backend": names.backend(where["backend"]),
        "connects": raw["connects"],
        "backend_id": where["backend"],
        "generation": raw["generation"],
        "used": raw["last"],
    }


def _probed(names: Names, key: bytes, value: bytes) -> Row:
    raw = codecs.PROBED.named(value)
    return {
        "backend": names.backend(ID.unpack(key)[0]),
        "verdict": codecs.VERDICTS[raw["verdict"]],
        "backend_id": ID.unpack(key)[0],
        "generation": raw["generation"],
        "used": raw["until"],
    }


def _trial(names: Names, key: bytes, _: bytes) -> Row:
    return {"backend": names.backend(ID.unpack(key)[0]), "backend_id": ID.unpack(key)[0]}


def _round_trip(names: Names, key: bytes, value: bytes) -> Row:
    return {"cluster": names.cluster(ID.unpack(key)[0]), "microseconds": ID.unpack(value)[0]}


def _handshake(names: Names, key: bytes, value: bytes) -> Row:
    raw = codecs.HANDSHAKE.named(value)
    return {
        "backend": names.backend(ID.unpack(key)[0]),
        "microseconds": raw["smoothed"] // 1000,
        "deviation": raw["deviation"] // 1000,
        "backend_id": ID.unpack(key)[0],
        "generation": raw["generation"],
    }


def _flows(names: Names, entries: Sequence[Entry]) -> list[Row]:
    """A row for each moved connection: its forward entry."""
    rows = []
    for key, value in entries:
        raw, flow = codecs.FLOW_KEY.named(key), codecs.FLOW.named(value)
        if not raw["reverse"]:
            rows.append(
                {
                    "pod": host_port(raw["pod"], raw["pod_port"]),
                    "called": host_port(raw["peer"], raw["peer_port"]),
                    "moved_to": host_port(flow["peer"], flow["peer_port"]),
                    "answered": bool(flow["peer_flags"] & codecs.FLOW_ANSWERED),
                    "backend_id": flow["backend"],
                    "used": flow["used"],
                }
            )
    return rows


def _unanswered(names: Names, key: bytes, value: bytes) -> Row:
    raw, syn = codecs.FLOW_KEY.named(key), codecs.UNANSWERED.named(value)
    return {
        "pod": host_port(raw["pod"], raw["pod_port"]),
        "backend": names.backend(syn["backend"]),
        "answered": bool(syn["answered"]),
        "backend_id": syn["backend"],
        "generation": syn["generation"],
        "used": syn["sent"],
    }


def _udp_flows(_: Names, entries: Sequence[Entry]) -> list[Row]:
    """A row for each moved socket: its forward entry."""
    flows = ((codecs.FLOW_KEY.named(key), codecs.UDP_FLOW.named(value)) for key, value in entries)
    return [
        {
            "pod": host_port(raw["pod"], raw["pod_port"]),
            "called": host_port(raw["peer"], raw["peer_port"]),
            "moved_to": host_port(flow["peer"], flow["peer_port"]) if any(flow["peer_port"]) else "",
            "socket": flow["socket"],
        }
        for raw, flow in flows
        if not raw["reverse"]
    ]


MAPS: Final = (
    Map(name="failing", value=codecs.FAILING, entries=times(1), writer="kernel", show=per_entry(_failing)),
    Map(
        name="caller_failing",
        key=codecs.CALLER_KEY,
        value=codecs.CALLER_FAILING,
        writer="kernel",
        show=per_entry(_caller),
    ),
    Map(name="denials", key=codecs.DENIAL_KEY, value=codecs.DENIAL, writer="kernel", show=per_entry(_denial)),
    Map(name="probed", value=codecs.PROBED, entries=times(1), writer="agent", show=per_entry(_probed)),
    Map(name="trials", value=codecs.STARTED, entries=times(1), writer="kernel", show=per_entry(_trial)),
    Map(
        name="flows",
        key=codecs.FLOW_KEY,
        value=codecs.FLOW,
        entries=times(1),
        writer="kernel",
        carried=True,
        show=_flows,
    ),
    Map(name="unanswered", key=codecs.FLOW_KEY, value=codecs.UNANSWERED, writer="kernel", show=per_entry(_unanswered)),
    Map(
        name="udp_flows",
        key=codecs.FLOW_KEY,
        value=codecs.UDP_FLOW,
        entries=times(1),
        writer="agent",
        carried=True,
        show=_udp_flows,
    ),
    Map(name="udp_gate", writer="agent", carried=True),
    Map(name="pod_links", writer="agent"),
    Map(
        name="handshakes",
        value=codecs.HANDSHAKE,
        entries=ids,
        writer="kernel",
        numbered=True,
        show=per_entry(_handshake),
    ),
    Map(name="early_moves", value=codecs.EARLY_MOVES, writer="kernel", opaque=True),
    Map(name="round_trips", writer="kernel", numbered=True, show=per_entry(_round_trip)),
    Map(name="gates", value=codecs.GATE, writer="kernel"),
    Map(name="settled", value=codecs.GATE, writer="agent"),
    Map(name="events", parts=(codecs.EVENT,), writer="kernel", opaque=True),
)

PROGRAMS: Final = (Program("connects", "cgroup"), Program("from_pod", "ingress"), Program("to_pod", "egress"))
