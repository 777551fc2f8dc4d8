"""Struct codecs of flow records and byte counters."""

from __future__ import annotations

from typing import Final

from isthmus.datapath.core.shapes import Shape
from isthmus.model.flows import State

STATES: Final[tuple[State, ...]] = ("sent", "sent", "connected", "failed", "given up", "ended", "failed", "sent")
"""State by value of enum flow_state, which has no 0."""
REFUSED: Final = 6
AUDITED: Final = 7
"""The two states of which a record is a refusal by a policy at the pod."""

FLOW_RECORD = Shape(
    "flow_record",
    time="Q",
    took="Q",
    socket="Q",
    caller="Q",
    sent="Q",
    received="Q",
    pod="16s",
    called="16s",
    asked="16s",
    answered="16s",
    pod_port="2s",
    called_port="2s",
    asked_port="2s",
    answered_port="2s",
    service="I",
    asked_backend="I",
    answered_backend="I",
    asked_cluster="H",
    answered_cluster="H",
    protocol="B",
    verdict="B",
    state="B",
    reason="B",
    for_caller="I",
)
TRAFFIC = Shape("traffic", sent="Q", received="Q")
PASSED_OVER = Shape("passed_over", socket="Q", backend="I", reserved="I")
LOST = Shape("", records="Q")
