"""A call as ``isthmus flows`` shows it. No table: it is streamed as it happens, and forgotten."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Verdict = Literal["called", "refused", "lost", "rescued", "failed", "ejected"]
"""As the counters have them: sent to a backend; no backend; an entry missing; answered by another backend than the
first; an error for the application; in the place of an ejected backend."""

State = Literal["sent", "connected", "failed", "given up", "ended"]
"""``sent``: UDP, of which no more is known. ``ended``: a connection that was connected before is closed."""

FAILED: frozenset[Verdict] = frozenset({"refused", "lost", "failed"})
"""Verdicts of calls that did not reach a backend."""


class End(Struct, frozen=True, gc=False):
    """A backend: the cluster it is in, and its address and port."""

    cluster: str = ""
    address: str = ""
    gateways: tuple[str, ...] = ()
    """Of an island: its gateways that answered then, one of which the call went through. The address is the listener of
    this node's Envoy, which chose it."""


class Flow(Struct, frozen=True, gc=False, kw_only=True):
    """One state of a call that was sampled."""

    time: float
    """Unix time, s, when the call was made."""
    id: int
    """The same in all states of a connection."""
    state: State
    verdict: Verdict
    reason: str = ""
    """Why it failed: refused, silent or unreachable."""
    protocol: str
    node: str
    pod: str
    """namespace/name of the caller; empty where no pod of this node has its address: the node's own network."""
    source: str
    """The caller's address, and port where it is known."""
    service: str
    """namespace/name:port; the import's where the Service stands for one."""
    called: str
    """Address and port that were called."""
    asked: End = End()
    """The backend that the plan gave first."""
    answered: End = End()
    """The backend that the call was sent to in the end."""
    took: float
    """Seconds from the call to this state."""
    sent: int = 0
    """Bytes of the payload that the other side acknowledged; of ended connections alone."""
    received: int = 0
