"""``isthmus mcp`` with the rows of a case of rows/fault_cases.py: the real server, on standard streams.

python -m rows.assistant_world FILE     FILE holds the name of the case, and is read at each question
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rows.calling_world import ECHO
from rows.fault_cases import CASES

from isthmus.cli.assistant.server import Source, server
from isthmus.cli.diagnosis.facts import Facts
from isthmus.model.flows import Flow
from isthmus.model.names import ServiceName


def source(case: Path) -> Source:
    """Answers from the world of the case that a file names at that moment."""

    def facts(service: ServiceName | None, pod: str) -> Facts:
        chosen = CASES[case.read_text()]
        world = chosen.world()
        chosen.inject(world)
        return world.facts()

    def services(facts: Facts) -> Sequence[ServiceName]:
        return [ECHO]

    def flows(pod: str) -> Sequence[Flow]:
        return []

    return Source(facts, services, flows)


if __name__ == "__main__":
    server(source(Path(sys.argv[1]))).run("stdio")
