"""All exports of a service → the clusterset's one view of it. Pure: every cluster comes to the same, in any order.

The oldest export wins what cannot be joined, the cluster's name where two are of one second. Ports are joined, address
families are those of the oldest, and everything else is the oldest's. Every difference is a conflict, and each is
reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, NamedTuple

from isthmus.model.mcs import Conflict, Merged
from isthmus.model.names import ClusterName
from isthmus.model.services import Export, Family, Labels, Port

ImportFamilies = Literal["oldest", "common"]

SPELLED_OUT: Final = 5
"""Differences spelled out in one message; the rest is counted."""


class _Field(NamedTuple):
    """A field that the oldest export decides for all."""

    name: str
    reason: str
    value: Callable[[Export], Any]
    comparable: Callable[[Export, Export], bool] = lambda one, other: True


FIELDS: Final = (
    _Field("type", "TypeConflict", lambda e: e.type),
    _Field("sessionAffinity", "SessionAffinityConflict", lambda e: e.affinity),
    _Field(
        "sessionAffinityConfig.clientIP.timeoutSeconds",
        "SessionAffinityConfigConflict",
        lambda e: e.affinity_timeout,
        lambda one, other: one.affinity == other.affinity,  # with another affinity there is nothing to time
    ),
    _Field("exportedAnnotations", "AnnotationsConflict", lambda e: e.annotations),
    _Field("exportedLabels", "LabelsConflict", lambda e: e.labels),
    _Field("internalTrafficPolicy", "InternalTrafficPolicyConflict", lambda e: e.internal_policy or "Cluster"),
    _Field("trafficDistribution", "TrafficDistributionConflict", lambda e: e.distribution),
)


def merge(exports: Iterable[Export], import_families: ImportFamilies = "oldest") -> Merged | None:
    """Return the one view of exports of the same name, one per cluster; ``None`` without any.

    ``import_families``: ``oldest`` takes the address families of the oldest export that publishes any; ``common`` those
    that all exports have in common (Cilium's rule), which lets a newer export take an address that is in use away.
    """
    ranked = sorted(exports, key=lambda export: (export.created, export.cluster))
    if not ranked:
        return None
    oldest = ranked[0]
    ports, port_conflict = _ports(ranked)
    families, family_conflict = _families(ranked) if import_families == "oldest" else _common_families(ranked)
    fields = [_field(field, ranked) for field in FIELDS]
    return Merged(
        name=oldest.name,
        type=oldest.type,
        ports=ports,
        affinity=oldest.affinity,
        affinity_timeout=oldest.affinity_timeout,
        families=families,
        internal_policy=oldest.internal_policy,
        distribution=oldest.distribution,
        labels=oldest.labels,
        annotations=oldest.annotations,
        clusters=tuple(export.cluster for export in ranked),
        created=oldest.created,
        conflicts=tuple(c for c in (port_conflict, family_conflict, *fields) if c is not None),
    )


def _ports(ranked: list[Export]) -> tuple[tuple[Port, ...], Conflict | None]:
    """The union of all ports. A port is a number and a protocol and has one name: the oldest giver's stands."""
    union: dict[tuple[int, str], tuple[Port, Export]] = {}
    named: dict[str, tuple[Port, Export]] = {}
    differences: list[str] = []
    differing: set[ClusterName] = set()
    for export in ranked:
        for port in export.ports:
            known = named.get(port.name) or union.get((port.port, port.protocol))
            clash = _unnamed_clash(port, named) if known is None else _difference(port, *known)
            if clash:
                differences.append(f"{export.cluster} has {_port_text(port)}{clash}")
                differing.add(export.cluster)
            elif known is None:
                named[port.name] = union[port.port, port.protocol] = (port, export)
    ports = tuple(port for port, _ in union.values())
    differences += _missing([export for export in ranked if export.cluster not in differing], ports)
    return ports, Conflict("PortConflict", f"ports: {_sentence(differences)}") if differences else None


def _unnamed_clash(port: Port, named: dict[str, tuple[Port, Export]]) -> str:
    """A Service has one port, or names for all of them: what cannot stand beside the others is left out."""
    if named and not port.name:
        return ", which has no name and cannot stand beside others"
    if "" in named:
        return f", which cannot stand beside the unnamed port of {named[''][1].cluster}"
    return ""


def _meaning(port: Port) -> tuple[str, int, str, str]:
    return port.name, port.port, port.protocol, port.app_protocol


def _port_text(port: Port) -> str:
    return f"{port.name or '(unnamed)'} {port.port}/{port.protocol}" + (
        f" {port.app_protocol}" * bool(port.app_protocol)
    )


def _difference(port: Port, kept: Port, keeper: Export) -> str:
    """Where a port disagrees with the one that stands: what is in use instead; empty where they agree."""
    return f" (in use: {_port_text(kept)} of {keeper.cluster})" if _meaning(port) != _meaning(kept) else ""


def _missing(ranked: list[Export], union: tuple[Port, ...]) -> list[str]:
    """Exports that lack a port of the union. Their order means nothing: only which there are."""
    differences = []
    for export in ranked:
        have = {_meaning(port) for port in export.ports}
        lacking = [port for port in union if _meaning(port) not in have]
        if lacking:
            missing = ", ".join(_port_text(port) for port in lacking[:SPELLED_OUT])
            differences.append(
                f"{export.cluster} lacks {missing}" + (" and others" if len(lacking) > SPELLED_OUT else "")
            )
    return differences


def _sentence(differences: list[str]) -> str:
    more = len(differences) - SPELLED_OUT
    return "; ".join(differences[:SPELLED_OUT]) + (f"; and {more} more" if more > 0 else "")


def _families(ranked: list[Export]) -> tuple[tuple[Family, ...], Conflict | None]:
    """Return the families of the oldest export that has any, and the exports that lack one of them as a conflict."""
    families = next((export.families for export in ranked if export.families), ())
    lacking = [export for export in ranked if export.families and not set(families) <= set(export.families)]
    return families, _family_conflict(lacking, families)


def _family_conflict(exports: list[Export], families: tuple[Family, ...]) -> Conflict | None:
    if not exports:
        return None
    text = _sentence([f"{export.cluster} has {','.join(export.families)}" for export in exports])
    return Conflict("IPFamilyConflict", f"ipFamilies: {text}; in use: {','.join(families)}")


def _common_families(ranked: list[Export]) -> tuple[tuple[Family, ...], Conflict | None]:
    """Return the families that all exports have in common, in the oldest's order.

    An export that would leave none, or has none, is left out.
    """
    common: tuple[Family, ...] = ()
    refused: list[Export] = []
    for export in ranked:
        both = tuple(f for f in common if f in export.families) if common else export.families
        if export.families and not both:
            refused.append(export)
        common = both or common
    return common, _family_conflict(refused, common)


def _field(field: _Field, ranked: list[Export]) -> Conflict | None:
    oldest = ranked[0]
    kept = field.value(oldest)
    others = [export for export in ranked[1:] if field.comparable(oldest, export) and field.value(export) != kept]
    if not others:
        return None
    text = "; ".join(f"{export.cluster} has {_shown(field.value(export))}" for export in others[:SPELLED_OUT])
    return Conflict(
        field.reason,
        f"{field.name}: {len(others)}/{len(ranked)} clusters disagree: {text}; "
        f"in use: {_shown(kept)} of {oldest.cluster}, the oldest export",
    )


def _shown(value: str | int | Labels | None) -> str:
    """A value for people; long maps are cut."""
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return (
            "{"
            + ", ".join(f"{key}={text[:64]}" for key, text in value[:SPELLED_OUT])
            + (", …}" if len(value) > SPELLED_OUT else "}")
        )
    return str(value)
