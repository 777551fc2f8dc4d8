"""What is known about a peer, and the one function that judges it: facts in, its row of ``clusters`` out.

``connection`` and ``liveness``, which follow a peer, record facts and decide nothing. Everything that people and
other parts read about a peer (state, reason, since when) follows from the facts and the time, so the same facts give
the same verdict in agent, operator and mirror. All times are UTC on one clock that never steps (:func:`steady_clock`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from msgspec import Struct

from isthmus.clusterset import identity
from isthmus.clusterset.certificates import Expiry
from isthmus.clusterset.decoding import wall_clock
from isthmus.clusterset.identity import SLICES_ONLY, ClusterConfig, Description
from isthmus.model.clusters import Cluster, PeerState
from isthmus.model.mcs import RecordKind
from isthmus.model.names import ClusterName
from isthmus.times import timestamp

EXPIRY_WARNING: Final = timedelta(days=14)
"""How long before the end of a certificate its peer's reason has it: enough to renew it in working hours."""

CONFIG: Final = "config"
"""The link that follows a peer's configuration; every other link is called as the kind of record that it follows."""


class Heartbeat(Struct, frozen=True, gc=False, kw_only=True):
    """The last sign of life of a peer's publisher."""

    at: datetime
    """When the key was last written or deleted; before the first of these, when the watch for it began."""
    good_for: float
    """Seconds after which the publisher is silent."""
    present: bool = True
    """Whether the key exists, as far as known."""
    beating: bool = False
    """Whether one was seen since the connection was last made anew for the lack of one."""


class PeerFacts(Struct, frozen=True, kw_only=True):
    """Everything known about one peer. Replaced as a whole, by its connection alone."""

    name: ClusterName
    kinds: tuple[RecordKind, ...]
    """What this process follows of it."""
    most: identity.Most = 255
    """Our own maxConnectedClusters."""
    lifetime: float = 0.0
    """Seconds for which endpoints count after they were last confirmed; 0: for ever."""
    endpoints: tuple[str, ...] = ()
    """Addresses of its etcd."""
    file_problem: str = ""
    """Why its file cannot be used as it is now. What was read of it before still counts."""
    expiry: Expiry | None = None
    """What ends first of the certificates by which it is reached."""

    links: Mapping[str, bool] = {}
    """By what is followed: whether its watch stands."""
    lost: datetime | None = None
    """Since when some link has failed; None while all of them stand, and before any failed."""
    failure: str = ""
    """Why a link failed last."""
    failures: int = 0
    """Failures in this process. A peer restored from disk is lost without one."""
    failed_at: datetime | None = None
    last_failure: str = ""

    published: bytes = b""
    """Its configuration as it published it last, where that could be read."""
    unpublished: str = ""
    """Why its configuration cannot be read now. What was read before still counts."""
    config: ClusterConfig | None = None
    """The configuration by which it is followed; None while it is not."""
    distrusted: bool = False
    """Whether an administrator took its records out."""
    refusal: str = ""
    """Why it is not followed though its configuration is known."""
    synced: tuple[RecordKind, ...] = ()
    """Kinds whose list was whole since the configuration was accepted."""
    listed: datetime | None = None
    """When its endpoints were last listed whole."""
    dropped: Mapping[RecordKind, tuple[int, str]] = {}
    """By kind: how many records cannot be used, and one of them with the reason."""
    description: Description | None = None
    """What it publishes beside Cilium's configuration, or its mirror on its behalf; Cilium's publish none."""

    heartbeat: Heartbeat | None = None
    """Of its publisher; None behind a mirror, which has no heartbeat to watch."""
    unmirrored: datetime | None = None
    """Since when no mirror is running; counts for copies only."""


class Away(NamedTuple):
    """Why a peer cannot be followed, and since when."""

    why: str
    since: datetime


def judge(facts: PeerFacts, now: datetime) -> Cluster:
    """The row of a peer. ``since`` is empty where the facts have no time for it: the state begins when it is seen."""
    state, reason = _verdict(facts, now)
    if state not in ("distrusted", "refused"):
        reason = "; ".join(filter(None, (reason, expiring(facts, now))))
    since = _since(state, facts, now)
    described = facts.description or Description()
    capabilities = facts.config.capabilities if facts.config is not None else identity.Capabilities()
    return Cluster(
        name=facts.name,
        id=facts.config.id if facts.config is not None else 0,
        state=state,
        since=timestamp(since) if since is not None else "",
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
        version=described.version,
        connected=facts.links.get(CONFIG, False),
        failures=facts.failures,
        last_failure=timestamp(facts.failed_at) if facts.failed_at is not None else "",
        last_failure_reason=facts.last_failure,
        file_problem=facts.file_problem,
        certificate_ends=timestamp(facts.expiry.at) if facts.expiry is not None else "",
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
            return "stale", absence.why
        return "listing" if facts.config is not None and facts.links.get(CONFIG) else "connecting", absence.why
    if facts.config is None:
        return "connecting", facts.unpublished
    remark = facts.unpublished or _remark(facts, facts.config)
    if not set(facts.kinds) <= set(facts.synced):
        return "listing", remark
    silent = silence(facts, now)
    return ("silent", silent.why) if silent is not None else ("ready", remark)


def expiring(facts: PeerFacts, now: datetime) -> str:
    """That a certificate by which a peer is reached ends within days, or has ended; empty where none does."""
    if facts.expiry is None or now + EXPIRY_WARNING < facts.expiry.at:
        return ""
    file, at = facts.expiry
    if now >= at:
        return f"{file} ended at {at:%Y-%m-%d %H:%M} UTC: every new connection is refused until it is renewed"
    return f"{file} ends at {at:%Y-%m-%d %H:%M} UTC: from then on every new connection is refused"


def away(facts: PeerFacts, now: datetime) -> Away | None:
    """Why and since when the peer cannot be followed; None where it is. One that was never connected is not away."""
    if facts.lost is not None:
        return Away(facts.failure, facts.lost)
    return unmirrored(facts, now)


def unmirrored(facts: PeerFacts, now: datetime) -> Away | None:
    """Why the mirror does not update the peer's copies, and since when; None while it does, or without a mirror."""
    described = facts.description
    if facts.config is None or not facts.config.capabilities.cached or described is None:  # Cilium's mirror writes none
        return None
    absence = described.away_since(now)
    if facts.unmirrored is not None:
        since = min(absence, facts.unmirrored) if absence is not None else facts.unmirrored
        return Away("no mirror is running: its records are not copied", since)
    return Away(f"the mirror has not reached it since {described.away}", absence) if absence is not None else None


def unconfirmed(facts: PeerFacts, now: datetime) -> datetime | None:
    """Since when endpoints of the peer have not been confirmed; None while they are.

    A list is confirmation even while another link is broken; a list of copies is not: the mirror may have made them
    long ago.
    """
    if (copies := unmirrored(facts, now)) is not None:
        return min(copies.since, facts.lost) if facts.lost is not None else copies.since
    if facts.lost is None or facts.listed is None:
        return facts.lost
    return max(facts.lost, facts.listed)


def lapsed(facts: PeerFacts, now: datetime) -> bool:
    """Whether the peer's endpoints are older than they are good for."""
    since = unconfirmed(facts, now)
    return bool(facts.lifetime) and since is not None and now >= since + timedelta(seconds=facts.lifetime)


def _since(state: PeerState, facts: PeerFacts, now: datetime) -> datetime | None:
    found = away(facts, now) if state == "stale" else silence(facts, now) if state == "silent" else None
    return found.since if found is not None else None


def silence(facts: PeerFacts, now: datetime) -> Away | None:
    """Why the peer is taken to have no publisher, and since when; None while it has one, or without a heartbeat.

    Its etcd answers, so its records are readable but may be out of date. Behind a mirror it is the mirror that watches
    the heartbeat, and writes what it finds into its description of the peer.
    """
    described, beat = facts.description, facts.heartbeat
    if facts.config is not None and facts.config.capabilities.cached:
        since = described.silent_since(now) if described is not None else None
        return Away("it has no publisher: its operator is not there", since) if since is not None else None
    if beat is None or now < beat.at + timedelta(seconds=beat.good_for):
        return None
    if beat.present:
        return Away(f"it has had no publisher for {beat.good_for:.0f} s: its operator is not there", beat.at)
    return Away("it has no publisher, its heartbeat has ended: its operator is not there", beat.at)


def next_change(facts: PeerFacts, now: datetime) -> datetime | None:
    """When the verdict may change though no fact does; None where it cannot."""
    due = []
    if facts.lifetime and (since := unconfirmed(facts, now)) is not None:
        due.append(since + timedelta(seconds=facts.lifetime))
    if facts.heartbeat is not None:
        due.append(facts.heartbeat.at + timedelta(seconds=facts.heartbeat.good_for))
    if facts.expiry is not None and facts.expiry.at > now:
        due += [facts.expiry.at - EXPIRY_WARNING, facts.expiry.at]
    return min((each for each in due if each > now), default=None)


def _remark(facts: PeerFacts, config: ClusterConfig) -> str:
    """What people should know about a peer that is followed nevertheless."""
    if "services" in facts.kinds and config.capabilities.endpoint_slices_export_mode == SLICES_ONLY:
        return "it publishes its endpoints as EndpointSlices only, which are not read"
    limit = config.capabilities.max_connected_clusters
    return f"its maxConnectedClusters is {limit}, ours {facts.most}" if limit not in (0, facts.most) else ""


def steady_clock() -> Callable[[], datetime]:
    """The time of day as of now, moved on by the event loop's clock: a step of the system's clock lapses nothing."""
    loop = asyncio.get_running_loop()
    began, at = loop.time(), wall_clock()
    return lambda: at + timedelta(seconds=loop.time() - began)
