"""The bytes of what the kernel knows of failing backends, and of its events."""

from __future__ import annotations

from typing import Final

from isthmus.datapath.core.shapes import Shape

REASONS: Final = ("", "refused", "silent", "unreachable")
"""By enum failure_reason."""
FLOW_SENT: Final = 1
FLOW_ANSWERED: Final = 2
FLOW_CLOSED: Final = 16
KINDS: Final = ("", "ejected", "restored")
"""By enum event_kind."""

FLOW_KEY = Shape("flow_key", pod="16s", peer="16s", pod_port="2s", peer_port="2s", reverse="I")
FLOW = Shape(
    "flow",
    peer="16s",
    peer_port="2s",
    pod_port="2s",
    pod_flags="B",
    peer_flags="B",
    socket_flags="B",
    unused="B",
    backend="I",
    reserved="I",
    fin_end="8s",
    used="Q",
)
FAILING = Shape("failing", generation="I", failures="I", since="Q", until="Q", last="Q", level="I", reason="I")
GATE = Shape("gate", failing="I", moved="I")
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
