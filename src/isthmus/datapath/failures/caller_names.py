"""Names of callers by the kernel's number: the lower half of their network namespace's cookie."""

from __future__ import annotations

import time
from typing import Final

from isthmus.datapath.services.callers import Callers
from isthmus.model.tables import NODES, PODS
from isthmus.statedb import Database

LOOK: Final = 2.0
"""Minimum seconds between two reads of /proc for network namespaces, 0.3 ms a pod."""
LOWER_HALF: Final = 0xFFFF_FFFF


class CallerNames:
    """Cache of pods' names, one per datapath. A pod that ended keeps its name until :meth:`keep` drops its caller."""

    def __init__(self, db: Database, callers: Callers, *, node: str) -> None:
        self._db = db
        self._callers = callers
        self._node = node
        self._names: dict[int, str] = {}
        self._looked = -LOOK

    def __repr__(self) -> str:
        return f"<CallerNames: {len(self._names)}>"

    def name(self, caller: int) -> str:
        """``namespace/name`` of the pod; empty if unknown, and for the node's own network, which several pods share."""
        if caller not in self._names and time.monotonic() - self._looked >= LOOK:
            self._look()
        return self._names.get(caller, "")

    def keep(self, callers: set[int]) -> None:
        """Drop the names of all other callers."""
        self._names = {caller: name for caller, name in self._names.items() if caller in callers}

    def _look(self) -> None:
        self._looked = time.monotonic()
        snapshot = self._db.snapshot()
        node = snapshot.get(NODES, self._node)
        shared = set(node.addresses) if node is not None else set[str]()
        pods = {address: pod.name for pod in snapshot.all(PODS) for address in pod.addresses if address not in shared}
        addresses = self._callers.addresses_by_cookie(pods)
        self._names |= {cookie & LOWER_HALF: pods[address] for cookie, address in addresses.items()}
