"""Identity of a cluster: Cilium's cluster configuration, Isthmus's own description, and the allocation of ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct, structs

from isthmus import bounds
from isthmus.clusterset.errors import RecordError
from isthmus.clusterset.records import decoding, signing
from isthmus.clusterset.records.signing import Signing
from isthmus.config import LABEL, ClusterSection, PublishedEndpoints
from isthmus.model.drains import Drain
from isthmus.model.names import ClusterName
from isthmus.model.services import Labels
from isthmus.times import timestamp

LIMIT: Final = 64 * 1024
Most = Literal[255, 511]
MOST_GATEWAYS: Final = 32
MOST_LABELS: Final = 64
MOST_DRAINS: Final = 100
"""Maximum number of drains that are read of one peer: nodes of a cluster that is being replaced, and services."""
MOST_CHARACTERS: Final = 300
MOST_SECONDS: Final = 604_800
SLICES_ONLY: Final = "endpointslices-only"
MODES: Final[Mapping[PublishedEndpoints, str]] = {
    "services": "",
    "both": "services-and-endpointslices",
    "endpointslices": SLICES_ONLY,
}


class Capabilities(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Features of a cluster's publisher. Defaults are the behaviour of older publishers; unknown fields are skipped."""

    synced_canaries: bool = False
    cached: bool = False
    max_connected_clusters: int = 0
    service_exports_enabled: bool | None = None
    """Only presence matters: ``None`` if the publisher does not support service exports."""
    endpoint_slices_export_mode: str = ""
    """Form of the published endpoints: empty for service records; else slices in addition to these, or slices only."""

    @property
    def slices_only(self) -> bool:
        """True if there are no service records."""
        return self.endpoint_slices_export_mode == SLICES_ONLY


class ClusterConfig(Struct, frozen=True, gc=False, omit_defaults=True):
    """Cilium's cluster configuration."""

    id: int = 0
    capabilities: Capabilities = Capabilities()

    def refusal(self, *, most: Most) -> str:
        """Reason for not following a cluster of this configuration, a sentence; empty if it is acceptable."""
        if not 0 < self.id <= most:
            return f"its cluster id is {bounds.shown(self.id)}: want 1 to {most}"
        published = self.capabilities.max_connected_clusters
        if most == 511 and published != most:
            shown = bounds.shown(published) if published else "not set"
            return f"its maxConnectedClusters is {shown}, ours {most}: ids of one could not be told apart"
        return ""


class Description(Struct, frozen=True, gc=False, omit_defaults=True):
    """Facts about a cluster that Cilium's configuration has no fields for."""

    network: str = ""
    region: str = ""
    zone: str = ""
    gateways: tuple[str, ...] = ()
    """Addresses that accept calls from clusters of other networks, each host:port."""
    version: str = ""
    away: str = ""
    """Written by a mirror: time since which it cannot reach the cluster, RFC 3339."""
    silent: str = ""
    """Written by a mirror: time since which the cluster has had no publisher, RFC 3339."""
    labels: tuple[str, ...] = ()
    """Labels, each key=value."""
    drains: tuple[Drain, ...] = ()
    """Drains of the cluster itself, its nodes, or its part of a service; a cluster cannot drain another one."""
    signing: Signing = signing.NONE
    """How its nodes sign and verify the identity of callers."""

    def away_since(self, now: datetime) -> datetime | None:
        """Time since which a mirror has not reached the cluster, never after ``now``; None while it does."""
        return min(now, bounds.timestamp(self.away)) if self.away else None

    def silent_since(self, now: datetime) -> datetime | None:
        """Time since which a mirror has seen no publisher of the cluster; None while it has one."""
        return min(now, bounds.timestamp(self.silent)) if self.silent else None


class _Config(Struct, gc=False):
    id: int = 0
    capabilities: Capabilities | None = None


class _Described(Description, frozen=True, gc=False):
    signing: Any = None


_config = msgspec.json.Decoder(_Config)
_description = msgspec.json.Decoder(_Described)


def decode_config(value: bytes) -> ClusterConfig:
    """Decode a cluster's configuration; RecordError if it is malformed."""
    decoded = decoding.decode(value, _config, limit=LIMIT)
    return ClusterConfig(decoded.id, decoded.capabilities or Capabilities())


def decode_description(value: bytes, *, now: datetime) -> Description:
    """Decode a cluster's description; empty if it is malformed. Invalid gateways and labels are dropped.

    A malformed time is replaced by ``now``; a drain with a malformed time or without a target is dropped, and so is a
    malformed key of signatures.
    """
    try:
        decoded = decoding.decode(value, _description, limit=LIMIT)
    except RecordError:
        return Description()
    return bounded(decoded, now=now)


def bounded(description: Description, *, now: datetime) -> Description:
    """A description with each of its values within bounds; see :func:`decode_description`."""
    return Description(
        network=_text(description.network),
        region=_text(description.region),
        zone=_text(description.zone),
        gateways=tuple(filter(decoding.is_gateway, description.gateways))[:MOST_GATEWAYS],
        version=_text(description.version),
        away=_time(description.away, now=now),
        silent=_time(description.silent, now=now),
        labels=tuple(filter(LABEL.fits, description.labels))[:MOST_LABELS],
        drains=tuple(valid for drain in description.drains[:MOST_DRAINS] if (valid := _drain(drain)) is not None),
        signing=signing.bounded(description.signing),
    )


def _drain(drain: Drain) -> Drain | None:
    """A peer's drain with its times in UTC and its numbers and texts bounded; None if it is invalid."""
    try:
        times = [decoding.parse_timestamp(text) if text else "" for text in (drain.started, drain.ends)]
    except RecordError:
        return None
    if not drain.target or min(drain.ramp, drain.deadline or 0, drain.end_ramp) < 0:
        return None
    return structs.replace(
        drain,
        target=_text(drain.target),
        reason=_text(drain.reason),
        started=times[0],
        ends=times[1],
        ramp=min(drain.ramp, MOST_SECONDS),
        end_ramp=min(drain.end_ramp, MOST_SECONDS),
        deadline=None if drain.deadline is None else min(drain.deadline, MOST_SECONDS),
    )


def _text(text: str) -> str:
    """Printable text of at most MOST_CHARACTERS. Escapes keep texts with different unprintable characters distinct."""
    cut = text[:MOST_CHARACTERS]
    return cut if cut.isprintable() else ascii(cut)[1:-1][:MOST_CHARACTERS]


def _time(text: str, *, now: datetime) -> str:
    try:
        return decoding.parse_timestamp(text) if text else ""
    except RecordError:
        return timestamp(now)


def encode(decoded: ClusterConfig | Description) -> bytes:
    """Encode as JSON."""
    return msgspec.json.encode(decoded)


def own_config(
    section: ClusterSection, *, most: Most, publish_endpoints: PublishedEndpoints = "services"
) -> ClusterConfig:
    """Our own configuration, for Cilium and for each other."""
    capabilities = Capabilities(
        synced_canaries=True,
        max_connected_clusters=most,
        service_exports_enabled=True,
        endpoint_slices_export_mode=MODES[publish_endpoints],
    )
    return ClusterConfig(section.id, capabilities)


def own_description(
    section: ClusterSection, *, version: str, drains: Iterable[Drain] = (), signing: Signing = signing.NONE
) -> Description:
    """Our own description, for other clusters of Isthmus."""
    asked = tuple(sorted(drains, key=lambda drain: (drain.kind, drain.target, drain.reason)))[:MOST_DRAINS]
    return Description(
        section.network,
        section.region,
        section.zone,
        section.gateways,
        version,
        labels=section.labels,
        drains=asked,
        signing=signing,
    )


def label_pairs(labels: Iterable[str]) -> Labels:
    """Convert key=value labels to a row's pairs; the last value of a repeated key wins."""
    return tuple(sorted(dict(each.split("=", 1) for each in labels).items()))


class Ids:
    """Unique assignment of ids to clusters.

    An id is pinned when two clusters join: it is reserved for its cluster, present or not, and the cluster may
    have no other. An id that is not pinned belongs to the cluster that presents it first. The
    own cluster's is always its own.
    """

    def __init__(self, own: ClusterName, own_id: int) -> None:
        self.own = own
        self._own = {own_id: own} if own_id else {}
        self._pins: dict[ClusterName, int] = {}
        self._holders: dict[int, ClusterName] = {}
        self.given_up = 0
        """Count of ids released or pinned anew. When it grows, refused clusters must be judged again."""

    def __repr__(self) -> str:
        return f"<Ids held {self._holders}, pinned {self._pins}>"

    def pin(self, pins: Mapping[ClusterName, int]) -> None:
        """Replace the ids that are pinned because clusters joined with them."""
        if pins != self._pins:
            self._pins = dict(pins)
            self.given_up += 1

    def reserve(self, cluster: ClusterName, cluster_id: int) -> str:
        """Assign an id to a cluster and release its previous one. Returns the reason if refused, otherwise ""."""
        pinned = self._pins.get(cluster)
        if pinned not in (None, cluster_id):
            joined = f"it joined with {pinned}: only a cluster that joins anew may change it"
            return f"its cluster id is {cluster_id}, but {joined}"
        owner = self._own.get(cluster_id) or self._holders.get(cluster_id)
        if pinned is None:
            # Two files that pin one id, which joining refuses, must not lock each other's cluster out for good.
            owner = self._own.get(cluster_id) or next(
                (c for c, each in self._pins.items() if each == cluster_id), owner
            )
        elif owner is not None and cluster_id not in self._own and self._pins.get(owner) != cluster_id:
            owner = cluster  # the current owner did not join with this id, so the joined cluster takes it
        if owner not in (None, cluster):
            return f"its cluster id {cluster_id} is that of cluster {owner}"
        self.release(cluster, but=cluster_id)
        self._holders[cluster_id] = cluster
        return ""

    def release(self, cluster: ClusterName, *, but: int = 0) -> None:
        """Release a cluster's ids except ``but``."""
        for held_id in [each for each, name in self._holders.items() if name == cluster and each != but]:
            del self._holders[held_id]
            self.given_up += 1
