"""The bytes of the maps that plans and their calls are in: formats of the structs of bpf/maps.h."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from isthmus.datapath.core.shapes import ID, Shape, address
from isthmus.model.balancing import FrontendKey, Target
from isthmus.model.services import Protocol

MAX_GROUPS: Final = 32
CUMULATIVE_WEIGHT: Final = 1 << 31
"""Of the last group of the tier in use: a random number below it has a group."""

PLAN_AFFINITY: Final = 1
PLAN_CONSISTENT: Final = 2
PLAN_SKIP: Final = 4
RING_CELLS: Final = 16381
RING_CHUNK: Final = 1024
MAX_CLUSTERS: Final = 1024
BACKEND_PROXY: Final = 1
VERDICTS: Final = ("called", "refused", "lost", "steered", "rescued", "failed", "ejected")
"""By enum verdict."""
PROTOCOLS: Final[Mapping[Protocol, int]] = {"TCP": 6, "UDP": 17, "SCTP": 132}
PROTOCOL_NAMES: Final = {number: name for name, number in PROTOCOLS.items()}

FRONTEND_KEY = Shape("frontend_key", address="16s", port="2s", protocol="B", scope="B")
FRONTEND = Shape("frontend", tail="4s", port="2s", protocol="B", scope="B", plan="I")
GROUP = Shape("group", cumulative_weight="I", weight="I", count="I", tier="I")
PLAN = Shape(
    "plan",
    generation="I",
    id="I",
    service="I",
    flags="I",
    affinity_timeout="I",
    eject_after="I",
    eject_first="I",
    eject_longest="I",
    size="I",
    groups=f"{GROUP.size * MAX_GROUPS}s",
)
SLOT_KEY = Shape("slot_key", plan="I", group="I", n="I")
SLOT = Shape("slot", plan="I", backend="I", generation="I")
BACKEND = Shape("backend", generation="I", address="16s", port="2s", protocol="B", flags="B", cluster="H", reserved="H")
MEMBER_KEY = Shape("member_key", plan="I", backend="I")
MEMBER = Shape("member", generation="I")
SKIP_KEY = Shape("skip_key", address="16s", plan="I")
SKIPPED: Final = ID.pack(1)
"""The value of every entry of skips: only its key counts."""
RING_KEY = Shape("ring_key", plan="I", chunk="I")
RING = Shape("ring", plan="I", backends=f"{4 * RING_CHUNK}s")
CALLER = Shape("caller", address="16s")
AFFINITY_KEY = Shape("affinity_key", client="Q", cell="I", reserved="I")
AFFINITY = Shape("affinity", used="Q", service="I", backend="I", generation="I", reserved="I")
SERVICE = Shape("service", name="160s")
CLUSTER = Shape("cluster", name="32s")
COUNTER_KEY = Shape("counter_key", service="I", cluster="H", verdict="B", reserved="B")
COUNTER = Shape("counter", calls="Q")
CALL_PLACE = Shape("call_place", socket="Q", claims="Q", call="128s")


def frontend_key(key: FrontendKey) -> bytes:
    """The key of ``frontends``."""
    port = key.port.to_bytes(2, "big")
    return FRONTEND_KEY.pack(address(key.address), port, PROTOCOLS[key.protocol], key.scope)


def frontend(key: bytes, *, plan: int) -> bytes:
    """The value of ``frontends``: the key's last eight bytes and the plan."""
    return key[12:] + ID.pack(plan)


def backend(target: Target, *, generation: int, cluster: int) -> bytes:
    """The value of ``backends``."""
    flags, port = BACKEND_PROXY if target.proxy else 0, target.port.to_bytes(2, "big")
    return BACKEND.pack(generation, address(target.address), port, PROTOCOLS[target.protocol], flags, cluster, 0)
