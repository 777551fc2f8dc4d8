"""The maps and programs of ejection."""

from __future__ import annotations

from typing import Final

from isthmus.datapath.core.manifest import Map, Names, Program, Row, each, times
from isthmus.datapath.core.shapes import ID
from isthmus.datapath.failures import codecs


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


MAPS: Final = (
    Map(name="failing", value=codecs.FAILING, entries=times(1), writer="kernel", show=each(_failing)),
    Map(name="trials", value=codecs.STARTED, entries=times(1), writer="kernel", show=each(_trial)),
    Map(name="round_trips", writer="kernel", show=each(_round_trip)),
    Map(name="gates", value=codecs.GATE, writer="kernel"),
    Map(name="events", parts=(codecs.EVENT,), writer="kernel", opaque=True),
    Map(name="attempts", parts=(codecs.ATTEMPT,), writer="kernel", opaque=True),
)

PROGRAMS: Final = (Program("connects", "cgroup"),)
