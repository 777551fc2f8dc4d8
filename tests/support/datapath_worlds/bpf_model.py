"""A ten-line kernel for property tests: maps of dicts with a hook after every single write, that fail on demand or die.

``pick`` is what bpf/select.h does, written the slow way.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence

from isthmus.datapath import view
from isthmus.datapath.core import shapes
from isthmus.datapath.core.manifest import Row
from isthmus.datapath.core.maps import DictMaps, Maps
from isthmus.datapath.services import codecs
from isthmus.model.balancing import FrontendKey, Plan, Target
from isthmus.model.names import ClusterName


class Died(BaseException):
    """The process was killed here."""


class TellingMaps(DictMaps):
    """``after`` is called after each write; ``fails`` returns for each write whether the kernel refuses it."""

    def __init__(self) -> None:
        super().__init__()
        self.after: Callable[[], None] = lambda: None
        self.fails: Callable[[], bool] = lambda: False

    def put(self, name: str, items: Sequence[tuple[bytes, bytes]]) -> Mapping[int, str]:
        """Write entries one by one."""
        failures = {}
        for position, item in enumerate(items):
            if self.fails():
                failures[position] = f"map {name}: refused"
            else:
                super().put(name, [item])
                self.after()
        return failures

    def drop(self, name: str, keys: Sequence[bytes]) -> Mapping[int, str]:
        """Delete entries one by one."""
        failures = {}
        for position, key in enumerate(keys):
            if self.fails():
                failures[position] = f"map {name}: refused"
            else:
                super().drop(name, [key])
                self.after()
        return failures

    def find(self, key: FrontendKey) -> int | None:
        """The plan a connect to this frontend finds."""
        value = self.maps["frontends"].get(codecs.frontend_key(key))
        return codecs.FRONTEND.unpack(value)[-1] if value else None

    def picks(self, plan_id: int) -> set[Target]:
        """Every target that a connect which found this plan can be given; a missing piece fails the test."""
        plan = codecs.PLAN.named(self.maps["plans"][shapes.ID.pack(plan_id)])
        assert plan["id"] == plan_id
        if plan["flags"] & codecs.PLAN_CONSISTENT:
            return self.ring(plan_id)
        groups = [codecs.GROUP.unpack_from(plan["groups"], n * codecs.GROUP.size) for n in range(plan["size"])]
        return {
            self.target(plan_id, group, n)
            for group, (bound, _, count, _) in enumerate(groups)
            for n in range(count if bound else 0)
        }

    def shares(self, plan_id: int) -> dict[ClusterName, float]:
        """The part of connects that each cluster is given: of a group by its bound, of a backend by its slots."""
        plan = codecs.PLAN.named(self.maps["plans"][shapes.ID.pack(plan_id)])
        found: dict[ClusterName, float] = {}
        below = 0
        for group in range(plan["size"]):
            bound, _, count, _ = codecs.GROUP.unpack_from(plan["groups"], group * codecs.GROUP.size)
            for n in range(count if bound else 0):
                cluster = self.target(plan_id, group, n).cluster
                found[cluster] = found.get(cluster, 0.0) + (bound - below) / codecs.CUMULATIVE_WEIGHT / count
            below = bound or below
        return found

    def ring(self, plan_id: int) -> set[Target]:
        """Every target that some caller has; of a ring without cells, none."""
        mine = [key for key in self.maps["rings"] if codecs.RING_KEY.unpack(key)[0] == plan_id]
        chunks = [codecs.RING.unpack(self.maps["rings"][key]) for key in mine]
        assert all(owner == plan_id for owner, _ in chunks)
        cells = array("I", b"".join(part for _, part in chunks))
        members = {n: self.maps["members"][codecs.MEMBER_KEY.pack(plan_id, n)] for n in {*cells} - {0}}
        return {self.backend(number, codecs.MEMBER.unpack(value)[0]) for number, value in members.items()}

    def target(self, plan_id: int, group: int, n: int) -> Target:
        """What a slot leads to, with every check the kernel makes."""
        key = codecs.SLOT_KEY.pack(plan_id, group, n)
        owner, number, generation = codecs.SLOT.unpack(self.maps["slots"][key])
        assert owner == plan_id
        return self.backend(number, generation)

    def backend(self, number: int, generation: int) -> Target:
        """The target of a backend's number."""
        backend = codecs.BACKEND.named(self.maps["backends"][shapes.ID.pack(number)])
        assert generation == backend["generation"]
        return Target(
            shapes.address_text(backend["address"]),
            int.from_bytes(backend["port"], "big"),
            codecs.PROTOCOL_NAMES[backend["protocol"]],
            ClusterName(shapes.text(self.maps["clusters"][shapes.ID.pack(backend["cluster"])])),
            bool(backend["flags"]),
        )


PROGRAMMED = (
    "frontends",
    "plans",
    "slots",
    "members",
    "skips",
    "consumers",
    "rings",
    "backends",
    "services",
    "clusters",
)


def canonical(maps: Maps) -> dict[str, list[Row]]:
    """What is programmed, masked, and so that the order of a group's slots means nothing."""
    dumped = {name: rows for name, rows in view.dump(maps, masked=True).items() if name in PROGRAMMED}
    for row in dumped["slots"]:
        del row["n"]
    dumped["slots"].sort(key=str)
    return dumped


def wanted(row: Plan) -> set[Target]:
    """Every target that a row lets a connect be given."""
    usable = [group.tier for group in row.groups if group.targets and group.weight]
    return {t for g in row.groups if g.weight and usable and g.tier == min(usable) for t in g.targets}
