"""Scenarios: text files that say what is given, step by step, and which tables and maps that comes to.

The first lines, with #, are the rule. Then, in any order:

    + LINE        an object comes or changes (scenario_rows.py); neighbouring lines are one transaction
    - LINE        it goes; kind and name are enough
    stop, start   the agent ends; another one begins on the maps that are there, with the rows as they are by then
    takes WHICH   which services it takes from then on: all (as at first) or multicluster
    faults N      of a hundred map operations N fail (10 at first)
    try           one round of the reconciler, which need not succeed
    stray         entries that the state lacks appear in the maps
    == WORDS      tables and maps are now as the lines that follow say

Maps are reached through the target and the reconciler, with faults; at the end everything is deleted in some order,
and maps and allocators have to be empty. ``ISTHMUS_REWRITE=1`` writes what comes out into the files, to be read.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from datapath_worlds.bpf_world import done
from rows import scenario_rows
from rows.balancing_world import PERMISSIVE, TABLES, World, key

from isthmus.datapath import PlanTarget, view
from isthmus.datapath.core import shapes
from isthmus.datapath.core.maps import Maps
from isthmus.datapath.services import codecs
from isthmus.datapath.services.restore import restore
from isthmus.model.balancing import Backend, Frontend, FrontendKey, Plan, Target
from isthmus.model.names import ClusterName
from isthmus.model.tables import PLANS
from isthmus.statedb import Reconciler

REWRITE = os.environ.get("ISTHMUS_REWRITE") == "1"
SHOWN = ("frontends", "plans", "slots", "members", "skips", "rings", "backends")
MADE_OF_PLANS = (*SHOWN, "services", "clusters")


class FaultyMaps:
    """Maps of which some operations fail, each entry by itself."""

    def __init__(self, maps: Maps, seed: int) -> None:
        self.maps = maps
        self.chance = 0.1
        self._random = random.Random(seed)

    def put(self, name: str, items: Sequence[tuple[bytes, bytes]]) -> Mapping[int, str]:
        """Write those that do not fail."""
        return self._some(name, items, lambda chosen: self.maps.put(name, chosen))

    def drop(self, name: str, keys: Sequence[bytes]) -> Mapping[int, str]:
        """Delete those that do not fail."""
        return self._some(name, keys, lambda chosen: self.maps.drop(name, chosen))

    def items(self, name: str) -> Iterable[tuple[bytes, bytes]]:
        """Every entry."""
        return self.maps.items(name)

    def _some(
        self, name: str, entries: Sequence[Any], act: Callable[[Sequence[Any]], Mapping[int, str]]
    ) -> Mapping[int, str]:
        failed = {
            n: f"map {name}: as the test wants" for n in range(len(entries)) if self._random.random() < self.chance
        }
        rest = [n for n in range(len(entries)) if n not in failed]
        refused = act([entries[n] for n in rest]) if rest else {}
        return failed | {rest[position]: why for position, why in refused.items()}


class Agent:
    """Tables, derivations, reconciler and target of one process over maps that outlive it."""

    def __init__(self, maps: FaultyMaps, rows: Iterable[Any], *, takes: str) -> None:
        self.now = 0.0
        self.world = World(takes, rules=PERMISSIVE).put(*rows)
        self.target = PlanTarget(maps, restore(maps), grace=1.0, clock=self.clock)
        self.reconciler = Reconciler(self.world.db, PLANS, self.target, clock=self.clock, prune_every=0.0)
        self._maps = maps

    def clock(self) -> float:
        """The time, as far as anything here is concerned."""
        return self.now

    def settle(self) -> None:
        """Round after round until nothing fails; then what is left over goes."""
        self.world.settle()
        for _ in range(200):
            done(self.reconciler.step())
            self.now += 100.0
            if not self.reconciler.failing:
                break
        assert not self.reconciler.failing, self.reconciler.failing
        chance, self._maps.chance = self._maps.chance, 0.0
        done(self.reconciler.step())
        for _ in range(3):
            self.now += 100.0
            self.target.sweep_due()
        self._maps.chance = chance

    def numbers(self) -> dict[str, int]:
        """The ids of plans' services and of backends."""
        state = self.target.state
        services = {str(key): unit.service for key, unit in state.units.items()}
        return services | {str(target): backend.id for target, backend in state.by_target.items()}


class Scenario:
    """One file, played on maps."""

    def __init__(self, path: Path, maps: Maps, *, seed: int = 0) -> None:
        self._path = path
        self._maps = FaultyMaps(maps, seed)
        self._random = random.Random(seed)
        self._rows: dict[str, list[Any]] = {}
        self._takes = "all"
        self._numbers: dict[str, int] = {}
        self._agent: Agent | None = Agent(self._maps, (), takes=self._takes)

    def play(self) -> None:
        """From the first line to the last, and then away with it all."""
        written: list[str] = []
        for lines in _blocks(self._path.read_text()):
            block = list(lines)
            if block[0].startswith("=="):
                now = [block[0], *self.seen()]
                written += [*now, ""]
                if not REWRITE:
                    assert now == block, f"{self._path.name}: {block[0]}"
            else:
                written += [*block, ""]
                self._do(block)
        if REWRITE:
            self._path.write_text("\n".join(written).rstrip() + "\n")
        self._end()

    def seen(self) -> list[str]:
        """Tables and maps, as text."""
        assert self._agent is not None, "the agent is stopped"
        self._agent.settle()
        world = self._agent.world
        tables = [*map(_frontend, world.frontends), *map(_backend, world.backends), *map(_plan, world.plans)]
        return [*tables, *(f"map {line}" for line in shown(self._maps.maps))]

    def _do(self, lines: list[str]) -> None:
        changes = [line for line in lines if line[0] in "+-"]
        if changes:
            self._change(changes)
        for line in lines:
            match line.split():
                case ["stop"]:
                    assert self._agent is not None
                    self._agent.settle()
                    self._numbers, self._agent = self._agent.numbers(), None
                case ["start"]:
                    self._start()
                case ["takes", which]:
                    self._takes = which
                case ["faults", chance]:
                    self._maps.chance = int(chance) / 100
                case ["try"]:
                    assert self._agent is not None
                    self._agent.world.settle()
                    done(self._agent.reconciler.step())
                case ["stray"]:
                    self._stray()
                case [mark, *_]:
                    assert mark in ("#", "+", "-"), f"{self._path.name}: {line}"

    def _stray(self) -> None:
        """A frontend of a plan that is not there, with slots and a backend."""
        number = shapes.ID.pack(99)
        key = codecs.frontend_key(FrontendKey("10.96.9.9", 80, "TCP"))
        backend = codecs.backend(Target("10.9.9.9", 80, "TCP", ClusterName("c9")), generation=99, cluster=99)
        self._maps.maps.put("frontends", [(key, codecs.frontend(key, plan=99))])
        self._maps.maps.put("slots", [(codecs.SLOT_KEY.pack(99, 0, 0), codecs.SLOT.pack(99, 99, 99))])
        self._maps.maps.put("backends", [(number, backend)])

    def _start(self) -> None:
        rows = [row for each in self._rows.values() for row in each]
        self._agent = Agent(self._maps, rows, takes=self._takes)
        before = self._numbers
        self._agent.settle()
        now = self._agent.numbers()
        assert {name: now[name] for name in before if name in now} == {n: before[n] for n in before if n in now}

    def _change(self, lines: list[str]) -> None:
        """One transaction."""
        wanted: dict[Any, Any] = {}
        for line in lines:
            what = " ".join(line[1:].split()[:2])
            wanted |= {key(row): None for row in self._rows.pop(what, ())}
            if line[0] == "+":
                rows = self._rows[what] = scenario_rows.parse(line[1:])
                wanted |= {key(row): row for row in rows}
        if self._agent is not None:
            with self._agent.world.db.write() as txn:
                for (name, each), row in wanted.items():
                    table = next(table for table in TABLES.values() if table.name == name)
                    txn.delete(table, each) if row is None else txn.put(table, row)

    def _end(self) -> None:
        if self._agent is None:
            self._start()
        assert self._agent is not None
        for what in self._random.sample(sorted(self._rows), len(self._rows)):
            self._change([f"- {what}"])
            self._agent.world.settle()
            done(self._agent.reconciler.step())
        self._agent.settle()
        assert set(self._agent.target.state.sizes().values()) == {0}
        left = {name for name in MADE_OF_PLANS if list(self._maps.items(name))}
        assert not left, f"{self._path.name}: maps {left} are not empty"


def _blocks(text: str) -> Iterator[Iterable[str]]:
    """Lines that belong together: no empty line between them."""
    for empty, lines in groupby(text.splitlines(), key=lambda line: not line.strip()):
        if not empty:
            yield lines


def shown(maps: Maps) -> list[str]:
    """The maps that plans are made into: no numbers, no order within a group."""
    lines = []
    for name, rows in view.dump(maps, masked=True).items():
        if name in SHOWN:
            for row in rows:
                first, *rest = ((field, value) for field, value in row.items() if field != "n")
                lines.append(" ".join([name, str(first[1]), *(f"{field}={_plain(value)}" for field, value in rest)]))
    return sorted(lines, key=lambda line: (SHOWN.index(line.split()[0]), line))


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(" ".join(f"{name} {each}" for name, each in part.items()) for part in value) or "none"
    return str(value)


def _frontend(row: Frontend) -> str:
    shadowed = f" shadowed={','.join(row.shadowed)}" if row.shadowed else ""
    return f"frontend {row.key} {row.type} plan={row.plan}{shadowed}"


def _backend(row: Backend) -> str:
    at = f" node={row.node}" if row.node else ""
    named = ",".join(name or "''" for name in row.port_names)
    where = f"{row.key.cluster}/{row.key.address}:{row.key.port}/{row.key.protocol}"
    condition = row.condition.name.lower() + ("" if row.healthy else " dead")
    return f"backend {row.key.service} {where} {condition} port={named}{at}"


def _plan(row: Plan) -> str:
    parts = []
    for group in row.groups:
        targets = " ".join(f"{target.cluster}/{target.address}:{target.port}" for target in group.targets)
        parts.append(
            targets if (group.tier, group.weight) == (0, 1) else f"tier {group.tier} ×{group.weight} {targets}"
        )
    more = f" affinity={row.affinity_timeout}s" if row.affinity_timeout else ""
    more += " consistent" if row.consistent else ""
    more += f" by={row.redirected_by!r}" if row.redirected_by else ""
    more += f" skip={','.join(row.skip)}" if row.skip else ""
    more += "".join(f" {each.namespace}={each.target.address}:{each.target.port}" for each in row.consumers)
    more += " only" if row.consumers_only else ""
    return f"plan {row.key}: {' | '.join(parts) or 'nothing'}{more}"


def files(folder: Path) -> list[Path]:
    """Every scenario of a folder and those below it."""
    return sorted(folder.rglob("*.txt"))
