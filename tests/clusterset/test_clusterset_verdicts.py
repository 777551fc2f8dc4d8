"""The table by which a peer is judged: facts on the left, its row of ``clusters`` on the right."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

from isthmus.clusterset.certificates import Expiry
from isthmus.clusterset.peers.peer_status import (
    CONFIG,
    Heartbeat,
    PeerFacts,
    away,
    judge,
    lapsed,
    next_change,
    unconfirmed,
)
from isthmus.clusterset.peers.timings import TIMINGS
from isthmus.clusterset.records.identity import Capabilities, ClusterConfig, Description
from isthmus.clusterset.records.signing import Signing
from isthmus.model.names import ClusterName
from isthmus.times import timestamp

LATE, ABSENT = TIMINGS.late, TIMINGS.absent
NOW = datetime(2026, 11, 22, 12, 0, 0, tzinfo=UTC)
CONFIGURED = ClusterConfig(2, Capabilities(True, max_connected_clusters=255, service_exports_enabled=True))
COPIED = structs.replace(CONFIGURED, capabilities=structs.replace(CONFIGURED.capabilities, cached=True))
BOTH: Any = ("services", "serviceexports")
STANDS = {CONFIG: True, "services": True, "serviceexports": True}
FOLLOWED = {"config": CONFIGURED, "synced": BOTH, "links": STANDS}


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def facts(**known: Any) -> PeerFacts:
    return PeerFacts(name=ClusterName("c2"), kinds=BOTH, lifetime=600.0, **known)


SIGNS = Description(signing=Signing("key"))

CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "its clock is ahead, and it signs": (
        {**FOLLOWED, "description": SIGNS, "clock_ahead": 61.0},
        "ready",
        "its clock is 1 min or more ahead of ours, so signatures of callers are not accepted",
    ),
    "its clock is behind, and it signs": (
        {**FOLLOWED, "description": SIGNS, "clock_ahead": -200.0},
        "ready",
        "its clock is 3 min or more behind ours, so signatures of callers are not accepted",
    ),
    "its clock is a minute off": ({**FOLLOWED, "description": SIGNS, "clock_ahead": 60.0}, "ready", ""),
    "its clock is off, and it does not sign": ({**FOLLOWED, "clock_ahead": 600.0}, "ready", ""),
    "nothing is known": ({}, "connecting", ""),
    "its file cannot be used": ({"lost": ago(1), "failure": "no YAML"}, "connecting", "no YAML"),
    "its etcd never answered": (
        {"lost": ago(9), "failure": "refused", "links": {CONFIG: False}},
        "connecting",
        "refused",
    ),
    "it has no configuration": ({"unpublished": "has none", "links": {CONFIG: True}}, "connecting", "has none"),
    "its configuration is accepted": ({"config": CONFIGURED, "links": {CONFIG: True}}, "listing", ""),
    "one kind is listed": ({"config": CONFIGURED, "synced": ("services",), "links": STANDS}, "listing", ""),
    "one kind is listed, the other's link fails": (
        {"config": CONFIGURED, "synced": ("services",), "links": STANDS, "lost": ago(1), "failure": "denied"},
        "stale",
        "denied",
    ),
    "no kind is listed and a link fails, but not that of the configuration": (
        {"config": CONFIGURED, "links": {CONFIG: True, "services": False}, "lost": ago(1), "failure": "denied"},
        "listing",
        "denied",
    ),
    "both kinds are listed": (FOLLOWED, "ready", ""),
    "its links are being made anew": ({**FOLLOWED, "links": dict.fromkeys(STANDS, False)}, "ready", ""),
    "a link fails": ({**FOLLOWED, "lost": ago(1), "failure": "cut off"}, "stale", "cut off"),
    "it was restored from disk": (
        {"config": CONFIGURED, "synced": BOTH, "lost": ago(300), "failure": "as it was"},
        "stale",
        "as it was",
    ),
    "its id is another's": ({"refusal": "id 1 is that of c1", "published": b"{}"}, "refused", "id 1 is that of c1"),
    "its id is another's, and it cannot be reached": (
        {"refusal": "id 1 is that of c1", "lost": ago(1), "failure": "cut off"},
        "refused",
        "id 1 is that of c1",
    ),
    "its configuration went while it is followed": ({**FOLLOWED, "unpublished": "has none"}, "ready", "has none"),
    "its heartbeat is in time": ({**FOLLOWED, "heartbeat": Heartbeat(time=ago(LATE - 1), good_for=LATE)}, "ready", ""),
    "its heartbeat is late": (
        {**FOLLOWED, "heartbeat": Heartbeat(time=ago(LATE), good_for=LATE)},
        "silent",
        "it has had no publisher for 150 s: its operator is not there",
    ),
    "its heartbeat went": (
        {**FOLLOWED, "heartbeat": Heartbeat(time=ago(0), exists=False, good_for=0.0)},
        "silent",
        "it has no publisher, its heartbeat has ended: its operator is not there",
    ),
    "it has no heartbeat yet": (
        {**FOLLOWED, "heartbeat": Heartbeat(time=ago(19), exists=False, good_for=ABSENT)},
        "ready",
        "",
    ),
    "it has had no heartbeat for 20 s": (
        {**FOLLOWED, "heartbeat": Heartbeat(time=ago(20), exists=False, good_for=ABSENT)},
        "silent",
        "it has no publisher, its heartbeat has ended: its operator is not there",
    ),
    "it is silent and cannot be reached": (
        {**FOLLOWED, "heartbeat": Heartbeat(time=ago(LATE), good_for=LATE), "lost": ago(1), "failure": "cut off"},
        "stale",
        "cut off",
    ),
    "it is silent and its records are not whole": (
        {"config": CONFIGURED, "links": {CONFIG: True}, "heartbeat": Heartbeat(time=ago(LATE), good_for=LATE)},
        "listing",
        "",
    ),
    "copies, and the mirror finds it silent": (
        {**FOLLOWED, "config": COPIED, "description": Description(silent=timestamp(ago(60)))},
        "silent",
        "it has no publisher: its operator is not there",
    ),
    "an administrator distrusts it": (
        {"distrusted": True, "links": STANDS},
        "distrusted",
        "none of its records counts, until: isthmus clusters trust c2",
    ),
    "it is distrusted and cannot be reached": (
        {"distrusted": True, "lost": ago(1), "failure": "cut off"},
        "distrusted",
        "none of its records counts, until: isthmus clusters trust c2",
    ),
    "it knows another number of clusters": (
        {**FOLLOWED, "config": ClusterConfig(2, Capabilities(max_connected_clusters=511))},
        "ready",
        "its maxConnectedClusters is 511, ours 255",
    ),
    "it publishes slices only": (
        {**FOLLOWED, "config": ClusterConfig(2, Capabilities(endpoint_slices_export_mode="endpointslices-only"))},
        "ready",
        "",
    ),
    "copies, and its mirror runs": ({**FOLLOWED, "config": COPIED, "description": Description()}, "ready", ""),
    "copies, and no mirror runs": (
        {**FOLLOWED, "config": COPIED, "description": Description(), "unmirrored": ago(5)},
        "stale",
        "no mirror is running: its records are not copied",
    ),
    "copies of Cilium's mirror, which describes nothing": (
        {**FOLLOWED, "config": COPIED, "unmirrored": ago(5)},
        "ready",
        "",
    ),
    "copies, and the mirror cannot reach it": (
        {**FOLLOWED, "config": COPIED, "description": Description(away=timestamp(ago(60)))},
        "stale",
        f"the mirror has not reached it since {timestamp(ago(60))}",
    ),
    "a certificate ends in a few days": (
        {**FOLLOWED, "expiry": Expiry("/peers/c2.crt", ago(-3 * 86400))},
        "ready",
        "/peers/c2.crt ends at 2026-11-25 12:00 UTC: from then on every new connection is refused",
    ),
    "a certificate ends in three weeks": (
        {**FOLLOWED, "expiry": Expiry("/peers/c2.crt", ago(-21 * 86400))},
        "ready",
        "",
    ),
    "a certificate has ended while the connection goes on": (
        {**FOLLOWED, "expiry": Expiry("/peers/c2.crt", ago(0))},
        "ready",
        "/peers/c2.crt ended at 2026-11-22 12:00 UTC: every new connection is refused until it is renewed",
    ),
    "a certificate has ended, and the connection with it": (
        {**FOLLOWED, "expiry": Expiry("/peers/c2.crt", ago(86400)), "lost": ago(1), "failure": "cut off"},
        "stale",
        "cut off; /peers/c2.crt ended at 2026-11-21 12:00 UTC: every new connection is refused until it is renewed",
    ),
    "it is distrusted, and a certificate has ended": (
        {"distrusted": True, "links": STANDS, "expiry": Expiry("/peers/c2.crt", ago(86400))},
        "distrusted",
        "none of its records counts, until: isthmus clusters trust c2",
    ),
    "no copies, whatever stands in its description": (
        {**FOLLOWED, "description": Description(away=timestamp(ago(60))), "unmirrored": ago(5)},
        "ready",
        "",
    ),
}


@pytest.mark.parametrize(("known", "state", "reason"), CASES.values(), ids=CASES.keys())
def test_a_peer_is_judged_by_its_facts(known: dict[str, Any], state: str, reason: str) -> None:
    row = judge(facts(**known), NOW)
    assert (row.state, row.reason) == (state, reason)
    assert row.connected == known.get("links", {}).get(CONFIG, False)


def test_stale_is_dated_by_what_made_it_so_and_not_by_when_that_was_seen() -> None:
    assert judge(facts(**FOLLOWED, lost=ago(90), failure="cut off"), NOW).since == timestamp(ago(90))


def test_silent_is_dated_by_the_last_sign_of_life() -> None:
    assert judge(facts(**FOLLOWED, heartbeat=Heartbeat(time=ago(200), good_for=LATE)), NOW).since == timestamp(ago(200))


def test_a_clock_ahead_of_ours_dates_nothing_into_the_future() -> None:
    known = facts(**{**FOLLOWED, "config": COPIED}, description=Description(away=timestamp(ago(-60))))
    found = away(known, NOW)
    assert found is not None
    assert found.since == NOW


@pytest.mark.parametrize(
    ("known", "since"),
    [
        ({}, None),
        (FOLLOWED, None),
        ({**FOLLOWED, "lost": ago(100)}, ago(100)),
        ({**FOLLOWED, "lost": ago(100), "listed": ago(300)}, ago(100)),
        ({**FOLLOWED, "lost": ago(100), "listed": ago(50)}, ago(50)),  # listed while another link is broken
        ({**FOLLOWED, "config": COPIED, "description": Description(away=timestamp(ago(70)))}, ago(70)),
        (
            {
                **FOLLOWED,
                "config": COPIED,
                "description": Description(away=timestamp(ago(70))),
                "unmirrored": ago(20),
                "listed": ago(1),
            },
            ago(70),
        ),
        ({**FOLLOWED, "config": COPIED, "description": Description(), "unmirrored": ago(20), "lost": ago(30)}, ago(30)),
    ],
)
def test_endpoints_are_unconfirmed_since(known: dict[str, Any], since: datetime | None) -> None:
    assert unconfirmed(facts(**known), NOW) == since


@pytest.mark.parametrize(("age", "over"), [(599.0, False), (600.0, True), (9000.0, True)])
def test_endpoints_lapse_when_the_lifetime_is_over_and_are_judged_again_then(age: float, over: bool) -> None:
    known = facts(**FOLLOWED, lost=ago(age), failure="cut off")
    assert lapsed(known, NOW) == over
    assert next_change(known, NOW) == (None if over else NOW + timedelta(seconds=600 - age))
    assert not lapsed(structs.replace(known, lifetime=0.0), NOW)


def test_a_verdict_changes_at_the_time_of_next_change_and_not_before() -> None:
    known = facts(**FOLLOWED, heartbeat=Heartbeat(time=ago(100), good_for=LATE))
    due = next_change(known, NOW)
    assert due is not None
    before, then = judge(known, due - timedelta(milliseconds=1)), judge(known, due)
    assert before == judge(known, NOW) != then
    assert next_change(known, due) is None


def test_a_verdict_changes_two_weeks_before_a_certificate_ends_and_when_it_does() -> None:
    known = facts(**FOLLOWED, expiry=Expiry("/peers/c2.crt", NOW + timedelta(days=20)))
    first = next_change(known, NOW)
    assert first == NOW + timedelta(days=6)
    assert judge(known, first - timedelta(milliseconds=1)).reason == ""
    assert " ends at " in judge(known, first).reason
    last = next_change(known, first)
    assert last == NOW + timedelta(days=20)
    assert " ended at " in judge(known, last).reason
    assert next_change(known, last) is None


@pytest.mark.parametrize("at", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
def test_the_first_and_the_last_time_that_there_is_are_ends_of_certificates_like_any_other(at: datetime) -> None:
    known = facts(**FOLLOWED, expiry=Expiry("/peers/c2.crt", at))
    assert (" ended at " in judge(known, NOW).reason) is (at < NOW)
    assert (next_change(known, NOW) is None) is (at < NOW)


def test_when_a_certificate_ends_is_in_the_row_long_before() -> None:
    assert judge(facts(), NOW).certificate_ends == ""
    known = facts(expiry=Expiry("/peers/c2.crt", NOW + timedelta(days=300)))
    assert judge(known, NOW).certificate_ends == "2027-09-18T12:00:00Z"


def test_the_certificate_that_a_peers_etcd_shows_counts_like_our_own_files() -> None:
    end = NOW + timedelta(days=3)
    served = Expiry("the certificate that https://192.0.2.2:2379 shows", end)
    known = facts(**FOLLOWED, expiry=Expiry("/peers/c2.crt", NOW + timedelta(days=300)), served=served)
    row = judge(known, NOW)
    assert (row.state, row.certificate_ends) == ("ready", "2026-11-25T12:00:00Z")
    assert row.reason.startswith("the certificate that https://192.0.2.2:2379 shows ends at 2026-11-25 12:00 UTC")
    assert next_change(known, NOW) == end
    renewed = structs.replace(known, served=served._replace(time=NOW + timedelta(days=90)))
    assert judge(renewed, NOW).reason == ""
