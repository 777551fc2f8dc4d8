"""Hostile inputs of a process: objects, records, descriptions of peers and questions, each as bytes."""

from __future__ import annotations

import gc
import random
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec
from hostility.hostile import NAMES, NAMESPACES, Hostile
from hostility.hostile_corpus import SERVICES, SPACES, Corpus
from msgspec.structs import replace
from rows.pipeline import C1, C2, C3, CONFIG, IDS, Pipeline, Role
from rows.pipeline_effects import Envoy, Names, Plans, Written

from isthmus.config import Config, GatewaySection
from isthmus.kube.kind import Kind
from isthmus.model import tables
from isthmus.model.clusters import Cluster
from isthmus.model.islands import TrustBundle
from isthmus.zone import codec

QUESTIONS: Final = 20
"""Questions to the name server after each batch of changes."""
VALID: Final = 0.6
"""Part of the objects and records that are valid but for some values: others rarely get beyond the first check."""
ISLAND: Final = {"network": "c3", "gateways": ["172.30.3.11:15443"]}
ISLANDS: Final = replace(CONFIG, gateway=GatewaySection(identity="/run/identity"))


class Turns:
    """CPU time of turns of a loop, without that of the garbage collector."""

    def __init__(self) -> None:
        self.slowest = 0.0
        self.collecting = 0.0
        self._began = 0.0

    def __enter__(self) -> Turns:
        gc.callbacks.append(self._collected)
        return self

    def __exit__(self, *exc: object) -> None:
        gc.callbacks.remove(self._collected)

    def _collected(self, phase: str, info: object) -> None:
        now = time.thread_time()
        if phase == "start":
            self._began = now
        else:
            self.collecting += now - self._began

    def take(self, turn: Callable[[], Any]) -> Any:
        """Take one turn."""
        began, collecting = time.thread_time(), self.collecting
        result = turn()
        self.slowest = max(self.slowest, time.thread_time() - began - (self.collecting - collecting))
        return result


class Fuzz:
    """A process, what it writes, and a source of hostile inputs."""

    def __init__(self, role: Role, seed: int, *, config: Config = ISLANDS, served: bool = True) -> None:
        """``served``: all that is made for an Envoy is served at once, where no real one follows it."""
        self._role = role
        self.draw, self.hostile = random.Random(seed), Hostile(seed)
        self.corpus = Corpus(self.draw)
        self.pipeline = Pipeline(role, config=config).arrived()
        with self.pipeline.db.write() as txn:
            txn.put(tables.CLUSTERS, Cluster(name=C1, id=1, own=True, state="ready"))
            if tables.TRUST_BUNDLES.name in self.pipeline.db.tables:
                for cluster in IDS:
                    txn.put(tables.TRUST_BUNDLES, TrustBundle((cluster,)))
        self.pipeline.peer({}).peer(ISLAND, cluster=C3)
        self.names = Names(self.pipeline) if role == "agent" else None
        self.envoy = Envoy(self.pipeline, serves=served) if role != "operator" else None
        plans = Plans() if role == "agent" else None
        written = Written(self.pipeline) if role == "operator" else None
        self.effects: list[Any] = [each for each in (plans, self.names, self.envoy, written) if each is not None]
        self._records = [*self.pipeline._records]

    def input(self) -> Callable[[], Any]:
        """One of the inputs that others can make."""
        draw, way, cluster = self.draw, self.draw.random(), self.draw.choice((C2, C3))
        valid = draw.random() < VALID
        if way < 0.25 and self._records:
            cluster, record = draw.choice(self._records)
            name = f"{draw.choice(SPACES if valid else NAMESPACES)}/{draw.choice(SERVICES if valid else NAMES)}"
            value = None
            if valid:
                value = msgspec.json.encode(self._spoiled(self.corpus.record(record, cluster, name)))
            elif draw.random() > 0.1:
                value = self.hostile.record(record, cluster, name)
            return lambda: self.pipeline.record(record, value, cluster=cluster, name=name)
        if way < 0.27:
            description = ISLAND if valid and cluster == C3 else self.hostile.description()
            return lambda: self.pipeline.peer(description, cluster=cluster)
        if way < 0.28:
            refused = self.hostile.refusals()
            return lambda: self.pipeline.refusals(refused, cluster=cluster)
        kind = draw.choice(self.pipeline.kinds)
        raw = self._object(kind) if valid else self.hostile.obj(kind, kind.api_version)
        return lambda: self.pipeline.apply(raw)

    def _object(self, kind: Kind[Any]) -> bytes:
        """A valid object with hostile values in some places; it keeps its name, which its path has."""
        body = self.corpus.obj(kind)
        spoiled = self._spoiled(body)
        meta = spoiled["metadata"] if isinstance(spoiled.get("metadata"), dict) else {}
        head = {key: body[key] for key in ("apiVersion", "kind")}
        meta |= {
            key: body["metadata"][key]
            for key in ("name", "namespace", "uid", "creationTimestamp")
            if key in body["metadata"]
        }
        return msgspec.json.encode({**spoiled, **head, "metadata": meta})

    def _spoiled(self, body: Any) -> Any:
        return self.hostile.spoiled(body, self.draw.choice((0, 0, 0, 1, 1, 2, 3)))

    def change(self, turns: Turns) -> int:
        """Bring some inputs and compute what follows from them; the number of inputs."""
        batch = self.draw.randrange(1, 20)
        for _ in range(batch):
            turns.take(self.input())
        if self._role != "gateway":
            turns.take(self.pipeline.drains.step)
        while turns.take(self.pipeline.derivations.step):
            pass
        return batch

    async def follow(self) -> None:
        """Write what follows from the tables, and judge it."""
        for effect in self.effects:
            await effect.follow(self.pipeline)

    def ask(self, turns: Turns) -> int:
        """Send questions to the name server, if there is one; their number."""
        if (names := self.names) is None:
            return 0
        for _ in range(QUESTIONS):
            packet = self.hostile.question(self.draw.choice(names.questions))
            turns.take(partial(names.ask, packet, limit=self.draw.choice((codec.UDP_SIZE, codec.TCP_SIZE))))
        return QUESTIONS

    def bugs(self) -> list[Any]:
        """Rows of faults whose cause is a bug."""
        return [fault for fault in self.pipeline.rows(tables.FAULTS) if fault.cause == "bug"]

    def made(self) -> Counter[str]:
        """Number of what was written, by kind."""
        return sum((effect.made for effect in self.effects), start=Counter())

    def rows(self) -> dict[str, int]:
        """Number of rows of each table that has any."""
        tables_ = self.pipeline.db.tables.values()
        return {table.name: len(rows) for table in tables_ if (rows := self.pipeline.rows(table))}
