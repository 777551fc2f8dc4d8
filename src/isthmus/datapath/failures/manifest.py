"""The maps and programs of ejection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from isthmus.datapath.core.manifest import Entry, Map, Names, Program, Row, each, times
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


def _trial(names: Names, key: bytes, _: bytes) -> Row:
    return {"backend": names.backend(ID.unpack(key)[0]), "backend_id": ID.unpack(key)[0]}


def _round_trip(names: Names, key: bytes, value: bytes) -> Row:
    return {"cluster": names.cluster(ID.unpack(key)[0]), "microseconds": ID.unpack(value)[0]}


def _flows(names: Names, entries: Sequence[Entry]) -> list[Row]:
    """A row for each moved connection: its forward entry."""
    found = []
    for key, value in entries:
        raw, to = codecs.FLOW_KEY.named(key), codecs.FLOW.named(value)
        if not raw["reverse"]:
            found.append(
                {
                    "pod": host_port(raw["pod"], raw["pod_port"]),
                    "called": host_port(raw["peer"], raw["peer_port"]),
                    "moved_to": host_port(to["peer"], to["peer_port"]),
                    "answered": bool(to["peer_flags"] & codecs.FLOW_ANSWERED),
                    "backend_id": to["backend"],
                    "used": to["used"],
                }
            )
    return found


MAPS: Final = (
    Map(name="failing", value=codecs.FAILING, entries=times(1), writer="kernel", show=each(_failing)),
    Map(name="trials", value=codecs.STARTED, entries=times(1), writer="kernel", show=each(_trial)),
    Map(
        name="flows",
        key=codecs.FLOW_KEY,
        value=codecs.FLOW,
        entries=times(1),
        writer="kernel",
        carried=True,
        show=_flows,
    ),
    Map(name="pod_links", writer="agent"),
    Map(name="round_trips", writer="kernel", numbered=True, show=each(_round_trip)),
    Map(name="gates", value=codecs.GATE, writer="kernel"),
    Map(name="settled", value=codecs.GATE, writer="agent"),
    Map(name="events", parts=(codecs.EVENT,), writer="kernel", opaque=True),
)

PROGRAMS: Final = (Program("connects", "cgroup"), Program("from_pod", "ingress"), Program("to_pod", "egress"))
