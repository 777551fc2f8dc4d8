"""Load balancing, step by step: which rows come, which tables and maps that gives, and that both agree.

    .venv/bin/python -m examples.load_balancing [--json]

No cluster, no network, no root: rows are put by hand and the maps are a dict. With root the kernel's maps hold the same
beside it, loaded and attached to an empty control group, pinned in a mount namespace of this process.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
from examples.load_balancing.rows import CHAPTERS, EVERYTHING, NODE, OWN, TABLES, Reached

from isthmus import datapath, loadbalancer
from isthmus.config import DatapathSection, DnsSection
from isthmus.datapath import Datapath, PlanTarget, view
from isthmus.datapath.core.maps import DictMaps, Maps
from isthmus.datapath.services.installed import State
from isthmus.model import tables
from isthmus.statedb import Database, Derivations, Reconciler, Table
from isthmus_lab import cgroups, kernel
from isthmus_lab.demo.report import Reporter, Step

DERIVED_TABLES: Final[tuple[Table[Any, Any], ...]] = (tables.REDIRECTS, tables.FRONTENDS, tables.BACKENDS, tables.PLANS)
MAPS: Final = ("frontends", "plans", "slots", "backends")
KERNEL_SAMPLE: Final = 120
"""Every so many orders of removal are tried on the kernel's maps too."""


class Wrong(Exception):  # noqa: N818
    """A step did not come to what it should."""


class Stage(NamedTuple):
    """Tables and the maps they are programmed into."""

    name: str
    db: Database
    derivations: Derivations
    reconciler: Reconciler[Any, Any]
    target: PlanTarget
    maps: Maps

    def change(self, puts: Sequence[Any], deletes: Sequence[Any]) -> None:
        """One transaction, and everything that follows from it."""
        with self.db.write() as txn:
            for row in deletes:
                table = TABLES[type(row)]
                txn.delete(table, table.key(row))
            for row in puts:
                txn.put(TABLES[type(row)], row)
        while self.derivations.step():
            pass

    async def program(self) -> None:
        """The maps are as the tables; what a connect may still have read goes at once, since there is none."""
        await self.reconciler.step()
        while self.target.sweep_due():
            pass
        if self.reconciler.failing:
            raise Wrong(f"{self.name}: {next(iter(self.reconciler.failing.values())).error}")

    def planned(self) -> Reached:
        """Backends by frontend that are called while none fails, according to the tables: those of the first tier."""
        snapshot = self.db.snapshot()
        found = {}
        for row in snapshot.all(tables.PLANS):
            first = min((group.tier for group in row.groups if group.targets), default=0)
            targets = [target for group in row.groups if group.tier == first for target in group.targets]
            for key in row.frontends:
                found[str(key)] = sorted(f"{each.cluster}/{each.address}:{each.port}" for each in targets)
        return found

    def programmed(self) -> Reached:
        """Backends by frontend, as a connect would find them in the maps."""
        found = view.dump(self.maps)
        backends = {row["id"]: f"{row['cluster']}/{row['backend'].partition('/')[0]}" for row in found["backends"]}
        counts = {row["plan_id"]: _first_tier(row["groups"]) for row in found["plans"]}
        slots: dict[int, list[str]] = {}
        for row in found["slots"]:
            if row["plan_id"] in counts and row["n"] < counts[row["plan_id"]][row["group"]]:
                slots.setdefault(row["plan_id"], []).append(backends[row["backend_id"]])
        return {_scoped(row): sorted(slots.get(row["plan_id"], [])) for row in found["frontends"]}

    def left(self) -> list[str]:
        """What is still there of what plans are made into."""
        entries = [f"map {name}" for name in (*MAPS, "members", "services", "clusters") if list(self.maps.items(name))]
        return entries + [name for name, size in self.target.state.sizes().items() if size]


def _first_tier(groups: Sequence[dict[str, Any]]) -> list[int]:
    """How many slots of each group are called while no backend fails."""
    first = min((group["tier"] for group in groups if group["count"]), default=0)
    return [group["count"] if group["tier"] == first else 0 for group in groups]


def _scoped(row: dict[str, Any]) -> str:
    return f"{row['frontend']}{'/i' if row.get('scope') == 'internal' else ''}"


async def tell(*, json: bool) -> bool:
    """Show all of it; whether every step held."""
    reporter = Reporter(json=json)
    with ExitStack() as stack:
        stages = [_stage("the double", PlanTarget(maps := DictMaps(), State(), grace=0.0), maps)]
        if missing := _missing():
            reporter.say(f"maps are a dict; the kernel's are left alone: {missing}")
        else:
            opened = stack.enter_context(_kernel_maps())
            stages.append(_stage("the kernel", opened.target(), opened.maps))
            reporter.say("maps are a dict, and the kernel's beside it, pinned where nobody else looks")
        for chapter in CHAPTERS:
            await _step(
                reporter, chapter.name, chapter.says, _play(stages, chapter.puts, chapter.deletes, chapter.reached)
            )
            _show(reporter, stages[0])
        await _step(reporter, "all of it removed, in every order", "", _removals(stages))
    return reporter.finish()


async def _step(reporter: Reporter, name: str, says: str, play: Any) -> None:
    started = time.monotonic()
    try:
        detail = await play
    except Wrong as why:
        reporter.end(Step(name, ok=False, seconds=time.monotonic() - started, detail=str(why)))
    else:
        reporter.end(Step(name, ok=True, seconds=time.monotonic() - started, detail=says or detail))


async def _play(stages: Sequence[Stage], puts: Sequence[Any], deletes: Sequence[Any], reached: Reached) -> str:
    for stage in stages:
        stage.change(puts, deletes)
        await stage.program()
        for where, found in (("tables", stage.planned()), ("maps", stage.programmed())):
            if found != reached:
                raise Wrong(f"{stage.name}: {where} say {found}, and it should be {reached}")
    return ""


async def _removals(stages: Sequence[Stage]) -> str:
    """Put everything, take it away row by row, for each order of the rows; maps and allocators end empty."""
    orders = list(itertools.permutations(EVERYTHING))
    tried = 0
    for stage in stages:
        for order in orders if stage is stages[0] else orders[::KERNEL_SAMPLE]:
            stage.change(EVERYTHING, ())
            await stage.program()
            for row in order:
                stage.change((), [row])
                await stage.program()
                if stage.planned() != stage.programmed():
                    raise Wrong(f"{stage.name}: tables say {stage.planned()}, maps say {stage.programmed()}")
            if left := stage.left():
                raise Wrong(f"{stage.name}: left after {[type(row).__name__ for row in order]}: {', '.join(left)}")
            tried += 1
    return f"{tried} times all gone: no entry in a map, no number in use, and maps said what tables said on the way"


def _show(reporter: Reporter, stage: Stage) -> None:
    """Tables and maps as they are now."""
    snapshot = stage.db.snapshot()
    for table in DERIVED_TABLES:
        for row in sorted(snapshot.all(table), key=table.key):
            reporter.say(f"    {table.name:<10} {_text(row)}")
    dumped = view.dump(stage.maps, masked=True)
    for line in view.render({name: dumped[name] for name in MAPS}).splitlines():
        reporter.say(f"    map {line}" if line.endswith(":") else f"        {line.strip()}")


def _text(row: Any) -> str:
    match row:
        case tables.REDIRECTS.row():
            return f"{row.service} by {row.owner}, {len(row.rules)} rules"
        case tables.FRONTENDS.row():
            return f"{row.key} {row.type} of {row.service}"
        case tables.BACKENDS.row():
            return f"{row.key.service} {row.key.cluster}/{row.key.address}:{row.key.port} from {row.source}"
        case _:
            targets = " ".join(f"{t.cluster}/{t.address}:{t.port}" for group in row.groups for t in group.targets)
            return f"{row.key} → {targets or 'nothing'}" + (f" by {row.redirected_by}" if row.redirected_by else "")


def _stage(name: str, target: PlanTarget, maps: Maps) -> Stage:
    derived = loadbalancer.derived(OWN, NODE, services="multicluster")
    every = {table for each in derived for table in (*each.tables, *each.reads)} | set(TABLES.values())
    db = Database(*every)
    derivations = Derivations(db, *derived)
    return Stage(name, db, derivations, Reconciler(db, tables.PLANS, target, prune_every=0.0), target, maps)


def _missing() -> str:
    """Why the kernel's maps cannot be shown here; nothing where they can."""
    if os.geteuid() != 0:
        return "this is not root"
    return next(iter(datapath.requirements()), "")


@contextmanager
def _kernel_maps() -> Iterator[Datapath]:
    """A datapath of its own. What it is pinned in goes with this process, however that ends."""
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    group = cgroups.make(cgroups.root() / f"isthmus-demo-lb-{os.getpid()}")
    try:
        with tempfile.TemporaryDirectory() as folder:
            kernel.mount("bpf", folder, "bpf")
            pin = str(Path(folder) / "isthmus")
            opened = Datapath.open(
                DatapathSection(cgroup=str(group), pin=pin, max_entries=1024, grace=0.0), DnsSection()
            )
            try:
                yield opened
            finally:
                opened.close()
                datapath.remove(pin)
                kernel.umount(folder)
    finally:
        group.rmdir()


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout; tables and maps on stderr.")
def main(as_json: bool) -> None:
    """Show how load balancing works, step by step, without cluster or root. Exit code 0 only if every step held."""
    sys.exit(0 if asyncio.run(tell(json=as_json)) else 1)


if __name__ == "__main__":
    main()
