"""Judges by the answer to a probe whether the proof of callers arrives in another cluster. Pure.

A probe is a signed connect. A node that refuses it quotes the whole SYN as it arrived there, and the code of the error
shows whether the identity was proven (bpf/verify.h). So a refused connect shows more than an accepted one, which may
have met no policy, or one that judges by addresses: then the path is unknown, and nothing depends on it.
"""

from __future__ import annotations

import errno
from typing import Final, NamedTuple

from isthmus.model.signing import PathState

PROVEN: Final = frozenset({(3, 13), (1, 1)})
"""Types and codes of ICMP and ICMPv6 errors about a caller that is proven and not allowed."""
UNPROVEN: Final = frozenset({(3, 10), (1, 5)})
OPTION: Final = bytes.fromhex("fd101577")
"""The first bytes of the option, which is the last 16 of the header (bpf/sign.h)."""
OPTION_BYTES: Final = 16
SHORTEST_HEADER: Final = 20


class Answer(NamedTuple):
    """Result of a probe's connect."""

    error: int = 0
    """An errno; 0 if it was accepted."""
    kind: tuple[int, int] = (0, 0)
    """Type and code of the ICMP error that ended it."""
    quoted: bytes = b""
    """The TCP header in the ICMP error: the SYN as it was on the other side. Empty if the kernel does not show it."""


class Verdict(NamedTuple):
    """State of a path by one probe, with the reason as a phrase."""

    state: PathState
    reason: str


def judge(answer: Answer) -> Verdict | None:
    """Judge the path by an answer; ``None`` if the answer is inconclusive."""
    if not answer.error:
        return Verdict("ok", "a signed call was accepted")
    if answer.error == errno.ETIMEDOUT:
        return Verdict("silent", "signed calls get no answer")
    header = answer.quoted[12] >> 4 << 2 if len(answer.quoted) >= SHORTEST_HEADER else 0
    if answer.kind not in PROVEN | UNPROVEN or not SHORTEST_HEADER <= header <= len(answer.quoted):
        return None
    if not answer.quoted[header - OPTION_BYTES : header].startswith(OPTION):
        return Verdict("stripped", "something on the way removes the proof, a TCP option")
    if answer.kind in UNPROVEN:
        return Verdict(
            "rewritten", "the proof arrives and is not valid there: a NAT on the way, or clocks or keys differ"
        )
    return Verdict("ok", "a signed call was refused as proven")
