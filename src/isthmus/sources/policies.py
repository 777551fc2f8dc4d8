"""TrafficPolicy and GlobalTrafficPolicy objects as rows.

An invalid policy is a row whose field ``invalid`` gives the reason for its status; such a row has no other effect.
The bounds are those of the definition's schema, kept here as well for servers that do not enforce one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from msgspec.structs import replace

from isthmus import bounds, config
from isthmus.bounds import OutOfBounds, Syntax
from isthmus.kube.objects import policies as wire
from isthmus.model.balancing import Ejection
from isthmus.model.names import ClusterName, service_name, valid_cluster
from isthmus.model.policies import ANY_OTHER, THIS_CLUSTER, HealthCheck, Locality, Policy, PolicyKind, Share, Tier
from isthmus.model.services import Affinity, Labels
from isthmus.sources.normal import name_of, pairs

MAX_NAME: Final = 253
"""Characters of an object's name."""
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
"""Default weight of a cluster in a GlobalTrafficPolicy."""

MAX_INTERVAL: Final = 3_600
"""Seconds: longest interval between probes, and longest timeout of one."""
MAX_THRESHOLD: Final = 10
"""Probes in a row."""

HTTP_PATH: Final = Syntax(r"/[!-~]*", most=1024, meaning="a path")
HTTP_HOST: Final = Syntax(
    r"[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?(:[0-9]{1,5})?", most=259, meaning="a host, with or without a port"
)
GRPC_SERVICE: Final = Syntax(r"[A-Za-z0-9_.\-]+", most=100, meaning="the name of a gRPC service")
PERCENT: Final = Syntax(r"(100|[1-9][0-9]?)%", most=4, meaning="a percentage from 1% to 100%")
LOCALITIES: Final = ("Node", "Zone", "Region", "Cluster")


class Invalid(Exception):  # noqa: N818 about the object, not about us
    """A policy cannot be followed; the message names the field."""


def traffic_policy(policy: wire.TrafficPolicy) -> Policy:
    """The row of a TrafficPolicy."""
    meta, spec = policy.metadata, policy.spec
    name = name_of(meta)
    row = Policy(
        name=name,
        target=service_name(
            meta.namespace, bounds.text(spec.target_ref.name, most=MAX_NAME, field="spec.targetRef.name")
        ),
        kind="Service" if spec.target_ref.kind == "Service" else "ServiceImport",
        created=meta.creation_timestamp or "",
        uid=meta.uid,
        generation=meta.generation,
    )
    return _valid_or_not(row, lambda: _filled(row, spec))


def global_traffic_policy(kind: PolicyKind) -> Callable[[wire.GlobalTrafficPolicy], Policy]:
    """Return the conversion of a GlobalTrafficPolicy of one of the API groups that define it."""

    def convert(policy: wire.GlobalTrafficPolicy) -> Policy:
        meta = policy.metadata
        name = name_of(meta)
        row = Policy(name=name, policy_kind=kind, target=name, created=meta.creation_timestamp or "", uid=meta.uid)
        return _valid_or_not(row, lambda: replace(row, tiers=_of_type(policy.spec)))

    return convert


def _valid_or_not(row: Policy, filled: Callable[[], Policy]) -> Policy:
    try:
        return filled()
    except (Invalid, OutOfBounds) as error:
        return replace(row, invalid=str(error))


def _filled(row: Policy, spec: wire.TrafficPolicySpec) -> Policy:
    if not spec.target_ref.name:
        raise Invalid("spec.targetRef.name: empty")
    bounds.choice(spec.target_ref.kind, ("ServiceImport", "Service"), field="spec.targetRef.kind")
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


def _ejection(spec: wire.EjectionSpec) -> Ejection:
    usual = Ejection()
    after = _within("ejection.consecutiveFailures", spec.consecutive_failures, 0, MAX_FAILURES)
    base = _within("ejection.baseSeconds", spec.base_seconds, 1, MAX_EJECTION)
    longest = _within("ejection.maxSeconds", spec.max_seconds, 1, MAX_EJECTION)
    first = usual.first if base is None else base
    return Ejection(
        after=usual.after if after is None else after,
        first=first,
        longest=max(first, usual.longest if longest is None else longest),
    )


def _health(spec: wire.HealthCheckSpec) -> HealthCheck:
    usual, parent = HealthCheck(), "healthCheck"
    port = _within(f"{parent}.port", spec.port, 1, 65_535)
    interval = _within(f"{parent}.intervalSeconds", spec.interval_seconds, 1, MAX_INTERVAL)
    timeout = _within(f"{parent}.timeoutSeconds", spec.timeout_seconds, 1, MAX_INTERVAL)
    healthy = _within(f"{parent}.healthyThreshold", spec.healthy_threshold, 1, MAX_THRESHOLD)
    unhealthy = _within(f"{parent}.unhealthyThreshold", spec.unhealthy_threshold, 1, MAX_THRESHOLD)
    for field, value, syntax in (
        ("path", spec.path, HTTP_PATH), ("host", spec.host, HTTP_HOST), ("service", spec.service, GRPC_SERVICE)
    ):  # fmt: skip
        if value:
            syntax.text(value, field=f"spec.{parent}.{field}")
    check = HealthCheck(
        type=cast("Any", _one_of(spec.type, ("TCP", "HTTP", "GRPC"), f"{parent}.type") or "TCP"),
        port=port or 0,
        path=spec.path or usual.path,
        host=spec.host or "",
        service=spec.service or "",
        interval=usual.interval if interval is None else interval,
        timeout=usual.timeout if timeout is None else timeout,
        healthy_after=healthy or usual.healthy_after,
        unhealthy_after=unhealthy or usual.unhealthy_after,
    )
    if check.timeout > check.interval:
        raise Invalid(
            f"spec.{parent}.timeoutSeconds: {check.timeout:g} is more than intervalSeconds, {check.interval:g}"
        )
    return check


def _within(field: str, value: int | None, least: int, most: int) -> int | None:
    return None if value is None else bounds.count(value, least=least, most=most, field=f"spec.{field}")


def _tiers(tiers: list[wire.PolicyTier] | None) -> tuple[Tier, ...]:
    if tiers is not None and len(tiers) > MAX_TIERS:
        raise Invalid(f"spec.tiers: {len(tiers)} tiers, more than {MAX_TIERS}")
    return tuple(_tier(each, f"spec.tiers[{number}]") for number, each in enumerate(tiers or ()))


def _tier(tier: wire.PolicyTier, field: str) -> Tier:
    clusters = tier.clusters or []
    if not 1 <= len(clusters) <= MAX_CLUSTERS:
        raise Invalid(f"{field}.clusters: {len(clusters)} entries, not 1 to {MAX_CLUSTERS}")
    shares = tuple(_share(each, f"{field}.clusters[{number}]") for number, each in enumerate(clusters))
    min_healthy = tier.min_healthy
    if isinstance(min_healthy, str):
        percent = PERCENT.text(min_healthy, field=f"{field}.minHealthy").removesuffix("%")
        return Tier(shares, min_percent=bounds.count(percent, least=1, most=100))
    if min_healthy is None:
        return Tier(shares, min_healthy=1)
    return Tier(shares, min_healthy=bounds.count(min_healthy, least=1, most=MAX_WANTED, field=f"{field}.minHealthy"))


def _share(ref: wire.ClusterRef, field: str) -> Share:
    if bool(ref.name) == bool(ref.region or ref.zone or ref.match_labels):
        raise Invalid(f"{field}: want either name, or region, zone or matchLabels")
    for key, value in (("region", ref.region), ("zone", ref.zone)):
        bounds.text(value or "", most=MAX_PLACE, field=f"{field}.{key}")
    if ref.name and ref.name not in (ANY_OTHER, THIS_CLUSTER) and not valid_cluster(ref.name):
        raise Invalid(f"{field}.name: {bounds.shown(ref.name)} is not a cluster's name")
    return Share(
        cluster=ClusterName(ref.name or ""),
        weight=_weight(ref.weight, field),
        region=ref.region or "",
        zone=ref.zone or "",
        labels=cluster_labels(ref.match_labels or {}, f"{field}.matchLabels"),
    )


def cluster_labels(labels: dict[str, str], field: str) -> Labels:
    """Labels by which a policy selects clusters, within bounds."""
    if len(labels) > MAX_LABELS:
        raise Invalid(f"{field}: {len(labels)} labels, more than {MAX_LABELS}")
    for key, value in labels.items():
        config.LABEL.text(f"{key}={value}", field=field)
    return pairs(labels)


def _weight(weight: int | None, field: str) -> int | None:
    return None if weight is None else bounds.count(weight, most=MAX_WEIGHT, field=f"{field}.weight")


def _of_type(spec: wire.GlobalTrafficPolicySpec) -> tuple[Tier, ...]:
    """Return the tiers of a GlobalTrafficPolicy of each type (docs/policies.md)."""
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
            raise Invalid(f"spec.lbType: {bounds.shown(other)} is none of Locality, ActiveActive, FailOver")


def _target(target: wire.GlobalTarget, field: str) -> Share:
    """Return a target's share. Its key is ``region/zone/group/cluster``, or the cluster's name alone."""
    name = target.cluster_key.rpartition("/")[2]
    if not valid_cluster(name):
        raise Invalid(f"{field}.clusterKey: {bounds.shown(target.cluster_key)} does not end with a cluster's name")
    weight = FLOMESH_WEIGHT if target.weight is None else target.weight
    return Share(ClusterName(name), _weight(weight, field))


def _one_of(value: str | None, allowed: tuple[str, ...], field: str) -> str | None:
    return bounds.choice(value, allowed, field=f"spec.{field}") if value else None
