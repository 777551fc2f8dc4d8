"""The Grafana dashboards of deploy/monitoring, as tests read them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

FILES: Final = sorted((Path(__file__).parents[3] / "deploy" / "monitoring" / "dashboards").glob("*.json"))
VARIABLES: Final = {"$service": ".*", "$instance": ".*", "$__rate_interval": "45s"}
"""What Grafana puts in their place, with all services and nodes chosen."""


def read(file: Path) -> dict[str, Any]:
    """A dashboard."""
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def expressions(file: Path) -> Iterator[tuple[str, str]]:
    """The title of each panel with each of its expressions, as Grafana sends it."""
    for panel in read(file)["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"]
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            yield panel["title"], expression
