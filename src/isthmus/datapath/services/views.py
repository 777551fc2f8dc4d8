"""The content of the maps of plans, for people: names beside numbers, or the number if its name is unknown."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from isthmus.datapath.core.manifest import Entry, Names, Row
from isthmus.datapath.core.shapes import COOKIE, ID, address_text, text
from isthmus.datapath.services import codecs
from isthmus.model.balancing import Ejection
from isthmus.model.hosts import joined

SCOPES: Final = ("", "internal", "original", "original internal")


class PlanNames:
    """Names for the numbers of services, clusters, plans and backends, from one reading of the maps."""

    def __init__(
        self, services: Iterable[Entry], clusters: Iterable[Entry], plans: Iterable[Entry], backends: Iterable[Entry]
    ) -> None:
        self._services = _by_id(services)
        self._clusters = {0: "", **_by_id(clusters)}
        self._plans = {ID.unpack(key)[0]: codecs.PLAN.named(value)["service"] for key, value in plans}
        self._backends = {ID.unpack(key)[0]: endpoint(codecs.BACKEND.named(value)) for key, value in backends}
        self._backends[codecs.REFUSING] = "refused"

    def service(self, number: int) -> str:
        """The service of a number; 0 is none."""
        return self._services.get(number, f"service {number}" if number else "")

    def service_of(self, plan: int) -> str:
        """The service of a plan's number."""
        return self.service(self._plans[plan]) if plan in self._plans else f"plan {plan}"

    def cluster(self, number: int) -> str:
        """The cluster of a number; 0 is none."""
        return self._clusters.get(number, str(number))

    def backend(self, number: int) -> str:
        """Address, port and protocol of a backend's number."""
        return self._backends.get(number, f"backend {number}")


def frontend(names: Names, key: bytes, value: bytes) -> Row:
    """A row of ``frontends``."""
    raw, plan = codecs.FRONTEND_KEY.named(key), codecs.FRONTEND.unpack(value)[-1]
    scope = {"scope": SCOPES[raw["scope"]]} if raw["scope"] else {}
    return {"frontend": endpoint(raw), **scope, "plan": names.service_of(plan), "plan_id": plan}


def plan(names: Names, key: bytes, value: bytes) -> Row:
    """A row of ``plans``."""
    raw, size = codecs.PLAN.named(value), codecs.GROUP.size
    groups = [codecs.GROUP.named(raw["groups"][n * size : (n + 1) * size]) for n in range(raw["size"])]
    affinity = {"affinity": raw["affinity_timeout"]} if raw["flags"] & codecs.PLAN_AFFINITY else {}
    ejection = {"eject_after": raw["eject_after"]} if raw["eject_after"] not in (0, Ejection().after) else {}
    return {
        "plan": names.service(raw["service"]),
        "groups": [{"tier": g["tier"], "weight": g["weight"], "count": g["count"]} for g in groups],
        **affinity,
        **ejection,
        "plan_id": ID.unpack(key)[0],
        "service_id": raw["service"],
        "generation": raw["generation"],
    }


def slot(names: Names, key: bytes, value: bytes) -> Row:
    """A row of ``slots``."""
    plan, group, n = codecs.SLOT_KEY.unpack(key)
    backend = codecs.SLOT.unpack(value)[1]
    where = {"plan": names.service_of(plan), "group": group, "n": n}
    return {**where, "backend": names.backend(backend), "plan_id": plan, "backend_id": backend}


def rings(names: Names, entries: Sequence[Entry]) -> list[Row]:
    """Number of each backend's cells in a plan's ring."""
    cells: Counter[tuple[int, int]] = Counter()
    for _, value in entries:
        plan, numbers = codecs.RING.unpack(value)
        cells.update((plan, number) for number in array("I", numbers) if number)
    return [
        {"plan": names.service_of(plan), "backend": names.backend(number), "cells": count, "plan_id": plan}
        for (plan, number), count in cells.items()
    ]


def caller(_: Names, key: bytes, value: bytes) -> Row:
    """A row of ``callers``."""
    address, namespace = codecs.CALLER.unpack(value)
    return {"caller": address_text(address), "cookie": COOKIE.unpack(key)[0], "namespace": namespace}


def member(names: Names, key: bytes, _: bytes) -> Row:
    """A row of ``members``."""
    plan, backend = codecs.MEMBER_KEY.unpack(key)
    return {
        "plan": names.service_of(plan),
        "backend": names.backend(backend),
        "plan_id": plan,
        "backend_id": backend,
    }


def skip(names: Names, key: bytes, _: bytes) -> Row:
    """A row of ``skips``."""
    address, plan = codecs.SKIP_KEY.unpack(key)
    return {"plan": names.service_of(plan), "caller": address_text(address), "plan_id": plan}


def consumer(names: Names, key: bytes, value: bytes) -> Row:
    """A row of ``consumers``: a namespace is the hash of its name, as in ``callers``."""
    namespace, plan, _ = codecs.CONSUMER_KEY.unpack(key)
    number = codecs.SLOT.unpack(value)[1]
    row = {"plan": names.service_of(plan), "namespace": namespace, "backend": names.backend(number)}
    return {**row, "plan_id": plan, "backend_id": number}


def backend(names: Names, key: bytes, value: bytes) -> Row:
    """A row of ``backends``."""
    raw = codecs.BACKEND.named(value)
    proxy = {"proxy": True} if raw["flags"] & codecs.BACKEND_PROXY else {}
    number = {"id": ID.unpack(key)[0], "generation": raw["generation"]}
    return {"backend": endpoint(raw), "cluster": names.cluster(raw["cluster"]), **proxy, **number}


def affinity(names: Names, key: bytes, value: bytes) -> Row:
    """A row of ``affinity``."""
    raw, last = codecs.AFFINITY_KEY.named(key), codecs.AFFINITY.named(value)
    backend = names.backend(last["backend"])
    return {
        "service": names.service(last["service"]),
        "client": raw["client"],
        "backend": backend,
        "used": last["used"],
    }


def named(_: Names, key: bytes, value: bytes) -> Row:
    """A row of ``services`` or ``clusters``."""
    return {"name": text(value), "id": ID.unpack(key)[0]}


def counter(names: Names, key: bytes, value: bytes) -> Row:
    """A row of ``counters``."""
    service, cluster, verdict, _ = codecs.COUNTER_KEY.unpack(key)
    return {
        "service": names.service(service),
        "cluster": names.cluster(cluster),
        "verdict": codecs.VERDICTS[verdict],
        "calls": codecs.COUNTER.unpack(value)[0],
    }


def endpoint(raw: Row) -> str:
    """``address:port/protocol`` of a struct with these fields."""
    protocol = codecs.PROTOCOL_NAMES.get(raw["protocol"], str(raw["protocol"]))
    return f"{host_port(raw['address'], raw['port'])}/{protocol}"


def host_port(address: bytes, port: bytes) -> str:
    """``address:port``."""
    return joined(address_text(address), int.from_bytes(port, "big"))


def _by_id(entries: Iterable[Entry]) -> dict[int, str]:
    return {ID.unpack(key)[0]: text(value) for key, value in entries}
