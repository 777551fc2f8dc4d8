"""TrafficPolicy and GlobalTrafficPolicy objects as rows.

What is wrong with a policy becomes a field of its row, so that its status can name it; such a row has no other effect.
The bounds are those of the definition's schema, kept here as well for servers that do not enforce one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, cast

from msgspec.structs import replace

from isthmus import config
from isthmus.kube.objects import policies as wire
from isthmus.model.balancing import Ejection
from isthmus.model.names import ClusterName, service_name, valid_cluster
from isthmus.model.policies import ANY_OTHER, THIS_CLUSTER, HealthCheck, Locality, Policy, PolicyKind, Share, Tier
from isthmus.model.services import Affinity, Labels
from isthmus.sources.normal import name_of, pairs

MAX_TIERS: Final = 16
MAX_CLUSTERS: Final = 32
"""Entries of one tier."""
MAX_PLACE: Final = 63
"""Characters of a region or a zone."""
MAX_LABELS: Final = 8
MAX_WEIGHT: Final = 1_000_000
MAX_WANTED: Final = 1_000_000
MAX_FAILURES: Final = 1_000
MAX_EJECTION: Final = 3_600
"""Seconds."""
MAX_AFFINITY: Final = 86_400
"""Seconds: what the API allows a Service, too."""
FLOMESH_WEIGHT: Final = 100
"""What a cluster counts for in a GlobalTrafficPolicy that gives it no weight."""

MAX_INTERVAL: Final = 3_600
"""Seconds between probes, and that one may take."""
MAX_THRESHOLD: Final = 10
"""Probes in a row."""

HTTP_PATH: Final = re.compile(r"/[!-~]{0,1023}\Z")
HTTP_HOST: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9.]{0,251}[A-Za-z0-9])?(:[0-9]{1,5})?\Z")
GRPC_SERVICE: Final = re.compile(r"[A-Za-z0-9_.\-]{1,100}\Z")
PERCENT: Final = re.compile(r"(100|[1-9][0-9]?)%\Z")
LABEL: Final = re.compile(config.LABEL)
LOCALITIES: Final = ("Node", "Zone", "Region", "Cluster")


class Invalid(Exception):  # noqa: N818 about the object, not about us
    """A policy cannot be followed; the message names the field."""


def traffic_policy(policy: wire.TrafficPolicy) -> Policy:
    """The row of a TrafficPolicy."""
    meta, spec = policy.metadata, policy.spec
    name = name_of(meta)
    row = Policy(
        name=name,
        target=service_name(meta.namespace, spec.target_ref.name),
        kind="Service" if spec.target_ref.kind == "Service" else "ServiceImport",
        created=meta.creation_timestamp or "",
        uid=meta.uid,
        generation=meta.generation,
    )
    return _valid_or_not(row, lambda: _filled(row, spec))


def global_traffic_policy(kind: PolicyKind) -> Callable[[wire.GlobalTrafficPolicy], Policy]:
    """The conversion of a GlobalTrafficPolicy of one of the groups that have it."""

    def convert(policy: wire.GlobalTrafficPolicy) -> Policy:
        meta = policy.metadata
        name = name_of(meta)
        row = Policy(name=name, policy_kind=kind, target=name, created=meta.creation_timestamp or "", uid=meta.uid)
        return _valid_or_not(row, lambda: replace(row, tiers=_of_type(policy.spec)))

    return convert


def _valid_or_not(row: Policy, filled: Callable[[], Policy]) -> Policy:
    try:
        return filled()
    except Invalid as why:
        return replace(row, invalid=str(why))


def _filled(row: Policy, spec: wire.TrafficPolicySpec) -> Policy:
    if not spec.target_ref.name:
        raise Invalid("spec.targetRef.name: empty")
    if spec.target_ref.kind not in ("Service", "ServiceImport"):
        raise Invalid(f"spec.targetRef.kind: '{spec.target_ref.kind}' is neither ServiceImport nor Service")
    if spec.tiers and spec.locality:
        raise Invalid("spec.locality: tiers and locality exclude each other")
    affinity = _one_of(spec.session_affinity, ("None", "ClientIP"), "sessionAffinity")
    timeout = _within("sessionAffinityTimeoutSeconds", spec.session_affinity_timeout_seconds, 1, MAX_AFFINITY)
    balancing = _one_of(spec.load_balancing, ("Random", "ConsistentHash"), "loadBalancing")
    nothing = _one_of(spec.when_nothing_usable, ("UseAll", "Refuse"), "whenNothingUsable")
    return replace(
        row,
        tiers=_tiers(spec.tiers),
        locality=cast("Locality", _one_of(spec.locality, LOCALITIES, "locality") or ""),
        affinity=cast("Affinity | None", affinity),
        affinity_timeout=row.affinity_timeout if timeout is None else timeout,
        consistent=None if balancing is None else balancing == "ConsistentHash",
        refuse=nothing == "Refuse",
        ejection=_ejection(spec.ejection) if spec.ejection is not None else None,
        health=_health(spec.health_check) if spec.health_check is not None else None,
    )


def _ejection(found: wire.EjectionSpec) -> Ejection:
    usual = Ejection()
    after = _within("ejection.consecutiveFailures", found.consecutive_failures, 0, MAX_FAILURES)
    base = _within("ejection.baseSeconds", found.base_seconds, 1, MAX_EJECTION)
    longest = _within("ejection.maxSeconds", found.max_seconds, 1, MAX_EJECTION)
    first = usual.first if base is None else float(base)
    return Ejection(
        after=usual.after if after is None else after,
        first=first,
        longest=max(first, usual.longest if longest is None else float(longest)),
    )


def _health(found: wire.HealthCheckSpec) -> HealthCheck:
    usual, of = HealthCheck(), "healthCheck"
    port = _within(f"{of}.port", found.port, 1, 65_535)
    interval = _within(f"{of}.intervalSeconds", found.interval_seconds, 1, MAX_INTERVAL)
    timeout = _within(f"{of}.timeoutSeconds", found.timeout_seconds, 1, MAX_INTERVAL)
    healthy = _within(f"{of}.healthyThreshold", found.healthy_threshold, 1, MAX_THRESHOLD)
    unhealthy = _within(f"{of}.unhealthyThreshold", found.unhealthy_threshold, 1, MAX_THRESHOLD)
    for field, value, form in (
        ("path", found.path, HTTP_PATH), ("host", found.host, HTTP_HOST), ("service", found.service, GRPC_SERVICE)
    ):  # fmt: skip
        if value and form.match(value) is None:
            raise Invalid(f"spec.{of}.{field}: '{value[:64]}' cannot be one")
    check = HealthCheck(
        type=cast("Any", _one_of(found.type, ("TCP", "HTTP", "GRPC"), f"{of}.type") or "TCP"),
        port=port or 0,
        path=found.path or usual.path,
        host=found.host or "",
        service=found.service or "",
        interval=usual.interval if interval is None else float(interval),
        timeout=usual.timeout if timeout is None else float(timeout),
        healthy_after=healthy or usual.healthy_after,
        unhealthy_after=unhealthy or usual.unhealthy_after,
    )
    if check.timeout > check.interval:
        raise Invalid(f"spec.{of}.timeoutSeconds: {check.timeout:g} is more than intervalSeconds, {check.interval:g}")
    return check


def _within(field: str, value: int | None, least: int, most: int) -> int | None:
    if value is not None and not least <= value <= most:
        raise Invalid(f"spec.{field}: {value} is not between {least} and {most}")
    return value


def _tiers(found: list[wire.PolicyTier] | None) -> tuple[Tier, ...]:
    if found is not None and len(found) > MAX_TIERS:
        raise Invalid(f"spec.tiers: {len(found)} tiers, more than {MAX_TIERS}")
    return tuple(_tier(each, f"spec.tiers[{number}]") for number, each in enumerate(found or ()))


def _tier(found: wire.PolicyTier, field: str) -> Tier:
    clusters = found.clusters or []
    if not 1 <= len(clusters) <= MAX_CLUSTERS:
        raise Invalid(f"{field}.clusters: {len(clusters)} entries, not 1 to {MAX_CLUSTERS}")
    shares = tuple(_share(each, f"{field}.clusters[{number}]") for number, each in enumerate(clusters))
    wanted = found.min_healthy
    if isinstance(wanted, str):
        if PERCENT.match(wanted) is None:
            raise Invalid(f"{field}.minHealthy: '{wanted[:20]}' is not a percentage from 1% to 100%")
        return Tier(shares, min_percent=int(wanted[:-1]))
    if wanted is not None and not 1 <= wanted <= MAX_WANTED:
        raise Invalid(f"{field}.minHealthy: {wanted} is not between 1 and {MAX_WANTED}")
    return Tier(shares, min_healthy=wanted or 1)


def _share(found: wire.ClusterRef, field: str) -> Share:
    if bool(found.name) == bool(found.region or found.zone or found.match_labels):
        raise Invalid(f"{field}: want either name, or region, zone or matchLabels")
    for key, value in (("region", found.region), ("zone", found.zone)):
        if len(value or "") > MAX_PLACE:
            raise Invalid(f"{field}.{key}: longer than {MAX_PLACE} characters")
    if found.name and found.name not in (ANY_OTHER, THIS_CLUSTER) and not valid_cluster(found.name):
        raise Invalid(f"{field}.name: '{found.name[:64]}' is no cluster's name")
    return Share(
        cluster=ClusterName(found.name or ""),
        weight=_weight(found.weight, field),
        region=found.region or "",
        zone=found.zone or "",
        labels=_labels(found.match_labels or {}, f"{field}.matchLabels"),
    )


def _labels(found: dict[str, str], field: str) -> Labels:
    if len(found) > MAX_LABELS:
        raise Invalid(f"{field}: {len(found)} labels, more than {MAX_LABELS}")
    for key, value in found.items():
        if LABEL.match(f"{key}={value}") is None:
            raise Invalid(f"{field}: '{key[:64]}={value[:64]}' can be no label of a cluster")
    return pairs(found)


def _weight(weight: int | None, field: str) -> int | None:
    if weight is not None and not 0 <= weight <= MAX_WEIGHT:
        raise Invalid(f"{field}.weight: {weight} is not between 0 and {MAX_WEIGHT}")
    return weight


def _of_type(spec: wire.GlobalTrafficPolicySpec) -> tuple[Tier, ...]:
    """What the three ways of a GlobalTrafficPolicy come to, as docs/policies.md has it."""
    targets = spec.targets or []
    if len(targets) > MAX_CLUSTERS - 1:
        raise Invalid(f"spec.targets: {len(targets)} targets, more than {MAX_CLUSTERS - 1}")
    named = [_target(each, f"spec.targets[{number}]") for number, each in enumerate(targets)]
    here = Share(THIS_CLUSTER, FLOMESH_WEIGHT)
    match spec.lb_type:
        case "Locality":
            if len(named) > 1:
                raise Invalid("spec.targets: Locality has one target at most")
            return (Tier((Share(named[0].cluster) if named else Share(THIS_CLUSTER),)),)
        case "ActiveActive":
            return (Tier((*named, here)),) if named else ()
        case "FailOver":
            if not named:
                raise Invalid("spec.targets: FailOver wants one at least")
            if len(named) >= MAX_TIERS:
                raise Invalid(f"spec.targets: {len(named)} targets, more than {MAX_TIERS - 1}")
            return (Tier((Share(THIS_CLUSTER),)), *(Tier((share,)) for share in named))
        case other:
            raise Invalid(f"spec.lbType: '{other[:64]}' is none of Locality, ActiveActive, FailOver")


def _target(found: wire.GlobalTarget, field: str) -> Share:
    """The cluster's name is the last part of its key: ``region/zone/group/cluster``, or a name alone."""
    name = found.cluster_key.rpartition("/")[2]
    if not valid_cluster(name):
        raise Invalid(f"{field}.clusterKey: '{found.cluster_key[:64]}' does not end with a cluster's name")
    weight = FLOMESH_WEIGHT if found.weight is None else found.weight
    return Share(ClusterName(name), _weight(weight, field))


def _one_of(value: str | None, known: tuple[str, ...], field: str) -> str | None:
    if value and value not in known:
        raise Invalid(f"spec.{field}: '{value[:64]}' is none of {', '.join(known)}")
    return value or None
