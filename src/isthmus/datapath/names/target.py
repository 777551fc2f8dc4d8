"""Writes rows of ``names`` to the kernel's map, through a zone like the server's, so that both answer the same.

A row affects its own name and the names above it, which exist because of it. Until the table is complete, names that an
earlier agent wrote are kept, and the server answers for unknown names.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from isthmus import logs
from isthmus.config import DnsSection
from isthmus.datapath.core.errors import DatapathError
from isthmus.datapath.core.maps import Maps
from isthmus.datapath.core.shapes import ID
from isthmus.datapath.names import entries, settings
from isthmus.datapath.names.codecs import COMPLETE, CONFIG
from isthmus.model.dns import Name
from isthmus.statedb import NotPruned
from isthmus.zone import Zone

RENEW: Final = 1.0
"""Seconds between two renewals of the deadline."""

Key = tuple[str, str]

log = logs.get("names")


class NamesTarget:
    """The maps of names. Answers outlive this process for ``lifetime`` seconds, with 0 for ever; ``host`` is the cookie
    of the node's network namespace."""

    def __init__(
        self,
        maps: Maps,
        section: DnsSection,
        *,
        lifetime: float,
        host: int = 0,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._maps = maps
        self._domain = section.cluster_domain
        self._zone = Zone(section.zone, cluster_domain=section.cluster_domain)
        self._rate = section.pod_rate
        self._lifetime = lifetime
        self._host = host
        self._clock = clock
        self._rows: dict[Key, Name] = {}
        self._failed: set[bytes] = set()
        """Names whose last write failed; the next write repeats them."""
        self.on = section.mode == "kernel"
        self.complete = self.on and self._was_complete()
        servers = settings.servers(section)
        self._require(maps.put("dns_servers", [(key, ID.pack(role)) for key, role in servers.items()]))
        maps.drop("dns_servers", [key for key, _ in maps.items("dns_servers") if key not in servers])
        self._write({self._zone.apex: ()})
        self.renew()

    def __repr__(self) -> str:
        state = "complete" if self.complete else "not complete"
        return f"<NamesTarget {self._zone.name}: {len(self._rows)} rows, {state}>"

    async def update(self, rows: Sequence[Name]) -> Mapping[Key, str]:
        """Write these rows' names."""
        return self._apply((self._rows.get((row.name, row.type)), row) for row in rows)

    async def delete(self, rows: Sequence[Name]) -> Mapping[Key, str]:
        """Remove these rows' names, unless other rows need them."""
        return self._apply((self._rows.get((row.name, row.type)), None) for row in rows)

    async def prune(self, rows: Iterable[Name]) -> str:
        """Make the map hold exactly these rows. From then on the kernel answers NXDOMAIN for an unknown name."""
        desired = self._desired(rows)
        have = dict(self._maps.items("names"))
        obsolete = [key for key in have if key not in desired]
        changed = [(key, value) for key, value in desired.items() if have.get(key) != value]
        failures = {**self._maps.put("names", changed), **self._maps.drop("names", obsolete)}
        if failures:
            raise NotPruned(next(iter(failures.values())))
        self.complete = True
        self.renew()
        return f"{len(obsolete)} names removed, {len(changed)} written anew"

    def renew(self) -> None:
        """Extend the answers' deadline to their lifetime from now."""
        deadline = self._clock() + round(self._lifetime * 1e9) if self._lifetime else settings.FOREVER
        state = settings.State(deadline=deadline, host=self._host, on=self.on, complete=self.complete)
        entry = settings.config(self._zone, state, cluster_domain=self._domain, rate=self._rate)
        self._require(self._maps.put("names_config", [(ID.pack(0), entry)]))

    async def keep(self) -> None:
        """Renew, for ever."""
        while True:
            await asyncio.sleep(RENEW)
            self.renew()

    def _apply(self, changes: Iterable[tuple[Name | None, Name | None]]) -> dict[Key, str]:
        touched: dict[bytes, list[Key]] = {name: [] for name in (self._zone.apex, *self._failed)}
        authority = self._zone.authority()
        for old, new in changes:
            row = new or old
            if row is None:
                continue
            self._zone.replace(old, new)
            if new is not None:
                self._rows[row.name, row.type] = new
            else:
                del self._rows[row.name, row.type]
            for name in self._zone.affected(row):
                touched.setdefault(name, []).append((row.name, row.type))
        if self._zone.authority() != authority:
            self.renew()
        return self._write(touched)

    def _write(self, touched: Mapping[bytes, Sequence[Key]]) -> dict[Key, str]:
        """Write entries, then remove others, so that a name that stays is never missing."""
        puts, drops = [], []
        for name in touched:
            key, value = entries.key(name), entries.value(self._zone, name)
            if key is not None and value is not None:
                puts.append((name, (key, value)))
            elif key is not None:
                drops.append((name, key))
        failures = {puts[n][0]: error for n, error in self._maps.put("names", [entry for _, entry in puts]).items()}
        failures |= {drops[n][0]: error for n, error in self._maps.drop("names", [key for _, key in drops]).items()}
        self._failed = set(failures)
        log.debug("names written", names=len(puts), removed=len(drops), failed=len(failures))
        return {row: error for name, error in failures.items() for row in touched[name]}

    def _desired(self, rows: Iterable[Name]) -> dict[bytes, bytes]:
        names = {self._zone.apex}
        for row in rows:
            names.update(self._zone.affected(row))
        pairs = ((entries.key(name), entries.value(self._zone, name)) for name in names)
        return {key: value for key, value in pairs if key is not None and value is not None}

    def _was_complete(self) -> bool:
        """True if an earlier agent's names of this zone were complete; they are used until our first complete list."""
        for _, value in self._maps.items("names_config"):
            entry = CONFIG.named(value)
            return bool(entry["flags"] & COMPLETE) and entry["zone"].startswith(self._zone.apex)
        return False

    @staticmethod
    def _require(failures: Mapping[int, str]) -> None:
        if failures:
            raise DatapathError(next(iter(failures.values())))
