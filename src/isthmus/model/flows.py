"""A call as ``isthmus flows`` shows it. It is in no table: states are streamed, and the newest are kept."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Verdict = Literal["called", "refused", "lost", "rescued", "failed", "ejected", "denied", "audited"]
"""Outcome of a call, named as its counter: ``called``: sent to a backend; ``refused``: no backend; ``lost``: an entry
was missing; ``rescued``: another backend than the first one answered; ``failed``: the application received an error;
``ejected``: sent to another backend because the chosen one is ejected; ``denied``: the application
received the error of a network policy, or an ExportPolicy refused the call here; ``audited``: one would have."""

State = Literal["sent", "connected", "failed", "given up", "ended"]
"""``sent`` is the only state of UDP. ``ended``: an established connection was closed."""

FAILED: frozenset[Verdict] = frozenset({"refused", "lost", "failed", "denied"})
"""Verdicts of calls that did not reach a backend."""


class End(Struct, frozen=True, gc=False):
    """A backend: the cluster it is in, and its address and port."""

    cluster: str = ""
    address: str = ""
    gateways: tuple[str, ...] = ()
    """Gateways of an island that answered at that time, one of which forwarded the call. The address is then the
    listener of this node's Envoy, which chose the gateway."""


class Flow(Struct, frozen=True, gc=False, kw_only=True):
    """One state of a call that was sampled, that failed or that was rescued."""

    time: float
    """Unix time, s, when the call was made."""
    id: int
    """Identifier shared by all states of a connection."""
    state: State
    verdict: Verdict
    reason: str = ""
    """Reason of a failure: ``refused``, ``silent``, ``unreachable`` or ``denied``. Of a refusal by an ExportPolicy, as
    in ``caller_refusals``."""
    protocol: str
    node: str
    pod: str
    """namespace/name of the caller; empty for a caller in the node's own network."""
    source: str
    """The caller's address, and port where it is known."""
    service: str
    """namespace/name:port; of the import if the Service represents one."""
    called: str
    """Address and port that were called."""
    asked: End = End()
    """The backend that the plan chose first."""
    for_caller: bool = False
    """True if the verdict is ``ejected`` and the backend is ejected for this caller alone."""
    answered: End = End()
    """The backend to which the call was finally sent."""
    took: float
    """Seconds from the call to this state."""
    sent: int = 0
    """Payload bytes that the other side acknowledged; for ended connections only."""
    received: int = 0
    policy: str = ""
    """namespace/name of the ExportPolicy that refused a call to a pod of this node, or would have. ``source`` is then
    the caller, and ``called`` the pod."""
    caller: str = ""
    """Cluster and account that such a caller proved, or the cluster that it claims; empty if that is unknown."""
    identity: int = 0
    """Number of that account; if it is not proven, the part with the cluster's id."""


def is_failed(flow: Flow) -> bool:
    """True if a call had no answer: it reached no backend, or the application gave up before."""
    return flow.verdict in FAILED or flow.state == "given up"
