"""Who a cluster is: Cilium's cluster configuration, beside it a description of our own, and which ids are taken."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, Literal

import msgspec
from msgspec import Struct, structs

from isthmus.clusterset import decoding
from isthmus.clusterset.errors import RecordError
from isthmus.config import LABEL, ClusterSection
from isthmus.model.drains import Drain
from isthmus.model.names import ClusterName
from isthmus.model.services import Labels
from isthmus.times import timestamp

LIMIT: Final = 64 * 1024
Most = Literal[255, 511]
MOST_GATEWAYS: Final = 32
MOST_LABELS: Final = 64
MOST_DRAINS: Final = 100
"""Drains of one peer that count, the first by order: nodes of a cluster that is being replaced, and services."""
MOST_CHARACTERS: Final = 300
MOST_SECONDS: Final = 604_800
SLICES_ONLY: Final = "endpointslices-only"


class Capabilities(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """What a cluster's publisher does. Absent fields are what older ones do; unknown ones are skipped."""

    synced_canaries: bool = False
    cached: bool = False
    max_connected_clusters: int = 0
    service_exports_enabled: bool | None = None
    """Presence is what counts: None is a publisher that knows no service exports."""
    endpoint_slices_export_mode: str = ""


class ClusterConfig(Struct, frozen=True, gc=False, omit_defaults=True):
    """Cilium's cluster configuration."""

    id: int = 0
    capabilities: Capabilities = Capabilities()

    def refusal(self, *, most: Most) -> str:
        """Why a cluster of this configuration cannot be followed, as a sentence; empty where it can."""
        if not 0 < self.id <= most:
            return f"its cluster id is {self.id}: want 1 to {most}"
        theirs = self.capabilities.max_connected_clusters
        if most == 511 and theirs != most:
            return f"its maxConnectedClusters is {theirs or 'not set'}, ours {most}: ids of one could not be told apart"
        return ""


class Description(Struct, frozen=True, gc=False, omit_defaults=True):
    """What Cilium has no place for."""

    network: str = ""
    region: str = ""
    zone: str = ""
    gateways: tuple[str, ...] = ()
    """Where calls from clusters of other networks come in: host:port."""
    version: str = ""
    away: str = ""
    """Written by a mirror: since when it cannot reach the cluster, RFC 3339."""
    silent: str = ""
    """Written by a mirror: since when the cluster has had no publisher, RFC 3339."""
    labels: tuple[str, ...] = ()
    """As key=value."""
    drains: tuple[Drain, ...] = ()
    """What of the cluster takes no new call; it may speak of itself, its nodes and its part of its services only."""

    def away_since(self, now: datetime) -> datetime | None:
        """Since when a mirror has not reached the cluster, as far as clocks agree; None where it does."""
        return min(now, datetime.fromisoformat(self.away)) if self.away else None

    def silent_since(self, now: datetime) -> datetime | None:
        """Since when the cluster has had no publisher, as a mirror saw it; None while it has one."""
        return min(now, datetime.fromisoformat(self.silent)) if self.silent else None


class _Config(Struct, gc=False):
    id: int = 0
    capabilities: Capabilities | None = None


_config = msgspec.json.Decoder(_Config)
_description = msgspec.json.Decoder(Description)


def decode_config(value: bytes) -> ClusterConfig:
    """A cluster's configuration; RecordError where it is none."""
    decoded = decoding.decode(value, _config, limit=LIMIT)
    return ClusterConfig(decoded.id, decoded.capabilities or Capabilities())


def decode_description(value: bytes, *, now: datetime) -> Description:
    """A cluster's description of itself; an empty one where it cannot be read. Of gateways and labels the bad ones go.

    A time that cannot be read is taken as ``now``; a drain with one, or that is about nothing, goes.
    """
    try:
        decoded = decoding.decode(value, _description, limit=LIMIT)
    except RecordError:
        return Description()
    gateways = tuple(filter(decoding.is_gateway, decoded.gateways))[:MOST_GATEWAYS]
    labels = tuple(each for each in decoded.labels if re.fullmatch(LABEL, each))[:MOST_LABELS]
    return structs.replace(
        decoded,
        gateways=gateways,
        labels=labels,
        away=_time(decoded.away, now=now),
        silent=_time(decoded.silent, now=now),
        drains=tuple(each for drain in decoded.drains[:MOST_DRAINS] if (each := _drain(drain)) is not None),
    )


def _drain(found: Drain) -> Drain | None:
    """A peer's drain with its times in UTC and its numbers and texts bounded; None where it cannot be followed."""
    try:
        times = [decoding.parse_timestamp(text) if text else "" for text in (found.started, found.ends)]
    except RecordError:
        return None
    if not found.target or min(found.ramp, found.deadline or 0) < 0:
        return None
    return structs.replace(
        found,
        target=found.target[:MOST_CHARACTERS],
        reason=found.reason[:MOST_CHARACTERS],
        started=times[0],
        ends=times[1],
        ramp=min(found.ramp, MOST_SECONDS),
        deadline=None if found.deadline is None else min(found.deadline, MOST_SECONDS),
    )


def _time(text: str, *, now: datetime) -> str:
    try:
        return decoding.parse_timestamp(text) if text else ""
    except RecordError:
        return timestamp(now)


def encode(decoded: ClusterConfig | Description) -> bytes:
    """As JSON."""
    return msgspec.json.encode(decoded)


def own_config(section: ClusterSection, *, most: Most) -> ClusterConfig:
    """Our own configuration, for Cilium and for each other."""
    capabilities = Capabilities(synced_canaries=True, max_connected_clusters=most, service_exports_enabled=True)
    return ClusterConfig(section.id, capabilities)


def own_description(section: ClusterSection, *, version: str, drains: Iterable[Drain] = ()) -> Description:
    """Our own description, for other clusters of Isthmus."""
    asked = tuple(sorted(drains, key=lambda each: (each.kind, each.target, each.reason)))[:MOST_DRAINS]
    return Description(
        section.network,
        section.region,
        section.zone,
        section.gateways,
        version,
        labels=section.labels,
        drains=asked,
    )


def label_pairs(labels: Iterable[str]) -> Labels:
    """Labels of the form key=value as a row has them; of two with one key the last counts."""
    return tuple(sorted(dict(each.split("=", 1) for each in labels).items()))


class Ids:
    """Which cluster has which id: no two the same.

    An id is pinned when two clusters join: it is reserved for its cluster, present or not, and the cluster may
    have no other. An id that is not pinned belongs to the cluster that presents it first. The
    own cluster's is always its own.
    """

    def __init__(self, own: ClusterName, own_id: int) -> None:
        self._own = {own_id: own} if own_id else {}
        self._pins: dict[ClusterName, int] = {}
        self._holders: dict[int, ClusterName] = {}
        self.given_up = 0
        """How often an id was given up, or pinned to another: whoever was refused is to be looked at again."""

    def __repr__(self) -> str:
        return f"<Ids held {self._holders}, pinned {self._pins}>"

    def pin(self, pins: Mapping[ClusterName, int]) -> None:
        """These are the ids with which clusters have joined."""
        if pins != self._pins:
            self._pins = dict(pins)
            self.given_up += 1

    def reserve(self, cluster: ClusterName, wanted: int) -> str:
        """Take an id for a cluster, and give up the one it had; the reason as a sentence where it may not have it."""
        pinned = self._pins.get(cluster)
        if pinned not in (None, wanted):
            return (
                f"its cluster id is {wanted}, but it joined with {pinned}: only a cluster that joins anew may change it"
            )
        owner = self._own.get(wanted) or self._holders.get(wanted)
        if pinned is None:
            # Of two files that pin one id, which joining refuses, neither keeps the other's cluster from it for good.
            owner = self._own.get(wanted) or next((c for c, each in self._pins.items() if each == wanted), owner)
        elif owner is not None and wanted not in self._own and self._pins.get(owner) != wanted:
            owner = cluster  # the one that has it never joined with it
        if owner not in (None, cluster):
            return f"its cluster id {wanted} is that of cluster {owner}"
        self.release(cluster, but=wanted)
        self._holders[wanted] = cluster
        return ""

    def release(self, cluster: ClusterName, *, but: int = 0) -> None:
        """Give up what a cluster has, ``but`` one id."""
        for each in [each for each, name in self._holders.items() if name == cluster and each != but]:
            del self._holders[each]
            self.given_up += 1
