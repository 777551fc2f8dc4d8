"""The maps of names, which the programs on the pods' interfaces read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from isthmus.datapath.core.manifest import Map, Names, Row, per_entry, times
from isthmus.datapath.core.shapes import COOKIE, ID, address_text
from isthmus.datapath.names.codecs import (
    AT_TC,
    BIG_A,
    BIG_AAAA,
    COMPLETE,
    CONFIG,
    NAME,
    NAME_KEY,
    NATIVE,
    ON,
    OTHERS,
    OWN,
    PTR_ALONE,
    SERVER_KEY,
)
from isthmus.model.hosts import joined
from isthmus.zone import codec

FLAGS: Final = {
    BIG_A: "A at the server",
    BIG_AAAA: "AAAA at the server",
    OTHERS: "others",
    PTR_ALONE: "PTR alone",
    NATIVE: "native",
}


def _show_name(_: Names, key: bytes, value: bytes) -> Row:
    raw = NAME.named(value)
    return {
        "name": codec.name_text(key),
        "addresses": " ".join(_addresses(raw["records"], raw["a"], raw["aaaa"])),
        "server": ", ".join(text for flag, text in FLAGS.items() if raw["flags"] & flag),
    }


def _addresses(records: bytes, a: int, aaaa: int) -> Iterator[str]:
    offset = 0
    for size, count in ((4, a), (16, aaaa)):
        for _ in range(count):
            data = records[offset + 12 : offset + 12 + size]
            yield address_text(data if size == 16 else bytes(10) + b"\xff\xff" + data)
            offset += 12 + size


def _show_config(_: Names, __: bytes, value: bytes) -> Row:
    raw = CONFIG.named(value)
    flags = {ON: "on", COMPLETE: "complete", AT_TC: "at tc"}
    state = ", ".join(text for flag, text in flags.items() if raw["flags"] & flag)
    return {"zone": codec.name_text(raw["zone"]), "state": state or "off", "deadline": raw["deadline"]}


def _show_server(_: Names, key: bytes, value: bytes) -> Row:
    raw = SERVER_KEY.named(key)
    server = joined(address_text(raw["address"]), int.from_bytes(raw["port"], "big"))
    return {"server": server, "role": "own" if ID.unpack(value)[0] == OWN else "asked"}


def _show_namespace(_: Names, key: bytes, __: bytes) -> Row:
    return {"namespace": COOKIE.unpack(key)[0]}


MAPS: Final = (
    Map(name="names", key=NAME_KEY, value=NAME, entries=times(2), writer="agent", show=per_entry(_show_name)),
    Map(name="names_config", value=CONFIG, writer="agent", show=per_entry(_show_config)),
    Map(name="dns_servers", key=SERVER_KEY, writer="agent", show=per_entry(_show_server)),
    Map(name="steered", writer="kernel", opaque=True),
    Map(name="pod_allowances", value=COOKIE, writer="kernel", opaque=True),
    Map(name="tc_namespaces", key=COOKIE, writer="kernel", show=per_entry(_show_namespace)),
    Map(name="tc_probes", key=COOKIE, value=COOKIE, writer="kernel", opaque=True),
    Map(name="name_counters", writer="kernel", opaque=True),
    Map(name="name_scratch", writer="kernel", opaque=True),
)
