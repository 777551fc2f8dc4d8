"""Struct codecs of the kernel's state of failing backends, and of its events."""

from __future__ import annotations

from typing import Final

from isthmus.datapath.core.shapes import Shape

REASONS: Final = ("", "refused", "silent", "unreachable", "denied")
"""Names by value of enum failure_reason."""
FLOW_SENT: Final = 1
FLOW_ANSWERED: Final = 2
FLOW_CLOSED: Final = 16
KINDS: Final = ("", "ejected", "restored", "ejected for a caller")
"""Names by value of enum event_kind."""
CALLER_EJECTED: Final = 3
CALLER_CELLS: Final = 128

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
    acknowledged="I",
    fin_end="8s",
    used="Q",
)
UNANSWERED = Shape(
    "unanswered",
    sent="Q",
    sequence="I",
    backend="I",
    generation="I",
    service="I",
    caller="I",
    cluster="H",
    answered="H",
)
HANDSHAKE = Shape("handshake", generation="I", smoothed="I", deviation="I", reserved="I")
EARLY_MOVES = Shape("early_moves", second="Q", connects="I", connects_before="I", moves="I", reserved="I")
UDP_FLOW = Shape("udp_flow", peer="16s", peer_port="2s", pod_port="2s", service="I", socket="Q")
FAILING = Shape(
    "failing",
    generation="I",
    failures="I",
    since="Q",
    until="Q",
    last="Q",
    level="I",
    reason="I",
    claim_until="Q",
    claimant="I",
    claimant_pod="I",
    answered="Q",
    answered_to="I",
    unused="I",
)
CALLER_KEY = Shape("caller_key", caller="I", cell="I")
CALLER_FAILING = Shape(
    "caller_failing",
    backend="I",
    generation="I",
    failures="I",
    level="H",
    reason="H",
    since="Q",
    until="Q",
    last="Q",
    trial="Q",
)
DENIAL_KEY = Shape("denial_key", caller="I", backend="I")
DENIAL = Shape("denial", generation="I", unused="I", connects="Q", last="Q")
VERDICTS: Final = ("", "answers", "dead")
"""Names by value of enum probe_verdict."""
ANSWERS, DEAD = 1, 2
PROBED = Shape("probed", generation="I", verdict="I", since="Q", until="Q")
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
    caller="I",
    unused="I",
)
STARTED = Shape("", started="Q")
