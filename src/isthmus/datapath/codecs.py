"""The bytes of each map. Formats here and structs in bpf/maps.h say the same: ``check`` compares them through BTF."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from socket import AF_INET, AF_INET6, inet_ntop, inet_pton
from typing import Any, Final

from isthmus.datapath.btf import Layout
from isthmus.datapath.errors import DatapathError
from isthmus.model.balancing import FrontendKey, Target
from isthmus.model.services import Protocol

LAYOUT: Final = 2
MAX_GROUPS: Final = 32
DICE: Final = 1 << 31
"""What a group's share is of."""

PLAN_AFFINITY: Final = 1
PLAN_CONSISTENT: Final = 2
PLAN_SKIP: Final = 4
RING_CELLS: Final = 16381
RING_CHUNK: Final = 1024
BACKEND_PROXY: Final = 1
CONFIG_EXEMPT: Final = 1
FAMILIES: Final = ("IPv4", "IPv6")
"""As ``resolvers`` has them."""
VERDICTS: Final = ("called", "refused", "lost", "steered")
PROTOCOLS: Final[Mapping[Protocol, int]] = {"TCP": 6, "UDP": 17, "SCTP": 132}
PROTOCOL_NAMES: Final = {number: name for name, number in PROTOCOLS.items()}

_V4 = bytes(10) + b"\xff\xff"


class Shape:
    """A struct of maps.h: its name there, and the format of each field in order."""

    def __init__(self, struct_name: str, /, **fields: str) -> None:
        self.name = struct_name
        self.fields = fields
        self._struct = struct.Struct("=" + "".join(fields.values()))
        self.size = self._struct.size
        self.pack = self._struct.pack
        self.unpack = self._struct.unpack
        self.unpack_from = self._struct.unpack_from

    def layout(self) -> Layout:
        """What the compiler should have made of it."""
        offsets, at = [], 0
        for name, form in self.fields.items():
            offsets.append((name, at))
            at += struct.calcsize("=" + form)
        return Layout(at, tuple(offsets))

    def named(self, raw: bytes) -> dict[str, Any]:
        """The fields by name."""
        return dict(zip(self.fields, self.unpack(raw), strict=True))


ID = Shape("", id="I")
CGROUP = Shape("", cgroup="Q")
COOKIE = Shape("", cookie="Q")
FRONTEND_KEY = Shape("frontend_key", address="16s", port="2s", protocol="B", scope="B")
FRONTEND = Shape("frontend", tail="4s", port="2s", protocol="B", scope="B", plan="I")
GROUP = Shape("group", until="I", weight="I", count="I", tier="I")
PLAN = Shape(
    "plan",
    generation="I",
    id="I",
    service="I",
    flags="I",
    affinity_timeout="I",
    panic_threshold="I",
    size="I",
    groups=f"{GROUP.size * MAX_GROUPS}s",
)
SLOT_KEY = Shape("slot_key", plan="I", group="I", n="I")
SLOT = Shape("slot", plan="I", backend="I", generation="I")
BACKEND = Shape("backend", generation="I", address="16s", port="2s", protocol="B", flags="B", cluster="H", reserved="H")
MEMBER_KEY = Shape("member_key", plan="I", backend="I")
MEMBER = Shape("member", generation="I")
SKIP_KEY = Shape("skip_key", address="16s", plan="I")
RING_KEY = Shape("ring_key", plan="I", chunk="I")
RING = Shape("ring", plan="I", backends=f"{4 * RING_CHUNK}s")
CALLER = Shape("caller", address="16s")
AFFINITY_KEY = Shape("affinity_key", client="Q", service="I", reserved="I")
AFFINITY = Shape("affinity", used="Q", backend="I", generation="I")
SERVICE = Shape("service", name="160s")
CLUSTER = Shape("cluster", name="32s")
RESOLVER = Shape("resolver", dns="16s", server="16s", dns_port="2s", server_port="2s")
CONFIG = Shape("config", layout="I", flags="I", resolvers=f"{RESOLVER.size * len(FAMILIES)}s")
ALIVE = Shape("alive", deadline="Q", tied="I", reserved="I")
COUNTER_KEY = Shape("counter_key", service="I", cluster="H", verdict="B", reserved="B")
COUNTER = Shape("counter", calls="Q")

MAPS: Final[Mapping[str, tuple[Shape, Shape]]] = {
    "frontends": (FRONTEND_KEY, FRONTEND),
    "plans": (ID, PLAN),
    "slots": (SLOT_KEY, SLOT),
    "backends": (ID, BACKEND),
    "members": (MEMBER_KEY, MEMBER),
    "skips": (SKIP_KEY, ID),
    "rings": (RING_KEY, RING),
    "callers": (COOKIE, CALLER),
    "affinity": (AFFINITY_KEY, AFFINITY),
    "services": (ID, SERVICE),
    "clusters": (ID, CLUSTER),
    "exempt": (CGROUP, ID),
    "config": (ID, CONFIG),
    "alive": (ID, ALIVE),
    "counters": (COUNTER_KEY, COUNTER),
}
"""Key and value of every map that user space reads or writes."""


def check(found: Mapping[str, Layout]) -> None:
    """Refuse an object whose structs are not these: it was compiled from another maps.h."""
    shapes = {shape.name: shape for pair in MAPS.values() for shape in pair if shape.name}
    shapes |= {shape.name: shape for shape in (GROUP, RESOLVER)}
    for name, shape in sorted(shapes.items()):
        if found.get(name) != shape.layout():
            raise DatapathError(
                f"struct {name} of the compiled datapath is not what this version expects; run make bpf"
            )


def address(text: str) -> bytes:
    """An address in the one key space of both families; OSError for what is none."""
    return inet_pton(AF_INET6, text) if ":" in text else _V4 + inet_pton(AF_INET, text)


def address_text(raw: bytes) -> str:
    """The address as people write it."""
    return inet_ntop(AF_INET, raw[12:]) if raw.startswith(_V4) else inet_ntop(AF_INET6, raw)


def port(number: int) -> bytes:
    """A port in network order."""
    return number.to_bytes(2, "big")


def frontend_key(key: FrontendKey) -> bytes:
    """The key of ``frontends``."""
    return FRONTEND_KEY.pack(address(key.address), port(key.port), PROTOCOLS[key.protocol], key.scope)


def frontend(key: bytes, *, plan: int) -> bytes:
    """The value of ``frontends``: the key's last eight bytes and the plan."""
    return key[12:] + ID.pack(plan)


def backend(target: Target, *, generation: int, cluster: int) -> bytes:
    """The value of ``backends``."""
    flags = BACKEND_PROXY if target.proxy else 0
    return BACKEND.pack(
        generation, address(target.address), port(target.port), PROTOCOLS[target.protocol], flags, cluster, 0
    )


def text(raw: bytes) -> str:
    """A zero-padded name."""
    return raw.rstrip(b"\0").decode(errors="replace")
