"""Clusters whose records arrive late, in any order, or not for a while, come to the same imports."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from rows.mcs_world import World

from isthmus.mcs.merge import merge
from isthmus.model import tables
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Export, Port

CLUSTERS = [ClusterName(name) for name in ("c1", "c2", "c3")]
NAMES = [ServiceName("demo/echo"), ServiceName("demo/web")]


class Clusterset:
    """Three operators' tables, and the records between them, which arrive one by one in the story's order."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.worlds = {name: World(cluster=name) for name in CLUSTERS}
        self.seen: dict[tuple[ClusterName, ClusterName, ServiceName], Export | None] = {}

    def own(self, cluster: ClusterName, name: ServiceName) -> Export | None:
        own = self.worlds[cluster].db.snapshot().get(tables.OWN_EXPORTS, name)
        return own.export if own is not None else None

    def deliver(self, writer: ClusterName, reader: ClusterName, name: ServiceName) -> None:
        """The writer's present export reaches the reader, whatever was in between."""
        export = self.own(writer, name)
        if self.seen.get((writer, reader, name)) == export:
            return
        self.seen[writer, reader, name] = export
        world = self.worlds[reader]
        if export is None:
            world.delete(tables.EXPORTS, (writer, name))
        else:
            world.put(tables.EXPORTS, export)

    def deliver_all(self) -> None:
        links = [(w, r, n) for w in CLUSTERS for r in CLUSTERS if w != r for n in NAMES]
        self.random.shuffle(links)
        for link in links:
            self.deliver(*link)

    def step(self) -> None:
        """A cluster changes something, receives a record, or starts anew."""
        cluster, name = self.random.choice(CLUSTERS), self.random.choice(NAMES)
        world = self.worlds[cluster]
        now = world.db.snapshot()
        match self.random.randrange(6):
            case 0:
                self.change_service(world, name)
            case 1 if now.get(tables.SERVICES, (name, "kubernetes")):
                world.delete(tables.SERVICES, (name, "kubernetes"))
            case 2:
                age = f"2026-01-01T00:00:0{self.random.randrange(3)}Z"
                world.mark(name, created=age, labels=self.random.choice([(), (("team", "red"),)]))
            case 3 if now.get(tables.EXPORT_MARKS, name):
                world.delete(tables.EXPORT_MARKS, name)
            case 4:
                self.deliver(cluster, self.random.choice([c for c in CLUSTERS if c != cluster]), name)
            case 5:
                restart(world)

    def change_service(self, world: World, name: ServiceName) -> None:
        ports = [Port("http", self.random.choice([80, 81])), Port("metrics", 9090)]
        world.service(
            name,
            ports=tuple(self.random.sample(ports, self.random.randrange(1, 3))),
            headless=self.random.random() < 0.3,
            affinity=self.random.choice(["None", "ClientIP"]),
        )

    def imports(self, cluster: ClusterName) -> dict[str, Any]:
        """Every import of a cluster, but for what only it can know: whether it is ready here."""
        rows = [row for row in self.worlds[cluster].objects if row.kind == "ServiceImport"]
        return {row.name: (msgspec.json.decode(row.body), msgspec.json.decode(row.status)["clusters"]) for row in rows}


def restart(world: World) -> None:
    """Another process, which reads the same inputs."""
    again = World(cluster=world.cluster)
    for table in world.inputs:
        for row in world.db.snapshot().all(table):
            again.put(table, row)
    world.db, world.derivations = again.db, again.derivations


@pytest.mark.parametrize("seed", range(25))
def test_all_clusters_come_to_the_merge_of_what_is_exported(seed: int) -> None:
    clusterset = Clusterset(seed)
    for _ in range(60):
        clusterset.step()
    clusterset.deliver_all()
    one, two, three = (clusterset.imports(cluster) for cluster in CLUSTERS)
    assert one == two == three
    truth = {n: merge([e for c in CLUSTERS if (e := clusterset.own(c, n))]) for n in NAMES}
    assert {name for name, merged in truth.items() if merged} == one.keys()
    for cluster in CLUSTERS:
        merged = {row.name: row for row in clusterset.worlds[cluster].db.snapshot().all(tables.MERGED)}
        assert merged == {name: row for name, row in truth.items() if row}


@pytest.mark.parametrize("seed", range(10))
def test_a_withdrawn_cluster_leaves_what_would_be_without_it(seed: int) -> None:
    clusterset = Clusterset(seed)
    for _ in range(40):
        clusterset.step()
    clusterset.deliver_all()
    world = clusterset.worlds[CLUSTERS[0]]
    with world.db.write() as txn:
        for mark in list(txn.all(tables.EXPORT_MARKS)):
            txn.delete(tables.EXPORT_MARKS, mark.name)
    world.settle()
    clusterset.deliver_all()
    for cluster in CLUSTERS:
        merged = {row.name: row for row in clusterset.worlds[cluster].db.snapshot().all(tables.MERGED)}
        others = {n: merge([e for c in CLUSTERS[1:] if (e := clusterset.own(c, n))]) for n in NAMES}
        assert merged == {name: row for name, row in others.items() if row}
