"""Struct codecs of the maps of plans and their calls, as in bpf/maps.h."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from isthmus.datapath.core.shapes import ID, Shape, address
from isthmus.model.balancing import Ejection, FrontendKey, Target
from isthmus.model.services import Protocol

MAX_GROUPS: Final = 32
CUMULATIVE_WEIGHT: Final = 1 << 31
"""``cumulative_weight`` of the last group of the tier in use: every random number below it selects a group."""

PLAN_AFFINITY: Final = 1
PLAN_CONSISTENT: Final = 2
PLAN_SKIP: Final = 4
PLAN_CONSUMERS: Final = 8
PLAN_OTHERS: Final = 16
PLAN_DATAGRAMS: Final = 32
RING_CELLS: Final = 16381
RING_CHUNK: Final = 1024
MAX_CLUSTERS: Final = 1024
BACKEND_PROXY: Final = 1
REFUSING: Final = 0
"""Backend of slots whose calls are refused: ``pick_slot`` takes the generation of a backend 0 for an errno."""
REFUSED: Final = errno.ECONNREFUSED
MAX_EJECTION: Final = 24 * 3600 * 1000
"""Longest time of an ejection in ms, so that the kernel's doubling stays within 64 bits."""
VERDICTS: Final = ("called", "refused", "lost", "steered", "rescued", "failed", "ejected", "denied")
"""Names by value of enum verdict."""
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
"""The value of every entry of ``skips``, which is a set."""
CONSUMER_KEY = Shape("consumer_key", namespace="Q", plan="I", reserved="I")
"""The value of ``consumers`` is a slot."""
RING_KEY = Shape("ring_key", plan="I", chunk="I")
RING = Shape("ring", plan="I", backends=f"{4 * RING_CHUNK}s")
CALLER = Shape("caller", address="16s", namespace="Q")
AFFINITY_KEY = Shape("affinity_key", client="Q", cell="I", reserved="I")
AFFINITY = Shape("affinity", used="Q", service="I", backend="I", generation="I", reserved="I")
SERVICE = Shape("service", name="160s")
CLUSTER = Shape("cluster", name="32s")
COUNTER_KEY = Shape("counter_key", service="I", cluster="H", verdict="B", reserved="B")
COUNTER = Shape("counter", calls="Q")
ORIG_DST = Shape(
    "orig_dst",
    address="16s",
    backend_address="16s",
    port="2s",
    backend_port="2s",
    service="I",
    backend="I",
    generation="I",
)
PORT_KEY = Shape("port_key", caller="I", backend="I", port="H", protocol="H")
CALL_PLACE = Shape("call_place", socket="Q", claims="Q", call="128s")


@lru_cache(4096)
def namespace_hash(name: str) -> int:
    """Hash of a namespace in ``callers`` and ``consumers``: 64 bits, which makes forging a collision impractical."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") or 1


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


@lru_cache(1024)
def groups(weights: tuple[tuple[int, int], ...], counts: tuple[int, ...]) -> bytes:
    """Encode an entry's groups from their (tier, weight) and backend counts. Cached: most plans have equal ones."""
    bounds = cumulative_weights([(tier, weight, n) for (tier, weight), n in zip(weights, counts, strict=True)])
    pack = GROUP.pack
    return b"".join(
        [pack(bound, weight, n, tier) for bound, (tier, weight), n in zip(bounds, weights, counts, strict=True)]
    )


def cumulative_weights(groups: list[tuple[int, int, int]]) -> list[int]:
    """Each group's ``cumulative_weight``, from (tier, weight, count): the lowest tier with a backend gets all calls."""
    if len(groups) == 1:
        return [CUMULATIVE_WEIGHT if groups[0][1] and groups[0][2] else 0]
    usable = [tier for tier, weight, count in groups if weight and count]
    if not usable:
        return [0] * len(groups)
    total = sum(weight for tier, weight, count in groups if count and tier == min(usable))
    bounds, so_far = [], 0
    for tier, weight, count in groups:
        mine = bool(weight and count and tier == min(usable))
        so_far += weight if mine else 0
        bounds.append(CUMULATIVE_WEIGHT * so_far // total if mine else 0)
    return bounds


@lru_cache(64)
def ejection(settings: Ejection) -> tuple[int, int, int]:
    """Encode settings as failures in a row, and the first and longest time in ms."""
    first, longest = (min(round(time * 1000), MAX_EJECTION) for time in (settings.first, settings.longest))
    return settings.after, first, longest
