"""Run a story: clusters, its events, and the broken invariants. The same seed and events give the same run."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from isthmus_sim import events, substitutes, truth
from isthmus_sim.clusters import Clusters
from isthmus_sim.events import Event
from isthmus_sim.invariants import ALL, SETTLED_AFTER, Invariant, Moment
from isthmus_sim.loop import Loop, SimTask, Stuck
from isthmus_sim.network import Network

NAMES: Final = ("c1", "c2", "c3")
START: Final = 2_000_000_000.0
"""Seconds since the epoch at which each run begins."""


class Result(NamedTuple):
    """Result of a run."""

    seed: int
    events: Sequence[Event]
    broken: tuple[str, ...]
    """A sentence per broken invariant, with the second at which it was found broken first; empty if all hold."""
    simulated: float
    """Seconds in the simulation."""
    took: float
    """Seconds here."""
    writes: int
    digest: int
    """Digest that is equal for two identical runs."""

    @property
    def invariants(self) -> frozenset[str]:
        """Names of the broken invariants."""
        return frozenset(each.split()[1].rstrip(":") for each in self.broken)


def run(
    seed: int, story: Sequence[Event], *, names: Sequence[str] = NAMES, level: int = logging.CRITICAL, until: str = ""
) -> Result:
    """Run a story, in this thread and in virtual time. ``until``: stop once this invariant is broken."""
    began = time.perf_counter()
    chance = random.Random(seed)
    SimTask.restart()
    loop = Loop(chance, start=START)
    collecting = gc.isenabled()
    gc.disable()  # the times of collections depend on earlier work of this interpreter
    try:
        with tempfile.TemporaryDirectory(prefix="isthmus-sim-") as folder:
            work = _Run(loop, chance, Path(folder), names)
            with substitutes.installed(
                loop,
                chance,
                connect=lambda section: work.clusters.connect(section),
                channel=lambda transport, endpoint: work.clusters.channel(transport, endpoint),
                shown=lambda shown: work.clusters.show(shown),
                level=level,
            ):
                asyncio.set_event_loop(loop)
                try:
                    loop.run_until_complete(work.main(story, until))
                except Stuck as error:
                    work.note("Stuck", str(error))
                loop.run_until_complete(work.clusters.close())
        took = time.perf_counter() - began
        return Result(seed, story, tuple(work.broken.values()), loop.time() - START, took, work.writes(), loop.digest)
    finally:
        asyncio.set_event_loop(None)
        loop.close()
        gc.collect()
        if collecting:
            gc.enable()


class _Run:
    def __init__(self, loop: Loop, chance: random.Random, folder: Path, names: Sequence[str]) -> None:
        self._loop = loop
        self._names = names
        self._folder = folder
        self._chance = chance
        self.broken: dict[str, str] = {}
        self._checked: object = None
        self._differences: dict[str, list[str]] = {}
        self.clusters: Clusters

    def note(self, invariant: str, text: str) -> None:
        """Keep the first time at which an invariant is broken."""
        self.broken.setdefault(invariant, f"{self._loop.time() - START:.1f} {invariant}: {text}")

    def writes(self) -> int:
        return sum(sum(each.api.writes.values()) + each.etcd.writes for each in self.clusters)

    async def main(self, story: Sequence[Event], until: str) -> None:
        self.clusters = Clusters(list(self._names), Network(self._chance), self._chance, self._folder)
        for cluster in self.clusters:
            for peer in self._names:
                if peer != cluster.name:
                    cluster.link(peer)
            for creation in events.begin(cluster):
                await creation
            self.clusters.background(cluster.api.run())
            self.clusters.background(cluster.etcd.run())
        for host in self.clusters.hosts:
            self.clusters.start(host)
        invariants = [each(self.clusters) for each in ALL]
        end = 0.0
        for event in story:
            end = max(end, event.at + event.lasts)
            self._loop.call_at(START + event.at, self._happen, event)
        end += SETTLED_AFTER
        while self._loop.time() < START + end:
            await asyncio.sleep(1.0)
            self._check(invariants, always=True)
            if until in self.broken:
                return
        self._check(invariants, always=False)

    def _happen(self, event: Event) -> None:
        self.clusters.background(events.happen(self.clusters, event))

    def _check(self, invariants: Sequence[Invariant], *, always: bool) -> None:
        state = [(each.api.store.revision, each.linked) for each in self.clusters]
        if state != self._checked:
            self._checked = state
            self._differences = {each.name: truth.differences(each, self.clusters) for each in self.clusters}
        moment = Moment(self._loop.time(), self.clusters, self._differences)
        for each in invariants:
            for text in each.always(moment) if always else each.at_end(moment):
                self.note(type(each).__name__, text)
            for text in each.broken:
                self.note(type(each).__name__, text)
        for text in self._loop.errors:
            self.note("NothingIsRaised", text)
