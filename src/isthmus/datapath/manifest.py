"""A row for every map and every program of the datapath. A feature adds its rows here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from isthmus.datapath import settings
from isthmus.datapath.core.manifest import Map, Program
from isthmus.datapath.failures import manifest as failures
from isthmus.datapath.flows import manifest as flows
from isthmus.datapath.identity import manifest as identity
from isthmus.datapath.names import manifest as names
from isthmus.datapath.services import manifest as services

MAPS: Final[Mapping[str, Map]] = {
    row.name: row for row in (*services.MAPS, *failures.MAPS, *flows.MAPS, *identity.MAPS, *names.MAPS, *settings.MAPS)
}

NUMBERED: Final = frozenset(name for name, row in MAPS.items() if row.numbered)
"""Arrays in which an all-zero value means an empty entry."""

PROGRAMS: Final[tuple[Program, ...]] = (*failures.PROGRAMS, *services.PROGRAMS)
