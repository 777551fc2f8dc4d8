"""The state of this node's Envoy as plans follow it: which listeners it serves, and its answers to probes.

A process that hangs keeps its listeners and its discovery stream, and the kernel still accepts connections for it. So a
listener is served only while Envoy also answers the agent's probes (``proxy/probing.py``). An Envoy that is not probed,
because it refused the listener for that, is taken to answer.
"""

from __future__ import annotations

from typing import Final

from isthmus.model.tables import ENVOY_CHECKS, ISLAND_LISTENERS, PROXY_LISTENERS, XDS_SERVED
from isthmus.statedb import Reader, on_change, through

ENVOY: Final = "envoy"
"""Key of the one row of ``envoy_checks``."""


def serves(reader: Reader, listener: str) -> bool:
    """True if Envoy has a listener of this name in force and answers."""
    return reader.get(XDS_SERVED, listener) is not None and answers(reader)


def answers(reader: Reader) -> bool:
    """False while Envoy is probed and does not answer."""
    row = reader.get(ENVOY_CHECKS, ENVOY)
    return row is None or row.healthy


by_check = on_change(("healthy",), through(ISLAND_LISTENERS, "service"))
"""An Envoy that begins or ceases to answer affects every service of an island."""


by_check_of_routes = on_change(("healthy",), through(PROXY_LISTENERS, "service"))
"""An Envoy that begins or ceases to answer affects every Service with a route."""
