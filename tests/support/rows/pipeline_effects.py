"""Output of a process as bytes: entries of maps, answers to questions, Envoy's resources, objects and records.

An effect follows the tables of a :class:`Pipeline`, and fails where one of its rows is no good.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from rows.pipeline import C1, Pipeline

from isthmus.clusterset.records.admission import Admission
from isthmus.clusterset.records.forms import ROWS
from isthmus.datapath.core.maps import DictMaps
from isthmus.datapath.services.installed import State
from isthmus.datapath.services.target import PlanTarget
from isthmus.dns.respond import respond
from isthmus.loadbalancer import drain_objects
from isthmus.mcs import events
from isthmus.model import tables
from isthmus.model.balancing import Plan, PlanKey
from isthmus.model.dns import Name
from isthmus.model.names import ServiceName, split
from isthmus.model.objects import Object
from isthmus.model.xds import Resource, ServedListener
from isthmus.proxy.delta import MESSAGES, Resources
from isthmus.proxy.rules import problem
from isthmus.statedb import Changes, Faults
from isthmus.zone import Zone, codec
from isthmus_lab.apiserver import rules
from isthmus_lab.apiserver.definitions import kind_of
from isthmus_lab.apiserver.kinds import BUILT_IN, Kind

ROOT: Final = Path(__file__).parents[3]
LARGEST_OBJECT: Final = 1_500_000
"""Bytes: etcd's default limit of a request."""
LARGEST_STATUS: Final = 256_000
"""Bytes of our part of a status: the rest of the object has to fit beside it."""
LARGEST_RESOURCE: Final = 16 << 20
"""Bytes: what the routes of a namespace may come to."""


class Plans:
    """A node's plans in maps."""

    def __init__(self) -> None:
        self._target = PlanTarget(DictMaps(), State(), clock=lambda: 0.0)
        self._plans: dict[PlanKey, Plan] = {}
        self.made: Counter[str] = Counter()

    async def follow(self, pipeline: Pipeline) -> None:
        plans = {row.key: row for row in pipeline.rows(tables.PLANS)}
        changed = [row for key, row in plans.items() if self._plans.get(key) != row]
        self.made["plans"] += len(changed)
        await self._target.delete([row for key, row in self._plans.items() if key not in plans])
        await self._target.update(changed)
        self._plans = plans


class Names:
    """A node's names, and answers to questions."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.zone = Zone("clusterset.local", cluster_domain="cluster.local")
        self._changes = pipeline.db.changes(tables.NAMES)
        self.made: Counter[str] = Counter()
        self.questions = [question("echo.demo.svc.clusterset.local", type_) for type_ in ("A", "SRV", "TXT")]

    async def follow(self, pipeline: Pipeline) -> None:
        snapshot, changes = self._changes.next()
        for change in changes:
            old, new = (_as_sent(row) if row is not None else None for row in (change.old, change.new))
            self.zone.replace(old, new)
            if new is not None:
                self.made["names"] += 1
                self.questions.append(question(new.name, new.type))
        del self.questions[3:-100]
        self.zone.complete = snapshot.initialized(tables.NAMES)
        assert self.zone.unwritable == 0

    def ask(self, packet: bytes, *, limit: int = codec.UDP_SIZE) -> None:
        """Answer a packet, which may be anything."""
        reply = respond(packet, self.zone, limit=limit)
        assert reply is None or len(reply) <= max(limit, codec.PLAIN_SIZE), packet
        assert not reply or reply[2] & 0x80, packet  # QR: what is sent is a response, or two servers answer each other
        self.made["questions"] += 1
        self.made["answers"] += bool(reply)


def _as_sent(row: Name) -> Name:
    """A row as the name server's process gets it from the agent's."""
    return msgspec.json.decode(msgspec.json.encode(row), type=Name)


def question(name: str, type_: str) -> bytes:
    """A question as a resolver sends it, with EDNS."""
    head = codec.HEADER.pack(7, 0x0100, 1, 0, 0, 1)
    return head + codec.wire_name(name) + codec.TYPES[type_].to_bytes(2, "big") + b"\0\1" + codec.opt()


class Envoy:
    """Resources that the discovery service sends. ``serves``: act as an Envoy that accepts all and serves."""

    def __init__(self, pipeline: Pipeline, *, serves: bool = True) -> None:
        self._serves = serves
        self._changes: Changes[Resource] = pipeline.db.changes(tables.XDS)
        self._resources = Resources()
        self.made: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.largest = 0

    async def follow(self, pipeline: Pipeline) -> None:
        for change in self._changes.next()[1]:
            if (row := change.new) is None:
                self._resources.delete(change.key)
                continue
            self.made[row.type] += 1
            self.largest = max(self.largest, len(row.body))
            assert len(row.body) < LARGEST_RESOURCE, row.name
            assert not (row.checked and problem(MESSAGES[row.type], row.body)), (row.name, row.owner)
            if not self._resources.put(row):
                self.refused[self._resources.refused[change.key].error] += 1
        if self._serves:
            self._serve(pipeline)

    def listeners(self) -> set[str]:
        """Names of the listeners in force."""
        return {*self._resources.names("listener")}

    def _serve(self, pipeline: Pipeline) -> None:
        desired = self.listeners()
        served = {row.name for row in pipeline.rows(tables.XDS_SERVED)}
        if desired != served:
            with pipeline.db.write() as txn:
                for name in served - desired:
                    txn.delete(tables.XDS_SERVED, name)
                for name in desired - served:
                    txn.put(tables.XDS_SERVED, ServedListener(name))


class Written:
    """Objects, statuses and Events of the API server, judged as it judges them, and records for other clusters."""

    def __init__(self, pipeline: Pipeline) -> None:
        written = (tables.OBJECTS, tables.POLICY_OBJECTS, tables.ROUTE_OBJECTS)
        self._changes = [pipeline.db.changes(table) for table in written]
        self._records = pipeline.db.changes(tables.RECORDS)
        noticed = (tables.OBJECTS, tables.MERGED, tables.IMPORTS, tables.SERVICES)
        self._noticed = {table: pipeline.db.changes(table) for table in noticed}
        self._drains = Faults(pipeline.db, tables.FAULTS, tables.DRAIN_OBJECTS.name)
        self._drained: dict[ServiceName, Object] = {}
        self._kinds = _kinds()
        self.made: Counter[str] = Counter()
        self.largest = 0

    async def follow(self, pipeline: Pipeline) -> None:
        for changes in self._changes:
            for change in changes.next()[1]:
                if change.new is not None:
                    self._check(change.new)
        for record in (change.new for change in self._records.next()[1]):
            if record is not None:
                self.made[f"records {record.kind}"] += 1
                ROWS[record.kind].decode(record.value, Admission(cluster=C1), 1, record.name)  # as peers do

        snapshot = pipeline.db.snapshot()
        drains = {row.name: row for row in drain_objects.compute(snapshot, cluster=C1, faults=self._drains)}
        for name, row in drains.items():
            if self._drained.get(name) != row:
                self._check(row)
        self._drained = drains
        for table, reader in self._noticed.items():
            for noticed in reader.next()[1]:
                for notice in events.NOTICES[table](snapshot, noticed):
                    self.made["Event"] += 1
                    assert re.fullmatch(r"[A-Za-z]{1,128}", notice.reason), notice

    def _check(self, row: Object) -> None:
        self.made[row.kind] += 1
        self.largest = max(self.largest, len(row.body) + len(row.status))
        assert len(row.body) < LARGEST_OBJECT, row.name
        assert len(row.status) < LARGEST_STATUS, row.name
        kind = self._kinds[row.kind]
        namespace, name = split(row.name)
        if row.body:
            body = msgspec.json.decode(row.body)
            rules.born(kind, rules.addressed(kind, namespace, name, body))
            if row.preferred:
                preferred = _merged(body, msgspec.json.decode(row.preferred))
                rules.born(kind, rules.addressed(kind, namespace, name, preferred))
        if row.status:
            status = msgspec.json.decode(row.status)
            for parent in (status, *status.get("parents", ())):
                _check_conditions(parent.get("conditions", ()))


def _kinds() -> dict[str, Kind]:
    """Return kinds by name; those with a definition in deploy/ have its schema."""
    kinds = {kind.kind: kind for kind in BUILT_IN}
    for path in (ROOT / "deploy" / "crds").glob("*.yaml"):
        for definition in yaml.safe_load_all(path.read_text()):
            kind = kind_of(definition)
            own = kinds.get(kind.kind)
            kinds[kind.kind] = dataclasses.replace(own, schemas=kind.schemas) if own is not None else kind
    for name in ("HTTPRoute", "GRPCRoute", "TCPRoute", "UDPRoute", "GlobalTrafficPolicy"):
        kinds.setdefault(name, kinds["TrafficPolicy"])  # of which only the status is ours
    return kinds


def _merged(body: Any, more: Any) -> Any:
    if not isinstance(body, dict) or not isinstance(more, dict):
        return more
    return {**body, **{key: _merged(body.get(key), value) for key, value in more.items()}}


def _check_conditions(conditions: list[dict[str, Any]]) -> None:
    """Judge conditions by the schema of meta/v1 Condition."""
    assert len({condition["type"] for condition in conditions}) == len(conditions), conditions
    for condition in conditions:
        assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", condition["reason"]), condition
        assert condition["status"] in ("True", "False", "Unknown"), condition
        assert len(condition["message"]) <= 32768, condition
        assert len(condition["type"]) <= 316, condition
