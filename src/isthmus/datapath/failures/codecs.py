"""The bytes of what the kernel knows of failing backends, and of its events."""

from __future__ import annotations

from typing import Final

from isthmus.datapath.core.shapes import Shape

REASONS: Final = ("", "refused", "silent", "unreachable")
"""By enum failure_reason."""
KINDS: Final = ("", "ejected", "restored")
"""By enum event_kind."""

ATTEMPT = Shape(
    "attempt",
    started="Q",
    plan="I",
    service="I",
    backend="I",
    generation="I",
    cluster="H",
    failed="H",
    reserved="I",
)
FAILING = Shape("failing", generation="I", failures="I", since="Q", until="Q", last="Q", level="I", reason="I")
GATE = Shape("gate", failing="I", reserved="I")
EVENT = Shape(
    "event",
    time="Q",
    until="Q",
    address="16s",
    port="2s",
    protocol="B",
    kind="B",
    reason="B",
    reserved="B",
    cluster="H",
    failures="I",
    service="I",
)
STARTED = Shape("", started="Q")
