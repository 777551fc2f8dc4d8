"""Pods whose calls are not translated."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

DatapathChoice = Literal["", "ignore", "translate"]
"""Value of ``isthmus.io/datapath`` on a pod or a namespace; empty without one."""


class IgnoredPod(Struct, frozen=True, gc=False):
    """Derived row: a pod of this node that is left alone. Names are answered, calls go where the pod addresses them."""

    name: str
    """namespace/name."""
    uid: str
    reason: str
    """Part of a sentence: its annotation, its namespace's, or the mesh that it belongs to."""
    addresses: tuple[str, ...] = ()
    """Its addresses; empty if it has the node's, which are no pod's own."""
