"""What is in the maps, for people and for tests: decoded, with names beside numbers, sorted.

``masked`` leaves numbers and generations out, so that two kernels that do the same look the same.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from isthmus.datapath import codecs
from isthmus.datapath.maps import Maps
from isthmus.model.hosts import joined

Row = dict[str, Any]
SCOPES: Final = ("", "internal", "original", "original internal")
_NUMBERS = frozenset({"id", "plan_id", "backend_id", "service_id", "generation", "used", "cookie"})


def dump(maps: Maps, *, masked: bool = False) -> dict[str, list[Row]]:
    """Every map's entries as rows."""
    view = _View(maps)
    return {name: _sorted(rows, masked=masked) for name, rows in view.maps().items()}


def render(dumped: Mapping[str, Iterable[Row]]) -> str:
    """A dump as text: a heading for each map that holds something, and a line for each entry."""
    lines: list[str] = []
    for name, rows in dumped.items():
        entries = [" ".join(f"{field}={_plain(value)}" for field, value in row.items()) for row in rows]
        if entries:
            lines += [f"{name}:", *(f"  {entry}" for entry in entries)]
    return "\n".join(lines)


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return "[" + "; ".join(" ".join(f"{k}={v}" for k, v in each.items()) for each in value) + "]"
    return str(value)


def _sorted(rows: list[Row], *, masked: bool) -> list[Row]:
    if masked:
        rows = [{field: value for field, value in row.items() if field not in _NUMBERS} for row in rows]
    return sorted(rows, key=lambda row: [str(value) for value in row.values()])


class _View:
    """One reading of the maps; what refers to a thing that is not there shows its number."""

    def __init__(self, maps: Maps) -> None:
        self._raw = {name: list(maps.items(name)) for name in codecs.MAPS}
        self._services = self._named("services")
        self._clusters = self._named("clusters") | {0: ""}
        self._plans = {codecs.ID.unpack(k)[0]: codecs.PLAN.named(v) for k, v in self._raw["plans"]}
        self._backends = {codecs.ID.unpack(k)[0]: codecs.BACKEND.named(v) for k, v in self._raw["backends"]}

    def maps(self) -> dict[str, list[Row]]:
        return {
            "frontends": [self._frontend(key, value) for key, value in self._raw["frontends"]],
            "plans": [self._plan(number, raw) for number, raw in self._plans.items()],
            "slots": [self._slot(key, value) for key, value in self._raw["slots"]],
            "members": [self._member(key) for key, _ in self._raw["members"]],
            "skips": [self._skip(key) for key, _ in self._raw["skips"]],
            "rings": self._rings(),
            "callers": [self._caller(key, value) for key, value in self._raw["callers"]],
            "backends": [self._backend(number, raw) for number, raw in self._backends.items()],
            "affinity": [self._affinity(key, value) for key, value in self._raw["affinity"]],
            "services": [{"name": name, "id": number} for number, name in self._services.items()],
            "clusters": [{"name": name, "id": number} for number, name in self._clusters.items() if number],
            "exempt": [{"cgroup": codecs.CGROUP.unpack(key)[0]} for key, _ in self._raw["exempt"]],
            "config": [self._config(value) for _, value in self._raw["config"]],
            "alive": [{"server": "dns", "deadline": codecs.ALIVE.unpack(value)[0]} for _, value in self._raw["alive"]],
            "counters": self.counters(),
        }

    def counters(self) -> list[Row]:
        rows = []
        for key, value in self._raw["counters"]:
            service, cluster, verdict, _ = codecs.COUNTER_KEY.unpack(key)
            rows.append(
                {
                    "service": self._services.get(service, str(service) if service else ""),
                    "cluster": self._clusters.get(cluster, str(cluster)),
                    "verdict": codecs.VERDICTS[verdict],
                    "calls": codecs.COUNTER.unpack(value)[0],
                }
            )
        return rows

    def _named(self, name: str) -> dict[int, str]:
        return {codecs.ID.unpack(key)[0]: codecs.text(value) for key, value in self._raw[name]}

    def _service_of(self, plan: int) -> str:
        raw = self._plans.get(plan)
        return self._services.get(raw["service"], f"service {raw['service']}") if raw else f"plan {plan}"

    def _backend_name(self, number: int) -> str:
        raw = self._backends.get(number)
        return _endpoint(raw) if raw else f"backend {number}"

    def _frontend(self, key: bytes, value: bytes) -> Row:
        raw, plan = codecs.FRONTEND_KEY.named(key), codecs.FRONTEND.unpack(value)[-1]
        scope = {"scope": SCOPES[raw["scope"]]} if raw["scope"] else {}
        return {"frontend": _endpoint(raw), **scope, "plan": self._service_of(plan), "plan_id": plan}

    def _plan(self, number: int, raw: Row) -> Row:
        size = codecs.GROUP.size
        groups = [codecs.GROUP.named(raw["groups"][n * size : (n + 1) * size]) for n in range(raw["size"])]
        affinity = {"affinity": raw["affinity_timeout"]} if raw["flags"] & codecs.PLAN_AFFINITY else {}
        return {
            "plan": self._service_of(number),
            "groups": [{"tier": g["tier"], "weight": g["weight"], "count": g["count"]} for g in groups],
            **affinity,
            "plan_id": number,
            "service_id": raw["service"],
            "generation": raw["generation"],
        }

    def _slot(self, key: bytes, value: bytes) -> Row:
        plan, group, n = codecs.SLOT_KEY.unpack(key)
        backend = codecs.SLOT.unpack(value)[1]
        where = {"plan": self._service_of(plan), "group": group, "n": n}
        return {**where, "backend": self._backend_name(backend), "plan_id": plan, "backend_id": backend}

    def _rings(self) -> list[Row]:
        """How many cells of a plan's ring each backend has."""
        cells: Counter[tuple[int, int]] = Counter()
        for _, value in self._raw["rings"]:
            plan, numbers = codecs.RING.unpack(value)
            cells.update((plan, number) for number in array("I", numbers) if number)
        return [
            {"plan": self._service_of(plan), "backend": self._backend_name(number), "cells": count, "plan_id": plan}
            for (plan, number), count in cells.items()
        ]

    def _caller(self, key: bytes, value: bytes) -> Row:
        return {"caller": codecs.address_text(codecs.CALLER.unpack(value)[0]), "cookie": codecs.COOKIE.unpack(key)[0]}

    def _member(self, key: bytes) -> Row:
        plan, backend = codecs.MEMBER_KEY.unpack(key)
        names = {"plan": self._service_of(plan), "backend": self._backend_name(backend)}
        return {**names, "plan_id": plan, "backend_id": backend}

    def _skip(self, key: bytes) -> Row:
        address, plan = codecs.SKIP_KEY.unpack(key)
        return {"plan": self._service_of(plan), "caller": codecs.address_text(address), "plan_id": plan}

    def _backend(self, number: int, raw: Row) -> Row:
        proxy = {"proxy": True} if raw["flags"] & codecs.BACKEND_PROXY else {}
        cluster = self._clusters.get(raw["cluster"], str(raw["cluster"]))
        return {"backend": _endpoint(raw), "cluster": cluster, **proxy, "id": number, "generation": raw["generation"]}

    def _affinity(self, key: bytes, value: bytes) -> Row:
        raw, last = codecs.AFFINITY_KEY.named(key), codecs.AFFINITY.named(value)
        service = self._services.get(raw["service"], f"service {raw['service']}")
        backend = self._backend_name(last["backend"])
        return {"service": service, "client": raw["client"], "backend": backend, "used": last["used"]}

    def _config(self, value: bytes) -> Row:
        raw = codecs.CONFIG.named(value)
        packed, size = raw["resolvers"], codecs.RESOLVER.size
        every = [codecs.RESOLVER.named(packed[at : at + size]) for at in range(0, len(packed), size)]
        used = [each for each in every if any(each["dns_port"])]
        dns = ", ".join(_host_port(each["dns"], each["dns_port"]) for each in used)
        server = ", ".join(_host_port(each["server"], each["server_port"]) for each in used)
        return {"layout": raw["layout"], "dns": dns or "off", **({"server": server} if used else {})}


def _endpoint(raw: Row) -> str:
    protocol = codecs.PROTOCOL_NAMES.get(raw["protocol"], str(raw["protocol"]))
    return f"{_host_port(raw['address'], raw['port'])}/{protocol}"


def _host_port(address: bytes, port: bytes) -> str:
    return joined(codecs.address_text(address), int.from_bytes(port, "big"))
