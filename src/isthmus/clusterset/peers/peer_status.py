"""Facts about a peer, and the one function that judges them: facts in, its row of ``clusters`` out.

``connection`` and ``liveness``, which follow a peer, record facts and decide nothing. Everything that people and
other parts read about a peer (state, reason, since when) follows from the facts and the time, so the same facts give
the same verdict in agent, operator and mirror. All times are UTC on one clock that never steps (:func:`steady_clock`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from msgspec import Struct

from isthmus import bounds
from isthmus.clusterset.certificates import EXPIRY_WARNING, Expiry
from isthmus.clusterset.records import identity
from isthmus.clusterset.records.decoding import wall_clock
from isthmus.clusterset.records.forms import OPTIONAL
from isthmus.clusterset.records.identity import ClusterConfig, Description
from isthmus.model.clusters import Cluster, PeerState
from isthmus.model.mcs import RecordKind
from isthmus.model.names import ClusterName
from isthmus.times import timestamp

CONFIG: Final = "config"
"""The link that follows a peer's configuration; every other link is called as the kind of record that it follows."""


MAX_SKEW: Final = 60.0
"""Seconds by which clocks may differ: a receiver accepts the epochs before and after its own (identity/keys.py)."""


class Heartbeat(Struct, frozen=True, gc=False, kw_only=True):
    """The last sign of life of a peer's publisher."""

    time: datetime
    """Time at which the key was last written or deleted; before that, time at which its watch began."""
    good_for: float
    """Seconds after which the publisher is silent."""
    exists: bool = True
    """True if the key exists, or has not been read yet."""
    beating: bool = False
    """True if a heartbeat was seen since the connection was last reopened for lack of one."""


class PeerFacts(Struct, frozen=True, kw_only=True):
    """Everything known about one peer. Replaced as a whole, by its connection alone."""

    name: ClusterName
    kinds: tuple[RecordKind, ...]
    """Kinds of records that this process follows."""
    most: identity.Most = 255
    """Our own maxConnectedClusters."""
    lifetime: float = 0.0
    """Seconds for which endpoints are used after their last confirmation; 0 uses them for ever."""
    endpoints: tuple[str, ...] = ()
    """Addresses of its etcd."""
    file_problem: str = ""
    """Reason why the current version of its file is unusable; the last usable version stays in effect."""
    failing: Mapping[str, str] = {}
    """Reasons why tasks that follow it fail, by task; each is restarted meanwhile."""
    expiry: Expiry | None = None
    """Earliest expiry of our files for its connection."""
    served: Expiry | None = None
    """Earliest expiry of the certificates that its etcd shows; ``None`` until one was seen."""

    links: Mapping[str, bool] = {}
    """By link: True if its watch is established."""
    lost: datetime | None = None
    """Time since which some link has failed; ``None`` while none has."""
    failure: str = ""
    """Reason of the last failure of a link."""
    failures: int = 0
    """Failures in this process. A peer restored from disk is lost without one."""
    failed_at: datetime | None = None
    last_failure: str = ""

    published: bytes = b""
    """The last readable configuration that it published."""
    unpublished: str = ""
    """Reason why its configuration cannot be read; the previous one stays in effect."""
    config: ClusterConfig | None = None
    """The configuration by which it is followed; ``None`` while it is not followed."""
    distrusted: bool = False
    """True if an administrator withdrew trust in it, so that none of its records are used."""
    refusal: str = ""
    """Reason why it is refused; empty if it is not."""
    synced: tuple[RecordKind, ...] = ()
    """Kinds listed completely since the configuration was accepted."""
    listed: datetime | None = None
    """Time of the last complete list of its endpoints."""
    dropped: Mapping[RecordKind, tuple[int, str]] = {}
    """Number of unusable records by kind, and one of them with the reason."""
    description: Description | None = None
    """Its description, published by itself or its mirror; clusters of Cilium publish none."""

    heartbeat: Heartbeat | None = None
    """Heartbeat of its publisher; ``None`` behind a mirror, which copies none."""
    clock_ahead: float = 0.0
    """Seconds by which its clock is ahead of ours, negative if it is behind; 0 if unknown, as behind a mirror."""
    unmirrored: datetime | None = None
    """Time since which no mirror is running; relevant for copies only."""


class Away(NamedTuple):
    """Reason why a peer cannot be followed, and since when."""

    reason: str
    since: datetime


def judge(facts: PeerFacts, now: datetime) -> Cluster:
    """The row of a peer. ``began`` is empty where the facts have no time for it: the state begins when it is seen."""
    state, reason = _verdict(facts, now)
    if state not in ("distrusted", "refused"):
        reason = "; ".join(filter(None, (reason, expiring(facts, now), skewed(facts))))
    began = _state_began(state, facts, now)
    described = facts.description or Description()
    capabilities = facts.config.capabilities if facts.config is not None else identity.Capabilities()
    return Cluster(
        name=facts.name,
        id=facts.config.id if facts.config is not None else 0,
        state=state,
        since=timestamp(began) if began is not None else "",
        reason=reason,
        endpoints=facts.endpoints,
        synced=tuple(kind for kind in facts.kinds if kind in facts.synced),
        exports_enabled=capabilities.service_exports_enabled,
        cached=capabilities.cached,
        network=described.network,
        region=described.region,
        zone=described.zone,
        labels=identity.label_pairs(described.labels),
        gateways=described.gateways,
        drains=described.drains,
        signing_key=described.signing.key,
        verifies=described.signing.verifies,
        version=described.version,
        connected=facts.links.get(CONFIG, False),
        failures=facts.failures,
        last_failure=timestamp(facts.failed_at) if facts.failed_at is not None else "",
        last_failure_reason=facts.last_failure,
        file_problem=facts.file_problem,
        failing="; ".join(f"{task}: {error}" for task, error in sorted(facts.failing.items())),
        certificate_ends=timestamp(expiry.time) if (expiry := first_expiry(facts)) is not None else "",
        dropped=sum(count for count, _ in facts.dropped.values()),
        dropped_example=next((f"{kind} {example}" for kind, (_, example) in facts.dropped.items() if example), ""),
    )


def _verdict(facts: PeerFacts, now: datetime) -> tuple[PeerState, str]:
    """State and reason: the first case that holds."""
    if facts.distrusted:
        return "distrusted", f"none of its records counts, until: isthmus clusters trust {facts.name}"
    if facts.refusal:
        return "refused", facts.refusal
    if (absence := away(facts, now)) is not None:
        if facts.synced:
            return "stale", absence.reason
        return "listing" if facts.config is not None and facts.links.get(CONFIG) else "connecting", absence.reason
    if facts.config is None:
        return "connecting", facts.unpublished
    remark = facts.unpublished or _remark(facts, facts.config)
    if not set(facts.kinds) - OPTIONAL <= set(facts.synced):
        return "listing", remark
    silent = silence(facts, now)
    return ("silent", silent.reason) if silent is not None else ("ready", remark)


def expiring(facts: PeerFacts, now: datetime) -> str:
    """Warning that a certificate for the connection expires within days, or has expired; empty if none does."""
    expiry = first_expiry(facts)
    if expiry is None or now + EXPIRY_WARNING < expiry.time:
        return ""
    file, end = expiry
    if now >= end:
        return f"{file} ended at {end:%Y-%m-%d %H:%M} UTC: every new connection is refused until it is renewed"
    return f"{file} ends at {end:%Y-%m-%d %H:%M} UTC: from then on every new connection is refused"


def skewed(facts: PeerFacts) -> str:
    """Warning that the clock of a cluster that signs differs by more than signatures bear; empty if it does not."""
    signs = facts.description is not None and facts.description.signing.key
    if not signs or abs(facts.clock_ahead) <= MAX_SKEW:
        return ""
    direction = "ahead of" if facts.clock_ahead > 0 else "behind"
    minutes = abs(facts.clock_ahead) // 60
    return f"its clock is {minutes:.0f} min or more {direction} ours, so signatures of callers are not accepted"


def first_expiry(facts: PeerFacts) -> Expiry | None:
    """Earliest expiry of a certificate for the connection, on either side; ``None`` if none is known."""
    return min(filter(None, (facts.expiry, facts.served)), key=lambda expiry: expiry.time, default=None)


def away(facts: PeerFacts, now: datetime) -> Away | None:
    """Reason and time since which a connected peer cannot be followed; ``None`` if it can, or never was connected."""
    if facts.lost is not None:
        return Away(facts.failure, facts.lost)
    return unmirrored(facts, now)


def unmirrored(facts: PeerFacts, now: datetime) -> Away | None:
    """Reason and time since which the mirror does not update the copies; ``None`` if it does, or without a mirror."""
    described = facts.description
    if facts.config is None or not facts.config.capabilities.cached or described is None:  # Cilium's mirror writes none
        return None
    absence = described.away_since(now)
    if facts.unmirrored is not None:
        began = min(absence, facts.unmirrored) if absence is not None else facts.unmirrored
        return Away("no mirror is running: its records are not copied", began)
    return Away(f"the mirror has not reached it since {described.away}", absence) if absence is not None else None


def unconfirmed(facts: PeerFacts, now: datetime) -> datetime | None:
    """Time since which the peer's endpoints have not been confirmed; ``None`` while they are.

    A list confirms them even while another link is broken. A list of copies does not: they may be old.
    """
    if (copies := unmirrored(facts, now)) is not None:
        return min(copies.since, facts.lost) if facts.lost is not None else copies.since
    if facts.lost is None or facts.listed is None:
        return facts.lost
    return max(facts.lost, facts.listed)


def lapsed(facts: PeerFacts, now: datetime) -> bool:
    """True if the peer's endpoints have outlived the cache lifetime."""
    began = unconfirmed(facts, now)
    return bool(facts.lifetime) and began is not None and now >= bounds.after(began, facts.lifetime)


def _state_began(state: PeerState, facts: PeerFacts, now: datetime) -> datetime | None:
    absence = away(facts, now) if state == "stale" else silence(facts, now) if state == "silent" else None
    return absence.since if absence is not None else None


def silence(facts: PeerFacts, now: datetime) -> Away | None:
    """Reason and time since which the peer seems to have no publisher; ``None`` if it has one, or without a heartbeat.

    Its etcd answers, so its records are readable but may be out of date. Behind a mirror, the mirror watches the
    heartbeat and reports silence in its description of the peer.
    """
    described, beat = facts.description, facts.heartbeat
    if facts.config is not None and facts.config.capabilities.cached:
        began = described.silent_since(now) if described is not None else None
        return Away("it has no publisher: its operator is not there", began) if began is not None else None
    if beat is None or now < bounds.after(beat.time, beat.good_for):
        return None
    if beat.exists:
        return Away(f"it has had no publisher for {beat.good_for:.0f} s: its operator is not there", beat.time)
    return Away("it has no publisher, its heartbeat has ended: its operator is not there", beat.time)


def next_change(facts: PeerFacts, now: datetime) -> datetime | None:
    """Next time at which the verdict may change without a new fact; ``None`` if it cannot."""
    due = []
    if facts.lifetime and (began := unconfirmed(facts, now)) is not None:
        due.append(bounds.after(began, facts.lifetime))
    if facts.heartbeat is not None:
        due.append(bounds.after(facts.heartbeat.time, facts.heartbeat.good_for))
    if (expiry := first_expiry(facts)) is not None and expiry.time > now:
        due += [expiry.time - EXPIRY_WARNING, expiry.time]
    return min((each for each in due if each > now), default=None)


def _remark(facts: PeerFacts, config: ClusterConfig) -> str:
    """Remark about a peer that is followed in spite of it."""
    limit = config.capabilities.max_connected_clusters
    return (
        f"its maxConnectedClusters is {bounds.shown(limit)}, ours {facts.most}" if limit not in (0, facts.most) else ""
    )


def steady_clock() -> Callable[[], datetime]:
    """A clock in UTC that advances with the event loop's, so that a step of the system clock lapses nothing."""
    loop = asyncio.get_running_loop()
    began, origin = loop.time(), wall_clock()
    return lambda: bounds.after(origin, loop.time() - began)
