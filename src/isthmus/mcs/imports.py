"""The ServiceImport of a name: what the clusterset offers, where it answers here, and whether it can be used."""

from __future__ import annotations

from typing import Any, Final, Literal

from isthmus.desired import MANAGER, Condition, Draft, condition
from isthmus.desired.drafts import without_empty
from isthmus.mcs import words
from isthmus.mcs.view import View
from isthmus.model.hosts import family
from isthmus.model.mcs import Merged
from isthmus.model.services import ImportType, Port

MOST_ADDRESSES: Final = 2
MAX_DATAGRAM: Final = 65_507
"""Bytes of the largest datagram that passes gateways, either way: the largest that IPv4 has. An empty one does not."""

NotReady = Literal[
    "NamespaceNotGlobal", "IPFamilyNotSupported", "NoPorts", "ServiceNameTaken", "QuotaExceeded", "Pending"
]
"""Why an import cannot be used here. Pending passes by itself, the others do not."""


def service_import(view: View, merged: Merged) -> Draft:
    """The ServiceImport wanted for an exported name."""
    ips = addresses(view, merged)
    return Draft(
        "ServiceImport",
        view.name,
        content={"spec": _spec(view, merged, ips)},
        labels=words.exported_labels(merged.labels),
        annotations=_annotations(view, merged),
        status={
            "endpointSliceObjects": _slice_objects(view),
            "clusters": [{"cluster": name} for name in merged.clusters],
            "conditions": _conditions(view, ips),
        },
    )


def _slice_objects(view: View) -> Literal["Present", "Absent"]:
    """Return whether EndpointSlices of an exporting cluster stand behind the derived Service (KEP-1645).

    Endpoints of clusters on other networks stand in none, and those of peers are left out where the oldest export asks
    for that. A Service without endpoints counts as one that has some: nothing changes while it is scaled.
    """
    own = view.settings.cluster
    shown = [name for name, way in view.ways.items() if way == "direct" and (name == own or view.behind_import)]
    return "Present" if view.has_derived_service and shown else "Absent"


def addresses(view: View, merged: Merged) -> tuple[str, ...]:
    """Return the import's addresses: those of the derived Service, one of each family, in the import's order.

    While the Service is recreated, they are its former ones, which it requests again: callers keep the last answer.
    """
    if _type(view, merged) == "Headless":
        return ()
    service = view.derived_service
    if service is None or not service.cluster_ips:
        return view.had_addresses[:MOST_ADDRESSES] if view.has_derived_service else ()
    first = (next((ip for ip in service.cluster_ips if family(ip) == each), "") for each in view.families)
    return tuple(ip for ip in first if ip)[:MOST_ADDRESSES]


def _type(view: View, merged: Merged) -> ImportType:
    """Return the type of the exports, or the import's current one until the derived Service is of the new type.

    With the new type before its Service exists, the import's name would have neither an address nor endpoints.
    """
    current, service = view.found_import, view.derived_service
    if current is None or not view.has_derived_service:
        return merged.type
    headless = merged.type == "Headless"
    if service is not None and service.headless == headless and (headless or service.cluster_ips):
        return merged.type
    return current.type


def _spec(view: View, merged: Merged, ips: tuple[str, ...]) -> dict[str, Any]:
    affinity: dict[str, Any] = {"sessionAffinity": merged.affinity}
    if merged.affinity_timeout is not None:
        affinity["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": merged.affinity_timeout}}
    spec = {
        "ipFamilies": list(merged.families),
        "internalTrafficPolicy": merged.internal_policy,
        "trafficDistribution": merged.distribution,
    }
    return {
        "type": _type(view, merged),
        "ports": [_port(port) for port in merged.ports],
        "ips": list(ips),
        **affinity,
        **without_empty(spec),
    }


def _port(port: Port) -> dict[str, Any]:
    named = without_empty({"name": port.name, "appProtocol": port.app_protocol})
    return {"port": port.port, "protocol": port.protocol, **named}


def _annotations(view: View, merged: Merged) -> dict[str, str]:
    """The exported ones, and ours: they win, since others act on them."""
    derived = {words.DERIVED_SERVICE: view.derived_short} if view.derived_service is not None else {}
    had = "" if addresses(view, merged) else ",".join(view.had_addresses)
    kept = {words.CLUSTER_IPS: had} if had else {}
    exported = words.exported_annotations(merged.annotations)
    return {**exported, **derived, **kept, words.SUPPORTED_FAMILIES: ",".join(view.families)}


def _conditions(view: View, ips: tuple[str, ...]) -> list[Condition]:
    ready = _ready(view, ips)
    conditions = [ready]
    if view.stale or view.silent:
        unreachable = f"not reachable: {', '.join(view.stale)}; " if view.stale else ""
        silent = f"without a publisher: {', '.join(view.silent)}; " if view.silent else ""
        message = f"{unreachable}{silent}what they last published still counts"
        reason = "ClusterUnreachable" if view.stale else "ClusterSilent"
        conditions.append(condition("Stale", True, reason=reason, message=message))
    if ready["status"] == "True" and not view.endpoints_ready:
        text = "no cluster that exports it has a ready endpoint: calls fail"
        conditions.append(condition("EndpointsReady", False, reason="NoReadyEndpoints", message=text))
    if view.not_taken:
        reasons = ",".join(sorted({row.reason for row in view.not_taken}))
        text = "; ".join(dict.fromkeys(f"cluster {row.cluster}: {row.message}" for row in view.not_taken))
        conditions.append(condition("RecordsRefused", True, reason=reasons, message=text))
    if tunnelled := _tunnelled(view):
        text = f"{tunnelled}: called through gateways, by tunnels of TCP: datagrams of 1 to {MAX_DATAGRAM} bytes pass"
        conditions.append(condition("UDPThroughGateways", True, reason="Tunnelled", message=text))
    return conditions


def _tunnelled(view: View) -> str:
    """The ports of UDP that are called through gateways, with their clusters; empty: none."""
    merged = view.merged
    if merged is None or merged.type == "Headless":
        return ""
    found = []
    for port in merged.ports:
        clusters = sorted(
            name
            for name, way in view.ways.items()
            if way == "gateway" and name in view.agreed and port.name in view.agreed[name][1]
        )
        if port.protocol == "UDP" and clusters:
            found.append(f"{port.port}/UDP of {', '.join(clusters)}")
    return "; ".join(found)


def _ready(view: View, ips: tuple[str, ...]) -> Condition:
    """The first reason that holds."""

    def not_ready(reason: NotReady, message: str) -> Condition:
        return condition("Ready", False, reason=reason, message=message)

    if not view.shared:
        return not_ready("NamespaceNotGlobal", f"namespace {view.namespace.name} is not global in this cluster")
    if not view.families:
        return not_ready("IPFamilyNotSupported", f"this cluster has {','.join(view.settings.families)} only")
    if view.lacks_ports:
        return not_ready("NoPorts", "no cluster that exports it has a valid port")
    if view.taken:
        return not_ready("ServiceNameTaken", f"Service {view.derived} exists and is not managed by {MANAGER}")
    if view.over_quota is not None:
        share = f"its share of the {view.over_quota.limit} derived Services of this cluster"
        message = f"namespace {view.namespace.name} has {share} (clusterset.max_derived_services)"
        return not_ready("QuotaExceeded", message)
    service, headless = view.derived_service, view.merged is not None and view.merged.type == "Headless"
    if service is None or service.headless != headless or not (ips or headless):
        return not_ready("Pending", f"Service {view.derived} has no address yet")
    return condition("Ready", True, reason="Ready")
